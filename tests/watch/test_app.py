"""The view, driven by keys in a terminal that is not there."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime
from pathlib import Path
from unittest.mock import Mock

import pytest
from support.views import alive, drive, shown, until
from support.watching import append, golden, make_run, row, screen, stamp, status
from textual.color import Color
from textual.pilot import Pilot
from textual.strip import Strip

from smolsum.runs.control import is_requested
from smolsum.runs.reader import Run
from smolsum.watch import layout, view
from smolsum.watch.app import WatchApp
from smolsum.watch.canvas import Canvas
from smolsum.watch.layout import plain_page
from smolsum.watch.snapshot import ViewOptions


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 60)])
def test_screens(tmp_path: Path, size: tuple[int, int]) -> None:
    """What is on the screen is the page that --once prints, and a line of keys."""
    paths = make_run(tmp_path)

    async def script(app: WatchApp, pilot: Pilot[None]) -> None:
        text = screen(app)
        golden(f"screen-{size[0]}x{size[1]}.txt", text)
        assert text.splitlines()[:-1] == plain_page(app.watched, (), ViewOptions(), *size)

    drive(WatchApp(Run(paths)), script, size)


def test_pages_by_tab(tmp_path: Path) -> None:
    """Tab goes through all pages and back to the first; a key opens a chart alone, escape leaves it."""

    async def script(app: WatchApp, pilot: Pilot[None]) -> None:
        for page in ("charts", "metrics", "completions", "results", "advice", "log", "config", "overview"):
            await pilot.press("tab")
            await shown(app, pilot, f"[{page}]")
        await pilot.press("shift+tab")
        await shown(app, pilot, "optimizer.max_grad_norm = 1.0")
        await pilot.press("2")
        await shown(app, pilot, "target 64, within 59-69")
        await shown(app, pilot, "grad norm", gone=True)
        await pilot.press("escape")
        await shown(app, pilot, "grad norm")

    drive(WatchApp(Run(make_run(tmp_path))), script)


def test_resize(tmp_path: Path) -> None:
    """The page follows the terminal; pages that it no longer has give way to the first."""

    async def script(app: WatchApp, pilot: Pilot[None]) -> None:
        await pilot.press("tab")
        await shown(app, pilot, "[charts]")
        for size, text in (((80, 24), "[charts]"), ((60, 15), "1-9 enlarges"), ((200, 60), "[overview]")):
            await pilot.resize_terminal(*size)
            await shown(app, pilot, text)
            assert max(map(len, screen(app).splitlines())) <= size[0]

    drive(WatchApp(Run(make_run(tmp_path))), script)


def test_follows_a_run(tmp_path: Path) -> None:
    """New steps come by themselves; half a line waits for its end; older steps and back by keys."""
    paths = alive(tmp_path)

    async def script(app: WatchApp, pilot: Pilot[None]) -> None:
        await shown(app, pilot, "step 60/80")
        append(paths.metrics, [row(61, 80)])
        with paths.metrics.open("ab") as file:
            file.write(b'{"step": 62, "reward"')
        await shown(app, pilot, "step 61/80")
        await pilot.press("left_curly_bracket")
        await shown(app, pilot, " step 1 prompt")
        await pilot.press("right_curly_bracket", "[")
        await shown(app, pilot, " step 60 prompt")

    drive(WatchApp(Run(paths)), script)


def test_browser(tmp_path: Path) -> None:
    """Sort, choose, next prompt, search and difference by keys."""

    async def script(app: WatchApp, pilot: Pilot[None]) -> None:
        await pilot.press("tab", "tab", "tab", "s", "s", "j")
        await shown(app, pilot, "by length")
        await shown(app, pilot, "rollout 2")
        await pilot.press("n")
        await shown(app, pilot, "prompt 2/2")
        await pilot.press("p", "d")
        await shown(app, pilot, "changed since step 1")
        await pilot.press("slash", *"landlord", "enter")
        await shown(app, pilot, "/landlord")
        await pilot.press("escape")
        await shown(app, pilot, "/landlord", gone=True)

    drive(WatchApp(Run(make_run(tmp_path))), script)


def test_pause_and_stop(tmp_path: Path) -> None:
    """Space asks for a pause and takes it back; S stops only after the word."""
    paths = alive(tmp_path)

    async def script(app: WatchApp, pilot: Pilot[None]) -> None:
        await pilot.press("space")
        await shown(app, pilot, "PAUSING")
        await shown(app, pilot, "pausing: its step is finished and saved first  -> space takes it back")
        await shown(app, pilot, "space resume  S stop")
        assert is_requested(paths, "pause")
        status(paths.root, "paused", 61, 80, heartbeat=datetime.now(UTC).isoformat())
        await shown(app, pilot, "PAUSED")
        await shown(app, pilot, "saved, safe to kill  -> space resumes")
        await shown(app, pilot, " eta ", gone=True)
        await pilot.press("space")
        await shown(app, pilot, "the run goes on")
        assert not is_requested(paths, "pause")
        for answer, stopped in (("no", False), ("stop", True)):
            await pilot.press("S")
            await shown(app, pilot, "Type stop to stop it.")
            await pilot.press(*answer, "enter")
            await shown(app, pilot, "STOPPING" if stopped else "not stopped")
            assert is_requested(paths, "stop") is stopped

    drive(WatchApp(Run(paths)), script)


@pytest.mark.parametrize("readonly", [True, False])
def test_asks_nothing_of_others(tmp_path: Path, readonly: bool) -> None:
    """A view that only reads, and one of a run that has ended, ask for nothing and say why."""
    paths = alive(tmp_path) if readonly else make_run(tmp_path)

    async def script(app: WatchApp, pilot: Pilot[None]) -> None:
        for key in ("space", "S"):
            await pilot.press(key)
            await shown(app, pilot, "--readonly" if readonly else "nothing to pause or stop: the run is finished")
        assert not is_requested(paths, "pause")

    drive(WatchApp(Run(paths), readonly=readonly), script)


def test_crash_and_vanishing(tmp_path: Path) -> None:
    """A run whose process is gone turns STALE with the way on, one that fails shows its error and hint; a directory
    that vanishes leaves what was read."""
    paths = alive(tmp_path)

    async def script(app: WatchApp, pilot: Pilot[None]) -> None:
        await shown(app, pilot, "RUNNING")
        status(paths.root, "running", 60, 80)  # the heartbeat of long ago
        await shown(app, pilot, "STALE")
        await shown(app, pilot, "-> smolsum train --resume")
        await shown(app, pilot, "!! no heartbeat")
        status(paths.root, "failed", 60, 80, error="the disk is full", hint="free space")
        await shown(app, pilot, "FAILED")
        await shown(app, pilot, "the disk is full  -> free space")
        shutil.rmtree(paths.root)
        await shown(app, pilot, "GONE")
        await shown(app, pilot, "step 60/80")

    drive(WatchApp(Run(paths)), script)


@pytest.mark.parametrize("key", ["q", "ctrl+c", "ctrl+q"])
def test_leaving(tmp_path: Path, key: str) -> None:
    """Each way out ends the view, and asks nothing of the run."""
    paths = alive(tmp_path)

    async def script(app: WatchApp, pilot: Pilot[None]) -> None:
        await pilot.press(key)
        await pilot.pause()
        assert not app.is_running or app._exit

    drive(WatchApp(Run(paths)), script)
    assert list(paths.control.iterdir()) == []


def test_redraws_are_few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty keys within a quarter of a second are one drawing, at its end; a key after it is drawn at once."""
    drawn: list[float] = []
    draw = WatchApp._draw

    def counted(app: WatchApp) -> None:
        drawn.append(clock.monotonic())
        draw(app)

    monkeypatch.setattr(WatchApp, "_draw", counted)
    clock = Mock(monotonic=Mock(return_value=1000.0))
    monkeypatch.setattr(view, "time", clock)
    monkeypatch.setattr(view, "REDRAW_S", 0.25)
    timers: list[float] = []

    async def script(app: WatchApp, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: not app._waiting)
        app.set_timer = lambda wait, _: timers.append(wait)  # type: ignore
        clock.monotonic.return_value += 0.1
        drawn.clear()
        for _ in range(20):
            app.action_log()
        assert (drawn, timers) == ([], [pytest.approx(0.15)])
        clock.monotonic.return_value += 0.15
        app._draw()
        for _ in range(2):
            clock.monotonic.return_value += 0.25
            app.action_log()
        assert len(drawn) == 3
        assert len(timers) == 1

    drive(WatchApp(Run(make_run(tmp_path))), script)


