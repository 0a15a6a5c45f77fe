"""The renderer of charts as a pure function."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.watching import golden

from smolsum.linechart.braille import IN_ASCII, Cell, PlotPoint, Trace, draw, row_of
from smolsum.linechart.scale import bounds

FINITE = st.floats(-1e6, 1e6)


def points(values: list[float]) -> tuple[PlotPoint, ...]:
    return tuple(PlotPoint(step, value, value, value) for step, value in enumerate(values))


WAVE = points([math.sin(n / 8) for n in range(100)])
WIDE = tuple(PlotPoint(p.x, p.mean - 0.3, p.mean, p.mean + 0.3) for p in WAVE)


def lines(drawing: list[list[Cell]]) -> list[str]:
    return ["".join(char for char, _ in row) for row in drawing]


@pytest.mark.parametrize("ascii", [False, True])
def test_golden(ascii: bool) -> None:
    """A wave in every pattern, on both scales, sparse and dense: what is drawn does not change unseen."""
    parts = []
    for title, traces, y, log in [
        ("solid", [Trace(WAVE)], (-1.0, 1.0), False),
        ("dotted over a rule", [Trace(pattern="rule", level=0.5), Trace(WAVE, "dotted")], (-1.0, 1.0), False),
        ("band with its mean", [Trace(WIDE, "band"), Trace(WAVE)], (-1.5, 1.5), False),
        ("cut off at the edges", [Trace(WAVE)], (-0.5, 0.5), False),
        ("log", [Trace(points([10 ** (n / 25 - 2) for n in range(100)]))], (0.01, 100.0), True),
    ]:
        drawing = draw(traces, 40, 6, x=(0, 99), y=y, log=log)
        parts += [title, *(f"|{line}|" for line in lines(drawing))]
    sparse = draw([Trace(points([0.0, 1.0, 0.0]))], 20, 3, x=(0, 2), y=(0.0, 1.0))
    parts += ["three points", *(f"|{line}|" for line in lines(sparse))]
    drawn = "\n".join(parts) + "\n"
    golden(f"braille{'-ascii' if ascii else ''}.txt", drawn.translate(IN_ASCII) if ascii else drawn)


def test_a_single_dot() -> None:
    """By hand: the dots of one character, from the lower left to the upper right."""
    drawing = draw([Trace(points([0.0, 1.0]))], 1, 1, x=(0, 1), y=(0.0, 1.0))
    # column 0: the bottom dot (0x40); column 1: joined to it, from the bottom to the top (0x08 + 0x10 + 0x20 + 0x80)
    assert ord(drawing[0][0][0]) - 0x2800 == 0x40 | 0x08 | 0x10 | 0x20 | 0x80


def test_later_traces_own_what_they_cross() -> None:
    below, above = (Trace(points([0.5] * 5), style=style) for style in ("red", "green"))
    drawing = draw([below, above], 5, 1, x=(0, 4), y=(0.0, 1.0))
    assert {style for row in drawing for _, style in row} == {"green"}


@given(st.lists(FINITE, max_size=60), st.integers(1, 30), st.integers(1, 8), st.booleans())
def test_always_fills_its_size(values: list[float], width: int, height: int, log: bool) -> None:
    drawing = draw([Trace(points(values))], width, height, x=(0, 59), y=bounds(values, log=log), log=log)
    assert [len(line) for line in lines(drawing)] == [width] * height


@given(st.lists(FINITE | st.just(math.nan), max_size=20), st.booleans())
def test_bounds_are_apart(values: list[float], log: bool) -> None:
    """A scale has two ends, both positive on a log scale, around every value that can be shown."""
    low, high = bounds(values, log=log)
    assert low < high
    assert low > 0 or not log
    assert all(low <= v <= high for v in values if math.isfinite(v) and (v > 1e-300 or not log))


def test_rows() -> None:
    assert [row_of(value, 5, (0.0, 1.0)) for value in (1.0, 0.5, 0.0, 9.0, -9.0)] == [0, 2, 4, 0, 4]
    assert row_of(1.0, 5, (0.01, 100.0), log=True) == 2
