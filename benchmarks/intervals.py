"""A mean over seeds with its interval, as the tables of the benchmarks show it."""

from collections.abc import Sequence

import numpy as np
from scipy import stats


def interval(values: Sequence[float], digits: int) -> str:
    """Mean with Student's 95 % interval."""
    found = np.array(values, dtype=np.float64)
    if found.size < 2 or not np.ptp(found):
        return f"{found.mean():.{digits}f}"
    half = stats.t.ppf(0.975, found.size - 1) * stats.sem(found)
    return f"{found.mean():.{digits}f} ± {half:.{digits}f}"
