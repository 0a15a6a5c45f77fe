"""The list of all runs: what it says, how it is filtered, and that the view becomes that of the chosen run."""

import gc
import os
import re
import time
import weakref
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import count
from pathlib import Path

import pytest
from support.views import Click, Gone, On, alive, drive, play, until, walk
from support.watching import append, make_run, measured, row, screen, status
from textual.pilot import Pilot

from smolsum.runs.listing import RunList
from smolsum.runs.paths import RunPaths
from smolsum.runs.reader import LAST_BYTES, Run, Tail
from smolsum.watch.app import WatchApp
from smolsum.watch.runs_list import PORTION_S, RunRow, groups, listed, run_rows


def aged(paths: RunPaths, seconds: float) -> RunPaths:
    then = time.time() - seconds
    os.utime(paths.lock, (then, then))
    return paths


def several(folder: Path) -> list[RunPaths]:
    """A finished, a paused and a killed run, the newest last."""
    first = aged(make_run(folder, "first"), 3 * 86400)
    waiting = aged(alive(folder, "waiting"), 7200)
    (waiting.control / "pause").touch()
    status(waiting.root, "paused", 60, 80, heartbeat=datetime.now(UTC).isoformat())
    killed = aged(make_run(folder, "killed", steps=30, state="running", reward=-0.5), 600)
    return [first, waiting, killed]


def rows_of(runs: RunList) -> list[RunRow]:
    """A row for each run."""
    return [RunRow([line], {"run": line.run.paths.name}) for line in runs.lines()]


def names(rows: list[RunRow]) -> list[str]:
    return [row.roots[0].name for row in rows]


def test_lines(tmp_path: Path) -> None:
    """State, stage, progress and age of each run, the newest first. A run is listed once it was read, and stays while
    it is read again."""
    several(tmp_path)
    runs = RunList(tmp_path)
    assert not runs.poll(0)
    assert runs.lines() == []
    assert runs.poll(5)
    assert [(line.run.paths.name, line.state.state, line.run.stage, line.progress) for line in runs.lines()] == [
        ("killed", "STALE", "length", "30/80"),
        ("waiting", "paused", "quality", "60/80"),
        ("first", "finished", "quality", "60/80"),
    ]
    assert names(listed(rows_of(runs), "PAUSED quality", "")) == ["waiting"]
    assert not runs.poll(0)
    assert len(runs.lines()) == 3


def test_results_of_the_test_split(tmp_path: Path) -> None:
    """The newest of each run, as its task writes them; the list is sorted by one, the best first, whichever way that
    is. A run without one comes last, the best has a star; not one that was not tested after its last stage, which comes
    behind those that were."""
    first, waiting, killed = several(tmp_path)
    measured(first, "quality", **{"length/within_tol": 0.9, "wrong": 0.2})
    measured(waiting, "quality", **{"length/within_tol": 0.7, "wrong": 0.1})
    measured(killed, "length", **{"length/within_tol": 0.95})
    runs = RunList(tmp_path)
    assert runs.poll(5)
    found = run_rows(rows_of(runs), [], 118)
    assert found.titles == ["", "run", "state", "step", "after", "on target", "wrong", "age"]
    assert [row[3:] for row in found.rows] == [
        ["30/80", "length", "95.0%", "", "10m00s"],
        ["60/80", "quality", "70.0%", "10.0%★", "2h00m"],
        ["60/80", "quality", "90.0%★", "20.0%", "3d00h"],
    ]
    assert names(listed(rows_of(runs), "", "on target")) == ["first", "waiting", "killed"]
    assert names(listed(rows_of(runs), "", "wrong")) == ["waiting", "first", "killed"]


def test_results_of_many_tasks(tmp_path: Path) -> None:
    """A column for each result where there is room, or one for all: no task is left out."""
    for number in range(3):
        own = [{"name": name, "title": f"{name} of {number}", "role": "quality"} for name in ("a", "b")]
        measured(make_run(tmp_path, f"run-{number}"), "quality", measures=own, a=0.5, b=0.25)
    runs = RunList(tmp_path)
    assert runs.poll(5)
    titles = run_rows(rows_of(runs), [], 200).titles
    assert all(f"{name} of {number}" in titles for name in ("a", "b") for number in range(3))
    found = run_rows(rows_of(runs), [], 72)
    assert found.titles == ["", "run", "state", "step", "results"]
    results = sorted(row[-1] for row in found.rows)
    assert results == [f"a of {number} 50.0%  b of {number} 25.0%" for number in range(3)]


