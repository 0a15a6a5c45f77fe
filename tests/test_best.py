"""`smolsum eval --best`: the checkpoint that validation chose, not the last."""

from __future__ import annotations

from pathlib import Path

import pytest

from smolsum import checkpoints
from smolsum.config import to_toml
from smolsum.errors import SmolsumError, UsageError
from smolsum.evaluate.generate import GREEDY
from smolsum.grid.evaluate import evaluate_all
from smolsum.resolve import resolve
from smolsum.runs import RunPaths, create_run
from smolsum.subjects import Subject, find_subject


def a_run(runs: Path, best: dict[str, float | int]) -> RunPaths:
    """A run with checkpoints of steps 1 to 3, the last of which says which was best."""
    paths = create_run(runs, "mine")
    nothing = {"model": None, "strategy": None, "reward": None, "config_file": None}
    config = resolve(**nothing, presets=[], sets=[], flags={}, environ={}).config  # type: ignore[arg-type]
    paths.config.write_text(to_toml(config))
    for step in (1, 2, 3):
        checkpoints.save(paths, step, lambda folder: (folder / "x").touch(), {"best": best if step == 3 else {}})
    return paths


def chosen(runs: Path, *, best: bool) -> Subject:
    """What is evaluated."""
    return find_subject(
        "mine", split="test", sampler=GREEDY, name=None, runs_dir=runs, config_file=None, sets=[], best=best
    )


def test_best_by_validation(tmp_path: Path) -> None:
    """Step 2, in a folder of its own; without the flag the last."""
    a_run(tmp_path, {"reward": 0.5, "step": 2})
    found, last = chosen(tmp_path, best=True), chosen(tmp_path, best=False)
    assert found.checkpoint is not None
    assert last.checkpoint is not None
    assert (found.checkpoint.step, last.checkpoint.step) == (2, 3)
    assert found.folder.name == "step-000002-test"


def test_a_selection_that_was_never_validated(tmp_path: Path) -> None:
    """The hint is what helps, not the same command once more."""
    a_run(tmp_path, {})
    subjects = dict.fromkeys(("one", "two"), lambda: chosen(tmp_path, best=True))
    with pytest.raises(SmolsumError, match="2 of 2 evaluations failed: one, two") as refused:
        evaluate_all(subjects, split="test", sampler=GREEDY, judging=None, skip=True, quiet=True, remedy="the same")
    assert str(refused.value.hint).startswith("leave --best out")


def test_nothing_was_validated(tmp_path: Path) -> None:
    """An error with a remedy, for a run without validations and for a model."""
    a_run(tmp_path, {})
    with pytest.raises(UsageError, match="mine has no best checkpoint") as refused:
        chosen(tmp_path, best=True)
    assert "validate_every" in str(refused.value.hint)
    with pytest.raises(UsageError, match="tiny has no best checkpoint"):
        find_subject(
            "tiny", split="test", sampler=GREEDY, name=None, runs_dir=tmp_path, config_file=None, sets=[], best=True
        )
