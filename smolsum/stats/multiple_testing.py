"""p values of many comparisons, adjusted over all of them."""

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import stats


def holm(p_values: Sequence[float]) -> list[float]:
    """Returns p values adjusted by Holm's step-down method (Holm 1979), which controls the family-wise error rate.

    The k-th smallest of m is multiplied by m - k + 1, and each is at least the one before it. NaN stays NaN and does
    not count in m.
    """
    return _over_tests(p_values, _holm)


def benjamini_hochberg(p_values: Sequence[float]) -> list[float]:
    """Returns p values adjusted by Benjamini and Hochberg (`scipy.stats.false_discovery_control`), which controls the
    false discovery rate. NaN as in `holm`."""
    return _over_tests(p_values, lambda p: np.asarray(stats.false_discovery_control(p, method="bh")))


def count_tests(p_values: Sequence[float]) -> int:
    """Returns how many of the p values are tests, i.e. not NaN."""
    return sum(not math.isnan(p) for p in p_values)


def _holm(p: NDArray[np.float64]) -> NDArray[np.float64]:
    order = np.argsort(p, kind="stable")
    steps = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1))
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(steps, 1.0)
    return adjusted


def _over_tests(p_values: Sequence[float], adjust: Callable[[NDArray[np.float64]], NDArray[np.float64]]) -> list[float]:
    p = np.array(p_values, dtype=np.float64)
    tested = ~np.isnan(p)
    if tested.any():
        p[tested] = adjust(p[tested])
    return [float(value) for value in p]
