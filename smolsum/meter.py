"""Progress of one long count on stderr: a bar with the time left on a terminal, a line every few seconds elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Self

from smolsum import console
from smolsum.progress import duration

if TYPE_CHECKING:
    from rich.progress import Progress as Bar


class Meter:
    """From its first `to`, which says how far it is, to leaving it: before that a user may be asked something."""

    def __init__(
        self,
        doing: str,
        total: int,
        *,
        quiet: bool = False,
        every_s: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`doing` is what the bar is called, `total` its end; without a bar a line comes every `every_s` seconds."""
        self._doing, self._total, self._quiet = doing, total, quiet
        self._every_s, self._clock = every_s, clock
        self._first: int | None = None
        self._bar: Bar | None = None

    def __enter__(self) -> Self:
        self._began = self._spoke = self._clock()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def to(self, done: int, note: str = "") -> None:
        """`done` of the total; `note` is a word more. The first call may tell what was there before."""
        if self._first is None:
            self._first, self._began = done, self._clock()
            if console.live() and not self._quiet:
                self._bar = console.bar(self._doing, self._total)
        now = self._clock()
        fresh = done - self._first
        left = f"eta {duration((now - self._began) / fresh * (self._total - done))}" if fresh else ""
        text = " ".join(part for part in (f"{done}/{self._total}", note, left) if part)
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=done, numbers=text)
        elif not self._quiet and (now - self._spoke >= self._every_s or (done == self._total and fresh)):
            self._spoke = now
            console.narrate(f"{self._doing} {text}")
