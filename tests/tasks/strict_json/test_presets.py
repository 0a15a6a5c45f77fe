"""What the presets of strict JSON contain, and the warnings where the settings about thinking do not agree."""

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
    ("model", "strategy", "limit", "train", "balanced"),
    [
        ("qwen", "standard", 1024, 4000, True),
        ("qwen", "curriculum", 1024, 1500, True),
        ("qwen", "think-standard", 1280, 4000, True),
        ("gemma-2-2b", "think-curriculum", 1280, 1500, True),
        ("own/model", "think-standard", 1280, 4000, False),
        (None, "think-standard", 128, 1500, False),  # the built-in model's own limit, and the prompts of its results
    ],
)
def test_tokens_and_prompts(model: str | None, strategy: str, limit: int, train: int, balanced: bool) -> None:
    """1024 tokens for an answer and 1280 with thoughts, as in grpo-strict-generation. The hub models with a preset
    train on as many prompts as there, and are tested on a balanced split."""
    config = resolved(model=model, strategy=strategy)
    task = settings(config)
    assert config.sampling.max_new_tokens == limit
    assert (task.train_prompts, task.balanced_test, task.test_prompts) == (train, balanced, 300)
    own = resolved("sampling.max_new_tokens=700", model=model, strategy=strategy)
    assert own.sampling.max_new_tokens == 700


@pytest.mark.parametrize(
    ("strategy", "sets", "says"),
    [
        ("standard", (), []),
        ("think-curriculum", (), []),
        ("standard", ("task.think=true",), ["no weight on the signal reasoning in stage standard:"]),
        ("curriculum", ("task.think=true", "stages.progressive.rewards.reasoning=0.25"),
         ["format_basics, full_difficulty"]),
        ("think-standard", ("task.think=false",), ["reasoning is in stage standard, and task.think = false"]),
        ("standard", ("stages.standard.rewards.reasoning=1",), ["reasoning is in stage standard, and task.think"]),
        ("think-standard", ("task.system_prompt=Answer in JSON.",), ["asks for no <think>"]),
        ("think-standard", ("task.system_prompt=Plan in <think>, then answer.",), []),
    ],
)  # fmt: skip
def test_thinking_that_is_not_rewarded_or_not_asked_for(strategy: str, sets: Sequence[str], says: list[str]) -> None:
    """One warning with a remedy where prompt and reward differ, none where they agree."""
    found = TASKS["strict-json"].check(resolved(*sets, strategy=strategy))
    assert len(found) == len(says)
    assert all(part in warning for part, warning in zip(says, found, strict=True))