def test_no_whole_metrics_file_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a long run only the end, alone and in a list of many runs, which reads each of them once."""
    long = make_run(tmp_path, "long", steps=400, total=400)
    assert long.metrics.stat().st_size > 10 * LAST_BYTES
    read = 0
    lines_of = Tail._next_lines

    def counted(tail: Tail) -> bytes:
        nonlocal read
        content = lines_of(tail)
        read += len(content)
        return content

    monkeypatch.setattr(Tail, "_next_lines", counted)
    run = Run(long, last_bytes=LAST_BYTES)
    run.poll()
    assert (run.step, run.last("reward")) == (400, row(400, 400)["reward"])
    assert 0 < read <= LAST_BYTES + long.events.stat().st_size
    append(long.metrics, [row(401, 410, reward=0.25)])
    run.poll()
    assert (run.step, run.last("reward")) == (401, 0.25)
    for number in range(40):
        (tmp_path / f"copy-{number}").mkdir()
        for name in ("status.json", "run.json", "config.toml", "metrics.jsonl", "run.lock"):
            os.link(long.root / name, tmp_path / f"copy-{number}" / name)
    runs, read = RunList(tmp_path), 0
    while not runs.poll(0.05):
        pass
    assert len(runs.lines()) == 41
    assert {line.progress for line in runs.lines()} == {"401/400"}
    assert read <= 41 * LAST_BYTES + long.events.stat().st_size


def test_filter_and_show(tmp_path: Path) -> None:
    """Typing filters, return shows that run in the same view on the same page; nothing of the run before is left."""
    _, waiting, killed = several(tmp_path)

    async def script(app: WatchApp, pilot: Pilot[None]) -> None:
        await walk(app, pilot, ("tab r", "3 runs, the newest first", "? STALE"))
        before = weakref.ref(app.watched)
        await walk(app, pilot, ("=wait", "1 of 3 runs"), ("enter", " waiting  ‖ PAUSED", On("charts")))
        assert app.watched.paths == waiting
        gc.collect()
        assert before() is None

    drive(WatchApp(Run(killed)), script)


def test_mouse_marks_and_escape(tmp_path: Path) -> None:
    """A click shows a run, or left of its name marks it; space marks several, which tab compares; escape changes
    nothing; enter shows one alone."""
    first, waiting, killed = several(tmp_path)
    play(
        killed,
        ("r", "3 runs, the newest first", "3d00h"),
        (Click(-1, 0, " first "), "1 marked", "A  first"),
        (Click(-1, 0, " first "), Gone("1 marked")),
        (Click(1, 0, " first "), " first  ✓ FINISHED"),
        ("r down escape", " first  ✓ FINISHED"),
        ("r", "3 runs, the newest first", "3d00h"),
        ("pageup down space up space", "2 marked", "A  waiting", "B  killed"),
        ("tab", " A waiting", On("compare")),
        ("r", "2 marked", "A  waiting"),  # still
        ("escape", lambda app: [run.paths for run in (app.watched, *app.others)] == [waiting, killed]),
        ("r", "2 marked"),
        ("enter", " waiting  ‖ PAUSED", On("overview"), lambda app: app.others == ()),  # one run alone
        size=(80, 24),
    )
    assert not (first.control / "stop").exists()


def test_sorted_by_results(tmp_path: Path) -> None:
    """Key by key by each result, then by age again; the bar stays on its run."""
    _, _, killed = runs = several(tmp_path)
    measured(runs[0], "quality", **{"length/within_tol": 0.9, "wrong": 0.2})

    def listed(app: WatchApp) -> list[str]:
        lines = [line.split() for line in screen(app).splitlines() if "/80 " in line and "│" in line]
        return [next(paths.name for paths in runs if paths.name in words) for words in lines]

    play(
        killed,
        ("r", "the newest first", " first "),
        ("down ctrl+s", "3 runs, the best on target first", lambda app: listed(app) == ["first", "killed", "waiting"]),
        ("ctrl+s", "the best wrong first"),
        ("ctrl+s", "the newest first"),
        ("enter", " waiting  ‖ PAUSED"),
    )


def test_two_runs_are_compared_with_two_keys(tmp_path: Path) -> None:
    """The shown one with the one before it; with a key for each row between, any other."""
    first, waiting, killed = several(tmp_path)

    def shows(*runs: RunPaths) -> Callable[[WatchApp], bool]:
        return lambda app: [run.paths for run in (app.watched, *app.others)] == [*runs]

    play(
        killed,
        ("r", "the newest first", " first "),
        ("tab", On("compare"), shows(killed, waiting)),
        ("r", "2 marked"),
        ("down down enter", shows(first)),
        ("r", "the newest first"),
        ("tab", On("compare"), shows(first, killed)),  # the oldest has none before it
    )


def test_the_run_in_view_is_found_however_long_runs_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bar is on it when it comes, behind newer ones; tab waits for what it compares with."""
    runs = [aged(make_run(tmp_path, f"run{n}", steps=2), 600 - n) for n in range(8)]
    clock = count(step=0.6 * PORTION_S)
    monkeypatch.setattr("smolsum.runs.listing.monotonic", lambda: next(clock))  # a run each time

    def shows(*some: RunPaths) -> Callable[[WatchApp], bool]:
        return lambda app: [run.paths for run in (app.watched, *app.others)] == [*some]

    play(runs[3], ("r", "8 runs, the newest first", " run0 "), ("tab", On("compare"), shows(runs[3], runs[2])))

    async def at_once(app: WatchApp, pilot: Pilot[None]) -> None:
        await pilot.press("r", "tab")
        await until(pilot, lambda: shows(runs[4], runs[3])(app))

    drive(WatchApp(Run(runs[4])), at_once)


