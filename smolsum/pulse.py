"""A trainer's sign of life, and its ear for requests while it computes."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from smolsum.control import asked, heed
from smolsum.errors import SmolsumError
from smolsum.journal import Journal
from smolsum.runs import RunPaths

LISTEN_S = 1.0
BEAT_S = 10.0


class Pulse:
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
