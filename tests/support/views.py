"""The live view in a terminal that is not there."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from unittest.mock import patch

from support.training import PATIENCE_S
from support.watching import make_run, screen, status
from textual.pilot import Pilot

from smolsum.runs.paths import RunPaths
from smolsum.watch.app import WatchApp

ROUNDS = 6
"""so often a message may set off another, as a key does that opens a dialog, which loads, and takes the keys"""
Script = Callable[[WatchApp, Pilot[None]], Awaitable[None]]


def drive(app: WatchApp, script: Script, size: tuple[int, int] = (120, 40)) -> WatchApp:
    """Runs the app with a script of keys. Each key waits until what it set off is done, where Textual's own pilot
    waits until the processor seems idle."""
    pilot: Pilot[None]

    async def settle(*_: object) -> None:
        for _round in range(ROUNDS):
            await asyncio.sleep(0)
            await pilot._wait_for_screen(PATIENCE_S)

    async def run() -> None:
        nonlocal pilot
        async with app.run_test(size=size) as pilot:
            await pilot.pause()
            await script(app, pilot)

    with patch("textual.app.wait_for_idle", settle), patch("textual.pilot.wait_for_idle", settle):
        asyncio.run(run())
    return app


async def shown(app: WatchApp, pilot: Pilot[None], wanted: str, *, gone: bool = False) -> None:
    """Waits until the screen has a text, or has it no more."""
    await until(pilot, lambda: (wanted in screen(app)) is not gone, lambda: f"{wanted!r} in\n{screen(app)}")


async def until(pilot: Pilot[None], met: Callable[[], bool], told: Callable[[], object] = lambda: "") -> None:
    """Waits until the view has come to what is asked."""
    end = time.monotonic() + PATIENCE_S
    await pilot.pause()
    while not met():
        assert time.monotonic() < end, told()
        await pilot.pause(0.02)


def alive(folder: Path, name: str = "made", **options: int) -> RunPaths:
    """A run of another machine with a heartbeat of this moment."""
    paths = make_run(folder, name, state="running", **options)
    now = datetime.now(UTC).isoformat()
    status(paths.root, "running", 60, 80, heartbeat=now)
    return paths
