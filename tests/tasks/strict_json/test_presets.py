"""What the presets of strict JSON contain, and the warnings where the settings about thinking do not agree."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from smolsum.config.resolve import resolve
from smolsum.config.sections import Config
from smolsum.tasks import TASKS
from smolsum.tasks.strict_json.settings import settings


def resolved(*sets: str, model: str | None = None, strategy: str | None = None) -> Config:
    found = resolve(TASKS, model=model, strategy=strategy, sets=sets, flags={"task.name": "strict-json"})
    return found.config


@pytest.mark.parametrize(
    ("model", "strategy", "sets", "limit"),
    [
        ("qwen", "standard", (), 1024),
        ("qwen", "curriculum", (), 1024),
        ("qwen", "think-standard", (), 1280),
        ("gemma-2-2b", "think-curriculum", (), 1280),
        ("own/model", "think-standard", (), 1280),
        ("qwen", "think-standard", ("sampling.max_new_tokens=700",), 700),
        (None, "think-standard", (), 128),  # the built-in model's own limit stays
    ],
)
def test_tokens_of_a_completion(model: str | None, strategy: str, sets: Sequence[str], limit: int) -> None:
    """1024 for an answer and 1280 with thoughts, as in grpo-strict-generation."""
    assert resolved(*sets, model=model, strategy=strategy).sampling.max_new_tokens == limit


@pytest.mark.parametrize(
    ("model", "strategy", "train", "balanced"),
    [
        ("qwen", "standard", 4000, True),
        ("gemma-2-2b", "think-standard", 4000, True),
        ("qwen", "curriculum", 1500, True),
        (None, "standard", 1500, False),  # the built-in model's results are from these prompts
    ],
)
def test_prompts(model: str | None, strategy: str, train: int, balanced: bool) -> None:
    """The hub models train on as many prompts as in grpo-strict-generation, and are tested on a balanced split."""
    task = settings(resolved(model=model, strategy=strategy))
    assert (task.train_prompts, task.balanced_test, task.test_prompts) == (train, balanced, 300)


@pytest.mark.parametrize(
    ("strategy", "sets", "says"),
    [
        ("standard", (), []),
        ("think-curriculum", (), []),
        ("standard", ("task.think=true",), ["no weight on the signal reasoning in stage standard:"]),
        (
            "curriculum",
            ("task.think=true", "stages.progressive.rewards.reasoning=0.25"),
            ["in stages format_basics, full_difficulty:"],
        ),
        ("think-standard", ("task.think=false",), ["reasoning is in stage standard, and task.think = false"]),
        ("standard", ("stages.standard.rewards.reasoning=1",), ["reasoning is in stage standard, and task.think"]),
        ("think-standard", ("task.system_prompt=Answer in JSON.",), ["asks for no <think>"]),
        ("think-standard", ("task.system_prompt=Plan in <think>, then answer.",), []),
    ],
)
def test_thinking_that_is_not_rewarded_or_not_asked_for(strategy: str, sets: Sequence[str], says: list[str]) -> None:
    """One warning with a remedy where prompt and reward differ, none where they agree."""
    found = TASKS["strict-json"].check(resolved(*sets, strategy=strategy))
    assert len(found) == len(says)
    assert all(part in warning for part, warning in zip(says, found, strict=True))
