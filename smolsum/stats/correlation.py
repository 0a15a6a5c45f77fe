"""Correlations of metrics over examples."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy import stats

from smolsum.stats.paired import constant


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
    return [_pair(frames, x, y) for x, y in combinations(metrics, 2)]


def _pair(frames: Sequence[pl.DataFrame], x: str, y: str) -> Correlation:
    complete = [frame.select(x, y).drop_nulls() for frame in frames]
    pooled = np.concatenate([frame.to_numpy() for frame in complete])
    centred = np.concatenate([frame.select(pl.all() - pl.all().mean()).to_numpy() for frame in complete])
    size = np.abs(pooled).max(axis=0, initial=0.0)
    missing = sum(frame.height for frame in frames) - len(pooled)
    return Correlation(x, y, len(pooled), missing, _pearson(pooled, size), _pearson(centred, size))


def _pearson(rows: NDArray[np.float64], size: NDArray[np.float64]) -> float:
    if len(rows) < 2 or any(constant(rows[:, i], float(size[i])) for i in (0, 1)):
        return math.nan
    return float(stats.pearsonr(rows[:, 0], rows[:, 1]).statistic)
