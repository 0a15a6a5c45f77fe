"""A chart of lines for terminals, as a Textual widget: sections with scales of their own, an axis below, dividers, a
cursor, zoom. What it shows is a `LinePlot`. With `braille`, which draws, and the numbers of `formats` it could be a
package: none of them imports anything else of smolsum.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby

from rich.text import Text
from textual import events
from textual.message import Message
from textual.widgets import Static

from smolsum.watch.braille import MIN_POSITIVE, Ends, PlotPoint, Trace, View, bounds, draw, nearest, row_of
from smolsum.watch.formats import number, power

GUTTER = 8
"""Characters of the scale on the left of a section."""
FOLLOWS = 2
"""Columns at the right end, for the letters of the curves."""
MIN_COLUMNS = 8
"""Characters of a section besides its scale; sections without that room are left out, the earliest first."""
GUIDE_EVERY = 4
TIME_STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14_400, 21_600, 43_200, 86_400)
ENOUGH = 20
"""Values from which single ones count as outliers."""
OUTLYING = 1.5
"""Distance from the middle 96 % of the values, in parts of their range, beyond which a value is an outlier."""


@dataclass(frozen=True)
class ScaledPart:
    """A part of a chart with its own scale."""

    x: Ends
    """its ends along the axis"""
    column: int
    """the first one of its drawing"""
    columns: int
    traces: Sequence[Trace] = ()
    """from back to front"""
    name: str = ""
    dividers: Sequence[float] = ()
    """places along the axis"""
    cursor: float | None = None

    def place(self, column: int) -> float | None:
        """Return what is drawn in a column of the chart; None left and right of the drawing."""
        at = column - self.column
        share = at / max(self.columns - 1, 1)
        return self.x[0] + share * (self.x[1] - self.x[0]) if 0 <= at < self.columns else None


def sections(extents: Sequence[Ends], width: int) -> list[ScaledPart]:
    """Return sections next to each other, as wide as their ends are apart: the last ones that have room."""
    extents = extents[-max((width - FOLLOWS) // (GUTTER + MIN_COLUMNS + 1), 1) :]
    room, column = width - FOLLOWS - len(extents) * (GUTTER + 1) + 1, 0
    total, found = sum(b - a for a, b in extents) or 1.0, list[ScaledPart]()
    for a, b in extents:
        left = len(extents) - len(found) - 1
        columns = room if not left else min(max(round(room * (b - a) / total), MIN_COLUMNS), room - left * MIN_COLUMNS)
        total, room = (total - (b - a)) or 1.0, room - columns
        found.append(ScaledPart((a, b), column + GUTTER, max(columns, 4)))
        column += GUTTER + columns + 1
    return found


@dataclass(frozen=True)
class LinePlot:
    """What a chart draws: a scale on the left of each section, letters of the curves on its right, the axis below."""

    sections: Sequence[ScaledPart]
    label: Callable[[float, float], str] = lambda place, apart: f"{place:g}"
    """writes a place along the axis, with digits enough for places that are so far apart"""
    newest: str = "{}"
    """how the last label is written"""
    whole: bool = False
    """nothing is between whole numbers of the axis"""
    time: bool = False
    """the axis is in seconds"""
    log: bool = False
    least: float | None = None
    """scales begin here or below; log scales begin here or above"""
    ascii: bool = False
    quiet: str = "dim"
    """style of scales and guides"""
    marked: str = "bold"
    """style of marks for values beyond the scale"""

    @cached_property
    def _scales(self) -> list[Ends]:
        """The ends of the scale of each section: its values without outliers, and the levels that are near them."""
        found = []
        for section in self.sections:
            values = without_outliers([point for trace in section.traces for point in trace.points])
            low, high = min(values, default=0.0), max(values, default=1.0)
            reach = 2 * (high - low) or abs(high) or 1.0
            levels = [trace.level for trace in section.traces if trace.pattern == "rule"]
            near = [level for level in levels if low - reach <= level <= high + reach]
            found.append(scale([*values, *near], self.log, self.least))
        return found

    def beyond(self) -> list[str]:
        """Return the greatest and the least value beyond the scales, for a legend."""
        each = zip(self.sections, self._scales, strict=True)
        points = [(point, y) for section, y in each for trace in section.traces for point in trace.points]
        high, low = [p.high for p, y in points if p.high > y[1]], [p.low for p, y in points if p.low < y[0]]
        up, down = ("^", "v") if self.ascii else ("▲", "▼")
        return [*([f"{up} {number(max(high))}"] if high else []), *([f"{down} {number(min(low))}"] if low else [])]

    def lines(self, rows: int, *, axis: bool) -> list[Text]:
        """Return so many rows, and the axis below them."""
        each = zip(self.sections, self._scales, strict=True)
        drawn = [self._drawn(section, y, rows) for section, y in each]
        lines = [Text().join(pieces) for pieces in zip(*drawn, strict=True)]
        return [*lines, self._axis()] if axis else lines

    def _drawn(self, section: ScaledPart, y: Ends, rows: int) -> list[Text]:
        """The lines of a section. A curve is on top of guides, dividers and the cursor; marks of values beyond the
        scale are over it."""
        ascii, size, x = self.ascii, section.columns, section.x
        drawing = draw(section.traces, size, rows, x=x, y=y, log=self.log, ascii=ascii)
        labels, ends = self._labels(y, rows), self._ends(section, rows, y)

        def under(row: int, column: int, char: str, style: str) -> None:
            if drawing[row][column][0] == " ":
                drawing[row][column] = (char, style)

        for row in range(rows):
            for place in section.dividers:
                under(row, nearest(size, x, place), "!" if ascii else "┊", self.quiet)
            for column in range(0, size, GUIDE_EVERY) if 0 < row < rows - 1 and row in labels else ():
                under(row, column, "." if ascii else "·", self.quiet)
        for point in (point for trace in section.traces for point in trace.points):
            if point.low < y[0]:
                drawing[-1][nearest(size, x, point.x)] = ("v" if ascii else "▼", self.marked)
            if point.high > y[1]:
                drawing[0][nearest(size, x, point.x)] = ("^" if ascii else "▲", self.marked)
        for row in range(rows) if section.cursor is not None else ():
            under(row, nearest(size, x, section.cursor or 0), "|" if ascii else "│", "bold")
        side = ("|" if ascii else "│") if section.column == GUTTER else ("!" if ascii else "┃")
        room, lines = self._follows(section), []
        for row, cells in enumerate(drawing):
            line = Text(f"{labels.get(row, ''):>{GUTTER - 1}}{side}", style=self.quiet)
            for style, group in groupby(cells, key=lambda cell: cell[1]):
                line.append("".join(char for char, _ in group), style)
            end = ends.get(row, Text())[:room]
            end.pad_right(room - len(end))
            lines.append(line.append_text(end))
        return lines

    def _follows(self, section: ScaledPart) -> int:
        return FOLLOWS if section is self.sections[-1] else 1

    def _labels(self, y: Ends, rows: int) -> dict[int, str]:
        """The ends of the scale and round numbers between them, by the row in which they are."""
        values = round_powers(*y, rows // 3) if self.log else round_numbers(*y, rows // 3)
        placed = {row_of(value, rows, y, self.log): value for value in values}
        ticks = {row: value for row, value in placed.items() if 1 < row < rows - 2}
        return dict(zip([0, rows - 1, *ticks], scale_labels(y[1], y[0], [*ticks.values()], GUTTER - 1), strict=True))

    def _ends(self, section: ScaledPart, rows: int, y: Ends) -> dict[int, Text]:
        """The letters by the row in which their curves end, the front one first where several end."""
        ends: dict[int, Text] = {}
        for trace in section.traces:
            if trace.letter and trace.points:
                row = row_of(trace.points[-1].mean, rows, y, self.log)
                ends[row] = Text(trace.letter, style=trace.style).append_text(ends.get(row, Text()))
        return ends

    def _axis(self) -> Text:
        """The line below: both ends and the name of each section, round numbers between as far as there is room."""
        text = ""
        for section in self.sections:
            columns, x = section.columns, section.x
            first, last = (self.label(place, math.inf) for place in x)
            last = self.newest.format(last) if section is self.sections[-1] else ""
            named = f"{first} {section.name}"
            if section.name and len(named) + (len(last) + 1 if last else 0) <= columns:
                first = named
            line = [" "] * columns
            line[: len(first)] = first[:columns]
            if len(first) + len(last) + 1 <= columns:
                line[columns - len(last) :] = last
            values = round_numbers(*x, columns // 12, time=self.time)
            apart = values[1] - values[0] if len(values) > 1 else math.inf
            for value in values:
                label = self.label(value, apart)
                start = nearest(columns, x, value) - len(label) // 2
                free = start > 0 and "".join(line[start - 1 : start + len(label) + 1]).isspace()
                if free and start + len(label) < columns and (not self.whole or value == round(value)):
                    line[start : start + len(label)] = label
            text += " " * GUTTER + "".join(line) + " " * self._follows(section)
        return Text(text, style=self.quiet)


class Chart(Static):
    """A chart that the mouse zooms, points at and enlarges; a click on a text with a `curve` in its `meta`, such as an
    entry of a legend, hides that curve."""

    view = View()
    whole: Ends = (0, 0)
    """the first and the last step that there are"""
    drawn: Sequence[ScaledPart] = ()

    class Viewed(Message):
        """The user wants to see other steps, or the values of another one."""

        def __init__(self, view: View) -> None:
            super().__init__()
            self.view = view

    class Hidden(Message):
        """The user wants to hide a curve, or to see it again."""

        def __init__(self, curve: str) -> None:
            super().__init__()
            self.curve = curve

    class Enlarged(Message):
        """The user wants to see this chart alone."""

        def __init__(self, chart: "Chart") -> None:
            super().__init__()
            self.chart = chart

    def step(self, place: float) -> float:
        """Return the step at a place along the axis, where those differ."""
        return place

    def on_click(self, event: events.Click) -> None:
        curve, step = event.style.meta.get("curve"), self._step(event)
        if curve is not None:
            self.post_message(self.Hidden(curve))
        elif event.chain >= 2:
            self.post_message(self.Enlarged(self))
        elif step is not None:
            self.post_message(self.Viewed(self.view.pointed(self.whole, step)))

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        self._zoom(event, 0.5)

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        self._zoom(event, 2.0)

    def _zoom(self, event: events.MouseEvent, factor: float) -> None:
        event.stop()
        self.post_message(self.Viewed(self.view.zoomed(self.whole, factor, self._step(event))))

    def _step(self, event: events.MouseEvent) -> float | None:
        """The step under the pointer."""
        at = event.get_content_offset(self)
        places = [section.place(at.x) for section in self.drawn] if at else []
        return next((round(self.step(place)) for place in places if place is not None), None)


def scale(values: Sequence[float], log: bool, least: float | None) -> Ends:
    """Return the ends of a scale; `least` as in `LinePlot`."""
    if least is None or (least == 0 and log):
        return bounds(values, log=log)
    if log:
        return bounds([max(value, least) for value in values], log=True)
    low, high = min(*values, least, least), max(*values, least, least)
    return (low, high) if low < high else (low, low + 1.0)


def without_outliers(points: Sequence[PlotPoint]) -> list[float]:
    """Return the extremes of the points without those few that would flatten all others."""
    values = [value for p in points for value in ((p.low, p.high) if p.low < p.high else (p.low,))]
    if len(values) < ENOUGH:
        return values
    ordered = sorted(values)
    low, high = ordered[len(ordered) // 50], ordered[-1 - len(ordered) // 50]
    reach = OUTLYING * (high - low) or math.inf
    return [value for value in values if low - reach <= value <= high + reach]


def can_be_log(least_value: float, least: float | None) -> bool:
    """Whether a logarithmic scale has a place for every value: all are positive, or the chart has a floor for them."""
    return bool(least) or least_value > MIN_POSITIVE


def round_numbers(low: float, high: float, most: int, *, time: bool = False) -> list[float]:
    """Return at most `most` round numbers between two ends, at equal distances."""
    if most < 1 or not high > low:
        return []
    least = (high - low) / most
    if time and least <= TIME_STEPS[-1]:
        step = float(TIME_STEPS[bisect_left(TIME_STEPS, least)])
    else:
        power = 10.0 ** math.floor(math.log10(least))
        step = next(power * factor for factor in (1, 2, 5, 10, 20) if power * factor >= least * (1 - 1e-9))
    first = math.ceil(low / step - 1e-9)
    return [n * step for n in range(first, math.floor(high / step + 1e-9) + 1)][:most]


def round_powers(low: float, high: float, most: int) -> list[float]:
    """Return at most `most` powers of ten between two positive ends."""
    first, last = math.ceil(math.log10(low)), math.floor(math.log10(high))
    stride = max(1, -(-(last - first + 1) // max(most, 1)))
    return [10.0**power for power in range(first, last + 1, stride)]


def scale_labels(top: float, bottom: float, ticks: Sequence[float], width: int) -> list[str]:
    """Return labels of at most `width` characters for both ends of a scale and for its ticks. No two are the same, and
    each is closer to its value than a twentieth of the way to the next one. Where `width` is too short for that, all
    but the lowest are distances from the lowest one, with a plus."""
    values = [top, bottom, *ticks]
    errors = [min((abs(value - other) for other in values if other != value), default=0.0) / 20 for value in values]
    found = [_label(value, error, width) for value, error in zip(values, errors, strict=True)]
    even = [text for text, tick in zip(tick_labels(ticks), ticks, strict=True) if math.isclose(float(text), tick)]
    if len(even) == len(ticks) and all(len(text) <= width for text in even):
        found[2:] = even
    if None in found:
        apart = [_label(value - bottom, error, width - 1) for value, error in zip(values, errors, strict=True)]
        found = [
            f"+{text or min(_forms(value - bottom, width - 1), key=lambda form: abs(float(form) - (value - bottom)))}"
            for text, value in zip(apart, values, strict=True)
        ]
        found[1] = number(bottom)
    return [text or "" for text in found]


def _label(value: float, error: float, width: int) -> str | None:
    """The shortest form of a number that is wrong by at most `error`; None if `width` is too short for it."""
    return next((text for text in _forms(value, width) if abs(float(text) - value) <= error), None)


def _forms(value: float, width: int) -> list[str]:
    """The forms of a number that fit into `width` characters, the short ones first."""
    forms = [number(value), *(f"{value:.{places}f}" for places in range(width)), *(power(value, n) for n in range(4))]
    return [text for text in forms if len(text) <= width]


def tick_labels(values: Sequence[float]) -> list[str]:
    """Return round numbers at equal distances with as many decimals as their distance needs."""
    if len(values) < 2:
        return [number(value) if "e" in f"{value:g}" else f"{value:g}" for value in values]
    gap = abs(values[1] - values[0])
    places = max(0, -math.floor(math.log10(gap) + 1e-9))
    return [f"{value:.{places}f}" for value in values]
