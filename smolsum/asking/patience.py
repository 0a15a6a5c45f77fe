"""Waiting, amid something else, for what may come back: as long as nobody wants to leave, and not in silence."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from smolsum import console

LOOK_S = 0.2
"""between two looks at whether somebody wants to leave"""


@dataclass(frozen=True)
class Listener:
    """Whoever runs what is under way: whether the user wants it to stop, what takes an event, by kind and sentence, and
    what is told how far things are."""

    stopping: Callable[[], bool] = lambda: False
    tell: Callable[[str, str], None] = lambda kind, message: console.warn(message)
    follow: Callable[[str], None] = lambda text: console.narrate(text)


LISTENER: ContextVar[Listener] = ContextVar("LISTENER", default=Listener())  # noqa: B039  it is frozen


@contextmanager
def heard_by(listener: Listener) -> Iterator[None]:
    """Lets `listener` have what is told in the block, and end its waits."""
    before = LISTENER.set(listener)
    try:
        yield
    finally:
        LISTENER.reset(before)


def tell(kind: str, message: str) -> None:
    """Say what happened."""
    LISTENER.get().tell(kind, message)


def follow(text: str) -> None:
    """Say how far things are."""
    LISTENER.get().follow(text)


def wait(seconds: float) -> bool:
    """Whether the time has passed without anybody wanting to leave."""
    stopping, until = LISTENER.get().stopping, time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        if stopping():
            return False
        time.sleep(min(LOOK_S, left))
    return not stopping()
