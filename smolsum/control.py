"""What people ask of a run: files in its `control` directory, made by any number of views, or by `touch`.

control/pause   the trainer finishes its step, saves and waits until the file is gone
control/stop    the trainer finishes its step, saves and leaves as after Ctrl-C; it takes the file away
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Literal

from smolsum.disk import writing
from smolsum.runs import RunPaths

Request = Literal["pause", "stop"]
POLL_S = 0.2


def ask(paths: RunPaths, request: Request) -> None:
    """Leaves the request in the run directory; SmolsumError where that cannot be written."""
    path = paths.control / request
    with writing(path, f"touch {path}"):
        paths.control.mkdir(parents=True, exist_ok=True)
        path.touch()


def withdraw(paths: RunPaths, request: Request) -> None:
    """Takes the request back, also one that nobody made; SmolsumError where that cannot be written."""
    path = paths.control / request
    with writing(path, f"rm {path}"):
        path.unlink(missing_ok=True)


def asked(paths: RunPaths, request: Request) -> bool:
    """Whether the request stands."""
    return (paths.control / request).exists()


def heed(paths: RunPaths, request: Request) -> bool:
    """Whether the request stood; it is answered by this."""
    stood = asked(paths, request)
    if stood:
        withdraw(paths, request)
    return stood


def forget(paths: RunPaths) -> None:
    """Takes back all that was asked."""
    withdraw(paths, "pause")
    withdraw(paths, "stop")


def hold(paths: RunPaths, stops: Callable[[], bool]) -> bool:
    """Waits while a pause is asked for; False if that ended because `stops` says so."""
    while asked(paths, "pause"):
        if stops():
            return False
        time.sleep(POLL_S)
    return True
