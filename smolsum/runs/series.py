"""The values of a metric over all steps, and as the few points that a chart can show."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import cast

from smolsum.runs.records import LARGEST

MOST_POINTS = 512


@dataclass(frozen=True)
class Point:
    """One step, or several neighbouring ones: their mean step, and the least, mean and greatest value."""

    step: float
    low: float
    mean: float
    high: float


class Series:
    """The values of one metric, in order of step: 16 bytes a step."""

    def __init__(self) -> None:
        self.steps, self.values = array("q"), array("d")
        self.missing = 0
        self.low, self.high = math.inf, -math.inf

    def extend(self, steps: Sequence[int], values: Sequence[float | None]) -> None:
        """Add the values of the next steps, in order; None (not finite) only counts as missing."""
        places, numbers = _known(steps, values)
        self.missing += len(steps) - len(places)
        if places:
            self.steps.extend(places)
            self.values.extend(numbers)
            self.low, self.high = min(self.low, min(numbers)), max(self.high, max(numbers))

    @property
    def count(self) -> int:
        """Values so far."""
        return len(self.values)

    @property
    def last(self) -> float | None:
        """The newest value."""
        return self.values[-1] if self.values else None

    @property
    def last_step(self) -> int | None:
        """The step of the newest value."""
        return self.steps[-1] if self.steps else None

    def recent(self, number: int, since: int = 0) -> list[float]:
        """The newest values from the step `since` on, at most `number`, oldest first."""
        return list(self.values[max(bisect_left(self.steps, since), len(self.values) - number) :])

    def at(self, step: float) -> tuple[int, float] | None:
        """The last value at this step or before it, with its step."""
        place = bisect_right(self.steps, step)
        return (self.steps[place - 1], self.values[place - 1]) if place else None

    def points(self, since: float = -math.inf, until: float = math.inf, most: int = MOST_POINTS) -> list[Point]:
        """The values after the step `since` up to the step `until` as at most about `most` points: each step if there
        is room, else equal numbers of neighbouring steps, always the same ones."""
        first, end = bisect_right(self.steps, since), bisect_right(self.steps, until)
        size = 1
        while end - first > size * most:
            size *= 2
        if size == 1:
            return [Point(self.steps[n], v, v, v) for n, v in enumerate(self.values[first:end], start=first)]
        edges = [first, *range(first - first % size + size, end, size), end]
        return [self._joined(a, b) for a, b in pairwise(edges) if a < b]

    def _joined(self, first: int, end: int) -> Point:
        """Neighbouring values as one point."""
        values = self.values[first:end]
        return Point(sum(self.steps[first:end]) / (end - first), min(values), sum(values) / (end - first), max(values))


def _known(steps: Sequence[int], values: Sequence[float | None]) -> tuple[Sequence[int], Sequence[float]]:
    """The finite values with their steps; the arguments themselves if all are finite."""
    # a sum takes one pass in C, and is not finite where a value is not
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
