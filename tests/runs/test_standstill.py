"""Runs whose policy stands still, and runs that learn, have learnt, or have only begun."""

import math
from pathlib import Path
from typing import Any

import pytest
from support.watching import append, make_run, row

from smolsum.runs.paths import RunPaths
from smolsum.runs.reader import Run, read_run
from smolsum.runs.standstill import standstill

STILL = {"kl": 2e-5, "learning_rate": 2e-6, "stage": "length"}
"""what a rate that is a thousand times too small leaves of a step's metrics, apart from chance"""


def noise(step: int) -> float:
    """A number between -1 and 1 that follows from the step."""
    return math.sin(12.9898 * step) * 43758.5453 % 2 - 1


def still(step: int, **changes: Any) -> dict[str, Any]:
    found = row(step, 400, **STILL, reward=-0.35 + 0.1 * noise(step), entropy=0.45 + 0.02 * noise(3 * step))
    return found | {"completions/mean_length": 25 + 3 * noise(7 * step)} | changes


def run_of(folder: Path, rows: list[dict[str, Any]]) -> Run:
    paths: RunPaths = make_run(folder, steps=0, total=800)
    append(paths.metrics, [{key: value for key, value in one.items() if value is not None} for one in rows])
    return read_run(paths)


def test_a_run_that_learns_nothing(tmp_path: Path) -> None:
    """With a KL term its size says so; without one the entropy does."""
    said = standstill(run_of(tmp_path / "kl", [still(step) for step in range(1, 121)]))
    assert said == "the policy stands still: in 120 steps neither reward nor length moved, and KL is at most 2e-05"
    said = standstill(run_of(tmp_path / "none", [still(step, kl=None) for step in range(1, 121)]))
    assert said == "the policy stands still: in 120 steps neither reward nor length moved, nor did the entropy"


def test_a_long_run_that_learns_nothing(tmp_path: Path) -> None:
    """A stage of more steps than the reader keeps one by one."""
    assert "in 700 steps" in standstill(run_of(tmp_path, [still(step) for step in range(1, 701)]))


@pytest.mark.parametrize(
    "change",
    [
        lambda n: {"reward": -0.35 + 0.1 * noise(n) + 0.2 * n / 120},  # learns
        lambda n: {"completions/mean_length": 25 + n / 10},  # moves
        lambda n: {"kl": 0.05, "reward": 0.9},  # has moved, as after a stage that trained it
        lambda n: {"kl": 0.05 if n < 40 else 0.0},  # has moved and come back
        lambda n: {"frac_reward_zero_std": 0.9},  # no group ever did
        lambda n: {"learning_rate": 2e-6 * n},  # warms up
        lambda n: {"kl": None, "entropy": 0.45 - n / 500},
    ],
)
def test_runs_that_do_not_stand_still(tmp_path: Path, change: Any) -> None:
    """One sign of life is enough, and a warm-up is not judged."""
    assert not standstill(run_of(tmp_path, [still(n, **change(n)) for n in range(1, 121)]))


def test_a_young_stage_is_not_judged(tmp_path: Path) -> None:
    """Its steps count from its own first one, and from the end of the warm-up."""
    assert not standstill(run_of(tmp_path / "young", [still(step) for step in range(1, 100)]))
    warm = [still(step, learning_rate=min(step, 50) * 1e-6) for step in range(1, 140)]
    assert not standstill(run_of(tmp_path / "warm", warm))
    assert standstill(
        run_of(tmp_path / "warmed", [*warm, *(still(n, learning_rate=min(n, 50) * 1e-6) for n in range(140, 160))])
    )
    stages = [still(step) for step in range(1, 121)] + [still(step, stage="quality") for step in range(121, 190)]
    assert not standstill(run_of(tmp_path / "second", stages))
