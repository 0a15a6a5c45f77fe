"""How many of the completions that are being sampled are there, how fast they come, and the time until all are; the
same of the groups of an update."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from smolsum.console import duration
from smolsum.types import RolloutGroup, SamplingProgress


@dataclass(frozen=True)
class SamplingCount:
    """Completions at one moment."""

    done: int
    total: int
    tok_s: float | None = None
    """tokens sampled a second; None before the first"""
    left_s: float | None = None
    """seconds until all are done, as far as the pace so far tells; None before there is any"""
    read_s: float | None = None
    """tokens of prompts read a second; None once tokens are sampled"""
    noun: str = "completions"
    """what is counted"""

    @property
    def speed(self) -> str:
        """The speed in words; empty before there is any."""
        if self.tok_s is None:
            return "" if self.read_s is None else f"{self.read_s:,.0f} prompt tok/s"
        return f"{self.tok_s:,.0f} tok/s"

    @property
    def parts(self) -> list[str]:
        """The count, the speed and the time left in words, as far as they are known."""
        left = "" if self.left_s is None else f"eta {duration(self.left_s)}"
        return [part for part in (f"{self.done}/{self.total} {self.noun}", self.speed, left) if part]

    def __str__(self) -> str:
        return " ".join(self.parts)


ShowCount = Callable[[SamplingCount], None]


class SamplingCounter:
    """Counts completions as they come, in batches, and passes each new count to `show`.

    A batch's share of work counts before any of its completions is whole, so that the time left is known soon.
    """

    def __init__(self, total: int, show: ShowCount, clock: Callable[[], float] = time.monotonic) -> None:
        """`total` completions are needed; `clock` returns seconds."""
        self._total, self._show, self._clock = total, show, clock
        self._began, self._kept, self._done, self._tokens = clock(), 0, 0, 0

    def begin(self, kept: int = 0) -> None:
        """Show what is there before anything is sampled: completions that say nothing of the pace."""
        self._kept, self._done, self._began = kept, kept, self._clock()
        self._shown()

    def within(self, batch: SamplingProgress) -> None:
        """Show how far the batch under way is."""
        self._shown(batch)

    def add(self, groups: Sequence[RolloutGroup]) -> None:
        """Count the completions of a batch, all of them whole."""
        self._done += sum(len(group.rollouts) for group in groups)
        self._tokens += sum(len(rollout.token_ids) for group in groups for rollout in group.rollouts)
        self._shown()

    def _shown(self, batch: SamplingProgress | None = None) -> None:
        ended, tokens, work = (batch.ended, batch.tokens, batch.share * batch.total) if batch else (0, 0, 0.0)
        seconds, made = self._clock() - self._began, self._done - self._kept + work
        left, sampled = self._total - self._done - work, self._tokens + tokens
        self._show(
            SamplingCount(
                done=self._done + ended,
                total=self._total,
                tok_s=sampled / seconds if seconds > 0 and sampled else None,
                left_s=max(left, 0.0) * seconds / made if made > 0 and seconds > 0 else None,
                read_s=batch.read / seconds if batch and batch.read and seconds > 0 and not sampled else None,
            )
        )
