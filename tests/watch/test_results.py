"""Several runs in one view: the state of each, what differs between their settings, and their results."""

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from support.views import Gone, On, alive, drive, play, shown, walk
from support.watching import MEASURES, make_run, measured, screen, status
from textual import events
from textual.pilot import Pilot

from smolsum.runs.paths import RunPaths
from smolsum.runs.reader import Run
from smolsum.watch.app import WatchApp
from smolsum.watch.formats import Rows
from smolsum.watch.model import Snapshot
from smolsum.watch.pages import ComparedRuns
from smolsum.watch.results import compared_in_head, comparison, differences, states
from smolsum.watch.widgets import RowTable


def snapshot(*runs: RunPaths) -> Snapshot:
    found = [Run(paths) for paths in runs]
    for one in found:
        one.poll(60)
    return Snapshot(found[0], others=tuple(found[1:]))


def text(found: Rows) -> str:
    """The head of a table and its rows."""
    rows = [found.titles, *found.rows]
    return "\n".join("  ".join(str(cell) for cell in row).strip() for row in rows)


def three(folder: Path) -> list[RunPaths]:
    """A finished run, a paused one with other settings, one that was killed."""
    a = make_run(folder, "a", steps=80)
    b = alive(folder, "b")
    (b.control / "pause").touch()
    status(b.root, "paused", 60, 80, heartbeat=datetime.now(UTC).isoformat())
    b.config.write_text(b.config.read_text().replace("learning_rate = 4e-4", "learning_rate = 1e-4\nwarmup = 10"))
    return [a, b, make_run(folder, "c", steps=20, state="running")]


def test_each_has_its_state(tmp_path: Path) -> None:
    found = snapshot(*three(tmp_path))
    lines = text(states(found, 60)).splitlines()
    assert [" ".join(line.split()[:4]) for line in lines[1:4]] == ["A a ✓ finished", "B b ‖ paused", "C c ? STALE"]
    assert " 80/80 " in lines[1]
    assert "no heartbeat from mini-1" in lines[3]
    assert lines[3].endswith(f"-> smolsum train --resume {tmp_path / 'c'}")
    assert compared_in_head(found, 80).plain == "  B b ‖ PAUSED 60/80  C c ? STALE 20/80"
    assert compared_in_head(found, 36).plain == "  B ‖ PAUSED 60/80  C ? STALE 20/80"
    assert compared_in_head(found, 20).plain == "  B ‖ 60  C ? 20"


def test_settings_that_differ(tmp_path: Path) -> None:
    a, b, c = three(tmp_path)

    def shown(*runs: RunPaths) -> str:
        return text(differences(snapshot(*runs), 120))

    assert shown(a, b, c).split() == [
        *("A", "B", "C"),
        *("optimizer.learning_rate", "0.0004", "0.0001", "0.0004"),
        *("optimizer.warmup", "-", "10", "-"),
    ]
    assert shown(a, c).strip() == "all runs have the same settings"
    c.config.write_text(a.config.read_text().replace("[stages.quality", "[stages.included"))
    parts = shown(a, c).splitlines()[1].split("length >")
    assert [part.strip() for part in parts] == ["stages", "quality", "included"]
    c.config.write_text(c.config.read_text().replace("meteor = 1.0", "rouge = 0.5"))
    found = shown(a, c)
    assert "length+meteor > length+meteor" in found
    assert "length+0.5 rouge > length+0.5 rouge" in found


def test_results_side_by_side(tmp_path: Path) -> None:
    """The newest evaluation of each run, with the best value of those after the last stage marked in the direction of
    the metric."""
    a, b, c = three(tmp_path)

    def shown(*runs: RunPaths) -> str:
        found = comparison(snapshot(*runs), 60)
        return f"{text(found)}\n{found.note}"

    measured(a, "quality", **{"length/within_tol": 0.9, "wrong": 0.2})
    measured(b, "length", **{"length/within_tol": 0.95, "wrong": 0.1})
    for name in ("start", "length"):
        (c.stage_evaluation(name) / "summary.json").unlink()
    lines = shown(a, b, c).splitlines()
    rows = {title.strip(): cells for title, *cells in (line.rsplit(maxsplit=3) for line in lines) if cells}
    assert rows["evaluated after"] == ["quality", "length", "-"]
    assert rows["on target ↑"] == ["90.0%", "95.0%", "-"]
    assert rows["validation: on target"] == ["100.0%", "75.0%", "25.0%"]
    assert rows["seconds a step"] == ["2", "2", "2"]
    measured(b, "quality", **{"length/within_tol": 0.7, "wrong": 0.1})
    assert "90.0%*" in shown(a, b, c)
    measured(b, "quality", "other", **{"length/within_tol": 0.95})
    assert "*" not in shown(a, b)
    assert "evaluated on different test prompts: not comparable" in shown(a, b)
    measured(b, "quality", "in other tokens", "b", **{"length/within_tol": 0.95})
    assert "95.0%*" in shown(a, b)
    assert "not comparable" not in shown(a, b)
    fewer = [{**MEASURES[0], "better": "lower"}]
    measured(a, "quality", measures=fewer, **{"length/within_tol": 0.9})
    measured(b, "quality", measures=fewer, **{"length/within_tol": 0.7})
    assert "70.0%*" in shown(a, b)


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 60)])
def test_ten_runs_fit(tmp_path: Path, size: tuple[int, int]) -> None:
    """Each has its row; what has no room is a key away."""
    runs = [make_run(tmp_path, f"a-run-with-a-long-name-{n}", steps=2) for n in range(10)]
    for n, paths in enumerate(runs):
        paths.config.write_text(paths.config.read_text().replace("4e-4", f"{n}e-4"))
    others = [Run(paths) for paths in runs[1:]]
    play(runs[0], ("tab", On("compare"), "A a-run", "C a-run", "learning_rate", " A "), size=size, others=others)


