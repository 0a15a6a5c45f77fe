"""`smolsum watch` where there is no terminal, and what it says of requests that cannot be met."""

import json
import os
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.calls import Call, done
from support.refusals import assert_refused
from support.watching import append, golden, make_run, row, stamp, status


@pytest.fixture(autouse=True)
def _utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Times of day are shown in the zone of the machine; a page has the size that is asked for."""
    monkeypatch.setenv("TZ", "UTC")
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("LINES", "40")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.fixture
def watch(call: Call, tmp_path: Path) -> Call:
    """`smolsum watch` of the runs in tmp_path."""
    return partial(call, "watch", "--runs-dir", tmp_path)


def test_once(tmp_path: Path, watch: Call) -> None:
    """The page as plain text, to the letter; nothing else on either stream. A copied run is one by its path, lock or
    not, and a half written line in it is no error."""
    paths = make_run(tmp_path / "a")
    golden("once.txt", done(watch(paths.root, "--once"))[0])
    copy = tmp_path / "b" / "made"
    copy.parent.mkdir()
    paths.root.rename(copy)
    (copy / "run.lock").unlink()
    with (copy / "metrics.jsonl").open("ab") as file:
        file.write(b'{"step": 61, "loss": 0.')
    code, out, err = watch(copy, "--once")
    assert (code, err, "\x1b" in out) == (0, "", False)
    golden("once.txt", out)


def test_newest_is_the_default(tmp_path: Path, watch: Call) -> None:
    """Without a name the newest run; a terminal that cannot redraw gets a page and the reason."""
    make_run(tmp_path, "older")
    os.utime(tmp_path / "older" / "run.lock", (1e9, 1e9))
    make_run(tmp_path, "newer")
    assert done(watch(), "not a terminal that can be redrawn")[0].startswith(" newer ")


def test_compared(tmp_path: Path, watch: Call) -> None:
    """Two runs on one page, or two documents."""
    make_run(tmp_path, "a")
    make_run(tmp_path, "b", steps=30)
    assert "B b + FINISHED 30/80" in done(watch("a", "b", "--once", "--ascii"))[0]
    assert [run["step"] for run in json.loads(done(watch("a", "b", "--json"))[0])["runs"]] == [60, 30]


def test_json(tmp_path: Path, watch: Call) -> None:
    """State, the last line of metrics.jsonl unrounded, signals and events."""
    paths = make_run(tmp_path, state="failed")
    status(paths.root, "failed", 60, 80, error="the disk is full", hint="free space")
    append(paths.metrics, [row(61, 80, loss=None)])
    found = json.loads(done(watch("made", "--json"))[0])
    assert (found["state"], found["detail"], found["hint"]) == ("failed", "the disk is full", "free space")
    assert found["metrics"] == row(61, 80, loss=None)
    assert (found["step"], found["steps"], found["stages"]) == (61, 80, {"length": 40, "quality": 40})
    assert {signal["level"] for signal in found["signals"]} <= {"trouble", "warning", "note"}
    assert found["sampling"] is None


def test_json_counts_what_is_sampled(tmp_path: Path, watch: Call) -> None:
    """Of a run that is alive; the groups of an update are no completions."""
    paths = make_run(tmp_path)
    counts = {"completions": 200, "done": 70, "tok_s": 512.5, "left_s": 12.0}
    now = datetime.now(UTC).isoformat()

    def sampling(**changes: str) -> Any:
        status(paths.root, "running", 0, 80, **{**counts, "heartbeat": now, **changes})
        return json.loads(done(watch("made", "--json"))[0])["sampling"]

    assert sampling() == counts
    assert sampling(phase="updating") is None
    assert sampling(heartbeat=stamp(0)) is None


def test_json_is_strict(tmp_path: Path, watch: Call) -> None:
    """NaN and infinities, wherever a run has them, are null: other readers refuse the words."""
    paths = make_run(tmp_path, steps=3)
    with paths.metrics.open("ab") as file:
        file.write(b'{"step": 4, "stage": "length", "loss": NaN, "kl": Infinity, "reward": 1e999, "grad_norm": 1.5}\n')
    with paths.events.open("ab") as file:
        file.write(b'{"kind": "warning", "message": "odd", "step": NaN, "more": [{"x": -Infinity}]}\n')
    found = json.loads(done(watch("made", "--json"))[0], parse_constant=pytest.fail)
    assert [found["metrics"][key] for key in ("loss", "kl", "reward", "grad_norm")] == [None, None, None, 1.5]
    assert found["events"][-1]["more"] == [{"x": None}]


def test_what_is_no_run_is_refused(tmp_path: Path, call: Call) -> None:
    """It is said what a directory lacks, and which runs there are instead."""
    runs = tmp_path / "elsewhere"
    made = make_run(runs).root
    watch = partial(call, "watch", "--once", "--runs-dir")
    assert_refused(watch(runs, tmp_path), str(tmp_path), "neither run.lock nor config.toml", "hint: choose from made")
    assert_refused(watch(tmp_path, runs), "elsewhere' is a directory of runs", f"hint: choose one of its runs: {made}")
    assert_refused(watch(tmp_path / "none"), "no runs in")
    assert_refused(watch(runs, "none"), "no run 'none' in")
    assert_refused(watch(runs, "--json"), "--once", "--json")


@pytest.mark.parametrize(
    ("flag", "remedy"), [("--ascii", "add --watch"), ("--readonly", "add --watch"), ("--watch", "leave --watch out")]
)
def test_train_has_a_view_on_a_terminal_alone(flag: str, remedy: str, call: Call) -> None:
    """Nothing is started where a view cannot be, and flags of the view need it."""
    assert_refused(call("train", flag), f"hint: {remedy}")
    assert not Path("runs").exists()
