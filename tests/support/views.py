"""The live view in a terminal that is not there."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

from support.training import PATIENCE_S
from support.watching import golden, make_run, screen, status
from textual.pilot import Pilot

from smolsum.runs.paths import RunPaths
from smolsum.runs.reader import Run
from smolsum.watch.app import WatchApp, settled

ROUNDS = 6
"""turns of the loop in which nothing is left to do, until what was set off is done"""
Script = Callable[[WatchApp, Pilot[None]], Awaitable[None]]


class Gone(str):
    """A text that the screen is to lose."""


class On(str):
    """The name of the page that is to be open."""


class Click(NamedTuple):
    """The mouse at a column and row, or so far from the last place where the screen has a text."""

    x: int
    y: int
    text: str = ""
    times: int = 1

    async def do(self, app: WatchApp, pilot: Pilot[None]) -> None:
        """Clicks there."""
        lines = screen(app).splitlines()
        row = max(n for n, line in enumerate(lines) if self.text in line) if self.text else 0
        await pilot.click(offset=(lines[row].index(self.text) + self.x, row + self.y), times=self.times)


class Looks(str):
    """The name of the golden file that has the screen."""


Deed = str | Click | Callable[[], object]
Outcome = str | Callable[[WatchApp], object]
Step = tuple[Deed, *tuple[Outcome, ...]]
"""Keys apart by blanks (`=word` types a word), a click, or something to do; then what comes of it: texts on the screen,
or a fact that holds of the view."""


def drive(app: WatchApp, script: Script, size: tuple[int, int] = (120, 40)) -> WatchApp:
    """Runs the app with a script of keys. Each key waits until no widget has a message and the screen nothing to draw,
    where Textual's own pilot waits until the processor seems idle. Timers wait meanwhile: where a look at the run takes
    longer than the time until the next one, it would never be quiet."""

    async def settle(*_: object) -> None:
        timers = [timer for one in (app, *app._registry) for timer in one._timers if timer._active.is_set()]
        for timer in timers:
            timer.pause()
        quiet = 0
        try:
            while quiet < ROUNDS:
                await asyncio.sleep(0)
                busy = any(one.is_running and one.message_queue_size for one in (app, *app._registry))
                quiet = 0 if busy else quiet + 1
                if quiet == ROUNDS // 2 and app.is_running:
                    app._check_resize()  # a new size of the terminal, which waits for a timer
                    app.screen._on_timer_update()  # what waits for the next drawing
        finally:
            for timer in timers:
                timer.resume()

    async def run() -> None:
        async with app.run_test(size=size, notifications=True) as pilot:
            await pilot.pause()
            await script(app, pilot)

    with patch("textual.app.wait_for_idle", settle), patch("textual.pilot.wait_for_idle", settle):
        asyncio.run(run())
    return app


def play(paths: RunPaths, *steps: Step, size: tuple[int, int] = (120, 40), **options: Any) -> WatchApp:
    """Goes through the steps in a view of the run, which has these options."""
    return drive(WatchApp(Run(paths), **options), lambda app, pilot: walk(app, pilot, *steps), size)


async def walk(app: WatchApp, pilot: Pilot[None], *steps: Step) -> None:
    """Goes through the steps, and waits for every text."""
    for deed, *outcomes in steps:
        if isinstance(deed, Click):
            await deed.do(app, pilot)
        elif callable(deed):
            deed()
        else:
            words = [[*word[1:]] if word[0] == "=" else [word] for word in deed.split()]
            await pilot.press(*("minus" if key == "-" else key for word in words for key in word))
        for outcome in outcomes:
            if callable(outcome):
                assert outcome(app), f"after {deed!r}:\n{screen(app)}"
            elif isinstance(outcome, Looks):
                await settled(app, pilot)
                golden(outcome, screen(app))
            elif isinstance(outcome, On):
                await until(
                    pilot, lambda page=outcome: app.at == page, lambda page=outcome: f"{page!r} is not {app.at}"
                )
            else:
                await shown(app, pilot, outcome, gone=isinstance(outcome, Gone))


async def shown(app: WatchApp, pilot: Pilot[None], wanted: str, *, gone: bool = False) -> None:
    """Waits until the screen has a text, or has it no more."""
    await until(pilot, lambda: (wanted in screen(app)) is not gone, lambda: f"{wanted!r} in\n{screen(app)}")


async def until(pilot: Pilot[None], met: Callable[[], bool], told: Callable[[], object] = lambda: "") -> None:
    """Waits until the view has come to what is asked."""
    end = time.monotonic() + PATIENCE_S
    await pilot.pause()
    while not met():
        if pilot.app._exception is not None:  # the view has failed, and nothing more will come
            raise pilot.app._exception
        assert time.monotonic() < end, told()
        await pilot.pause(0.02)


def alive(folder: Path, name: str = "made", **options: int) -> RunPaths:
    """A run of another machine with a heartbeat of this moment."""
    paths = make_run(folder, name, state="running", **options)
    now = datetime.now(UTC).isoformat()
    status(paths.root, "running", 60, 80, heartbeat=now)
    return paths
