"""Fronts and hypervolumes, by hand and against a grid of cells."""

import numpy as np
import pytest

from smolsum.stats.several import hypervolume, pareto_front


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
