"""Several runs in one view: the state of each, what differs between their settings, and their results."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from support.views import alive, drive, shown
from support.watching import MEASURES, make_run, measured, screen, status
from textual.pilot import Pilot

from smolsum.runs.paths import RunPaths
from smolsum.runs.reader import Run
from smolsum.watch.app import WatchApp
from smolsum.watch.compare_page import compared_in_head, comparison, differences, states
from smolsum.watch.layout import page, pages
from smolsum.watch.snapshot import Snapshot


def snapshot(*runs: RunPaths) -> Snapshot:
    found = [Run(paths) for paths in runs]
    for one in found:
        one.poll(60)
    return Snapshot(found[0], others=tuple(found[1:]))


def text(lines: Any) -> str:
    return "\n".join(line.plain for line in lines)


def three(folder: Path) -> list[RunPaths]:
    """A finished run, a paused one with other settings, one that was killed."""
    a = make_run(folder, "a", steps=80)
    b = alive(folder, "b")
    (b.control / "pause").touch()
    status(b.root, "paused", 60, 80, heartbeat=datetime.now(UTC).isoformat())
    b.config.write_text(b.config.read_text().replace("learning_rate = 4e-4", "learning_rate = 1e-4\nwarmup = 10"))
    return [a, b, make_run(folder, "c", steps=20, state="running")]


def test_each_has_its_state(tmp_path: Path) -> None:
    """In a line of its own, with what helps where something is wrong; in the head too, names first to go."""
    found = snapshot(*three(tmp_path))
    lines = text(states(found, 100, 9).lines).splitlines()
    assert [line.split()[:4] for line in lines[1:4]] == [
        ["A", "a", "✓", "finished"],
        ["B", "b", "‖", "paused"],
        ["C", "c", "?", "STALE"],
    ]
    assert " 80/80 " in lines[1]
    assert "C no heartbeat from mini-1" in lines[5]
    assert f"-> smolsum train --resume {tmp_path / 'c'}" in text(states(found, 200, 9).lines)
    assert compared_in_head(found, 80).plain == "  B b ‖ PAUSED 60/80  C c ? STALE 20/80"
    assert compared_in_head(found, 36).plain == "  B ‖ PAUSED 60/80  C ? STALE 20/80"
    assert compared_in_head(found, 20).plain == "  B ‖ 60  C ? 20"


def test_settings_that_differ(tmp_path: Path) -> None:
    """Only those, with a column for each run; where none does, that is said."""
    a, b, c = three(tmp_path)
    assert text(differences(snapshot(a, b, c), 60, 9).lines).split() == [
        *("A", "B", "C"),
        *("optimizer.learning_rate", "0.0004", "0.0001", "0.0004"),
        *("optimizer.warmup", "-", "10", "-"),
    ]
    assert text(differences(snapshot(a, c), 60, 9).lines) == "all runs have the same settings"
    c.config.write_text(a.config.read_text().replace("[stages.quality", "[stages.included"))
    lines = text(differences(snapshot(a, c), 60, 9).lines).splitlines()[1:]
    assert [part.strip() for part in lines[0].split("length >")] == ["stages", "quality", "included"]
    c.config.write_text(c.config.read_text().replace("meteor = 1.0", "rouge = 0.5"))
    found = text(differences(snapshot(a, c), 120, 9).lines)
    assert "length+meteor > length+meteor" in found
    assert "length+0.5 rouge > length+0.5 rouge" in found


def test_results_side_by_side(tmp_path: Path) -> None:
    """The newest evaluation of each run, with the best value marked in the direction of the metric."""
    a, b, c = three(tmp_path)
    measured(a, "quality", **{"length/within_tol": 0.9, "wrong": 0.2})
    measured(b, "length", **{"length/within_tol": 0.7, "wrong": 0.1})
    for name in ("start", "length"):
        (c.stage_evaluation(name) / "summary.json").unlink()
    shown_lines = text(comparison(snapshot(a, b, c), 70, 20).lines).splitlines()
    rows = {title.strip(): cells for title, *cells in (line.rsplit(maxsplit=3) for line in shown_lines) if cells}
    assert rows["evaluated after"] == ["quality", "length", "-"]
    assert rows["on target ↑"] == ["90.0%*", "70.0%", "-"]
    assert rows["validation: on target"] == ["100.0%", "75.0%", "25.0%"]
    assert rows["seconds a step"] == ["2", "2", "2"]
    measured(b, "length", "other", **{"length/within_tol": 0.95})
    changed = text(comparison(snapshot(a, b), 70, 20).lines)
    assert "*" not in changed
    assert "evaluated on different test prompts: not comparable" in changed
    measured(b, "length", "in other tokens", "b", **{"length/within_tol": 0.95})
    models = text(comparison(snapshot(a, b), 70, 20).lines)
    assert "95.0%*" in models
    assert "not comparable" not in models
    fewer = [{**MEASURES[0], "better": "lower"}]
    for paths, label, value in ((a, "quality", 0.9), (b, "length", 0.7)):
        measured(paths, label, measures=fewer, **{"length/within_tol": value})
    assert "70.0%*" in text(comparison(snapshot(a, b), 70, 20).lines)


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 60)])
def test_ten_runs_fit(tmp_path: Path, size: tuple[int, int]) -> None:
    """Every line has the width of the page, whatever the number of runs."""
    runs = [make_run(tmp_path, f"a-run-with-a-long-name-{n}", steps=2) for n in range(10)]
    for n, paths in enumerate(runs):
        paths.config.write_text(paths.config.read_text().replace("4e-4", f"{n}e-4"))
    lines = page(snapshot(*runs), "compare", *size)
    assert {line.cell_len for line in lines[2:-1]} == {size[0]}
    assert "learning_rate" in text(lines)
    assert len(lines) == size[1] - 1


def test_the_page_is_there_for_several_runs_only(tmp_path: Path) -> None:
    """And follows them: a run that pauses while it is looked at says so."""
    assert "compare" not in pages(120, 40)
    other = alive(tmp_path, "b")

    async def script(app: WatchApp, pilot: Pilot[None]) -> None:
        await pilot.press("tab")
        await shown(app, pilot, "[compare]")
        assert "B b ● RUNNING 60/80" in screen(app).splitlines()[0]
        (other.control / "pause").touch()
        await shown(app, pilot, "B b ◐ PAUSING 60/80")
        await shown(app, pilot, "all runs have the same settings")

    drive(WatchApp(Run(make_run(tmp_path, "a")), [Run(other)]), script)
