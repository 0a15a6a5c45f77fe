"""p values of many comparisons, adjusted over all of them."""

import math
from collections.abc import Sequence

import numpy as np
from scipy import stats


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
