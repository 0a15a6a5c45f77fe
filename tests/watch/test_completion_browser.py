"""The page of completions, driven by keys: search, order, a prompt over time, before and after training, copying."""

from __future__ import annotations

from pathlib import Path
from threading import Event

import pytest
from support.training import PATIENCE_S
from support.views import drive, shown
from support.watching import TEXTS, append, completions, evaluate, make_run, screen
from textual.pilot import Pilot

from smolsum.runs.paths import RunPaths
from smolsum.runs.reader import Run
from smolsum.runs.records import SampledRollout
from smolsum.runs.sample_scan import Scan, Source
from smolsum.watch.app import WatchApp

PAGE = ("tab", "tab", "tab")
"""Keys from the first page to that of completions, at 120 columns."""


def evaluated(tmp_path: Path, *, after: bool = True) -> RunPaths:
    """A run with its test split before and after training."""
    paths = make_run(tmp_path)
    evaluate(paths, "start", {"test-1": "a long and winding summary", "test-2": "the same"})
    if after:
        evaluate(paths, "length", {"test-2": "the same", "test-1": "a short summary"})
    return paths


def reversed_text(app: WatchApp) -> str:
    """All text of the screen in reverse video that is bold: what a search marks."""
    strips = app.screen._compositor.render_strips()
    return "|".join(s.text for strip in strips for s in strip if s.style and s.style.reverse and s.style.bold)


def test_search_over_the_whole_run(tmp_path: Path) -> None:
    """A search lists the hits of all steps and marks the text; n and N go through them, return opens the step, and
    escape ends it."""

    async def script(app: WatchApp, pilot: Pilot[None]) -> None:
        await pilot.press("slash", *"LANDLORD", "enter")
        await shown(app, pilot, "hit 1/4 /LANDLORD")
        assert "[completions]" in screen(app)
        await shown(app, pilot, "rollout 4 of step 1, train-0001")
        assert set(reversed_text(app).split("|")) == {"landlord"}
        await pilot.press("n", "n", "n", "n", "N")
        await shown(app, pilot, "hit 3/4")
        await shown(app, pilot, "rollout 3 of step 60, train-0001")
        await pilot.press("enter")
        await shown(app, pilot, " step 60 prompt 1/2")
        await shown(app, pilot, "> ")
        assert ">  3 " in screen(app)
        assert "landlord" in reversed_text(app)
        await pilot.press("n")
        await shown(app, pilot, "hit 4/4")
        await pilot.press("escape")
        await shown(app, pilot, "LANDLORD", gone=True)
        await pilot.press("slash", *"0001", "enter")
        await shown(app, pilot, "/0001")
        await shown(app, pilot, "train-0001")
        await pilot.press("slash", *"nowhere", "enter")  # in place of the text before
        await shown(app, pilot, "no hit /nowhere")

    drive(WatchApp(Run(make_run(tmp_path))), script)


def test_hits_in_evaluations(tmp_path: Path) -> None:
    """They have their measures, and return lists their example over time."""

    async def script(app: WatchApp, pilot: Pilot[None]) -> None:
        await pilot.press("slash", *"winding", "enter")
        await shown(app, pilot, "rollout 1 of start-test, test-1")
        await shown(app, pilot, "meteor 0")
        await pilot.press("enter")
        await shown(app, pilot, "test-1 over time 2/2")
        await shown(app, pilot, "a short summary")
        await pilot.press("escape")
        await shown(app, pilot, "hit 1/1 /winding")

    drive(WatchApp(Run(evaluated(tmp_path))), script)


def test_hits_by_reward_and_error(tmp_path: Path) -> None:
    """The order is named, can be reversed, and changes the hit under the bar."""

    async def script(app: WatchApp, pilot: Pilot[None]) -> None:
        await pilot.press("slash", *"heating", "enter")
        await shown(app, pilot, "by order")
        await pilot.press("s")
        await shown(app, pilot, "by reward")
        await shown(app, pilot, "total 0.250")
        await pilot.press("i")
        await shown(app, pilot, "by reward, reversed")
        await shown(app, pilot, "total -0.050")
        await pilot.press("i", "s", "s", "s", "s")
        await shown(app, pilot, "by error")
        await shown(app, pilot, " cut ")

    drive(WatchApp(Run(make_run(tmp_path))), script)