def test_no_color(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With NO_COLOR the terminal gets no colour, and the chosen rollout still stands out."""
    monkeypatch.setenv("NO_COLOR", "1")

    async def script(app: WatchApp, pilot: Pilot[None]) -> None:
        strips = app.screen._compositor.render_strips()
        (filtering,) = app.get_line_filters()
        black = Color(0, 0, 0)
        styles = [s.style for strip in strips for s in strip.apply_filter(filtering, black) if s.style]
        assert any(style.reverse for style in styles)
        assert all(style.color is None and style.bgcolor is None for style in styles)

    drive(WatchApp(Run(make_run(tmp_path))), script)


def test_help(tmp_path: Path) -> None:
    """A page of keys over the view, until any key."""

    async def script(app: WatchApp, pilot: Pilot[None]) -> None:
        await pilot.press("question_mark")
        await shown(app, pilot, "pause the run after its step")
        golden("help.txt", screen(app))
        await pilot.press("x")
        await shown(app, pilot, "pause the run after its step", gone=True)

    drive(WatchApp(Run(make_run(tmp_path))), script)


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
def test_keys_of_every_page(tmp_path: Path, size: tuple[int, int]) -> None:
    """Whatever page, the last line tells how to pause, stop and leave a run that goes on, and how to turn the page."""
    paths = alive(tmp_path)

    async def script(app: WatchApp, pilot: Pilot[None]) -> None:
        for page in layout.pages(*size):
            await shown(app, pilot, f"[{page}]")
            keys = screen(app).splitlines()[-1]
            assert all(f"  {key}" in keys for key in ("tab page", "space pause", "S stop", "q quit")), keys
            assert len(keys) <= size[0]
            own = {"charts": "1-9 enlarge  + - zoom", "metrics": "/ find", "completions": "/ find", "log": "scroll"}
            assert own.get(page, "") in keys, keys
            await pilot.press("tab")
        await pilot.press("4")
        await shown(app, pilot, "esc back  space pause  S stop")

    drive(WatchApp(Run(paths)), script, size)


@pytest.mark.parametrize("readonly", [True, False])
def test_keys_without_use_are_not_offered(tmp_path: Path, readonly: bool) -> None:
    """A run that has ended, or that is only read, has nothing to pause."""
    paths = alive(tmp_path) if readonly else make_run(tmp_path)

    async def script(app: WatchApp, pilot: Pilot[None]) -> None:
        keys = screen(app).splitlines()[-1]
        assert "space" not in keys
        assert "S stop" not in keys
        assert ("the run goes on" in keys) is readonly

    drive(WatchApp(Run(paths), readonly=readonly), script)


@pytest.mark.parametrize("key", ["S", "question_mark", "slash"])
def test_no_page_turns_behind_a_dialog(tmp_path: Path, key: str) -> None:
    """Tab belongs to what is open."""

    async def script(app: WatchApp, pilot: Pilot[None]) -> None:
        await pilot.press(key)
        await pilot.pause()
        await pilot.press("tab", "shift+tab", "tab")
        await pilot.press("escape")
        await shown(app, pilot, "[overview]")

    drive(WatchApp(Run(alive(tmp_path))), script)


def test_a_long_message_says_that_it_is_cut(tmp_path: Path) -> None:
    """The last character of a line that was longer is a mark."""
    paths = make_run(tmp_path)
    status(paths.root, "failed", 60, 80, error="a word " * 40, hint="free space")

    async def script(app: WatchApp, pilot: Pilot[None]) -> None:
        assert screen(app).splitlines()[-2].endswith("…")

    drive(WatchApp(Run(paths)), script)


def test_charts_by_key_and_mouse(tmp_path: Path) -> None:
    """An enlarged chart: the cursor, zoom, pan, unit and scale by keys; wheel and click do the same."""

    async def script(app: WatchApp, pilot: Pilot[None]) -> None:
        await pilot.press("3", "left")
        await shown(app, pilot, "at step 60:")
        await pilot.press("shift+left")
        await shown(app, pilot, "at step 50:")
        await pilot.press("plus")
        await shown(app, pilot, "step 55")
        await pilot.press("<")
        await shown(app, pilot, "step 47")
        await pilot.press("0")
        await shown(app, pilot, "at step 50:", gone=True)
        await pilot.press("x")
        await shown(app, pilot, "2m00s")
        await pilot.press("x", "x", "y")
        await shown(app, pilot, "no logarithmic scale")
        await pilot.press("w")
        await shown(app, pilot, "loss smooth 0.6")
        await pilot.click(offset=(9, 12))
        await shown(app, pilot, "at step 1:")
        app.on_canvas_pressed(app._canvas.Pressed("up", 9, 12))
        await shown(app, pilot, "step 30")

    drive(WatchApp(Run(make_run(tmp_path))), script)


def test_a_double_click_enlarges_a_chart(tmp_path: Path) -> None:
    """And the footer of the page says how to come back."""

    async def script(app: WatchApp, pilot: Pilot[None]) -> None:
        await pilot.click(offset=(100, 8), times=2)
        await shown(app, pilot, "esc back")
        assert app.options.chart == "chart2"

    drive(WatchApp(Run(make_run(tmp_path))), script)


def test_only_lines_that_changed_are_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A key that changes one line of a page does not send the others again."""
    drawn: list[int] = []
    render = Canvas.render_line

    def counted(canvas: Canvas, y: int) -> Strip:
        drawn.append(y)
        return render(canvas, y)

    monkeypatch.setattr(Canvas, "render_line", counted)

    async def script(app: WatchApp, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: set(drawn) == set(range(40)))
        drawn.clear()
        app.say("a sentence")
        await shown(app, pilot, "a sentence")
        assert set(drawn) <= {0, 1, 38}

    drive(WatchApp(Run(make_run(tmp_path))), script)


def test_all_metrics(tmp_path: Path) -> None:
    """A page has every metric of the run: a filter, charts by key or mouse, pins for the page of charts."""
    paths = make_run(tmp_path)

    async def script(app: WatchApp, pilot: Pilot[None]) -> None:
        await pilot.press("tab", "tab")
        await shown(app, pilot, f"{len(row(60, 80)) - 3} of {len(row(60, 80)) - 3}")
        await pilot.press("slash", *"MEAN_L", "enter")
        await shown(app, pilot, "2 of 37")
        await pilot.press("down", "v")
        await shown(app, pilot, "* validation/completions/mean_length")
        await pilot.press("enter")
        await shown(app, pilot, "esc back")
        assert app.options.chart == "metric:validation/completions/mean_length"
        await shown(app, pilot, "╭─ validation/completions/mean_length")
        await pilot.press("escape", "tab")
        await shown(app, pilot, "╭─ validation/completions/mean_l")
        await pilot.press("tab", "slash", *"entropy", "enter")
        await shown(app, pilot, "1 of 37")
        await pilot.click(offset=(10, 4), times=2)
        await shown(app, pilot, "╭─ entropy")

    drive(WatchApp(Run(paths)), script)


def test_a_click_on_the_name_of_a_page_opens_it(tmp_path: Path) -> None:
    """As tab does; a click on a key does nothing."""

    async def script(app: WatchApp, pilot: Pilot[None]) -> None:
        for page in ("results", "overview"):
            await pilot.click(offset=(screen(app).splitlines()[-1].index(page) + 3, 39))
            await shown(app, pilot, f"[{page}]")
        await pilot.click(offset=(screen(app).splitlines()[-1].index("help"), 39))
        await shown(app, pilot, "[overview]")

    drive(WatchApp(Run(make_run(tmp_path))), script)


def test_a_click_selects_a_rollout(tmp_path: Path) -> None:
    """The row under the pointer; a click on the head sorts; one below the rows does nothing."""

    async def script(app: WatchApp, pilot: Pilot[None]) -> None:
        await pilot.press("tab", "tab", "tab")
        await shown(app, pilot, "[completions]")
        rows = screen(app).splitlines()
        third = next(place for place, line in enumerate(rows) if line.startswith("│   3 "))
        await pilot.click(offset=(20, third))
        await shown(app, pilot, "rollout 3 ")
        await pilot.click(offset=(20, third + 4))
        await shown(app, pilot, "rollout 3 ")
        await pilot.click(offset=(20, third - 2))
        await shown(app, pilot, "rollout 1 ")
        await pilot.click(offset=(20, third - 3))
        await shown(app, pilot, "by tokens")

    drive(WatchApp(Run(make_run(tmp_path))), script)


def test_a_search_does_not_scroll_other_pages(tmp_path: Path) -> None:
    """Lines above a first hit are there for completions only."""

    async def script(app: WatchApp, pilot: Pilot[None]) -> None:
        await pilot.press("slash", *"heating", "enter")
        await shown(app, pilot, "/heating")
        await pilot.press("o")
        await shown(app, pilot, "[config]")
        before = screen(app)
        await pilot.press("pageup", "up")
        assert app.options.scroll == 0
        assert screen(app) == before

    drive(WatchApp(Run(make_run(tmp_path))), script)


def test_log_page(tmp_path: Path) -> None:
    """One key opens it, warnings are marked, a traceback stands below its failure, the wheel shows older lines."""
    paths = make_run(tmp_path, state="failed")
    warning = {"attempt": 1, "kind": "warning", "message": "loss of step 7 not finite", "time": stamp(60)}
    later = [{"attempt": 2, "kind": "checkpoint", "message": f"checkpoint {n} saved"} for n in range(60)]
    append(paths.events, [warning, *({**event, "time": stamp(200 + n)} for n, event in enumerate(later))])
    end = {"attempt": 2, "kind": "failed", "message": "out of luck", "hint": "try again", "time": stamp(300)}
    append(paths.events, [end])
    paths.log(2).write_text(f"{stamp(300)} Traceback (most recent call last):\n  in luck()\nLuckError: out of luck\n")
    status(paths.root, "failed", 60, 80, attempt=2)

    async def script(app: WatchApp, pilot: Pilot[None]) -> None:
        await pilot.press("l")
        await shown(app, pilot, "[log]")
        text = screen(app)
        assert "!! out of luck -> try again" in text
        assert text.index("out of luck -> try again") < text.index("Traceback (most") < text.index("LuckError")
        assert "not finite" not in text
        for _ in range(20):
            app.on_canvas_pressed(app._canvas.Pressed("up", 9, 12))
        await shown(app, pilot, "!  loss of step 7 not finite")
        await shown(app, pilot, "attempt 1, 2026-11-20")

    drive(WatchApp(Run(paths)), script)


def test_export(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The enlarged chart as SVG and CSV in the current folder, with the raw values; nothing is replaced."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "made-loss.csv").write_text("mine")

    async def script(app: WatchApp, pilot: Pilot[None]) -> None:
        await pilot.press("E")
        await shown(app, pilot, "enlarge a chart first")
        await pilot.press("3", "w", "E")
        await shown(app, pilot, f"written: {tmp_path}/made-loss-2.svg"[:110])
        await pilot.press("escape", "tab", "tab", "slash", *"kl", "enter", "E")
        await shown(app, pilot, "made-kl.svg")
        monkeypatch.chdir("/proc/self")
        await pilot.press("E")
        await shown(app, pilot, "cannot write to /proc/")

    drive(WatchApp(Run(make_run(tmp_path / "runs"))), script)
    assert (tmp_path / "made-loss.csv").read_text() == "mine"
    head, first, *rest = (tmp_path / "made-loss-2.csv").read_text().splitlines()
    assert head == "run,step,stage,loss"
    assert first == f"made,1,length,{row(1, 80)['loss']}"
    assert len(rest) == 59
    assert rest[-1].split(",")[2] == "quality"
    drawing = (tmp_path / "made-loss-2.svg").read_text()
    assert drawing.startswith("<svg")
    assert "loss&#160;smooth" in drawing
    assert "http://" not in drawing.replace("http://www.w3.org/2000/svg", "")
    assert "https://" not in drawing


def test_a_click_on_the_legend_hides_a_curve(tmp_path: Path) -> None:
    """And shows it again. The last one stays, and a click elsewhere sets the cursor."""

    async def script(app: WatchApp, pilot: Pilot[None]) -> None:
        await pilot.press("1")
        await shown(app, pilot, "COMPLETION", gone=True)
        for word, hidden in (("l length", 1), ("m meteor", 2), ("v validation", 3), ("R total", 3), ("l length", 2)):
            line = screen(app).splitlines()
            y = next(y for y, text in enumerate(line) if word in text and y > 1)
            await pilot.click(offset=(line[y].index(word) + 2, y))
            assert len(app.options.hidden) == hidden
            assert screen(app).count(" off") == hidden
        assert app.options.cursor is not None  # from the click on the last curve, which stays

    drive(WatchApp(Run(make_run(tmp_path))), script)


def test_pages_of_lines_scroll_by_what_fits(tmp_path: Path) -> None:
    """And the config says which of its lines are shown, where they do not all fit."""

    async def script(app: WatchApp, pilot: Pilot[None]) -> None:
        await pilot.press("o")
        await shown(app, pilot, "1-18 of ")
        await pilot.press("pagedown")
        assert app.options.scroll == 24 - 7
        await pilot.press("pageup")
        assert app.options.scroll == 0

    paths = make_run(tmp_path)
    paths.config.write_text(paths.config.read_text() + "[more]\n" + "".join(f"key{n} = {n}\n" for n in range(40)))
    drive(WatchApp(Run(paths)), script, (80, 24))
