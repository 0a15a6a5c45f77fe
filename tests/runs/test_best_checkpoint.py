"""`smolsum eval --best`: the checkpoint that validation chose, not the last."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from support.refusals import refuses

from smolsum.config.resolve import resolve, to_toml
from smolsum.results.evaluate.evaluated_model import Target, TargetOptions, find_target
from smolsum.results.evaluate.run import evaluate_all
from smolsum.results.evaluate.sampling import GREEDY
from smolsum.runs import checkpoints
from smolsum.runs.paths import RunPaths, create_run
from smolsum.tasks import TASKS

LENGTH, QUALITY, BASICS, HARD = "length", "quality", "format_basics", "full_difficulty"


def a_run(runs: Path, saved: Mapping[int, Mapping[str, Any]], task: str = "tldr", strategy: str = "finetuned") -> None:
    """A run with these checkpoints: by step what meta.json has."""
    paths = create_run(runs, "mine")
    config = resolve(TASKS, strategy=strategy, flags={"task.name": task}).config
    RunPaths(paths.root).config.write_text(to_toml(config))
    for step, meta in saved.items():
        checkpoints.save(paths, step, lambda folder: (folder / "x").touch(), meta)


def of(stage: str, **validation: float) -> dict[str, Any]:
    return {"stage": stage, "validation": validation, "best": {}}


def chosen(runs: Path, *, best: bool = True) -> Target:
    return find_target("mine", TargetOptions("test", GREEDY, runs), best=best)


def step_of(subject: Target) -> int:
    assert subject.checkpoint is not None
    return subject.checkpoint.step


def test_best_by_validation(tmp_path: Path) -> None:
    """Step 2, in its own folder; without the flag the last."""
    a_run(tmp_path, {1: of(QUALITY, reward=0.4), 2: of(QUALITY, reward=0.5), 3: of(QUALITY)})
    found, last = chosen(tmp_path), chosen(tmp_path, best=False)
    assert (step_of(found), step_of(last)) == (2, 3)
    assert found.folder.name == "step-000002-test"
    assert "step 2 of mine did best on the validation split (reward 0.500)" in found.chosen
    assert last.chosen == ""


def test_the_best_of_all_stages(tmp_path: Path) -> None:
    """By the task's score, whatever the reward; among equal ones by reward, as these stages are rewarded alike."""
    a_run(
        tmp_path,
        {
            1: of(BASICS, score=0.75, reward=0.1),
            2: of(BASICS, score=0.75, reward=0.3),
            3: of(BASICS, score=0.5, reward=0.9),
            4: of(HARD, score=0.75, reward=0.2),
            5: of(HARD),
        },
        task="strict-json",
        strategy="curriculum",
    )
    found = chosen(tmp_path)
    assert step_of(found) == 2
    assert found.chosen == "step 2 of mine did best on the validation split (passed 0.750, reward 0.300)"


@pytest.mark.parametrize(
    ("saved", "said"),
    [
        # the last stage that was validated has its best
        (
            {1: of(LENGTH, reward=0.9), 2: of(QUALITY, reward=0.2), 3: of(QUALITY, reward=0.1)},
            "of those of stage quality: its reward is not that of the stages before",
        ),
        # saved anew before a stop, without a validation
        ({1: of(QUALITY), 2: {"stage": QUALITY, "best": {"reward": 0.5, "step": 2}}, 3: of(QUALITY)}, ""),
    ],
)
def test_best_of_a_stage(tmp_path: Path, saved: dict[int, dict[str, Any]], said: str) -> None:
    a_run(tmp_path, saved)
    found = chosen(tmp_path)
    assert step_of(found) == 2
    assert found.chosen.endswith(said)


def test_nothing_was_validated(tmp_path: Path) -> None:
    """An error with a remedy, for a run without validations, for several, where the hint is not the same command once
    more, and for a model."""
    a_run(tmp_path, {1: of(QUALITY)})
    with refuses("mine", "validate_every"):
        chosen(tmp_path, best=True)
    subjects = dict.fromkeys(("one", "two"), lambda: chosen(tmp_path, best=True))
    with refuses("2 of 2", "one, two", "leave --best out"):
        evaluate_all(subjects, split="test", judging=None, skip=True, quiet=True, retry="the same")
    with refuses("tiny"):
        find_target("tiny", TargetOptions("test", GREEDY, tmp_path), best=True)
