"""Means over seeds with their intervals, as the tables of the benchmarks show them."""

from collections.abc import Sequence

import numpy as np
from scipy import stats


def _half_width(values: np.ndarray) -> float:
    """Half of Student's 95 % interval; 0 of one value, and of equal ones."""
    if values.size < 2 or not np.ptp(values):
        return 0.0
    return float(stats.t.ppf(0.975, values.size - 1) * stats.sem(values))


def interval(values: Sequence[float], digits: int) -> str:
    """Mean with Student's 95 % interval."""
    found = np.array(values, dtype=np.float64)
    half = _half_width(found)
    return f"{found.mean():.{digits}f}" + (f" ± {half:.{digits}f}" if half else "")


def ratio(values: Sequence[float]) -> str:
    """Geometric mean with Student's 95 % interval of the logarithms."""
    logs = np.log(values)
    mean, half = logs.mean(), _half_width(logs)
    return f"{np.exp(mean):.2f}" + (f" [{np.exp(mean - half):.2f}, {np.exp(mean + half):.2f}]" if half else "")
