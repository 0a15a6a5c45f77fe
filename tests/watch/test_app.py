"""The view, driven by keys in a terminal that is not there."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from support.watching import append, golden, make_run, row, screen, status
from textual.color import Color
from textual.pilot import Pilot

from smolsum.runs.control import is_requested
from smolsum.runs.paths import RunPaths
from smolsum.runs.reader import Run
from smolsum.watch import layout
from smolsum.watch.app import Picker, WatchApp
from smolsum.watch.layout import plain_page
from smolsum.watch.snapshot import ViewOptions

Script = Callable[[WatchApp, Pilot[None]], Awaitable[None]]


@pytest.fixture(autouse=True)
def _utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Times of day are shown in the zone of the machine."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def drive(app: WatchApp, script: Script, size: tuple[int, int] = (120, 40)) -> WatchApp:
    async def run() -> None:
        async with app.run_test(size=size) as pilot:
            await pilot.pause()
            await script(app, pilot)

    asyncio.run(run())
    return app


async def shown(app: WatchApp, pilot: Pilot[None], wanted: str, *, gone: bool = False) -> None:
    """Waits until the screen has a text, or has it no more."""
    for _ in range(400):
        await pilot.pause(0.05)
        if (wanted in screen(app)) is not gone:
            return
    raise AssertionError(f"{wanted!r} {'stays' if gone else 'missing'}:\n{screen(app)}")


def alive(folder: Path, name: str = "made", **options: int) -> RunPaths:
    """A run of another machine with a heartbeat of this moment."""
    paths = make_run(folder, name, state="running", **options)
    now = datetime.now(UTC).isoformat()
    status(paths.root, "running", 60, 80, heartbeat=now)
    return paths


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 60)])
def test_screens(tmp_path: Path, size: tuple[int, int]) -> None:
    """What is on the screen is the page that --once prints, and a line of keys."""
    paths = make_run(tmp_path)

    async def script(app: WatchApp, pilot: Pilot[None]) -> None:
        text = screen(app)
        golden(f"screen-{size[0]}x{size[1]}.txt", text)
        assert text.splitlines()[:-1] == plain_page(app.watched, None, ViewOptions(), *size)

    drive(WatchApp(Run(paths)), script, size)


def test_pages_by_tab(tmp_path: Path) -> None:
    """Tab goes through all pages and back to the first; a key opens a chart alone, escape leaves it."""

    async def script(app: WatchApp, pilot: Pilot[None]) -> None:
        for page in ("charts", "completions", "results", "advice", "config", "overview"):
            await pilot.press("tab")
            await shown(app, pilot, f"[{page}]")
        await pilot.press("shift+tab")
        await shown(app, pilot, "optimizer.max_grad_norm = 1.0")
        await pilot.press("3")
        await shown(app, pilot, "target 64 (59-69)")
        await shown(app, pilot, "grad norm", gone=True)
        await pilot.press("escape")
        await shown(app, pilot, "grad norm")

    drive(WatchApp(Run(make_run(tmp_path))), script)


def test_resize(tmp_path: Path) -> None:
    """The page follows the terminal; pages that it no longer has give way to the first."""

    async def script(app: WatchApp, pilot: Pilot[None]) -> None:
        await pilot.press("tab")
        await shown(app, pilot, "[charts]")
        for size, text in (((80, 24), "[summary]"), ((60, 15), "reward"), ((200, 60), "[overview]")):
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
        await pilot.press("tab", "tab", "s", "s", "j")
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
            await pilot.pause()
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
    """Twenty keys at once are at most four drawings a second."""
    drawn: list[float] = []
    draw = WatchApp._draw

    def counted(app: WatchApp) -> None:
        drawn.append(time.monotonic())
        draw(app)

    monkeypatch.setattr(WatchApp, "_draw", counted)

    async def script(app: WatchApp, pilot: Pilot[None]) -> None:
        drawn.clear()
        began = time.monotonic()
        for _ in range(20):
            app.action_log()
        await pilot.pause(0.6)
        assert len(drawn) <= 1 + 4 * (time.monotonic() - began)

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


def test_picker(tmp_path: Path) -> None:
    """Several runs: the newest first, return takes one, q none."""
    runs = [alive(tmp_path, name) for name in ("older", "newer")]

    async def pick(*keys: str) -> RunPaths | None:
        app = Picker(runs)
        async with app.run_test(size=(80, 24)) as pilot:
            await pilot.pause()
            await pilot.press(*keys)
            await pilot.pause()
        return app.return_value

    assert asyncio.run(pick("enter")) == runs[1]
    assert asyncio.run(pick("down", "enter")) == runs[0]
    assert asyncio.run(pick("q")) is None
