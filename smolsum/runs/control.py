"""Requests to a running trainer, and its heartbeat.

Requests are files in the run's `control/` directory, made by any number of views, or by `touch`:
    pause   the trainer finishes its step, saves, and waits until the file is removed
    stop    the trainer finishes its step, saves and ends as after Ctrl-C; it removes the file
"""

import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Literal, Self

from smolsum.errors import SmolsumError
from smolsum.files import writing
from smolsum.runs.paths import RunPaths
from smolsum.runs.writer import RunWriter

Request = Literal["pause", "stop"]
POLL_S = 0.2
"""Between two looks whether a pause has ended."""
LISTEN_S = 1.0
"""Between two looks for requests."""
BEAT_S = 10.0
"""Between two heartbeats, each of which writes status.json."""


def make_request(paths: RunPaths, request: Request) -> None:
    """Write the request into the run directory. Raises SmolsumError if that is not possible."""
    path = paths.control / request
    with writing(path, f"touch {path}"):
        paths.control.mkdir(parents=True, exist_ok=True)
        path.touch()


def withdraw(paths: RunPaths, request: Request) -> None:
    """Remove the request if it is there. Raises SmolsumError if that is not possible."""
    path = paths.control / request
    with writing(path, f"rm {path}"):
        path.unlink(missing_ok=True)


def withdraw_all(paths: RunPaths) -> None:
    """Remove all requests."""
    withdraw(paths, "pause")
    withdraw(paths, "stop")


def is_requested(paths: RunPaths, request: Request) -> bool:
    """Whether the request is there, as far as the disk answers."""
    return os.path.exists(paths.control / request)


def take_request(paths: RunPaths, request: Request) -> bool:
    """Whether the request was there; removes it."""
    found = is_requested(paths, request)
    if found:
        withdraw(paths, request)
    return found


def wait_while_paused(paths: RunPaths, stops: Callable[[], bool]) -> bool:
    """Wait while a pause is requested; False if the wait ended because `stops` returned True."""
    while is_requested(paths, "pause"):
        if stops():
            return False
        time.sleep(POLL_S)
    return True


class Heartbeat:
    """Renews the heartbeat in status.json while the block runs, however long a step takes, and polls `control/`.

    A requested pause shows as `pausing` at once. The training loop answers a stop after its step; while
    `interruptible` returns True no step is under way, and the stop becomes a Ctrl-C.
    """

    def __init__(
        self, paths: RunPaths, writer: RunWriter, interruptible: Callable[[], bool], *, listen_s: float = LISTEN_S
    ) -> None:
        self._paths, self._writer, self._interruptible, self._listen_s = paths, writer, interruptible, listen_s
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._listen, name="heartbeat", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        self._thread.join()

    def _listen(self) -> None:
        last, pausing = time.monotonic(), False
        while not self._closed.wait(self._listen_s):
            try:
                if pausing != is_requested(self._paths, "pause") or time.monotonic() - last > BEAT_S:
                    pausing = is_requested(self._paths, "pause")
                    self._writer.beat(pausing=pausing)
                    last = time.monotonic()
                # else the request stays for the training loop, which takes it after the step
                if self._interruptible() and take_request(self._paths, "stop"):
                    os.kill(os.getpid(), signal.SIGINT)
            except (SmolsumError, OSError):
                pass  # a network disk may come back; the training thread reports one that refuses to write
