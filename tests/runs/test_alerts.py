"""What is said about a run, and what is not."""

import re
from pathlib import Path
from typing import Any

import pytest
from support.watching import append, make_run, row, stamp, status

from smolsum.runs.alerts import Alert, find_alerts
from smolsum.runs.paths import RunPaths
from smolsum.runs.reader import Run, read_run


def alerts(run: Run | RunPaths, word: str = "") -> list[Alert]:
    """Those whose sentence has this word."""
    found = find_alerts(run if isinstance(run, Run) else read_run(run))
    return [alert for alert in found if word in alert.sentence]


def said(run: Run | RunPaths, word: str = "") -> list[str]:
    return [alert.sentence for alert in alerts(run, word)]


def bounded(paths: RunPaths, most: int) -> RunPaths:
    head = paths.config.read_text().partition("[workers]")[0]
    paths.config.write_text(f"{head}[workers]\nmax_staleness = {most}\n")
    return paths


def test_a_run_that_learns(tmp_path: Path) -> None:
    """Nothing but that nothing was clipped; and not even that where rollouts are fresh, as it is expected there."""
    paths = make_run(tmp_path, steps=70, total=160)
    (only,) = alerts(paths)
    assert (only.level, only.sentence) == ("note", "clipping never changed anything in 70 steps")
    assert "higher learning rate" in only.advice
    paths.config.write_text(paths.config.read_text().replace('"recomputed"', '"sampler"'))
    assert said(paths) == []


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
        ({"grad_norm": 6.0}, "nearly every gradient of the last 50 steps was cut to norm 1"),
    ],
)
def test_each_signal(tmp_path: Path, changes: dict[str, Any], sentence: str) -> None:
    paths = make_run(tmp_path, steps=70, total=160, **changes)
    assert said(paths, sentence), said(paths)


def test_gradients_cut_by_little(tmp_path: Path) -> None:
    """Adam divides by the gradients' size: a factor that hardly changes from step to step costs nothing."""
    assert not said(make_run(tmp_path, steps=70, total=160, grad_norm=3.0), "nearly every gradient")


def test_old_rollouts(tmp_path: Path) -> None:
    """Over the bound that the run has, and only then: of its rollouts, and of a worker that samples nothing."""
    stale = make_run(tmp_path, "stale", steps=70, total=160, **{"staleness/max": 5.0})
    lags = {"workers/mini-2/lag": 42.0, "workers/mini-3/lag": 1.0}
    lagging = make_run(tmp_path, "lagging", steps=5, state="running", **lags)
    for paths in (stale, lagging):
        assert not said(paths, "versions old")
        assert not said(bounded(paths, 50), "versions old")
    assert said(bounded(stale, 2), "up to 5 versions old in the last 50 steps; the bound is 2")
    (alert,) = said(bounded(lagging, 1), "versions old, and the bound is 1")
    assert "mini-2 samples nothing: its weights are 42 versions old" in alert


def test_reward_against_validation_and_repetition(tmp_path: Path) -> None:
    """Reward rises while the validation's falls; reward rises while texts repeat themselves."""
    paths = make_run(tmp_path, steps=0, total=200)
    rows = [row(n, 200, reward=n / 100, **{"completions/repeated_trigrams": n / 250}) for n in range(1, 101)]
    for found in rows[9::10]:
        found["validation/reward"] = 1.0 - found["step"] / 100
    append(paths.metrics, rows[:39])
    assert not said(paths, "repeated trigrams")  # too early to say
    append(paths.metrics, rows[39:])
    text = " ".join(said(paths))
    assert "while the validation's fell from 0.7 to 0" in text
    assert "while repeated trigrams rose from 4.2% to 36.2%" in text


def test_a_stage_is_not_blamed_for_the_one_before(tmp_path: Path) -> None:
    """Only the steps of the stage at hand count, and the first few of them not at all."""
    paths = make_run(tmp_path, steps=80, total=160, **{"completions/clipped_ratio": 0.9})
    append(paths.metrics, [row(step, 160) for step in range(81, 86)])
    assert read_run(paths).stage == "quality"
    assert not said(paths, "were cut")