def test_a_long_search_leaves_the_view_free_and_can_be_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys work while it goes on, hits come as they are found, escape stops it and keeps them."""
    paths = make_run(tmp_path)
    content = paths.completions(60).read_bytes()
    for step in range(61, 400):
        paths.completions(step).write_bytes(content)
    take, goes_on = Scan._take, Event()

    def slowly(scan: Scan, source: Source, offset: int, sample: SampledRollout | None) -> None:
        assert source != 100 or goes_on.wait(PATIENCE_S)
        take(scan, source, offset, sample)

    monkeypatch.setattr(Scan, "_take", slowly)

    async def script(app: WatchApp, pilot: Pilot[None]) -> None:
        await pilot.press("slash", *"landlord", "enter")
        await shown(app, pilot, "searching 12%")
        await shown(app, pilot, "train-0011")  # the second hit
        await pilot.press("n")
        await shown(app, pilot, "hit 2/")
        await pilot.press("escape")
        goes_on.set()
        await shown(app, pilot, "stopped at")
        await shown(app, pilot, "hit 2/")
        await pilot.press("escape")
        await shown(app, pilot, "/landlord", gone=True)

    drive(WatchApp(Run(paths)), script)


def test_one_prompt_over_time(tmp_path: Path) -> None:
    """All its steps with their means; the same keys as for steps walk through them; return opens one."""
    paths = make_run(tmp_path)
    append(paths.completions(30), completions(30, 80))

    async def script(app: WatchApp, pilot: Pilot[None]) -> None:
        await pilot.press(*PAGE, "h")
        await shown(app, pilot, "train-0001 over time 3/3")
        assert [line.split()[1:4] for line in screen(app).splitlines() if "│  step " in line or "│> step " in line]
        await pilot.press("[")
        await shown(app, pilot, "rollout 1 of step 30, train-0001")
        await pilot.press("left", "N")
        await shown(app, pilot, "rollout 1 of step 1, train-0001")
        await pilot.press("}")
        await shown(app, pilot, "of step 60")
        await pilot.press("up", "enter")
        await shown(app, pilot, " step 30 prompt 1/2")
        await pilot.press("h", "h")
        await shown(app, pilot, "over time", gone=True)
        await pilot.press("slash", *"train-0011", "enter", "h")
        await shown(app, pilot, "train-0011 over time 1/1")

    drive(WatchApp(Run(paths)), script)


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
def test_before_and_after_training(tmp_path: Path, size: tuple[int, int]) -> None:
    """The same example in the evaluation at the start and at the end: side by side where there is room."""

    async def script(app: WatchApp, pilot: Pilot[None]) -> None:
        await pilot.press("b")
        await shown(app, pilot, "example 1/2")
        lines = screen(app).splitlines()
        (before,) = [n for n, line in enumerate(lines) if "before: start-test" in line]
        (after,) = [n for n, line in enumerate(lines) if "after: length-test" in line]
        assert (before == after) is (size[0] >= 120)
        assert "a long and winding summary" in screen(app)
        assert "a short summary" in screen(app)
        await pilot.press("d")
        await shown(app, pilot, "{+short+}")
        await pilot.press("c")
        await shown(app, pilot, "sent test-1 of length-test to the clipboard")
        assert app.clipboard == "a short summary"
        await pilot.press("s")
        await shown(app, pilot, "by tokens")
        await pilot.press("s")
        await shown(app, pilot, "by change of METEOR")
        await pilot.press("n")
        await shown(app, pilot, "example 2/2")
        await pilot.press("b")
        await shown(app, pilot, "before: start-test", gone=True)

    drive(WatchApp(Run(evaluated(tmp_path))), script, size)


@pytest.mark.parametrize("query", ["2", "test-2"])
def test_the_number_of_an_example_shows_it_before_and_after(tmp_path: Path, query: str) -> None:
    """Three keys to what became of one prompt; escape lists the samples that have the number, too."""

    async def script(app: WatchApp, pilot: Pilot[None]) -> None:
        await pilot.press("slash", *["minus" if key == "-" else key for key in query], "enter")
        await shown(app, pilot, "example 1/2")
        assert "> test-2 " in screen(app)
        await shown(app, pilot, "before: start-test")
        assert "the same" in screen(app)
        await pilot.press("escape")
        await shown(app, pilot, "before: start-test", gone=True)
        assert f" /{query} " in screen(app)

    drive(WatchApp(Run(evaluated(tmp_path))), script)


def test_nothing_to_compare(tmp_path: Path) -> None:
    """One evaluation is shown alone, next to what is still to come; without one the page says what it waits for."""

    async def script(app: WatchApp, pilot: Pilot[None]) -> None:
        await pilot.press("b")
        await shown(app, pilot, "before: start-test")
        await shown(app, pilot, "not yet: training evaluates after each stage")
        assert "→" not in next(line for line in screen(app).splitlines() if "test-1 " in line)

    async def empty(app: WatchApp, pilot: Pilot[None]) -> None:
        await pilot.press("b")
        await shown(app, pilot, "no evaluation has completions")

    drive(WatchApp(Run(evaluated(tmp_path, after=False))), script)
    drive(WatchApp(Run(make_run(tmp_path, "without"))), empty)


def test_files_that_vanish(tmp_path: Path) -> None:
    """What was found stays listed, and says that its file is gone."""
    paths = make_run(tmp_path)

    async def script(app: WatchApp, pilot: Pilot[None]) -> None:
        await pilot.press("slash", *"landlord", "enter")
        await shown(app, pilot, "hit 1/4")
        app._browser._near.clear()
        paths.completions(1).unlink()
        await pilot.press("n", "N")
        await shown(app, pilot, "its file is there no more")

    drive(WatchApp(Run(paths)), script)


def test_copy_by_key(tmp_path: Path) -> None:
    """The completion under the bar goes to the clipboard, and the view says so."""

    async def script(app: WatchApp, pilot: Pilot[None]) -> None:
        await pilot.press(*PAGE, "j", "c")
        await shown(app, pilot, "sent the completion to the clipboard")
        assert app.clipboard == TEXTS[2]

    drive(WatchApp(Run(make_run(tmp_path))), script)


def test_copy_by_mouse(tmp_path: Path) -> None:
    """Dragging over a text marks it and copies it, without the frame and with the lines that a page broke joined."""
    paths = make_run(tmp_path)

    async def script(app: WatchApp, pilot: Pilot[None]) -> None:
        await pilot.press(*PAGE, "j", "j")
        await shown(app, pilot, "Mira is upset")
        lines = screen(app).splitlines()
        (x, y) = next((line.index("Mira is"), n) for n, line in enumerate(lines) if "Mira is" in line)
        assert "landlord" in lines[y + 1]
        await pilot.mouse_down(offset=(x, y))
        await pilot.hover(offset=(x + 6, y))
        marked = [s.text for s in app.screen._compositor.render_strips()[y] if s.style and s.style.reverse]
        assert "".join(marked) == "Mira is"
        await pilot.hover(offset=(99, y + 1))
        await pilot.mouse_up(offset=(99, y + 1))
        await shown(app, pilot, "selected characters to the clipboard")
        assert app.clipboard == TEXTS[3]

    drive(WatchApp(Run(paths)), script, (100, 40))


def test_all_keys_are_in_the_help_of_a_small_terminal(tmp_path: Path) -> None:
    """The help scrolls where it has no room, and names the keys of this page; any other key closes it."""

    async def script(app: WatchApp, pilot: Pilot[None]) -> None:
        await pilot.press("question_mark")
        await shown(app, pilot, "up, down: more keys")
        await pilot.press("end")
        await shown(app, pilot, "leave; the run goes on")
        for text in (
            "search all samples",
            "the shown prompt at all its steps",
            "before and after training",
            "drag over",
        ):
            assert text in screen(app)
        await pilot.press("c")
        await shown(app, pilot, "leave; the run goes on", gone=True)

    drive(WatchApp(Run(make_run(tmp_path))), script, (80, 24))
