"""Line charts in a terminal: from points to braille characters of two by four dots, or plain ASCII.

Lines differ without colour: each has a pattern, and a letter at its right end.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from smolsum.runs.series import Point

Pattern = Literal["solid", "dotted", "dashed", "band", "haze", "rule"]
BLANK = 0x2800
MIN_POSITIVE = 1e-300
"""Smaller values count as 0 on a log scale."""
# the bit of each dot of a braille character, by row and column (Unicode 16.0, chapter 21)
DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
HEIGHTS = "_.-:=+*#"
ASCII = {"solid": "*", "dotted": "o", "dashed": "+", "band": ":", "haze": ".", "rule": "-"}


@dataclass(frozen=True)
class Trace:
    """One line of a chart: points in order of step, or a level across the whole width (`rule`); its style, and the
    letter at its end, if any."""

    points: tuple[Point, ...] = ()
    pattern: Pattern = "solid"
    level: float = math.nan
    style: str = ""
    letter: str = ""


@dataclass(frozen=True)
class Drawing:
    """Lines of equal length, and for each character the index of the trace that it shows; -1 for none."""

    lines: tuple[str, ...]
    owners: tuple[tuple[int, ...], ...]


def draw(
    traces: Sequence[Trace],
    width: int,
    height: int,
    *,
    x: tuple[float, float],
    y: tuple[float, float],
    log: bool = False,
    ascii: bool = False,
) -> Drawing:
    """Return `height` lines of `width` characters with the traces between the steps `x` and the values `y`.

    Later traces are on top. Values outside are cut off at the edge, and with `log` those that are not positive.
    """
    columns, rows = (width, height) if ascii else (2 * width, 4 * height)
    cells = [[0] * width for _ in range(height)]
    owners = [[-1] * width for _ in range(height)]
    for number, trace in enumerate(traces):
        spans = _spans(trace, columns, rows, x, y, log)
        for column, span in enumerate(spans):
            if span is None:
                continue
            for row in range(span[0], span[1] + 1):
                if not _inked(trace.pattern, column, row, ascii):
                    continue
                place = (row, column) if ascii else (row // 4, column // 2)
                bit = ord(ASCII[trace.pattern]) if ascii else DOTS[row % 4][column % 2]
                cells[place[0]][place[1]] = bit if ascii else cells[place[0]][place[1]] | bit
                owners[place[0]][place[1]] = number
    lines = tuple("".join(" " if not cell else chr(cell if ascii else BLANK + cell) for cell in line) for line in cells)
    return Drawing(lines, tuple(tuple(line) for line in owners))


def heights(points: Sequence[Point], width: int, *, x: tuple[float, float], y: tuple[float, float]) -> str:
    """Return points as one line of ASCII, from `_` at y[0] to `#` at y[1]."""
    means: list[float | None] = [None] * width
    for point in points:
        means[round((point.step - x[0]) / (x[1] - x[0]) * (width - 1)) if x[1] > x[0] else 0] = point.mean
    _bridge(means)
    top = len(HEIGHTS) - 1
    return "".join(" " if mean is None else HEIGHTS[top - row_of(mean, top + 1, y)] for mean in means)


def row_of(value: float, rows: int, y: tuple[float, float], log: bool = False) -> int:
    """Return the row of a value, 0 at the top, between y[0] at the bottom and y[1] at the top."""
    if log:
        value, y = math.log10(max(value, y[0])), (math.log10(y[0]), math.log10(y[1]))
    share = (value - y[0]) / (y[1] - y[0]) if y[1] > y[0] else 0.5
    return round((1 - min(max(share, 0.0), 1.0)) * (rows - 1))


def bounds(values: Sequence[float], *, log: bool = False) -> tuple[float, float]:
    """Return the ends of a scale: the least and the greatest finite value (positive if `log`), widened if they are
    equal; (0, 1) without any value, (0.1, 1) on a log scale."""
    kept = [value for value in values if math.isfinite(value) and (value > MIN_POSITIVE or not log)]
    if not kept:
        return (0.1, 1.0) if log else (0.0, 1.0)
    low, high = min(kept), max(kept)
    if low < high:
        return low, high
    if log:
        return low / 2, high * 2
    reach = abs(low) / 2 or 0.5
    return low - reach, high + reach


def _inked(pattern: Pattern, column: int, row: int, ascii: bool) -> bool:
    """Whether the pattern has a dot here."""
    match pattern:
        case "solid":
            return True
        case "dotted":
            return column % 2 == 0 if ascii else column % 4 < 1 or (column + row) % 4 == 0
        case "dashed":
            return column % 4 != 3 if ascii else column % 8 < 5
        case "haze":
            return ascii or (column + row) % 2 == 0
        case "band":
            return ascii or (column % 4 == 0 and row % 2 == 0)
        case "rule":
            return column % 2 == 0 if ascii else column % 6 < 3


def _spans(
    trace: Trace, columns: int, rows: int, x: tuple[float, float], y: tuple[float, float], log: bool
) -> list[tuple[int, int] | None]:
    """The rows that a trace fills in each column, from upper to lower, joined to the column before."""
    if trace.pattern == "rule":
        inside = y[0] <= trace.level <= y[1]
        row = row_of(trace.level, rows, y, log) if inside else 0
        return [(row, row) if inside else None] * columns
    lows: list[float | None] = [None] * columns
    highs: list[float | None] = [None] * columns
    for point in trace.points:
        if not x[0] <= point.step <= x[1] or (log and point.low <= MIN_POSITIVE):
            continue
        place = round((point.step - x[0]) / (x[1] - x[0]) * (columns - 1)) if x[1] > x[0] else 0
        low, high = lows[place], highs[place]
        lows[place] = point.low if low is None else min(low, point.low)
        highs[place] = point.high if high is None else max(high, point.high)
    _bridge(lows)
    _bridge(highs)
    spans: list[tuple[int, int] | None] = []
    previous: tuple[int, int] | None = None
    for low, high in zip(lows, highs, strict=True):
        if low is None or high is None:
            spans.append(None)
            continue
        own = (row_of(high, rows, y, log), row_of(low, rows, y, log))
        joined = own
        if previous is not None and trace.pattern not in ("band", "haze"):
            joined = (min(own[0], previous[1]), max(own[1], previous[0]))
        spans.append(joined)
        previous = own
    return spans


def _bridge(values: list[float | None]) -> None:
    """Fill the columns between two known ones along a straight line, in place."""
    before = -1
    for place, value in enumerate(values):
        if value is None:
            continue
        if before >= 0:
            start = values[before]
            assert start is not None
            for gap in range(before + 1, place):
                values[gap] = start + (value - start) * (gap - before) / (place - before)
        before = place