@pytest.mark.parametrize(("kind", "word"), [("worker_down", "has been down"), ("worker_silent", "has been silent")])
def test_a_worker_in_trouble(tmp_path: Path, kind: str, word: str) -> None:
    """An alert with its remedy while the run is at work; trouble once no worker is left; gone when it is back."""
    lags = {f"workers/mini-{n}/lag": 0.0 for n in (2, 3)}
    paths = make_run(tmp_path, steps=5, state="running", **lags)
    down = {"kind": kind, "worker": "mini-3", "message": "has not answered for 8 s", "hint": "see its log"}
    append(paths.events, [down | {"time": stamp(20)}])
    (alert,) = alerts(paths, word)
    assert (alert.level, alert.advice) == ("warning", "see its log")
    assert re.search(rf"worker mini-3 {word} since \d\d:\d\d:20: has not answered for 8 s", alert.sentence)
    append(paths.events, [down | {"time": stamp(21), "worker": "mini-2"}])
    assert [alert.level for alert in alerts(paths, word)] == ["trouble" if kind == "worker_down" else "warning"]
    append(paths.events, [{"time": stamp(22), "kind": "worker_up", "worker": f"mini-{n}"} for n in (2, 3)])
    assert not said(paths, word)
    append(paths.events, [down | {"time": stamp(23)}])
    status(paths.root, "finished", 80, 80)
    assert not said(paths, word)


def test_a_policy_that_stands_still(tmp_path: Path) -> None:
    """Reward, length and KL that do not move, after enough steps, with the sweep as the remedy."""
    flat = {"reward": -0.3, "kl": 1e-5, "learning_rate": 2e-6, "completions/mean_length": 30.0}
    (found,) = alerts(make_run(tmp_path, steps=120, total=400, **flat), "stands still")
    assert found.level == "warning"
    assert "--find-lr" in found.advice


def test_greedy_completions_of_another_length(tmp_path: Path) -> None:
    """Named where they are further from the samples than the tolerance, and only where length is a reward."""
    lengths = {"completions/mean_length": 19.0, "validation/completions/mean_length": 28.0}
    apart = make_run(tmp_path, "apart", steps=30, total=160, **lengths)
    assert said(apart, "greedy completions have 28 tokens and samples 19")
    close = make_run(tmp_path, "close", steps=30, total=160, **lengths | {"completions/mean_length": 24.0})
    assert not said(close, "greedy")


def test_damaged_lines_are_counted_once(tmp_path: Path) -> None:
    """One sentence for all damaged lines, which goes once the file is whole again; half a last line is not damaged."""
    paths = make_run(tmp_path)
    content = paths.metrics.read_bytes()
    paths.metrics.write_bytes(content + b'not JSON\n[1]\n{"loss": 1.0}\n\n{"step": 61')
    paths.events.write_bytes(paths.events.read_bytes() + b"\xff\n")
    run = read_run(paths)
    assert said(run, "damaged") == ["4 damaged lines are left out: 3 of metrics.jsonl and 1 of events.jsonl"]
    run.poll()
    assert run.damaged_lines == {"metrics.jsonl": 3, "events.jsonl": 1}
    paths.metrics.write_bytes(content)
    run.poll()
    assert run.damaged_lines == {"events.jsonl": 1}
    assert run.step == 60


def test_a_length_that_is_lost_where_nothing_rewards_it(tmp_path: Path) -> None:
    """A later stage that rewards quality alone is compared with the best of the whole run. A constraint is named."""
    paths = make_run(tmp_path, steps=0, total=160)
    shares = {"length": 0.95, "quality": 0.1}
    rows = [row(step, 160) for step in range(1, 161)]
    append(paths.metrics, [one | {"length/within_tol": shares[one["stage"]]} for one in rows])
    head, tail = paths.config.read_text().split("[stages.quality.rewards]\n")
    paths.config.write_text(f"{head}[stages.quality.rewards]\n{tail.replace('length = 1.0', '')}")
    (found,) = alerts(paths, "wanted length")
    assert "10% of the completions" in found.sentence
    assert "down from 95%" in found.sentence
    assert "stage quality does not reward the length: --strategy constrained keeps it, included" in found.advice
    append(paths.metrics, [row(161, 161) | {"length/within_tol": 0.1, "constraint/length_within_tolerance/share": 0.1}])
    (found,) = alerts(paths, "wanted length")
    assert "the constraint on it does not hold" in found.advice
    assert "stages.quality.temperature" in found.advice
