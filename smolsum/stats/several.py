"""Several comparisons or metrics at once: adjusted p values, correlations, and the front of two measures."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy import stats

from smolsum.stats.paired import constant

Point = tuple[float, float]


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p values adjusted by Holm's step-down method (Holm 1979), which controls the family-wise error rate.

    The k-th smallest of m is multiplied by m - k + 1, and each is at least the one before it. NaN stays NaN and does
    not count in m.
    """
    p = np.array(p_values, dtype=np.float64)
    order = np.argsort(p, kind="stable")  # NaN is last
    factors = count_tests(p_values) - np.arange(len(p))
    p[order] = np.minimum(np.maximum.accumulate(p[order] * factors), 1.0)
    return list(map(float, p))


def benjamini_hochberg(p_values: Sequence[float]) -> list[float]:
    """Return p values adjusted by Benjamini and Hochberg (`scipy.stats.false_discovery_control`), which controls the
    false discovery rate. NaN as in `holm`."""
    p = np.array(p_values, dtype=np.float64)
    if (tested := ~np.isnan(p)).any():
        p[tested] = stats.false_discovery_control(p[tested], method="bh")
    return list(map(float, p))


def count_tests(p_values: Sequence[float]) -> int:
    """Return how many of the p values are tests, i.e. not NaN."""
    return sum(not math.isnan(p) for p in p_values)


@dataclass(frozen=True)
class Correlation:
    """Two metrics over all examples of all evaluations; r is NaN if one of them does not vary."""

    x: str
    y: str
    n: int
    missing: int
    r: float
    """Pearson's r of all rows together"""
    r_within: float
    """Pearson's r of the deviations from each evaluation's mean"""


def correlate(frames: Sequence[pl.DataFrame], metrics: Sequence[str]) -> list[Correlation]:
    """Return the correlation of every two metrics over the rows of all frames; a row counts for a pair of metrics if
    it has both."""
    found = []
    for x, y in combinations(metrics, 2):
        complete = [frame.select(x, y).drop_nulls() for frame in frames]
        pooled = np.concatenate([frame.to_numpy() for frame in complete])
        centred = np.concatenate([frame.select(pl.all() - pl.all().mean()).to_numpy() for frame in complete])
        size = np.abs(pooled).max(axis=0, initial=0.0)
        missing = sum(frame.height for frame in frames) - len(pooled)
        found.append(Correlation(x, y, len(pooled), missing, _pearson(pooled, size), _pearson(centred, size)))
    return found


def _pearson(rows: NDArray[np.float64], size: NDArray[np.float64]) -> float:
    if len(rows) < 2 or any(constant(rows[:, i], float(size[i])) for i in (0, 1)):
        return math.nan
    return float(stats.pearsonr(rows[:, 0], rows[:, 1]).statistic)


def pareto_front(points: Iterable[Point]) -> list[Point]:
    """Return the points that no other equals or beats in both coordinates, each once, from the left."""
    front: list[Point] = []
    for x, y in sorted(set(points), reverse=True):  # from the right: a point stays if it is higher than all so far
        if not front or y > front[-1][1]:
            front.append((x, y))
    return front[::-1]


def hypervolume(points: Iterable[Point], worst: Point = (0.0, 0.0)) -> float:
    """Return the area between `worst` and the front of the points (Zitzler and Thiele, 1998, "Multiobjective
    optimization using evolutionary algorithms"); points that are no better than `worst` in both add nothing."""
    area, left = 0.0, worst[0]
    for x, y in pareto_front((x, y) for x, y in points if x > worst[0] and y > worst[1]):
        area += (x - left) * (y - worst[1])
        left = x
    return area
