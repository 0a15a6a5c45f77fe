"""Ctrl-C as a request."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def stop_signals(request_stop: Callable[[], bool]) -> Iterator[None]:
    """The first Ctrl-C (or SIGTERM) calls `request_stop`, which tells whether there is a step to finish; without one,
    and for a second Ctrl-C, KeyboardInterrupt is raised at once."""

    def ask(_number: int, _frame: object) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if not request_stop():
            raise KeyboardInterrupt
        # straight to the system: a signal may come while Python writes to the same stream
        os.write(2, b"finishing the step, then saving; Ctrl-C again to quit at once\n")

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