def test_a_run_alone_has_nothing_to_be_compared_with(tmp_path: Path) -> None:
    play(make_run(tmp_path, "alone"), ("r", "1 run, the newest first"), ("tab", "there is no other run"))


def test_a_view_can_begin_with_the_list(tmp_path: Path) -> None:
    """As where several runs are at work: letters filter it, escape stays at the newest."""
    _, newer = [aged(alive(tmp_path, name), 60 - place) for place, name in enumerate(("older", "newer"))]
    play(
        newer,
        ("", "2 runs, the newest first"),
        ("z", "0 of 2 runs", " run  state  step  after  on target  age"),
        ("enter escape", " newer  ● RUNNING"),
        choosing=True,
    )


def test_runs_come_and_go_under_the_list(tmp_path: Path) -> None:
    """A run that begins appears by itself; one that is removed goes; the bar stays on its run."""
    play(
        aged(make_run(tmp_path, "stays"), 60),
        ("r", "1 run, the newest first"),
        ("ctrl+g", "1 group of 1 run, the newest first"),
        ("ctrl+g", "1 run, the newest first"),
        (lambda: make_run(tmp_path, "comes"), " comes "),
        (lambda: (tmp_path / "comes").rename(tmp_path.parent / f"{tmp_path.name}-gone"), Gone(" comes ")),
        ("enter", " stays  ✓ FINISHED"),
    )


def grid(folder: Path) -> list[RunPaths]:
    """Two rewards with two seeds each, the second seed of the second one at work; another run with a learning rate of
    its own. The newest last."""
    runs = []
    for place, (reward, seed) in enumerate((("meteor", 1), ("rouge", 1), ("rouge", 2), ("meteor", 2), ("slow", 1))):
        paths = make_run(folder, f"{reward}-{seed}") if (reward, seed) != ("rouge", 2) else alive(folder, "rouge-2")
        text = paths.config.read_text().replace("meteor", "rouge" if reward == "rouge" else "meteor")
        text = text.replace("4e-4", "1e-5") if reward == "slow" else text
        paths.config.write_text(f"{text}[run]\nname = '{paths.name}'\n\n[train]\nseed = {seed}\n")
        runs.append(aged(paths, 3600 - 60 * place))
    return runs


def test_seeds_share_a_row(tmp_path: Path) -> None:
    """Runs that differ in their seed alone, with what tells them from others, mean and spread of what was tested after
    the same stage, and the most urgent state. Only groups whose runs were all tested after their last stage have the
    best mean. The filter finds a group by any of its runs, and does not split it."""
    meteor_1, rouge_1, _, meteor_2, slow = grid(tmp_path)
    measured(slow, "quality", **{"length/within_tol": 0.545})
    measured(meteor_1, "quality", **{"length/within_tol": 0.9, "wrong": 0.2})
    measured(meteor_2, "quality", **{"length/within_tol": 0.8, "wrong": 0.4})
    measured(rouge_1, "quality", **{"length/within_tol": 0.95})
    untrained = make_run(tmp_path, "untrained")
    untrained.config.write_text(slow.config.read_text().replace("1e-5", "1e-7"))
    (untrained.stage_evaluation("length") / "summary.json").unlink()
    measured(aged(untrained, 10), "start", **{"length/within_tol": 0.99})

    def listed_as(app: WatchApp) -> list[list[str]]:
        lines = [re.split(r" {2,}", line.strip("│ ")) for line in screen(app).splitlines() if "length+" in line]
        return [[*line[:2], *line[3:6]] for line in lines if line[0].isdecimal()]

    expected = [
        ["1", "1e-07", "✓ finished", "start", "99.0%"],
        ["1", "1e-05", "✓ finished", "quality", "54.5%"],
        ["2", "0.0004", "✓ finished", "quality", "85.0% ±7.1%★"],
        ["2", "0.0004", "● running 1/2", "quality 1/2", "95.0%"],
    ]
    play(
        meteor_1,
        ("r", "6 runs, the newest first", "^g group seeds"),
        ("ctrl+g", "4 groups of 6 runs", "rewarded for", "^g ungroup", lambda app: listed_as(app) == expected),
        ("=running", "1 of 4 groups of 6 runs", lambda app: listed_as(app) == expected[-1:]),
        ("enter", " rouge-2  ● RUNNING"),  # the newest of its runs
        ("r", "4 groups of 6 runs"),  # still
        ("ctrl+g", "6 runs, the newest first", " meteor-1 "),
        (lambda: [make_run(tmp_path, f"damaged-{n}").config.unlink() for n in range(2)], "8 runs"),
        ("ctrl+g", "6 groups of 8 runs"),  # nobody knows whether these are alike
    )


