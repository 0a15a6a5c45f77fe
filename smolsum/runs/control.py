"""A trainer's sign of life, and its ear for requests while it computes.

What people ask of a run: files in its `control` directory, made by any number of views, or by `touch`.

control/pause   the trainer finishes its step, saves and waits until the file is gone
control/stop    the trainer finishes its step, saves and leaves as after Ctrl-C; it takes the file away
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Literal, Self

from smolsum.errors import SmolsumError
from smolsum.files import writing
from smolsum.runs.journal import Journal
from smolsum.runs.paths import RunPaths

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


LISTEN_S = 1.0
BEAT_S = 10.0


class Heartbeat:
    """Renews the heartbeat in status.json while the block runs, however long a step takes, and reports `pausing` at
    once. A stop is the step's to heed; where `interruptible` says that no step is under way, it becomes a Ctrl-C."""

    def __init__(
        self, paths: RunPaths, journal: Journal, interruptible: Callable[[], bool], *, listen_s: float = LISTEN_S
    ) -> None:
        self._paths, self._journal, self._interruptible, self._listen_s = paths, journal, interruptible, listen_s
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._listen, name="pulse", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._closed.set()
        self._thread.join()

    def _listen(self) -> None:
        beaten, pausing = time.monotonic(), False
        while not self._closed.wait(self._listen_s):
            try:
                if pausing != asked(self._paths, "pause") or time.monotonic() - beaten > BEAT_S:
                    pausing = asked(self._paths, "pause")
                    self._journal.beat(pausing=pausing)
                    beaten = time.monotonic()
                if self._interruptible() and heed(self._paths, "stop"):
                    os.kill(os.getpid(), signal.SIGINT)
            except SmolsumError:
                pass  # a disk that refuses is told by the thread that trains
