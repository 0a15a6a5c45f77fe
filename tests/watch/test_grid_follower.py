"""A view of a grid: from run to run, total progress, time left, and what a stop means."""

import os
import platform
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from support.views import On, alive, drive, play, until, walk
from support.watching import STEP_S, append, make_run, row, status
from textual.pilot import Pilot

from smolsum.files import to_json
from smolsum.grpo.grid_train import GridWriter
from smolsum.runs import grid_follower
from smolsum.runs.control import is_requested
from smolsum.runs.document import as_document
from smolsum.runs.grid_follower import GridFollower, GridView
from smolsum.runs.paths import RunPaths
from smolsum.runs.reader import Run
from smolsum.runs.records import GRID, RunOfGrid
from smolsum.watch.app import WatchApp, plain_page
from smolsum.watch.model import ViewOptions

COMMAND = "smolsum train --model tiny --strategy all"


def ago(seconds: float) -> str:
    """A time so long ago, as files have it."""
    return (datetime.now(UTC) - timedelta(seconds=seconds)).isoformat()


def write(folder: Path, *runs: RunOfGrid, pid: int | None = None, state: str = "training", host: str = "") -> None:
    """The record of a grid that this process trains, or another one, perhaps on another machine."""
    found = {"pid": pid or os.getpid(), "host": host or platform.node(), "command": COMMAND, "state": state}
    rows = [{name: getattr(run, name) for name in run.__struct_fields__} for run in runs]
    (folder / GRID).write_bytes(to_json(found | {"runs": rows}))


def run(name: str, state: str = "to train", *, steps: int | None = 80, model: str = "tiny", **times: str) -> RunOfGrid:
    return RunOfGrid(name, model, state, steps, **times)  # type: ignore[arg-type]


def done(name: str, took_s: float = 200, *, ago_s: float = 0) -> RunOfGrid:
    return run(name, "done", began=ago(took_s), ended=ago(ago_s))


def now(name: str, state: str = "training", since_s: float = 9) -> RunOfGrid:
    return run(name, state, began=ago(since_s))


def view(folder: Path, name: str) -> GridView | None:
    follower = GridFollower(folder)
    follower.poll()
    return follower.view(RunPaths(folder / name))


def seen(folder: Path, name: str) -> GridView:
    found = view(folder, name)
    assert found is not None
    return found


