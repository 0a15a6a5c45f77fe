"""A chart of a run, or of several runs, as lines of text: scales, guides, curves as braille, the cursor, a legend; and
its first curve in one line.

Where the reward of a run changes, its curves end and begin anew behind a divider. In charts of rewards each part has
its own scale, as the values of two rewards cannot be compared.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby

from rich.text import Text
from textual import events
from textual.message import Message

from smolsum.runs.reader import Run
from smolsum.runs.series import MOST_POINTS, Point, smoothed
from smolsum.watch.axes import (
    Axis,
    Span,
    can_be_log,
    labels_along,
    pointed,
    round_numbers,
    round_powers,
    scale,
    scale_labels,
    spans_of_rewards,
    window,
    without_outliers,
    zoomed,
)
from smolsum.watch.braille import Pattern, Trace, draw, heights, nearest, row_of
from smolsum.watch.curves import CHARTS, RUNS, VALIDATION, ChartSpec, legend, letter_of, rewarded, shown_curves
from smolsum.watch.formats import CURVES, DIM, NAME_WIDTH, RED, VALUE_WIDTH, PaneText, number
from smolsum.watch.model import Snapshot, ViewOptions
from smolsum.watch.widgets import Pane

GUTTER = 8
"""Characters of the scale on the left of a chart."""
MIN_ROWS_WITH_AXIS = 7
"""Rows from which a chart has an axis of steps."""
MIN_COLUMNS = 8
"""Characters of a part with its own scale; parts without that room are left out, the earliest first."""
MIN_SPARKLINE = 4
"""Characters below which a sparkline shows nothing."""
PATTERNS: tuple[Pattern, ...] = ("solid", "dotted", "dashed")
GUIDE_EVERY = 4
FOLLOWS = 2
"""Columns at the right end, for the letters of the curves."""


@dataclass(frozen=True)
class Part:
    """A part of a chart with its own scale: its steps, its places along the axis, and its first column and columns."""

    span: Span
    x: tuple[float, float]
    column: int
    columns: int
    last: bool
    """whether no other part follows"""


def chart(snapshot: Snapshot, width: int, height: int, spec: ChartSpec) -> PaneText:
    """Return a chart of `width` x `height` characters: a scale on the left of each part, letters of the curves on its
    right. Below it are the steps, and the legend if the frame has no room for it."""
    options = snapshot.options
    parts = parts_of(snapshot, width, spec)
    layers = [_layers(snapshot, spec, part) for part in parts]
    points = [point for found in layers for layer in found for point in layer.points]
    log = (spec.log != (spec.title in options.logs)) and can_be_log(points, spec.least)
    title = spec.title + (" log" if log else "") + (f" smooth {options.smoothing:g}" if options.smoothing else "")
    signals = rewarded(snapshot.run.weights())
    if spec is CHARTS[0] and signals and not snapshot.others and len(title) + len(signals) < width - 4:
        title += f": {signals}"
    if not points or height < 1:
        return PaneText(title, "", (Text(_nothing(snapshot, spec), style=DIM),))
    scales = [_scale(found, spec, log) for found in layers]
    axis = height >= MIN_ROWS_WITH_AXIS
    outside = _outside(layers, scales, ascii=options.ascii)
    note, below = legend(snapshot, spec, outside, room=width - 4, width=width, height=height - axis)
    rows = height - axis - len(below)
    drawn = [_part(snapshot, *each, rows, log) for each in zip(parts, layers, scales, strict=True)]
    lines = [Text().join(pieces) for pieces in zip(*drawn, strict=True)]
    if axis:
        lines.append(_axis(snapshot, parts))
    return PaneText(title, note, (*lines, *below))


class Chart(Pane):
    """A chart that the mouse zooms, points at and enlarges; a click on an entry of its legend hides that curve."""

    class Looked(Message):
        """The user wants to see the charts in another way."""

        def __init__(self, options: ViewOptions) -> None:
            super().__init__()
            self.options = options

    class Enlarged(Message):
        """The user wants to see this chart alone."""

        def __init__(self, spec: ChartSpec) -> None:
            super().__init__()
            self.spec = spec

    def __init__(self, spec: ChartSpec, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(partial(chart, spec=spec), id=id, classes=classes)
        self.spec = spec

    def turn_to(self, spec: ChartSpec) -> None:
        """Draw another chart."""
        self.spec, self._draw = spec, partial(chart, spec=spec)

    def on_click(self, event: events.Click) -> None:
        if self.snapshot is None:
            return
        options, curve = self.snapshot.options, event.style.meta.get("curve")
        if curve is not None:
            self.post_message(self.Looked(replace(options, hidden=options.hidden ^ {curve})))
        elif event.chain >= 2:
            self.post_message(self.Enlarged(self.spec))
        elif (step := self._step(event)) is not None:
            self.post_message(self.Looked(pointed(self.snapshot, step)))

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        self._zoom(event, 0.5)

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        self._zoom(event, 2.0)

    def _zoom(self, event: events.MouseEvent, factor: float) -> None:
        if self.snapshot:
            event.stop()
            self.post_message(self.Looked(zoomed(self.snapshot, factor, self._step(event))))

    def _step(self, event: events.MouseEvent) -> float | None:
        """The step under the pointer."""
        place = event.get_content_offset(self)
        if place is None or self.snapshot is None:
            return None
        return step_at(self.snapshot, self.content_size.width, self.spec, place.x)


def log_is_possible(snapshot: Snapshot, spec: ChartSpec) -> bool:
    """Whether a logarithmic scale of this chart would mean something."""
    runs = [snapshot.run, *snapshot.others]
    series = [run.series[curve.metric] for run in runs for curve in spec.curves(run)]
    ends = [Point(0, one.low, one.low, one.high) for one in series]
    return any(one.count for one in series) and can_be_log(ends, spec.least)


def step_at(snapshot: Snapshot, width: int, spec: ChartSpec, column: int) -> float | None:
    """Return the step that is drawn in a column of a chart of this width; None left and right of the drawing."""
    axis = Axis(snapshot.run, snapshot.options.unit)
    for part in parts_of(snapshot, width, spec):
        place = column - part.column
        if 0 <= place < part.columns:
            share = place / max(part.columns - 1, 1)
            return round(axis.step(part.x[0] + share * (part.x[1] - part.x[0])))
    return None


def parts_of(snapshot: Snapshot, width: int, spec: ChartSpec) -> list[Part]:
    """Return the parts of a chart with their own scales, from left to right; most charts have one."""
    first, last = window(snapshot)
    own = [span for span in spans_of_rewards(snapshot.run) if span.last >= first and span.first <= last]
    spans = [Span(max(span.first, first), min(span.last, last), span.name) for span in own]
    if not spec.by_reward or len(spans) < 2:
        spans = [Span(first, last)]
    spans[-1] = replace(spans[-1], last=last)
    spans = [span for span in spans if len(spans) == 1 or _has(snapshot, spec, span)] or [Span(first, last)]
    while len(spans) > 1 and (width - FOLLOWS) // len(spans) - GUTTER - 1 < MIN_COLUMNS:
        del spans[0]
    room = width - FOLLOWS - len(spans) * (GUTTER + 1) + 1
    extents = [_places(snapshot, span) for span in spans]
    total = sum(b - a for a, b in extents) or 1.0
    parts: list[Part] = []
    column = 0
    for span, (a, b) in zip(spans, extents, strict=True):
        left = len(spans) - len(parts) - 1
        columns = room if not left else min(max(round(room * (b - a) / total), MIN_COLUMNS), room - left * MIN_COLUMNS)
        total, room = (total - (b - a)) or 1.0, room - columns
        parts.append(Part(span, (a, b), column + GUTTER, max(columns, 4), last=not left))
        column += GUTTER + columns + 1
    return parts


def _has(snapshot: Snapshot, spec: ChartSpec, span: Span) -> bool:
    series = [snapshot.run.series[curve.metric] for curve in shown_curves(snapshot, spec)]
    return any((found := one.at(span.last)) is not None and found[0] >= span.first for one in series)


def _places(snapshot: Snapshot, span: Span) -> tuple[float, float]:
    """The ends of a span on the axis; of several runs, all of them are within."""
    axis = Axis(snapshot.run, snapshot.options.unit)
    low, high = axis.place(span.first), axis.place(span.last)
    if snapshot.others and not span.name and not snapshot.options.window:
        axes = [(Axis(run, snapshot.options.unit), run) for run in snapshot.others if run.row]
        low = min([low, *(each.place(run.first_step) for each, run in axes)])
        high = max([high, *(each.place(run.step) for each, run in axes)])
    return low, high


def _nothing(snapshot: Snapshot, spec: ChartSpec) -> str:
    if spec.title == VALIDATION and snapshot.run.settings.validate_every == 0:
        return "this run does not validate: train.validate_every = 0"
    if not snapshot.run.row:
        return "waiting for the first step" if snapshot.run_state.hopeful else "no step was finished"
    return "nothing measured yet" if snapshot.run_state.hopeful else "this run did not measure it"


def _layers(snapshot: Snapshot, spec: ChartSpec, part: Part) -> list[Trace]:
    """The traces of a part from back to front: the band, levels, other runs, and the curves of the first run."""
    run = snapshot.run
    found: list[Trace] = []
    if spec.band and set(spec.band) <= set(run.series):
        for low, high in zip(*(_pieces(snapshot, run, name, part) for name in spec.band), strict=False):
            both = [Point(a.step, a.low, a.mean, b.high) for a, b in zip(low, high, strict=False)]
            found.append(Trace(tuple(both), "band", style=DIM))
    found += [Trace(pattern="rule", level=level, style=RED) for level in spec.levels(run).values()]
    for place, other in reversed([*enumerate(snapshot.others, start=1)]):
        style, pattern = CURVES[place % len(CURVES)], PATTERNS[place % len(PATTERNS)]
        for curve in spec.curves(other)[:1]:
            found += _curve(snapshot, other, curve.metric, part, Trace((), pattern, style=style, letter=RUNS[place]))
    for place, curve in reversed([*enumerate(shown_curves(snapshot, spec))]):
        look = Trace(style=CURVES[place % len(CURVES)], letter=letter_of(snapshot, curve))
        found += _curve(snapshot, run, curve.metric, part, look)
    return found


def _curve(snapshot: Snapshot, run: Run, metric: str, part: Part, look: Trace) -> list[Trace]:
    """A curve, in pieces that no change of reward divides: behind it, faintly, the values that it is the mean of."""
    found, lines = [], []
    for points in _pieces(snapshot, run, metric, part):
        if snapshot.options.smoothing or any(point.low < point.high for point in points):
            found.append(Trace(tuple(points), "haze", style=f"dim {look.style}"))
        means = [Point(p.step, p.mean, p.mean, p.mean) for p in smoothed(points, snapshot.options.smoothing)]
        lines.append(replace(look, points=tuple(means), letter=""))
    return [*found, *lines[:-1], *(replace(line, letter=look.letter) for line in lines[-1:])]


def _pieces(snapshot: Snapshot, run: Run, metric: str, part: Part) -> list[list[Point]]:
    """The points of a metric in a part of the chart, divided where the reward of its run changes."""
    axis = Axis(run, snapshot.options.unit)
    first, last = part.span.first, part.span.last
    if run is not snapshot.run and axis.unit != "step":
        first, last = axis.step(part.x[0]), axis.step(part.x[1])
    spans = spans_of_rewards(run) or [part.span]
    return [points for _, points in _divided(run, metric, axis, first, last, 4 * part.columns, spans)]


def _divided(
    run: Run, metric: str, axis: Axis, first: float, last: float, most: int, spans: Sequence[Span]
) -> list[tuple[Span, list[Point]]]:
    """The points of a metric between two steps in each of the spans where it has any, at most so many, at their places
    along the axis."""
    found = []
    for span in spans if metric in run.series else ():
        low, high = max(span.first, first), min(span.last, last)
        points = run.series[metric].points(low - 1, high, most) if low <= high else []
        if points:
            found.append((Span(low, high), axis.points(points)))
    return found


def _scale(layers: Sequence[Trace], spec: ChartSpec, log: bool) -> tuple[float, float]:
    """The ends of the scale of a part: its values without outliers, and the levels that are near them."""
    values = without_outliers([point for layer in layers for point in layer.points])
    low, high = min(values, default=0.0), max(values, default=1.0)
    distance = 2 * (high - low) or abs(high) or 1.0
    levels = [layer.level for layer in layers if layer.pattern == "rule"]
    near = [level for level in levels if low - distance <= level <= high + distance]
    return scale([*values, *near], log, spec.least)


def _outside(layers: Sequence[Sequence[Trace]], scales: Sequence[tuple[float, float]], *, ascii: bool) -> list[str]:
    """The greatest and the least value beyond the scales, for the legend."""
    points = [(p, y) for found, y in zip(layers, scales, strict=True) for one in found for p in one.points]
    high, low = [p.high for p, y in points if p.high > y[1]], [p.low for p, y in points if p.low < y[0]]
    up, down = ("^", "v") if ascii else ("▲", "▼")
    return [*([f"{up} {number(max(high))}"] if high else []), *([f"{down} {number(min(low))}"] if low else [])]


def _part(
    snapshot: Snapshot, part: Part, layers: Sequence[Trace], y: tuple[float, float], rows: int, log: bool
) -> list[Text]:
    """The lines of a part: its scale, its curves, and the letters at their ends. A curve is on top of guides, changes
    of reward and the cursor; marks of values beyond the scale are over it."""
    ascii, span = snapshot.options.ascii, part.span
    axis, cursor = Axis(snapshot.run, snapshot.options.unit), snapshot.options.cursor
    drawing, labels = draw(layers, part.columns, rows, x=part.x, y=y, log=log, ascii=ascii), _labels(y, rows, log)
    points = [point for layer in layers for point in layer.points]

    def under(row: int, column: int, char: str, style: str = DIM) -> None:
        if drawing[row][column][0] == " ":
            drawing[row][column] = (char, style)

    changes = [one.first for one in spans_of_rewards(snapshot.run)[1:] if span.first < one.first <= span.last]
    for row in range(rows):
        for step in changes:
            under(row, nearest(part.columns, part.x, axis.place(step)), "!" if ascii else "┊")
        for column in range(0, part.columns, GUIDE_EVERY) if 0 < row < rows - 1 and row in labels else ():
            under(row, column, "." if ascii else "·")
    for point in points:
        column = nearest(part.columns, part.x, point.step)
        if point.low < y[0]:
            drawing[-1][column] = ("v" if ascii else "▼", RED)
        if point.high > y[1]:
            drawing[0][column] = ("^" if ascii else "▲", RED)
    for row in range(rows) if cursor is not None and span.first <= cursor <= span.last else ():
        under(row, nearest(part.columns, part.x, axis.place(cursor or 0)), "|" if ascii else "│", "bold")
    side = ("|" if ascii else "│") if part.column == GUTTER else ("!" if ascii else "┃")
    ends, room, lines = _ends(layers, rows, y, log), FOLLOWS if part.last else 1, []
    for row, cells in enumerate(drawing):
        line = Text(f"{labels.get(row, ''):>{GUTTER - 1}}{side}", style=DIM)
        for style, group in groupby(cells, key=lambda cell: cell[1]):
            line.append("".join(char for char, _ in group), style)
        end = ends.get(row, Text())[:room]
        end.pad_right(room - len(end))
        lines.append(line.append_text(end))
    return lines


def _labels(y: tuple[float, float], rows: int, log: bool) -> dict[int, str]:
    """The ends of the scale and round numbers between them, by the row in which they are."""
    values = round_powers(*y, rows // 3) if log else round_numbers(*y, rows // 3)
    placed = {row_of(value, rows, y, log): value for value in values}
    ticks = {row: value for row, value in placed.items() if 1 < row < rows - 2}
    return dict(zip([0, rows - 1, *ticks], scale_labels(y[1], y[0], [*ticks.values()], GUTTER - 1), strict=True))


def _ends(layers: Sequence[Trace], rows: int, y: tuple[float, float], log: bool) -> dict[int, Text]:
    """The letters by the row in which their curves end, the front one first where several end."""
    ends: dict[int, Text] = {}
    for layer in layers:
        if layer.letter and layer.points:
            row = row_of(layer.points[-1].mean, rows, y, log)
            ends[row] = Text(layer.letter, style=layer.style).append_text(ends.get(row, Text()))
    return ends


def _axis(snapshot: Snapshot, parts: Sequence[Part]) -> Text:
    """The line below a chart: first and last step, the stages of parts with their own scales, round numbers between."""
    axis, line = Axis(snapshot.run, snapshot.options.unit), ""
    for part in parts:
        first, last = axis.label(part.x[0]), axis.label(part.x[1])
        last = {"step": f"step {last}", "tokens": f"{last} tokens"}.get(axis.unit, last) if part.last else ""
        named = f"{first} {part.span.name}"
        if part.span.name and len(named) + (len(last) + 1 if last else 0) <= part.columns:
            first = named
        own = labels_along(part.columns, part.x, axis, first, last)
        line += " " * GUTTER + own + " " * (FOLLOWS if part.last else 1)
    return Text(line, style=DIM)


def sparkline(snapshot: Snapshot, width: int, spec: ChartSpec, *, name_width: int = NAME_WIDTH) -> Text:
    """Return one line of a chart: its title, and the newest value and the course of its first curve; those of several
    runs side by side, on one scale."""
    runs = [snapshot.run, *snapshot.others]
    metric = next((curve.metric for run in runs for curve in spec.curves(run)[:1]), "")
    while (room := sparkline_room(width, len(runs), name_width)) < MIN_SPARKLINE and len(runs) > 2:
        runs.pop()
    line = Text(f"{spec.title[:name_width]:<{name_width}}")
    line.append("".join(f"{number(run.last(metric)):>{VALUE_WIDTH}}" for run in runs))
    for place, run in enumerate(runs if room >= MIN_SPARKLINE else ()):
        line.append(" ").append(_course(snapshot, run, metric, spec, room), style=CURVES[place % len(CURVES)])
    return line


def sparkline_room(width: int, runs: int, name_width: int = NAME_WIDTH) -> int:
    """Return the characters of each sparkline in a line of so many runs."""
    return (width - name_width - VALUE_WIDTH * runs) // runs - 1


def _course(snapshot: Snapshot, run: Run, metric: str, spec: ChartSpec, room: int) -> str:
    """The course of a metric in the shown steps; behind a divider, it begins anew where the reward changes. All runs
    have one scale, but each reward of a chart of rewards has its own."""
    axis, (first, last), options = Axis(run, snapshot.options.unit), window(snapshot), snapshot.options
    pieces = _divided(run, metric, axis, first, last, MOST_POINTS, spans_of_rewards(run))
    runs = [snapshot.run, *snapshot.others]
    common = [point for each in runs if metric in each.series for point in each.series[metric].points(first - 1, last)]
    begin, end = axis.place(first), axis.place(last)
    text = ""
    for place, (span, measured) in enumerate(pieces):
        x, points = (axis.place(span.first), axis.place(span.last)), smoothed(measured, options.smoothing)
        left, right = (round((one - begin) / (end - begin) * room) if end > begin else room for one in x)
        text = text.ljust(left if end > begin else 0)
        if text and place:
            text = text[:-1] + ("|" if options.ascii else "│")
        alone = spec.by_reward and len(pieces) > 1
        y = scale(without_outliers(points if alone else common), False, spec.least if not spec.log else None)
        columns = max(right - len(text), 1)
        if options.ascii:
            text += heights(points, columns, x=x, y=y)
        else:
            text += "".join(char for char, _ in draw([Trace(tuple(points))], columns, 1, x=x, y=y)[0])
    return text[:room].ljust(room)
