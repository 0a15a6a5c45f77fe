"""Line charts in a terminal: which of their points are in view, and how those become braille characters of two by four
dots, or the characters of ASCII that look like them.

Lines differ without colour: each has a pattern, and a letter at its right end. Libraries of charts for terminals tell
lines apart by colour alone, and draw neither ranges nor marks for values beyond a scale, so this is our own.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean
from typing import Literal, NamedTuple

Pattern = Literal["solid", "dotted", "dashed", "band", "haze", "rule"]
Ends = tuple[float, float]
"""The least and the greatest place or value of what is drawn."""
BLANK = 0x2800
MIN_POSITIVE = 1e-300
"""Smaller values count as 0 on a log scale."""
# the bit of each dot of a braille character, by row and column (Unicode 16.0, chapter 21)
DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))


class PlotPoint(NamedTuple):
    """A place along the axis, and the least, mean and greatest value there."""

    x: float
    low: float
    mean: float
    high: float


@dataclass(frozen=True)
class Trace:
    """One line of a chart: points in order of place, or a level across the whole width (`rule`); its style, and the
    letter at its end, if any."""

    points: tuple[PlotPoint, ...] = ()
    pattern: Pattern = "solid"
    level: float = math.nan
    style: str = ""
    letter: str = ""


Cell = tuple[str, str]
"""A character of a drawing, and its style; a blank has none."""


def draw(traces: Sequence[Trace], width: int, height: int, *, x: Ends, y: Ends, log: bool = False) -> list[list[Cell]]:
    """Return `height` rows of `width` cells with the traces between the places `x` and the values `y`.

    Later traces are on top, and their style is that of the cell. Values outside are cut off at the edge, and with `log`
    those that are not positive.
    """
    bits = [[0] * width for _ in range(height)]
    cells: list[list[Cell]] = [[(" ", "")] * width for _ in range(height)]
    for trace in traces:
        inked = INKED[trace.pattern]
        for column, (upper, lower) in _spans(trace, 2 * width, 4 * height, x, y, log).items():
            for row in range(upper, lower + 1):
                if inked(column, row):
                    bits[row // 4][column // 2] |= DOTS[row % 4][column % 2]
                    cells[row // 4][column // 2] = (chr(BLANK + bits[row // 4][column // 2]), trace.style)
    return cells


def nearest(columns: int, x: Ends, place: float) -> int:
    """Return the column of a place between both ends of an axis."""
    share = (place - x[0]) / (x[1] - x[0]) if x[1] > x[0] else 0.0
    return round(min(max(share, 0.0), 1.0) * (columns - 1))


def row_of(value: float, rows: int, y: Ends, log: bool = False) -> int:
    """Return the row of a value, 0 at the top, between y[0] at the bottom and y[1] at the top."""
    if log:
        value, y = math.log10(max(value, y[0])), (math.log10(y[0]), math.log10(y[1]))
    share = (value - y[0]) / (y[1] - y[0]) if y[1] > y[0] else 0.5
    return round((1 - min(max(share, 0.0), 1.0)) * (rows - 1))


INKED: dict[Pattern, Callable[[int, int], bool]] = {
    "solid": lambda column, row: True,
    "dotted": lambda column, row: column % 4 < 1 or (column + row) % 4 == 0,
    "dashed": lambda column, row: column % 8 < 5,
    "haze": lambda column, row: (column + row) % 2 == 0,
    "band": lambda column, row: column % 4 == 0 and row % 2 == 0,
    "rule": lambda column, row: column % 6 < 3,
}
"""Whether a pattern has a dot in a column and a row."""


def _spans(trace: Trace, columns: int, rows: int, x: Ends, y: Ends, log: bool) -> dict[int, tuple[int, int]]:
    """The rows that a trace fills, from upper to lower, by column, joined to the column before."""
    if trace.pattern == "rule":
        row = row_of(trace.level, rows, y, log) if y[0] <= trace.level <= y[1] else None
        return {} if row is None else dict.fromkeys(range(columns), (row, row))
    known: dict[int, Ends] = {}
    for point in trace.points:
        if x[0] <= point.x <= x[1] and not (log and point.low <= MIN_POSITIVE):
            place = nearest(columns, x, point.x)
            low, high = known.get(place, (point.low, point.high))
            known[place] = min(low, point.low), max(high, point.high)
    for (before, start), (after, end) in pairwise(sorted(known.items())):
        for gap in range(before + 1, after):  # along straight lines
            low, high = (a + (b - a) * (gap - before) / (after - before) for a, b in zip(start, end, strict=True))
            known[gap] = low, high
    spans: dict[int, tuple[int, int]] = {}
    upper, lower = 0, rows  # of the column before
    for column, (low, high) in sorted(known.items()):
        own = row_of(high, rows, y, log), row_of(low, rows, y, log)
        spans[column] = own if trace.pattern in ("band", "haze") else (min(own[0], lower), max(own[1], upper))
        upper, lower = own
    return spans


def _stroke(bits: int) -> str:
    """The character of ASCII that looks most like the dots of a braille character."""
    left, right = ([row for row in range(4) if bits & DOTS[row][side]] for side in (0, 1))
    rows = sorted({*left, *right})
    if not rows:
        return " "
    if any(b - a > 1 for a, b in (*pairwise(left), *pairwise(right))):
        return ":"  # of a band
    if len(rows) > 2:
        rise = fmean(left) - fmean(right) if left and right else 0
        return "/" if rise > 0 else "\\" if rise < 0 else "|"
    return ("'--_" if left and right else "'..,")[rows[-1]]


IN_ASCII = str.maketrans("…→↑↓│┃┊·─╭╮╰╯█░▲▼★●○◐‖✓✗■▏▁▂▃▄▅▆▇", "~>^v|!!.-++++#.^v**.~=+x#|       ") | {
    BLANK + bits: _stroke(bits) for bits in range(256)
}
"""What replaces characters that a font may lack, one for one, for `str.translate`."""
