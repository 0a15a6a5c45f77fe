"""Scores with intervals: as SciPy has them, and drawn where they belong."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
from scipy import stats

from smolsum.report import charts
from smolsum.report.side_by_side import mean_interval


def test_interval_is_students() -> None:
    """By hand for 0, 1, 1, 0, 1 without one that is missing; SciPy agrees."""
    values = np.array([0.0, 1.0, math.nan, 1.0, 0.0, 1.0])
    found = mean_interval(values)
    assert (found.n, found.mean) == (5, pytest.approx(0.6))
    assert found.low == pytest.approx(0.6 - 2.776445 * math.sqrt(0.3 / 5), abs=1e-6)
    known = values[~np.isnan(values)]
    expected = stats.t.interval(0.95, 4, loc=known.mean(), scale=stats.sem(known))
    assert (found.low, found.high) == pytest.approx(expected)


@pytest.mark.parametrize("values", [[], [0.5], [math.nan]])
def test_one_example_has_no_interval(values: list[float]) -> None:
    """Its ends are not known, and not 0."""
    found = mean_interval(np.array(values, dtype=float))
    assert math.isnan(found.low)
    assert math.isnan(found.high)


def test_spans_are_where_their_values_are() -> None:
    """A higher value is further right, a dot lies on its own line, everything inside the drawing."""
    svg = charts.spans(["a", "b"], [(0.2, 0.1, 0.3), (0.8, 0.7, 0.9)], alt="x")
    lines = [tuple(map(float, m)) for m in re.findall(r'class="line c0" d="M([\d.]+) [\d.]+H([\d.]+)"', svg)]
    dots = [float(x) for x in re.findall(r'cx="([\d.]+)"', svg)]
    assert lines[0][0] < dots[0] < lines[0][1] < lines[1][0] < dots[1] < lines[1][1] < charts.WIDTH
