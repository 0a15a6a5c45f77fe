"""A metric over all steps, as few points."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smolsum.runs.series import MOST_POINTS, Point, Series, smoothed


def series_of(values: list[float | None]) -> Series:
    found = Series()
    for start in range(0, len(values), 7):  # in pieces, as they are read
        part = values[start : start + 7]
        found.extend(range(start + 1, start + 1 + len(part)), part)
    return found


@pytest.mark.parametrize("steps", [100, 1000, 20_000])
def test_points_stay_few_and_lose_no_extreme(steps: int) -> None:
    """Any number of steps is at most MOST_POINTS points, with the least and the greatest value among them, in order."""
    values = [math.sin(n / 50) for n in range(steps)]
    values[steps // 3] = 9.0
    found = series_of(list(values))
    points = found.points()
    assert len(points) <= MOST_POINTS
    assert max(p.high for p in points) == 9.0
    assert min(p.low for p in points) == min(values)
    assert [p.step for p in points] == sorted(p.step for p in points)
    assert found.last == values[-1]


@given(st.integers(1, 3000), st.integers(0, 3000), st.integers(0, 3000), st.integers(1, 600))
def test_every_window_is_whole(steps: int, since: int, until: int, most: int) -> None:
    """A window anywhere has each of its steps in one point, in order, and no other step."""
    found = series_of([float(n) for n in range(1, steps + 1)])
    points = found.points(since, until, most)
    wanted = range(since + 1, min(until, steps) + 1)
    assert len(points) <= most + 1
    assert [p.low for p in points] == sorted(p.low for p in points)
    assert sum(p.high - p.low + 1 for p in points) == len(wanted)
    if wanted:
        assert (points[0].low, points[-1].high) == (wanted[0], wanted[-1])


def test_a_window_far_back_is_exact() -> None:
    found = series_of([float(n) for n in range(20_000)])
    assert found.points(300, 400) == [Point(n + 1, n, n, n) for n in range(300, 400)]
    assert found.at(301.5) == (301, 300.0)
    assert found.at(0) is None


def test_the_newest_steps_are_exact() -> None:
    found = series_of([float(n) for n in range(5000)])
    assert found.points(4900) == [Point(n + 1, n, n, n) for n in range(4900, 5000)]
    assert found.recent(3) == [4997.0, 4998.0, 4999.0]
    assert found.recent(10, since=4999) == [4998.0, 4999.0]


def test_missing_values_are_counted() -> None:
    found = series_of([1.0, None, float("nan"), 3.0])
    assert (found.count, found.missing, found.last) == (2, 2, 3.0)


def test_smoothing() -> None:
    """By hand: with weight 0.5 the second mean is (0.5 * 1 + 4) / 1.5; without weight nothing changes."""
    points = [Point(1, 1, 1, 1), Point(2, 4, 4, 4)]
    assert smoothed(points, 0.0) == points
    assert smoothed(points, 0.5)[1].mean == pytest.approx(3.0)
