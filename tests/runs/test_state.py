"""How a run stands, from its files alone."""

import json
import os
import platform
import shutil
import subprocess
import sys
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from support.watching import BEGAN, STEP_S, append, make_run, row, stamp, status

from smolsum.files import replace
from smolsum.runs.control import make_request
from smolsum.runs.evaluation_records import SUMMARY
from smolsum.runs.paths import RunPaths
from smolsum.runs.reader import read_run
from smolsum.runs.state import Pace, RunState, pace, process_lives, run_state

HERE = platform.node()
LAST_BEAT = 30 + 10 * STEP_S


def after(seconds: float) -> datetime:
    return BEGAN + timedelta(seconds=LAST_BEAT + seconds)


def begun(folder: Path, state: str = "running", **changes: Any) -> RunPaths:
    """A run after ten of its twenty steps."""
    paths = make_run(folder, steps=10, total=20, state=state)
    status(paths.root, state, 10, 20, **changes)
    return paths


def stands(paths: RunPaths, seconds: float = 1, *, lives: bool = True) -> RunState:
    return run_state(read_run(paths), after(seconds), lambda pid: lives)


@pytest.mark.parametrize(
    ("seconds", "host", "lives", "state"),
    [
        (1, HERE, True, "running"),
        (1, HERE, False, "running"),  # it may have ended this moment, and its last words are on their way
        (60, HERE, False, "STALE"),
        (3600, HERE, True, "running"),  # a process that was stopped, or a very long step
        (60, "mini-1", False, "running"),
        (3600, "mini-1", False, "STALE"),
    ],
)
def test_signs_of_life(tmp_path: Path, seconds: float, host: str, lives: bool, state: str) -> None:
    """The process counts on its own machine, elsewhere the heartbeat. Who knows that the process was gone before the
    files were read need not wait for its last words."""
    paths = begun(tmp_path, host=host)
    assert stands(paths, seconds, lives=lives).state == state
    gone = run_state(read_run(paths), after(seconds), lambda pid: lives, gone_s=0.0)
    assert gone.state == ("STALE" if host == HERE and not lives else state)


def test_stale_names_the_way_on(tmp_path: Path) -> None:
    """A crashed run says what is known of its end and how to go on; if it could still tell of an error, that comes
    first, with its hint."""
    paths = begun(tmp_path, host=HERE)
    found = stands(paths, 60, lives=False)
    assert "process 4242 is gone" in found.detail
    assert found.hint == f"smolsum train --resume {tmp_path / 'made'}"
    assert not found.alive
    append(paths.events, [{"time": stamp(60), "kind": "failed", "message": "out of memory", "hint": "smaller batches"}])
    found = stands(paths, 3600, lives=False)
    assert found.state == "STALE"
    assert found.detail.startswith("out of memory")
    assert found.hint == "smaller batches"


def test_failed_and_paused_runs_name_the_way_on(tmp_path: Path) -> None:
    """The error and its hint as the run left them; a paused run says that it may be killed, and what ends the pause."""
    found = stands(begun(tmp_path / "a", "failed", error="the disk is full", hint="free space there"), 9e9)
    assert (found.state, found.detail, found.hint) == ("failed", "the disk is full", "free space there")
    paths = begun(tmp_path / "b", "paused")
    make_request(paths, "pause")
    found = stands(paths)
    assert (found.state, found.hint) == ("paused", f"rm {paths.control / 'pause'}")
    assert "safe to kill" in found.detail


def test_requests_and_answers_show_at_once(tmp_path: Path) -> None:
    """What was asked is shown before the trainer answers; once a pause is taken back the run counts as running, though
    its trainer has not looked yet."""
    paths = begun(tmp_path)
    run = read_run(paths)
    for request, state in (("pause", "pausing"), ("stop", "stopping")):
        make_request(paths, request)
        assert run.poll()
        assert run_state(run, after(1)).state == state
    for state in ("pausing", "paused"):
        assert stands(begun(tmp_path / state, state)).state == "running"


def test_a_process_that_nobody_asked_how_it_ended() -> None:
    """It has a number still, and is gone all the same."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert process_lives(child.pid)
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert not process_lives(child.pid)
    assert not process_lives(child.pid)


def test_a_resumed_run_is_read_anew_and_a_vanished_one_keeps_what_was_read(tmp_path: Path) -> None:
    """Steps that a resumed run took back are gone from the view too."""
    paths = begun(tmp_path, "finished")
    run = read_run(paths)
    assert run.step == 10
    replace(paths.metrics, b"".join(paths.metrics.read_bytes().splitlines(keepends=True)[:4]), "")
    assert run.poll()
    assert (run.step, run.series["loss"].count) == (4, 4)
    shutil.rmtree(paths.root)
    assert run.poll()
    assert run_state(run, after(0)).state == "GONE"
    assert run.step == 4
    assert not run.poll()


def test_nothing_there_yet(tmp_path: Path) -> None:
    """A run that was only just made is waiting, and no error."""
    paths = make_run(tmp_path, steps=0, total=20)
    for path in (paths.status, paths.metrics, paths.events, paths.info):
        path.unlink(missing_ok=True)
    assert stands(paths).state == "waiting"
    assert read_run(paths).total == 0


def test_pace(tmp_path: Path) -> None:
    """Ten steps of 2 s are left; the time of a run that ended stands still, and one that rests comes to no end."""
    run = read_run(begun(tmp_path))
    took = pace(run, RunState("running"), after(5))
    assert (took.elapsed_s, took.eta_s) == (LAST_BEAT + 5, 10 * STEP_S)
    took = pace(run, RunState("STALE"), after(500))
    assert (took.elapsed_s, took.eta_s) == (LAST_BEAT, None)
    assert pace(run, RunState("paused"), after(5)) == Pace(LAST_BEAT + 5, None)


def test_evaluations_count_in_the_time_left(tmp_path: Path) -> None:
    """Those to come as long as the newest one took, the one under way in part; without a timed one, steps alone."""
    paths = begun(tmp_path)
    took = {"time": stamp(20), "kind": "evaluated", "message": "start", "seconds": 30.0}
    append(paths.events, [took])
    run = read_run(paths)
    assert pace(run, RunState("running"), after(5)).eta_s == 10 * STEP_S + 30.0
    append(paths.metrics, [row(step, 20) for step in range(11, 21)])
    status(paths.root, "running", 20, 20, phase="evaluating", stage="quality", completions=40, done=10)
    run.poll()
    assert pace(run, RunState("running"), after(5)).eta_s == 0.75 * 30.0
    # of the start, 32 of 200 prompts are evaluated, which took 15 s
    start = paths.stage_evaluation("start") / SUMMARY
    start.write_text(json.dumps(json.loads(start.read_text()) | {"n": 32, "whole": 200}))
    append(paths.events, [took | {"seconds": 15.0, "share": 32 / 200}])
    run.poll()
    assert pace(run, RunState("running"), after(5)).eta_s == pytest.approx((0.75 + 1 - 32 / 200) * 15.0 / (32 / 200))
    start.write_text(json.dumps(json.loads(start.read_text()) | {"whole": None}))
    append(paths.events, [took | {"seconds": None}])
    run.poll()
    assert pace(run, RunState("running"), after(5)).eta_s is None