def test_a_repeated_run_is_not_a_second_seed(tmp_path: Path) -> None:
    """Runs with the same settings and the same seed are rows with their names."""
    *_, slow = grid(tmp_path)
    again = make_run(tmp_path, "slow-again")
    again.config.write_text(slow.config.read_text())
    runs = RunList(tmp_path)
    assert runs.poll(5)
    rows = {tuple(sorted(root.name for root in row.roots)): row.name for row in groups(runs.lines())}
    assert [row["runs"] for row in rows.values()].count("2") == 2
    for name in ("slow-1", "slow-again"):
        assert rows[(name,)] == {**rows[("slow-1",)], "runs": "1", "run": name}
        assert "1e-05" in rows[(name,)].values()


def test_the_runs_of_a_group_are_compared(tmp_path: Path) -> None:
    """With tab, in the order of their names; a group of one run with the run of the view. Space marks all of a row."""
    meteor_1, rouge_1, rouge_2, meteor_2, slow = grid(tmp_path)

    def shows(*runs: RunPaths) -> Callable[[WatchApp], bool]:
        return lambda app: [run.paths for run in (app.watched, *app.others)] == [*runs]

    play(
        slow,
        ("r", "5 runs, the newest first", " meteor-1 "),  # the oldest, which is read last
        ("ctrl+g", "3 groups of 5 runs"),
        ("down tab", On("compare"), "train.seed", shows(meteor_1, meteor_2)),
        ("r", "2 marked", "AB"),
        ("pagedown tab", On("compare"), "rouge-2", shows(rouge_1, rouge_2)),  # a group without marks
        ("r", "2 marked", "AB"),
        ("space", "3 groups of 5 runs, the newest first"),  # takes the marks away
        ("pageup tab", "B slow-1", shows(rouge_1, slow)),
        ("r", "2 marked", "A     2  length+rouge"),
        ("space", "3 marked"),
        ("space", "1 marked"),
        ("space", "3 marked"),
        ("pageup tab", On("compare"), "rouge-2", shows(slow, rouge_1, rouge_2)),  # those marked, from a single run
    )


def test_ten_runs_are_marked_at_most(tmp_path: Path) -> None:
    """Of a group that has no room none is marked, which the frame says; a group with some marks loses them. Numbers in
    names are ordered by their values."""
    sizes = {"a": 11, "b": 7, "c": 4}
    runs = [make_run(tmp_path, f"{reward}-{n}", steps=2) for reward, size in sizes.items() for n in range(size)]
    for n, paths in enumerate(runs):
        text = paths.config.read_text().replace("meteor", f"rouge_{paths.name[0]}")
        paths.config.write_text(f"{text}[train]\nseed = {n}\n")
        aged(paths, 600 - n)
    play(
        runs[-1],
        ("r", "22 runs, the newest first", " a-0 "),
        ("down down down space", "1 marked"),  # c-0
        ("ctrl+g", "3 groups of 22 runs, 1 marked", "A     4"),
        ("down space", "3 groups of 22 runs, 8 marked"),
        ("down space", "no room for 11 more: 8 of at most 10 are marked"),
        ("up", "3 groups of 22 runs, 8 marked"),
        ("space down space", "no room for 11 more: 1 of at most 10 are marked"),
        ("tab", On("compare"), lambda app: [run.paths.name for run in app.others][-1] == "a-10"),
        ("r", "22 runs, 10 marked", "ABCDEFGHIJ    11  length+rouge_a"),
        ("pageup space", "no room for 4 more: 10 of at most 10 are marked"),
        ("pagedown space", "3 groups of 22 runs, the newest first"),  # takes the marks of the ten away
    )


def test_a_long_name_leaves_room_for_results(tmp_path: Path) -> None:
    """In a small terminal; a run that was tested at its start alone says so."""
    paths = make_run(tmp_path, "a-run-with-a-name-that-is-as-long-as-those-of-grids-seed101")
    (paths.stage_evaluation("length") / "summary.json").unlink()
    play(paths, ("r", "of-grids-seed101 ", "60/80  start       4.5%"), size=(80, 24))