def test_a_table_is_as_high_as_its_rows(tmp_path: Path) -> None:
    """Also where they come after a layout was asked for and another one has come: it was empty by chance."""
    runs = [make_run(tmp_path, f"run-{n}", steps=2) for n in range(2)]

    async def script(app: WatchApp, pilot: Pilot[None]) -> None:
        await pilot.press("tab")
        page, table = app.query_one(ComparedRuns), RowTable()
        table.styles.height = "auto"
        await page.mount(table)
        await pilot.pause()
        assert table.size.height == 0
        table.refresh(layout=True)
        page._clear_arrangement_cache()
        app.screen._refresh_layout()
        table.fill(Rows("runs", "", ["", "name"], [[str(n), "a run"] for n in range(3)]))
        await pilot.pause()
        assert table.size.height == 4

    drive(WatchApp(Run(runs[0]), [Run(runs[1])]), script)


def test_what_has_no_room_scrolls(tmp_path: Path) -> None:
    """By keys that the frame names while there is more, all tables by as many lines, so that none is passed, and by
    whole columns: a number that is cut is another one. The wheel scrolls lines, too. The letters of the runs and the
    names of rows stay."""
    runs = [measured(make_run(tmp_path, f"run-{n}"), "quality", **{"length/within_tol": n / 10}) for n in range(10)]
    for n, paths in enumerate(runs):
        paths.config.write_text(paths.config.read_text() + f"[model]\npath = 'a model with a long name {n}'\n")

    def results(app: WatchApp) -> list[str]:
        return [line.rpartition("││")[2] for line in screen(app).splitlines() if "││" in line]

    def on_target(app: WatchApp) -> str:
        return next(line.split("↑")[1].split("│")[0] for line in results(app) if "on target ↑" in line).split()[0]

    async def script(app: WatchApp, pilot: Pilot[None]) -> None:
        await walk(app, pilot, ("tab", On("compare"), "╮╭─ results", "long name 0", "more: pgdn, shift+right  newest"))
        seen = [on_target(app)]
        for n in range(1, 10):
            await walk(app, pilot, ("shift+right", f"long name {n} ", f" {n}0.0%"))
            seen.append(on_target(app))
        assert seen == [f"{n}0.0%".replace("00", "0") for n in range(9)] + ["80.0%"]
        assert any("90.0%*" in line for line in results(app))
        await walk(app, pilot, ("", "more: pgdn, shift+left  newest", "more: shift+left  1", "more: pgdn  r, return"))
        await walk(app, pilot, ("pagedown", "G run-6", "more: pgup  r, return", Gone("B run-1 ")))
        assert "J" in results(app)[0]
        await walk(
            app, pilot, ("pagedown", "seconds a step", "more: pgup, shift+left  newest", Gone("evaluated after"))
        )
        table = app.query("ComparedRuns RowTable").last(RowTable)
        for _ in range(4):
            table.post_message(events.MouseScrollUp(table, 5, 2, 0, 0, 0, False, False, False))
        await shown(app, pilot, "evaluated after")

    drive(WatchApp(Run(runs[0]), [Run(paths) for paths in runs[1:]]), script, size=(100, 24))


def test_wide_tables_are_below_each_other_on_a_high_page(tmp_path: Path) -> None:
    runs = [make_run(tmp_path, f"run-{n}") for n in range(4)]
    for n, paths in enumerate(runs):
        paths.config.write_text(paths.config.read_text() + f"[model]\npath = 'a model with a long name {n}'\n")
    for size, beside in (((120, 40), False), ((120, 30), True)):
        step = ("tab", On("compare"), "long name 0", "╮╭─ results" if beside else "\n╭─ results")
        play(runs[0], step, size=size, others=[Run(paths) for paths in runs[1:]])


def test_columns_of_one_run_scroll_too(tmp_path: Path) -> None:
    """On the page of results, where a name takes the room."""
    measures = [{**MEASURES[0], "title": "a title of a measure that is as long as the frame of the page is wide"}]
    paths = measured(make_run(tmp_path, "run"), "quality", measures=measures, **{"length/within_tol": 0.125})
    run = json.loads(paths.info.read_text())
    paths.info.write_text(json.dumps(run | {"headlines": {"length/within_tol": measures[0]["title"]}}))
    play(
        paths,
        ("f", On("results"), "more: shift+right  greedy", "page is wide ↑", Gone("75.0%")),
        ("shift+right shift+right shift+right shift+right", "more: shift+left  greedy", "75.0%"),
        size=(80, 24),
    )


def test_the_page_is_there_for_several_runs_only(tmp_path: Path) -> None:
    """And follows them: a run that pauses while it is looked at says so."""
    other = alive(tmp_path, "b")
    play(make_run(tmp_path, "alone"), ("", Gone("compare")))
    play(
        make_run(tmp_path, "a"),
        ("tab", On("compare"), lambda app: "B b ● RUNNING 60/80" in screen(app).splitlines()[0]),
        ((other.control / "pause").touch, "B b ◐ PAUSING 60/80", "all runs have the same settings"),
        others=[Run(other)],
    )
