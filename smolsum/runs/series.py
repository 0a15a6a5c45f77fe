"""The values of a metric over all steps, in memory that does not grow with their number."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice, takewhile
from typing import cast

from smolsum.runs.records import LARGEST

BUCKETS = 512
RECENT = 512


@dataclass(frozen=True)
class Point:
    """One step, or several neighbouring ones: their mean step, and the least, mean and greatest value."""

    step: float
    low: float
    mean: float
    high: float


class Bucket:
    """Sums and extremes of some neighbouring steps."""

    __slots__ = ("count", "high", "low", "steps", "total")

    def __init__(self, steps: Sequence[int], values: Sequence[float]) -> None:
        self.count, self.steps, self.total = len(values), float(sum(steps)), float(sum(values))
        self.low, self.high = min(values), max(values)

    def join(self, other: Bucket) -> None:
        """Add another bucket to this one."""
        self.count += other.count
        self.steps += other.steps
        self.total += other.total
        self.low, self.high = min(self.low, other.low), max(self.high, other.high)

    def point(self) -> Point:
        """The bucket as a point of a chart."""
        return Point(self.steps / self.count, self.low, self.total / self.count, self.high)


class Series:
    """The values of one metric, in order of step.

    At most BUCKETS buckets with least, mean and greatest value over the whole run: when they are full, neighbours are
    joined and each new one holds twice as many steps. The last RECENT values are kept as they are.
    """

    def __init__(self) -> None:
        self.count = self.missing = 0
        self.low, self.high = math.inf, -math.inf
        self._buckets: list[Bucket] = []
        self._size = 1
        self._recent: deque[tuple[int, float]] = deque(maxlen=RECENT)

    def extend(self, steps: Sequence[int], values: Sequence[float | None]) -> None:
        """Add the values of the next steps, in order; None (not finite) only counts as missing."""
        places, numbers = _known(steps, values)
        self.missing += len(steps) - len(places)
        if not places:
            return
        self.count += len(places)
        self._recent.extend(zip(places[-RECENT:], numbers[-RECENT:], strict=True))
        self.low, self.high = min(self.low, min(numbers)), max(self.high, max(numbers))
        start = 0
        while start < len(places):
            free = self._size - self._buckets[-1].count if self._buckets else 0
            if free:
                end = start + free
                self._buckets[-1].join(Bucket(places[start:end], numbers[start:end]))
            else:
                if len(self._buckets) == BUCKETS:
                    self._halve()
                    continue
                end = start + self._size
                self._buckets.append(Bucket(places[start:end], numbers[start:end]))
            start = end

    def _halve(self) -> None:
        """Join neighbours, so that each bucket holds twice as many steps."""
        for left, right in zip(self._buckets[::2], self._buckets[1::2], strict=True):
            left.join(right)
        self._buckets = self._buckets[::2]
        self._size *= 2

    @property
    def last(self) -> float | None:
        """The newest value."""
        return self._recent[-1][1] if self._recent else None

    @property
    def last_step(self) -> int | None:
        """The step of the newest value."""
        return self._recent[-1][0] if self._recent else None

    def recent(self, number: int, since: int = 0) -> list[float]:
        """The newest values from the step `since` on, at most `number` and RECENT, oldest first."""
        newest = islice(reversed(self._recent), number)
        return [value for _, value in takewhile(lambda pair: pair[0] >= since, newest)][::-1]

    def points(self, since: float = -math.inf) -> list[Point]:
        """The points after the step `since`: each step if all of them are recent, else buckets."""
        if self._recent and (self._recent[0][0] <= since or self.count == len(self._recent)):
            return [Point(step, value, value, value) for step, value in self._recent if step > since]
        return [point for bucket in self._buckets if (point := bucket.point()).step > since]


def _known(steps: Sequence[int], values: Sequence[float | None]) -> tuple[Sequence[int], Sequence[float]]:
    """The finite values with their steps; the arguments themselves if all are finite."""
    if None not in values and abs(sum(cast(Sequence[float], values))) < LARGEST:
        return steps, cast(Sequence[float], values)
    known = [(step, value) for step, value in zip(steps, values, strict=True) if value is not None]
    known = [pair for pair in known if abs(pair[1]) < LARGEST]
    return [step for step, _ in known], [value for _, value in known]


def smoothed(points: list[Point], weight: float) -> list[Point]:
    """Return the points with an exponential moving average of their means, corrected for the start.

    `weight` in [0, 1) is that of what came before: 0 changes nothing. Lows and highs stay on the mean, as a smoothed
    line has no band.
    """
    if weight <= 0:
        return points
    out, total, norm = [], 0.0, 0.0
    for point in points:
        total, norm = weight * total + point.mean, weight * norm + 1.0
        out.append(Point(point.step, total / norm, total / norm, total / norm))
    return out
