"""What a chart of lines shows: parts with scales of their own next to each other, an axis below, dividers, a cursor."""

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby

from rich.text import Text

from smolsum.console import duration
from smolsum.linechart.braille import Ends, Trace, draw, nearest, row_of
from smolsum.linechart.scale import bounds, number, round_numbers, round_powers, scale_labels, without_outliers

DIM, RED = "bright_black", "red"
"""Names of the terminal's colours: of scales and dividers, and of marks for values beyond a scale."""
GUTTER = 8
"""Characters of the scale on the left of a part."""
FOLLOWS = 2
"""Columns at the right end, for the letters of the curves."""
MIN_COLUMNS = 8
"""Characters of a part besides its scale; parts without that room are left out, the earliest first."""
GUIDE_EVERY = 4


@dataclass(frozen=True)
class Axis:
    """The way from steps to places along a chart, and back: the steps themselves, or the seconds or tokens up to the
    end of each, which `sums` are at `steps`."""

    unit: str = "step"
    steps: Sequence[int] = ()
    sums: Sequence[float] = ()

    def place(self, step: float) -> float:
        """Return the place of a step, between known ones along a straight line."""
        if not self.steps:
            return step
        after = min(bisect_left(self.steps, step), len(self.steps) - 1)
        if self.steps[after] <= step or after == 0:
            return self.sums[after]
        share = (step - self.steps[after - 1]) / (self.steps[after] - self.steps[after - 1])
        return self.sums[after - 1] + share * (self.sums[after] - self.sums[after - 1])

    def step(self, place: float) -> float:
        """Return the nearest step of a place."""
        if not self.steps:
            return place
        after = min(bisect_left(self.sums, place), len(self.sums) - 1)
        if after and place - self.sums[after - 1] < self.sums[after] - place:
            after -= 1
        return float(self.steps[after])

    def label(self, place: float, apart: float = math.inf) -> str:
        """Return a place for people, with enough digits for places that are so far apart."""
        if self.unit == "time" and apart < 60 and place >= 3600:
            minutes, second = divmod(round(place), 60)
            return f"{minutes // 60}:{minutes % 60:02}:{second:02}"
        if self.unit == "time":
            return duration(place)
        if self.unit == "tokens" and place >= 10_000:
            unit, name, most = (1e6, "M", 2) if place >= 1e6 else (1e3, "k", 0)
            digits = max(most, -math.floor(math.log10(apart / unit) + 1e-9)) if math.isfinite(apart) else most
            return f"{place / unit:.{digits}f}{name}"
        return f"{place:.0f}"

    def newest(self, place: float) -> str:
        """Return the label at the right end."""
        return {"step": "step {}", "tokens": "{} tokens"}.get(self.unit, "{}").format(self.label(place))


@dataclass(frozen=True)
class Part:
    """Steps of a chart, both ends included, that have their own scale."""

    first: float
    last: float
    name: str = ""
    x: Ends = (0, 0)
    """its ends along the axis"""
    column: int = 0
    """the first one of its drawing"""
    columns: int = 0
    traces: Sequence[Trace] = ()
    """from back to front"""
    dividers: Sequence[float] = ()
    """places along the axis"""
    cursor: float | None = None


