"""Scores with intervals: as SciPy has them, and drawn where they belong."""

import math
import re

import numpy as np
import pytest
from scipy import stats

from smolsum.report import charts
from smolsum.report.sections.scores import mean_interval


def test_interval_is_students() -> None:
    """By hand for 0, 2, 2, 0, 2 without one that is missing; SciPy agrees."""
    values = np.array([0.0, 2.0, math.nan, 2.0, 0.0, 2.0])
    found = mean_interval(values)
    assert (found.n, found.mean) == (5, pytest.approx(1.2))
    assert found.low == pytest.approx(1.2 - 2.776445 * math.sqrt(1.2 / 5), abs=1e-6)
    known = values[~np.isnan(values)]
    expected = stats.t.interval(0.95, 4, loc=known.mean(), scale=stats.sem(known))
    assert (found.low, found.high) == pytest.approx(expected)


def test_interval_of_right_and_wrong_is_exact() -> None:
    """That of SciPy for 3 of 5, and not of no width where all are right: down to 0.025^(1/20) for 20 of 20."""
    found = mean_interval(np.array([0.0, 1.0, math.nan, 1.0, 0.0, 1.0]))
    expected = stats.binomtest(3, 5).proportion_ci(0.95, method="exact")
    assert (found.n, found.mean) == (5, pytest.approx(0.6))
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))
    sure = mean_interval(np.ones(20))
    assert (sure.low, sure.high) == pytest.approx((0.025 ** (1 / 20), 1.0))


def test_interval_of_shares_stays_within_0_and_1() -> None:
    """Of 40 documents one has a question without an answer: Student's would go beyond 1, and hardly below 0.96."""
    found = mean_interval(np.array([1.0] * 39 + [0.5]))
    assert 0.9 < found.low < 0.96
    assert found.mean < found.high < 1


@pytest.mark.parametrize("values", [[], [0.5], [math.nan]])
def test_one_example_has_no_interval(values: list[float]) -> None:
    found = mean_interval(np.array(values, dtype=float))
    assert math.isnan(found.low)
    assert math.isnan(found.high)


def test_spans_are_where_their_values_are() -> None:
    """A higher value is further right, a dot is on its own line, everything inside the drawing."""
    svg = charts.spans(["a", "b"], [(0.2, 0.1, 0.3), (0.8, 0.7, 0.9)], alt="x", x_title="x")
    lines = [tuple(map(float, m)) for m in re.findall(r'class="line c0" d="M([\d.]+) [\d.]+H([\d.]+)"', svg)]
    dots = [float(x) for x in re.findall(r'cx="([\d.]+)"', svg)]
    assert lines[0][0] < dots[0] < lines[0][1] < lines[1][0] < dots[1] < lines[1][1] < charts.WIDTH
