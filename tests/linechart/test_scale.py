"""The scales of charts: round numbers, and labels in the room that they have."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from smolsum.linechart.scale import number, round_numbers, scale_labels, without_outliers


@given(st.floats(allow_nan=False, allow_infinity=False, min_value=-1e300, max_value=1e300))
def test_a_number_has_at_most_seven_characters(value: float) -> None:
    """The scale of a chart has room for seven, and a number keeps its size within them."""
    shown = number(value)
    assert len(shown) <= 7
    assert float(shown) == pytest.approx(value, rel=0.5, abs=0.0)


def test_numbers_that_were_too_long() -> None:
    """Powers of ten have no more digits than they need."""
    assert [number(value) for value in (-1.25e-5, -1.5e-300, -123_456.7)] == ["-1.3e-5", "-2e-300", "-1.2e5"]


def test_round_numbers() -> None:
    assert round_numbers(0.13, 0.97, 5) == pytest.approx([0.2, 0.4, 0.6, 0.8])
    assert round_numbers(0, 95, 4, time=True) == [0, 30, 60, 90]
    assert round_numbers(1, 1, 4) == []
    assert scale_labels(0.31, -0.3, [-0.2, 0.0, 0.2], 7)[2:] == ["-0.2", "0.0", "0.2"]
    assert scale_labels(50, 10, [20, 40], 7)[2:] == ["20", "40"]
    assert without_outliers([]) == []


@given(st.floats(-1e9, 1e9, allow_subnormal=False), st.floats(1e-7, 1e9, allow_subnormal=False), st.integers(1, 6))
def test_labels_of_any_scale(bottom: float, height: float, most: int) -> None:
    """They fit, differ, are in order, and say where they are to a tenth of the way to the next one, or, where seven
    characters cannot say that, how far from the lowest."""
    assume(bottom + height > bottom + height / 1000 > bottom)
    top = bottom + height
    # as in a chart: a tick next to an end has no room
    ticks = [tick for tick in round_numbers(bottom, top, most) if height / 20 < tick - bottom < height * 19 / 20]
    labels = scale_labels(top, bottom, ticks, 7)
    assert max(map(len, labels)) <= 7
    assert len({*labels}) == len(labels)
    values = [top, bottom, *ticks]
    shown = [bottom + float(label) if "+" in label else float(label) for label in labels]
    apart = any("+" in label for label in labels)
    if apart:
        shown[1] = bottom
    assert sorted(shown) == [shown[n] for n in sorted(range(len(values)), key=lambda n: values[n])]
    near = [min(abs(value - other) for other in values if other != value) / 10 for value in values]
    # two digits of a distance may be all that fits
    assert apart or all(abs(a - b) <= most for a, b, most in zip(shown, values, near, strict=True))