def side_by_side(parts: Sequence[Part], width: int) -> list[Part]:
    """Return parts next to each other, as wide as their ends are apart: the last ones that have room."""
    parts = parts[-max((width - FOLLOWS) // (GUTTER + MIN_COLUMNS + 1), 1) :]
    room, column = width - FOLLOWS - len(parts) * (GUTTER + 1) + 1, 0
    total, found = sum(part.x[1] - part.x[0] for part in parts) or 1.0, list[Part]()
    for part in parts:
        left, apart = len(parts) - len(found) - 1, part.x[1] - part.x[0]
        columns = room if not left else min(max(round(room * apart / total), MIN_COLUMNS), room - left * MIN_COLUMNS)
        total, room = (total - apart) or 1.0, room - columns
        found.append(replace(part, column=column + GUTTER, columns=max(columns, 4)))
        column += GUTTER + columns + 1
    return found


@dataclass(frozen=True)
class LinePlot:
    """What a chart draws: a scale on the left of each part, letters of the curves on its right, the axis below."""

    parts: Sequence[Part] = ()
    axis: Axis = field(default_factory=Axis)
    log: bool = False
    least: float | None = None
    """as in `bounds`"""

    def step(self, column: int) -> float | None:
        """Return the step that is drawn in a column; None left and right of the drawings."""
        for part in self.parts:
            at, (first, last) = column - part.column, part.x
            if 0 <= at < part.columns:
                return round(self.axis.step(first + at / max(part.columns - 1, 1) * (last - first)))
        return None

    @cached_property
    def _scales(self) -> list[Ends]:
        """The ends of the scale of each part: its values without outliers, and the levels that are near them."""
        found = []
        for part in self.parts:
            values = without_outliers([point for trace in part.traces for point in trace.points])
            low, high = min(values, default=0.0), max(values, default=1.0)
            reach = 2 * (high - low) or abs(high) or 1.0
            levels = [trace.level for trace in part.traces if low - reach <= trace.level <= high + reach]
            found.append(bounds([*values, *levels], log=self.log, least=self.least))
        return found

    def beyond(self) -> list[str]:
        """Return the greatest and the least value beyond the scales, for a legend."""
        each = zip(self.parts, self._scales, strict=True)
        points = [(point, y) for part, y in each for trace in part.traces for point in trace.points]
        high, low = [p.high for p, y in points if p.high > y[1]], [p.low for p, y in points if p.low < y[0]]
        return [*([f"▲ {number(max(high))}"] if high else []), *([f"▼ {number(min(low))}"] if low else [])]

    def lines(self, rows: int, *, axis: bool) -> list[Text]:
        """Return so many rows, and the axis below them."""
        drawn = [self._drawn(part, y, rows) for part, y in zip(self.parts, self._scales, strict=True)]
        lines = [Text().join(pieces) for pieces in zip(*drawn, strict=True)]
        return [*lines, self._axis()] if axis else lines

    def _drawn(self, part: Part, y: Ends, rows: int) -> list[Text]:
        """The lines of a part. A curve is on top of guides, dividers and the cursor; marks of values beyond the scale
        are over it."""
        size, x = part.columns, part.x
        drawing = draw(part.traces, size, rows, x=x, y=y, log=self.log)
        labels, ends = self._labels(y, rows), self._ends(part, rows, y)

        def under(row: int, column: int, char: str, style: str) -> None:
            if drawing[row][column][0] == " ":
                drawing[row][column] = (char, style)

        for row in range(rows):
            for place in part.dividers:
                under(row, nearest(size, x, place), "┊", DIM)
            for column in range(0, size, GUIDE_EVERY) if 0 < row < rows - 1 and row in labels else ():
                under(row, column, "·", DIM)
        for point in (point for trace in part.traces for point in trace.points):
            if point.low < y[0]:
                drawing[-1][nearest(size, x, point.x)] = ("▼", RED)
            if point.high > y[1]:
                drawing[0][nearest(size, x, point.x)] = ("▲", RED)
        for row in range(rows) if part.cursor is not None else ():
            under(row, nearest(size, x, part.cursor or 0), "│", "bold")
        room, lines = self._follows(part), []
        for row, cells in enumerate(drawing):
            line = Text(f"{labels.get(row, ''):>{GUTTER - 1}}{'│' if part.column == GUTTER else '┃'}", style=DIM)
            for style, group in groupby(cells, key=lambda cell: cell[1]):
                line.append("".join(char for char, _ in group), style)
            end = ends.get(row, Text())[:room]
            end.pad_right(room - len(end))
            lines.append(line.append_text(end))
        return lines

    def _follows(self, part: Part) -> int:
        return FOLLOWS if part is self.parts[-1] else 1

    def _labels(self, y: Ends, rows: int) -> dict[int, str]:
        """The ends of the scale and round numbers between them, by the row in which they are."""
        values = round_powers(*y, rows // 3) if self.log else round_numbers(*y, rows // 3)
        placed = {row_of(value, rows, y, self.log): value for value in values}
        ticks = {row: value for row, value in placed.items() if 1 < row < rows - 2}
        return dict(zip([0, rows - 1, *ticks], scale_labels(y[1], y[0], [*ticks.values()], GUTTER - 1), strict=True))

    def _ends(self, part: Part, rows: int, y: Ends) -> dict[int, Text]:
        """The letters by the row in which their curves end, the front one first where several end."""
        ends: dict[int, Text] = {}
        for trace in part.traces:
            if trace.letter and trace.points:
                row = row_of(trace.points[-1].mean, rows, y, self.log)
                ends[row] = Text(trace.letter, style=trace.style).append_text(ends.get(row, Text()))
        return ends

    def _axis(self) -> Text:
        """The line below: both ends and the name of each part, round numbers between as far as there is room."""
        text, axis = "", self.axis
        for part in self.parts:
            columns, x = part.columns, part.x
            first, last = axis.label(x[0]), axis.newest(x[1]) if part is self.parts[-1] else ""
            named = f"{first} {part.name}"
            if part.name and len(named) + (len(last) + 1 if last else 0) <= columns:
                first = named
            line = [" "] * columns
            line[: len(first)] = first[:columns]
            if len(first) + len(last) + 1 <= columns:
                line[columns - len(last) :] = last
            values = round_numbers(*x, columns // 12, time=axis.unit == "time")
            apart = values[1] - values[0] if len(values) > 1 else math.inf
            for value in values:
                label = axis.label(value, apart)
                start = nearest(columns, x, value) - len(label) // 2
                free = start > 0 and "".join(line[start - 1 : start + len(label) + 1]).isspace()
                if free and start + len(label) < columns and (axis.unit != "step" or value == round(value)):
                    line[start : start + len(label)] = label
            text += " " * GUTTER + "".join(line) + " " * self._follows(part)
        return Text(text, style=DIM)
