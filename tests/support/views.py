"""The live view in a terminal that is not there."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path

from support.watching import make_run, screen, status
from textual.pilot import Pilot

from smolsum.runs.paths import RunPaths
from smolsum.watch.app import WatchApp

Script = Callable[[WatchApp, Pilot[None]], Awaitable[None]]


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
