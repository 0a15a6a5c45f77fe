"""What a run is called: model, strategy and reward can be told from the name."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from smolsum.config.resolve import resolve
from smolsum.config.run_labels import reward_of, strategy_of
from smolsum.config.sections import Config
from smolsum.runs.paths import planned_name
from smolsum.tasks import TASKS

STANDARD, CURRICULUM = "stages.standard.rewards", "stages.full_difficulty.rewards"
NAMES: list[tuple[str, dict[str, Any], list[str], str, str, str]] = [
    ("tldr", {"strategy": "finetuned", "reward": "meteor"}, [], "finetuned", "meteor", "finetuned-meteor"),
    ("tldr", {"strategy": "finetuned", "reward": "length"}, [], "length-only", "length-only", "length-length"),
    ("tldr", {"strategy": "included", "reward": "bleu-rouge"}, [], "included", "bleu-rouge", "included-bleu-rouge"),
    ("tldr", {"strategy": "constrained", "reward": "rouge"}, [], "constrained", "rouge", "constrained-rouge"),
    ("tldr", {"strategy": "sft-constrained", "reward": "rouge"}, [], "sft-constrained", "rouge",
     "sft-constrained-rouge"),
    ("tldr", {"strategy": "sft-included", "reward": "rouge"}, [], "sft-included", "rouge", "sft-included-rouge"),
    ("tldr", {"strategy": "any-length", "reward": "meteor-rouge"}, [], "any-length", "meteor-rouge",
     "any-length-meteor-rouge"),
    ("tldr", {"strategy": "short-sentences", "reward": "meteor-rouge"}, [], "short-sentences", "meteor-rouge",
     "short-sentences-meteor-rouge"),
    ("tldr", {"strategy": "short-sentences", "reward": "meteor"}, ["stages.length.rewards.length=1"],
     "short-sentences", "meteor (length=1)", "short-sentences-meteor"),
    ("tldr", {"strategy": "short-sentences", "reward": "length"}, [], "short-sentences", "length-only",
     "short-sentences-length"),
    ("tldr", {"strategy": "short-sentences", "reward": "meteor-rouge-bleu-grounded"},
     ["stages.length.rewards.rouge=3"], "short-sentences", "4 signals (rouge=3)",
     "short-sentences-4-signals-rouge-3"),
    ("tldr", {"strategy": "included", "reward": "meteor"}, ["stages.included.rewards.length=0"], "included",
     "meteor (length=0)", "included-meteor"),
    ("tldr", {"strategy": "finetuned", "reward": "meteor"}, ["stages.quality.rewards.rouge=0"], "finetuned",
     "meteor-rouge (rouge=0)", "finetuned-meteor-rouge"),
    ("strict-json", {"strategy": "standard"}, [], "standard", "6 signals", "standard-6-signals"),
    ("strict-json", {"strategy": "curriculum"}, [], "curriculum", "6 signals", "curriculum-6-signals"),
    ("strict-json", {"strategy": "think-standard"}, [], "think-standard", "7 signals", "think-standard-7-signals"),
    ("strict-json", {"strategy": "think-curriculum"}, [], "think-curriculum", "7 signals",
     "think-curriculum-7-signals"),
    ("strict-json", {"strategy": "standard"}, [f"{STANDARD}.schema=0.5"], "standard", "6 signals (schema=0.5)",
     "standard-6-signals-schema-0.5"),
    ("strict-json", {"strategy": "think-standard"}, ["sampling.max_new_tokens=128", f"{STANDARD}.repetition=0"],
     "think-standard", "7 signals (repetition=0)", "think-standard-7-signals-repetition-0"),
    ("strict-json", {"strategy": "curriculum"},
     [f"{CURRICULUM}.{name}=0.3" for name in ("format", "schema", "validity", "strictness")], "curriculum",
     "6 signals (own weights)", "curriculum-6-signals-own-weights"),
    ("ab-judge", {"strategy": "judge"}, [], "judge", "judgement-judgement_format-notes_length",
     "judge-judgement-judgement_format-notes_length"),
    ("doc-qa", {"strategy": "ranking"}, [], "ranking", "ranking-word_limit", "ranking-ranking-word_limit"),
]  # fmt: skip


def config(task: str, given: dict[str, Any], sets: list[str]) -> Config:
    return resolve(TASKS, flags={"task.name": task}, sets=sets, **given).config


@pytest.mark.parametrize(("task", "given", "sets", "strategy", "reward", "name"), NAMES)
def test_names_tell_strategy_and_reward(
    task: str, given: dict[str, Any], sets: list[str], strategy: str, reward: str, name: str, tmp_path: Path
) -> None:
    """Strategies whose stages have the same names are told apart, and so are weights that are not the strategy's."""
    found, presets = config(task, given, sets), TASKS[task].presets.strategies
    assert (strategy_of(asdict(found), presets), reward_of(asdict(found), presets)) == (strategy, reward)
    model = found.model.path.rpartition(":")[2]
    assert planned_name(found, presets, tmp_path).rpartition("-")[0].rpartition("-")[0] == f"{model}-{name}"


def test_stages_of_no_strategy_are_named_by_themselves() -> None:
    stages = {"stages": {"one": {"rewards": {"schema": 1.0}}, "two": {"rewards": {"schema": 1.0}}}}
    presets = TASKS["strict-json"].presets.strategies
    assert (strategy_of(stages, presets), reward_of(stages, presets)) == ("one+two", "schema")
