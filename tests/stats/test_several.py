"""Many tests, metrics against metrics, and fronts with their hypervolumes: by hand, and against SciPy or a grid."""

import math

import numpy as np
import polars as pl
import pytest
from scipy import stats

from smolsum.stats.several import benjamini_hochberg, correlate, count_tests, holm, hypervolume, pareto_front


def test_holm_by_hand() -> None:
    """Of 0.01, 0.04, 0.03, 0.005: 4 x 0.005, 3 x 0.01, 2 x 0.03, then 0.06 again, as 1 x 0.04 would be less."""
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.9]) == [1, 1]


def test_benjamini_hochberg_by_hand() -> None:
    """Of 0.01, 0.04, 0.03, 0.005: 4/4 x 0.04, 4/3 x 0.03, 4/2 x 0.01, 4/1 x 0.005."""
    assert benjamini_hochberg([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.02, 0.04, 0.04, 0.02])


def test_undefined_tests_do_not_count() -> None:
    """A p that is undefined stays so and makes the others no dearer."""
    found = holm([math.nan, 0.01, 0.02])
    assert math.isnan(found[0])
    assert found[1:] == pytest.approx([0.02, 0.02])
    assert count_tests([math.nan, 0.01, 0.02]) == 2
    assert math.isnan(benjamini_hochberg([math.nan])[0])
    assert holm([]) == []


def test_correlation_pools_rows() -> None:
    """r is SciPy's over all rows of all files; within takes each file's mean off first, and may have another sign."""
    one = pl.DataFrame({"x": [0.0, 1.0, 2.0], "y": [2.0, 1.0, 0.5]})
    two = pl.DataFrame({"x": [10.0, 11.0, None], "y": [12.0, 11.0, 10.0]})
    (pair,) = correlate([one, two], ["x", "y"])
    x, y = [0.0, 1.0, 2.0, 10.0, 11.0], [2.0, 1.0, 0.5, 12.0, 11.0]
    assert (pair.x, pair.y, pair.n, pair.missing) == ("x", "y", 5, 1)
    assert pair.r == pytest.approx(stats.pearsonr(x, y).statistic)
    centred_x, centred_y = [-1.0, 0, 1, -0.5, 0.5], [5 / 6, -1 / 6, -2 / 3, 0.5, -0.5]
    assert pair.r_within == pytest.approx(stats.pearsonr(centred_x, centred_y).statistic)
    assert pair.r > 0 > pair.r_within


def test_metric_that_does_not_vary_has_no_correlation() -> None:
    """Constant, rare or absent values: r is undefined, and nothing warns."""
    frame = pl.DataFrame({"x": [0.1 + 0.2, 0.3, 0.3], "y": [1.0, 2.0, 3.0], "z": [None, None, 1.0]})
    pairs = correlate([frame], ["x", "y", "z"])
    assert [(pair.x, pair.y) for pair in pairs] == [("x", "y"), ("x", "z"), ("y", "z")]
    assert all(math.isnan(pair.r) and math.isnan(pair.r_within) for pair in pairs)


def test_front_has_what_nothing_beats() -> None:
    """From the left; a point that another equals in one coordinate and beats in the other is not on it."""
    points = [(0.2, 0.9), (0.5, 0.5), (0.5, 0.7), (0.9, 0.7), (0.9, 0.1), (0.2, 0.9)]
    assert pareto_front(points) == [(0.2, 0.9), (0.9, 0.7)]
    assert pareto_front([]) == []


def test_hypervolume_by_hand() -> None:
    """Two rectangles that overlap; from another corner; what is worse than the corner adds nothing."""
    assert hypervolume([(0.5, 0.8), (1.0, 0.4)]) == pytest.approx(0.5 * 0.8 + 0.5 * 0.4)
    assert hypervolume([(0.5, 0.8), (1.0, 0.4)], (0.25, 0.3)) == pytest.approx(0.25 * 0.5 + 0.5 * 0.1)
    assert hypervolume([(0.0, 1.0), (1.0, 0.0), (-1.0, 2.0)]) == 0.0
    assert hypervolume([]) == 0.0


def test_hypervolume_counts_the_cells_that_are_dominated() -> None:
    """A grid of cells, of which those below and left of any point count."""
    rng = np.random.default_rng(3)
    points = [(a / 50, b / 50) for a, b in rng.integers(0, 51, (12, 2))]
    edges = np.arange(1, 51) / 50
    covered = np.zeros((50, 50), dtype=bool)
    for x, y in points:
        covered |= (edges[:, None] <= x + 1e-9) & (edges[None, :] <= y + 1e-9)
    assert hypervolume(points) == pytest.approx(covered.mean())
