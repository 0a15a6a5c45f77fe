"""What is said about a run, and what is not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.watching import append, make_run, row

from smolsum.runs.reader import Run
from smolsum.watch.alerts import find_alerts

EXPECTED = "clipping never changed anything"


def said(tmp_path: Path, steps: int = 70, **changes: Any) -> list[str]:
    run = Run(make_run(tmp_path, steps=steps, total=160, **changes))
    run.poll()
    return [signal.sentence for signal in find_alerts(run)]


def test_a_run_that_learns(tmp_path: Path) -> None:
    """Nothing but that fresh rollouts leave nothing to clip, with the reason."""
    run = Run(make_run(tmp_path, steps=70, total=160))
    run.poll()
    (only,) = find_alerts(run)
    assert only.level == "note"
    assert only.sentence == f"{EXPECTED} in 70 steps"
    assert "fresh" in only.advice


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"frac_reward_zero_std": 0.75}, "75% of the groups of the last 50 steps have the same reward"),
        ({"reward_std": 0.0}, "rewards in a group hardly differ"),
        ({"clip_ratio/region_mean": 0.4}, "40% of the policy ratios were clipped"),
        ({"completions/clipped_ratio": 0.3}, "30% of the completions of the last 50 steps were cut"),
        ({"loss": None}, "loss was not finite in 70 steps"),
        ({"update/skipped": 1.0}, "50 of the last 50 updates had a gradient that is not finite"),
        ({"rewards/length/std": 9.0}, "length makes 98% of the reward's spread"),
        ({"update/lost_norm_frac": 0.6}, "60% of each update is lost to rounding"),
        ({"update/visible_frac": 0.0001}, "an update changes 0.01% of the weights"),
        ({"grad_norm": 3.0}, "nearly every gradient of the last 50 steps was cut to norm 1"),
    ],
)
def test_each_signal(tmp_path: Path, changes: dict[str, Any], sentence: str) -> None:
    """Numbers that an expert would stop at."""
    assert any(sentence in text for text in said(tmp_path, **changes)), said(tmp_path / "again", **changes)


def test_staleness(tmp_path: Path) -> None:
    """Over the bound that the run has, and only then."""
    paths = make_run(tmp_path, steps=70, total=160, **{"staleness/max": 5.0})
    run = Run(paths)
    run.poll()
    assert not [s for s in find_alerts(run) if "versions old" in s.sentence]
    paths.config.write_text(paths.config.read_text() + "[workers]\nmax_staleness = 2\n")
    run = Run(paths)
    run.poll()
    assert [s for s in find_alerts(run) if "up to 5 versions old in the last 50 steps; the bound is 2" in s.sentence]


def test_reward_against_validation_and_repetition(tmp_path: Path) -> None:
    """Reward rises while the validation's falls; reward rises while texts repeat themselves."""
    paths = make_run(tmp_path, steps=0, total=200)
    rows = []
    for step in range(1, 101):
        found = row(step, 200, reward=step / 100, **{"completions/repeated_trigrams": step / 500})
        found |= {"validation/reward": 1.0 - step / 100} if step % 10 == 0 else {}
        rows.append(found)
    append(paths.metrics, rows)
    run = Run(paths)
    run.poll()
    text = " ".join(signal.sentence for signal in find_alerts(run))
    assert "while the validation's fell from 0.7 to 0" in text
    assert "while repeated trigrams rose from 2.1% to 18.1%" in text


def test_a_stage_is_not_blamed_for_the_one_before(tmp_path: Path) -> None:
    """Only the steps of the stage at hand count, and the first few of them not at all."""
    paths = make_run(tmp_path, steps=80, total=160, **{"completions/clipped_ratio": 0.9})
    append(paths.metrics, [row(step, 160) for step in range(81, 86)])
    run = Run(paths)
    run.poll()
    assert run.stage == "quality"
    assert not [s for s in find_alerts(run) if "were cut" in s.sentence]