def test_progress_and_time_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps and the rest of a run as those that ended had them; what was not measured is said to be left out."""
    begun = datetime.now(UTC)

    class Standing(datetime):
        """A clock that stands, for the records below and for the follower that reads them."""

        @classmethod
        def now(cls, tz: Any = None) -> datetime:
            return begun

    monkeypatch.setattr(grid_follower, "datetime", Standing)
    monkeypatch.setattr(sys.modules[__name__], "datetime", Standing)
    make_run(tmp_path, "a", steps=80)
    alive(tmp_path, "b")

    a, b = done("a", 300, ago_s=300 - 80 * STEP_S - 20), now("b", since_s=130)  # a took 20 s more than its steps
    write(tmp_path, a, b, run("c"))
    found = seen(tmp_path, "b")
    assert (found.number, found.total, found.left, found.at_least, found.loading) == (2, 3, ("c",), False, False)
    assert found.share == pytest.approx(140 / 240)
    assert found.left_s == pytest.approx((80 * STEP_S + 20 - 130) + (80 * STEP_S + 20))
    assert found.text.startswith("run 2 of 3, 58%, about ")

    write(tmp_path, a, b, run("c"), run("d", model="other"), run("e", steps=None))
    found = seen(tmp_path, "b")
    assert found.at_least
    assert found.left_s == pytest.approx((80 * STEP_S + 20 - 130) + (80 * STEP_S + 20))

    write(tmp_path, b, run("c"))  # nothing has ended: its own pace
    found = seen(tmp_path, "b")
    assert (found.number, found.at_least) == (1, True)
    assert found.left_s == pytest.approx(20 * STEP_S + 80 * STEP_S + 10)

    (tmp_path / "b" / "control" / "pause").touch()
    status(tmp_path / "b", "paused", 60, 80, heartbeat=ago(0))
    found = seen(tmp_path, "b")
    assert (found.left_s, found.text) == (None, "run 1 of 2, 38%")


def test_only_runs_of_a_grid_at_work(tmp_path: Path) -> None:
    """Other runs, and the runs of a grid that ended before, have no word of it; one that is killed says so."""
    make_run(tmp_path, "a")
    make_run(tmp_path, "other")
    assert view(tmp_path, "a") is None
    write(tmp_path, now("a"))
    assert view(tmp_path, "other") is None
    follower = GridFollower(tmp_path)
    follower.poll()

    def said() -> str:
        follower.poll()
        found = follower.view(RunPaths(tmp_path / "a"))
        assert found is not None
        return found.text

    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    write(tmp_path, now("a"), run("b"), pid=process.pid)
    assert view(tmp_path, "a") is None
    assert (said(), follower.under_way()) == ("grid stopped in run 1", None)
    write(tmp_path, done("a", 9, ago_s=1), run("b", "failed", began=ago(1)), state="ended")
    assert said() == "grid of 2 runs done, 1 failed"


def test_a_grid_of_another_machine_lives_by_the_heartbeat_of_its_run(tmp_path: Path) -> None:
    """Its process cannot be seen from here: it is at work while its run was heard of, or has just begun."""
    alive(tmp_path, "a")
    write(tmp_path, now("a", since_s=3600), pid=1, host="elsewhere")
    assert view(tmp_path, "a") is not None
    status(tmp_path / "a", "running", 60, 80, heartbeat=ago(3000))
    assert view(tmp_path, "a") is None
    write(tmp_path, now("a", "loading", 1), pid=1, host="elsewhere")
    assert view(tmp_path, "a") is not None


@pytest.mark.parametrize("damage", ["", "[]", '{"runs": 3}', '{"state": "training", "runs": [{"began": 7}]}'])
def test_a_damaged_record_is_no_grid(tmp_path: Path, damage: str) -> None:
    make_run(tmp_path, "a")
    (tmp_path / GRID).write_text(damage)
    assert view(tmp_path, "a") is None


@pytest.mark.parametrize("stamp", ["yesterday", "2026-11-24T10:00:00"])
def test_a_damaged_time_is_no_time(tmp_path: Path, stamp: str) -> None:
    """The grid is shown, without what depends on it."""
    make_run(tmp_path, "a", steps=80)
    alive(tmp_path, "b")
    write(tmp_path, run("a", "done", began=ago(300), ended=stamp), run("b", "training", began=stamp))
    assert seen(tmp_path, "b").text.startswith("run 2 of 2")


def test_the_writer_and_the_view_agree(tmp_path: Path) -> None:
    """What a grid writes is what a view reads; with nothing to train nothing is written."""
    GridWriter(tmp_path, [run("a", "done", steps=0)], COMMAND).close()
    assert not (tmp_path / GRID).exists()
    writer = GridWriter(tmp_path, [run("a", "done", steps=0), run("b"), run("c")], COMMAND)
    writer.mark(1, "loading")
    assert seen(tmp_path, "a").text == "run 2 of 3 loading, 0%"
    writer.mark(1, "failed", error="the disk is full")
    writer.mark(2, "loading")
    writer.mark(2, "training")
    found = seen(tmp_path, "c")
    assert (found.text, found.failed, found.command) == ("run 3 of 3, 1 failed, 50%", ("b",), COMMAND)
    writer.mark(2, "done")
    writer.close()
    assert view(tmp_path, "c") is None


def test_the_view_goes_from_run_to_run(tmp_path: Path) -> None:
    """On the same page, once the next run has begun; with the progress of all at every size."""
    a = alive(tmp_path, "a")
    write(tmp_path, now("a"), run("b"))

    def a_ends() -> None:
        status(a.root, "finished", 80, 80)
        append(a.metrics, [row(step, 80) for step in range(61, 81)])
        write(tmp_path, done("a"), now("b", "loading", 0))

    def b_begins() -> None:
        alive(tmp_path, "b")
        write(tmp_path, done("a"), now("b", since_s=0))

    play(
        a,
        ("tab", "run 1 of 2, 38%, at least "),
        (a_ends, "run 2 of 2 loading, 50%", " a  "),
        (b_begins, " b  ● RUNNING", "the next run of the grid: b (r lists all runs)", "run 2 of 2, 88%, about "),
        ("", On("charts")),
        size=(80, 24),
        following=True,
    )


def test_a_chosen_run_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A view that was opened on a run, or whose user chose one, does not jump; choosing the run under way follows."""
    a, b = make_run(tmp_path, "a"), alive(tmp_path, "b")
    write(tmp_path, done("a", ago_s=99), now("b", since_s=99), run("c"))
    follow, looked = WatchApp._follow, []

    def counted(app: WatchApp) -> bool:
        looked.append(app.watched.paths)
        return follow(app)

    def c_begins() -> None:
        alive(tmp_path, "c")
        write(tmp_path, done("a", ago_s=99), done("b", 99), now("c", since_s=0))

    monkeypatch.setattr(WatchApp, "_follow", counted)

    async def script(app: WatchApp, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: len(looked) > 2)
        assert app.watched.paths == a
        await walk(
            app,
            pilot,
            ("S", "the run is finished; b is being trained (r shows it)"),
            ("r", "2 runs, the newest first", "c  to train"),
            ("b enter", " b  ● RUNNING"),
            (c_begins, " c  ● RUNNING"),
        )

    drive(WatchApp(Run(a)), script)
    assert not is_requested(b, "stop")


def test_a_stop_says_what_it_ends(tmp_path: Path) -> None:
    """The run under way and the grid after it; while the next run is loaded, the run before takes the request."""
    a = alive(tmp_path, "a")
    write(tmp_path, now("a"), run("b"), run("c"))

    def b_is_loaded() -> None:
        status(a.root, "finished", 80, 80)
        write(tmp_path, done("a", 9, ago_s=1), now("b", "loading", 1), run("c"))

    play(
        a,
        ("S", "Run 1 of 3 finishes its step, saves and ends.", "the 2 runs after it are not", COMMAND),
        ("escape", "not stopped"),
        (lambda: write(tmp_path, now("a")), "run 1 of 1"),
        ("S", "It is the last of"),
        ("escape",),
        (b_is_loaded, "run 2 of 3 loading"),
        ("space", "run 2 of 3 is being loaded: try again once it trains", lambda _: not is_requested(a, "pause")),
        ("S",),
        ("=stop enter", "the grid ends before its next run", lambda _: is_requested(a, "stop")),
        following=True,
    )


def test_pages_without_a_terminal(tmp_path: Path) -> None:
    """`--once` and `--json` have the grid too."""
    paths = alive(tmp_path, "a")
    document = as_document(Run(paths))
    assert document["grid"] is None
    write(tmp_path, now("a"), run("b"))
    found = Run(paths)
    found.poll(time.monotonic())
    assert "run 1 of 2, 38%, at least" in "\n".join(plain_page(found, (), ViewOptions(), (120, 40))[:2])
    grid = as_document(found)["grid"]
    assert (grid["number"], grid["total"], grid["left"]) == (1, 2, ("b",))
