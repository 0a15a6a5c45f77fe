"""How far an asking is, for whoever follows it: as it begins, every few seconds, as nobody answers, and at its end."""

from __future__ import annotations

import time

from smolsum.asking.patience import follow

EVERY_S = 10.0


class Standing:
    """Counts the questions of one asking that are done with."""

    def __init__(self, who: str, total: int) -> None:
        self._who, self._total = who, total
        self._done = self._failed = 0
        self._silent = ""
        self._say()

    def done(self, *, failed: bool) -> None:
        """One more has an answer, or has failed for good."""
        self._done, self._failed, self._silent = self._done + 1, self._failed + failed, ""
        if time.monotonic() - self._spoke > EVERY_S or self._done == self._total:
            self._say()

    def silent(self, why: Exception) -> None:
        """A request brought no answer at all: said at once where none has brought one yet."""
        first, self._silent = not (self._done or self._silent), str(why)
        if first or time.monotonic() - self._spoke > EVERY_S:
            self._say()

    def _say(self) -> None:
        self._spoke = time.monotonic()
        failed = f", {self._failed} failed" if self._failed else ""
        silent = f"; does not answer: {self._silent}; trying again" if self._silent else ""
        follow(f"{self._who}: {self._done}/{self._total}{failed}{silent}")
