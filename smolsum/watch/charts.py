"""A chart of a run, or of several runs, as lines of text: scales, guides, curves as braille, the cursor, a legend.

Where the reward of a run changes, its curves end and begin anew behind a divider. In charts of rewards each part has
its own scale, as the values of two rewards cannot be compared.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rich.text import Text

from smolsum.runs.reader import Run
from smolsum.runs.series import Point, smoothed
from smolsum.watch.axes import (
    Axis,
    Span,
    can_be_log,
    labels_along,
    nearest,
    round_numbers,
    round_powers,
    scale,
    scale_labels,
    spans_of_rewards,
    window,
    without_outliers,
)
from smolsum.watch.braille import Drawing, Pattern, Trace, draw, row_of
from smolsum.watch.curves import CHARTS, RUNS, VALIDATION, Chart, rewarded
from smolsum.watch.legend import legend, letters_of, shown_curves
from smolsum.watch.pane_text import CURVES, DIM, RED, Pane, number
from smolsum.watch.snapshot import Snapshot

GUTTER = 8
"""Characters of the scale on the left of a chart."""
MIN_ROWS_WITH_AXIS = 7
"""Rows from which a chart has an axis of steps."""
MIN_COLUMNS = 8
"""Characters of a part with its own scale; parts without that room are left out, the earliest first."""
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


def chart(snapshot: Snapshot, width: int, height: int, spec: Chart) -> Pane:
    """Return a chart of `width` x `height` characters: a scale on the left of each part, letters of the curves on its
    right. Below it are the steps, and the legend if the title has no room for it."""
    options = snapshot.options
    parts = parts_of(snapshot, width, spec)
    layers = [_layers(snapshot, spec, part) for part in parts]
    points = [point for found in layers for layer in found for point in layer.points]
    log = is_log(snapshot, spec) and can_be_log(points, spec.least)
    title = spec.title + (" log" if log else "") + (f" smooth {options.smoothing:g}" if options.smoothing else "")
    signals = rewarded(snapshot.run.weights())
    if spec is CHARTS[0] and signals and not snapshot.others and len(title) + len(signals) < width // 2:
        title += f": {signals}"
    if not points:
        return Pane(title, "", (Text(_nothing(snapshot, spec), style=DIM),))
    scales = [_scale(found, spec, log) for found in layers]
    axis = height >= MIN_ROWS_WITH_AXIS
    outside = _outside(layers, scales, ascii=options.ascii)
    note, below = legend(snapshot, spec, outside, room=width - len(title) - 6, width=width, height=height - axis)
    rows = height - axis - len(below)
    drawn = [_part(snapshot, *each, rows, log) for each in zip(parts, layers, scales, strict=True)]
    lines = [Text().join(pieces) for pieces in zip(*drawn, strict=True)]
    if axis:
        lines.append(_axis(snapshot, parts))
    return Pane(title, note, (*lines, *below))


def is_log(snapshot: Snapshot, spec: Chart) -> bool:
    """Whether the user, or else the chart, asks for a logarithmic scale."""
    return spec.log != (spec.title in snapshot.options.logs)


def log_is_possible(snapshot: Snapshot, spec: Chart) -> bool:
    """Whether a logarithmic scale of this chart would mean something."""
    runs = [snapshot.run, *snapshot.others]
    series = [run.series[curve.metric] for run in runs for curve in spec.curves(run)]
    return any(one.count for one in series) and all(
        can_be_log([Point(0, one.low, one.low, one.high)], spec.least) for one in series
    )


def step_at(snapshot: Snapshot, width: int, spec: Chart, column: int) -> float | None:
    """Return the step that is drawn in a column of a chart of this width; None left and right of the drawing."""
    axis = Axis(snapshot.run, snapshot.options.unit)
    for part in parts_of(snapshot, width, spec):
        place = column - part.column
        if 0 <= place < part.columns:
            share = place / max(part.columns - 1, 1)
            return round(axis.step(part.x[0] + share * (part.x[1] - part.x[0])))
    return None


def parts_of(snapshot: Snapshot, width: int, spec: Chart) -> list[Part]:
    """Return the parts of a chart with their own scales, from left to right; most charts have one."""
    first, last = window(snapshot)
    own = spans_of_rewards(snapshot.run)
    spans = [Span(max(span.first, first), span.last, span.name) for span in own if span.last >= first]
    spans = [Span(span.first, min(span.last, last), span.name) for span in spans if span.first <= last]
    if not spec.by_reward or len(spans) < 2:
        spans = [Span(first, last)]
    spans[-1] = Span(spans[-1].first, last, spans[-1].name)
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


def _has(snapshot: Snapshot, spec: Chart, span: Span) -> bool:
    """Whether a curve of the first run has a value in these steps."""
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


def _nothing(snapshot: Snapshot, spec: Chart) -> str:
    """Why a chart is empty."""
    if spec.title == VALIDATION and snapshot.run.settings.validate_every == 0:
        return "this run does not validate: train.validate_every = 0"
    if not snapshot.run.row:
        return "waiting for the first step" if snapshot.run_state.hopeful else "no step was finished"
    return "nothing measured yet" if snapshot.run_state.hopeful else "this run did not measure it"


def _layers(snapshot: Snapshot, spec: Chart, part: Part) -> list[Trace]:
    """The traces of a part from back to front: the band, levels, other runs, and the curves of the first run."""
    run, most = snapshot.run, 4 * part.columns
    found: list[Trace] = []
    if spec.band and set(spec.band) <= set(run.series):
        for low, high in zip(*(_pieces(snapshot, run, name, part, most) for name in spec.band), strict=False):
            both = [Point(a.step, a.low, a.mean, b.high) for a, b in zip(low, high, strict=False)]
            found.append(Trace(tuple(both), "band", style=DIM))
    found += [Trace(pattern="rule", level=level, style=RED) for level in spec.levels(run).values()]
    for number_, other in reversed(list(enumerate(snapshot.others, start=1))):
        style, pattern = CURVES[number_ % len(CURVES)], PATTERNS[number_ % len(PATTERNS)]
        for curve in spec.curves(other)[:1]:
            found += _curve(snapshot, other, curve.metric, part, RUNS[number_], style, pattern)
    curves = shown_curves(snapshot, spec)
    for place, (curve, letter) in reversed(list(enumerate(zip(curves, letters_of(snapshot, curves), strict=True)))):
        found += _curve(snapshot, run, curve.metric, part, letter, CURVES[place % len(CURVES)], "solid")
    return found


def _curve(
    snapshot: Snapshot, run: Run, metric: str, part: Part, letter: str, style: str, pattern: Pattern
) -> list[Trace]:
    """A curve, in pieces that no change of reward divides: behind it, faintly, the values that it is the mean of."""
    found, lines = [], []
    for points in _pieces(snapshot, run, metric, part, 4 * part.columns):
        if snapshot.options.smoothing or any(point.low < point.high for point in points):
            found.append(Trace(tuple(points), "haze", style=f"dim {style}"))
        means = [Point(p.step, p.mean, p.mean, p.mean) for p in smoothed(points, snapshot.options.smoothing)]
        lines.append(Trace(tuple(means), pattern, style=style))
    return found + [replace(line, letter=letter if line is lines[-1] else "") for line in lines]


def _pieces(snapshot: Snapshot, run: Run, metric: str, part: Part, most: int) -> list[list[Point]]:
    """The points of a metric in a part of the chart, divided where the reward of its run changes."""
    if metric not in run.series:
        return []
    axis = Axis(run, snapshot.options.unit)
    first, last = part.span.first, part.span.last
    if run is not snapshot.run and axis.unit != "step":
        first, last = axis.step(part.x[0]), axis.step(part.x[1])
    found = []
    for span in spans_of_rewards(run) or [part.span]:
        low, high = max(span.first, first), min(span.last, last)
        points = run.series[metric].points(low - 1, high, most) if low <= high else []
        if points:
            found.append(axis.points(points))
    return found


def _scale(layers: Sequence[Trace], spec: Chart, log: bool) -> tuple[float, float]:
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
    """The lines of a part: its scale, its curves, and the letters at their ends."""
    ascii = snapshot.options.ascii
    drawing = draw(layers, part.columns, rows, x=part.x, y=y, log=log, ascii=ascii)
    labels = _labels(y, rows, log)
    ends, marks = _ends(layers, rows, y, log), _marks(layers, part, y)
    cursor, breaks = _cursor(snapshot, part), _breaks(snapshot, part)
    side = ("|" if ascii else "│") if part.column == GUTTER else ("!" if ascii else "┃")
    lines = []
    for row in range(rows):
        cells = _cells(drawing, layers, row)
        for column in breaks:
            _set(cells, column, "!" if ascii else "┊", DIM, over=False)
        if 0 < row < rows - 1 and row in labels:
            for column in range(0, part.columns, GUIDE_EVERY):
                _set(cells, column, "." if ascii else "·", DIM, over=False)
        for column in marks.get("up" if row == 0 else "down" if row == rows - 1 else "", ()):
            _set(cells, column, ("^" if ascii else "▲") if row == 0 else ("v" if ascii else "▼"), RED, over=True)
        if cursor is not None:
            _set(cells, cursor, "|" if ascii else "│", "bold", over=False)
        text = Text(f"{labels.get(row, ''):>{GUTTER - 1}}{side}", style=DIM)
        end, room = ends.get(row, Text()), FOLLOWS if part.last else 1
        end = end[:room]
        end.pad_right(room - len(end))
        lines.append(text.append_text(_joined(cells)).append_text(end))
    return lines


def _labels(y: tuple[float, float], rows: int, log: bool) -> dict[int, str]:
    """The ends of the scale and round numbers between them, by the row in which they are."""
    values = round_powers(*y, rows // 3) if log else round_numbers(*y, rows // 3)
    placed = {row_of(value, rows, y, log): value for value in values}
    ticks = {row: value for row, value in placed.items() if 1 < row < rows - 2}
    rows_of_labels = [0, rows - 1, *ticks]
    return dict(zip(rows_of_labels, scale_labels(y[1], y[0], [*ticks.values()], GUTTER - 1), strict=True))


def _cells(drawing: Drawing, layers: Sequence[Trace], row: int) -> list[tuple[str, str]]:
    """The characters of a row with their styles; a blank has none."""
    owners = drawing.owners[row]
    return [
        (char, layers[owner].style if owner >= 0 else "")
        for char, owner in zip(drawing.lines[row], owners, strict=True)
    ]


def _set(cells: list[tuple[str, str]], column: int, char: str, style: str, *, over: bool) -> None:
    """Put a character into a row, in place; without `over` only where there is no curve, which stays on top."""
    if 0 <= column < len(cells) and (over or cells[column][0] == " "):
        cells[column] = (char, style)


def _joined(cells: Sequence[tuple[str, str]]) -> Text:
    """The characters as few stretches of one style: a blank takes the style before it, as its colour cannot be seen."""
    text, chars, style = Text(), "", ""
    for char, own in cells:
        if char != " " and own != style and chars.strip(" "):
            text.append(chars, style=style)
            chars = ""
        style = own if char != " " else style
        chars += char
    return text.append(chars, style=style)


def _ends(layers: Sequence[Trace], rows: int, y: tuple[float, float], log: bool) -> dict[int, Text]:
    """The letters by the row in which their curves end, the front one first where several end."""
    ends: dict[int, Text] = {}
    for layer in layers:
        if layer.letter and layer.points:
            row = row_of(layer.points[-1].mean, rows, y, log)
            before = ends.get(row, Text())
            ends[row] = Text(layer.letter, style=layer.style).append_text(before)[:FOLLOWS]
    return ends


def _marks(layers: Sequence[Trace], part: Part, y: tuple[float, float]) -> dict[str, set[int]]:
    """The columns with values above and below the scale."""
    found: dict[str, set[int]] = {"up": set(), "down": set()}
    for layer in layers:
        for point in layer.points:
            if point.high > y[1]:
                found["up"].add(nearest(part.columns, part.x, point.step))
            if point.low < y[0]:
                found["down"].add(nearest(part.columns, part.x, point.step))
    return found


def _cursor(snapshot: Snapshot, part: Part) -> int | None:
    """The column of the cursor, if it is in this part."""
    cursor = snapshot.options.cursor
    if cursor is None or not part.span.first <= cursor <= part.span.last:
        return None
    return nearest(part.columns, part.x, Axis(snapshot.run, snapshot.options.unit).place(cursor))


def _breaks(snapshot: Snapshot, part: Part) -> list[int]:
    """The columns of the changes of reward within a part."""
    axis, span = Axis(snapshot.run, snapshot.options.unit), part.span
    changes = [one.first for one in spans_of_rewards(snapshot.run)[1:]]
    return [nearest(part.columns, part.x, axis.place(step)) for step in changes if span.first < step <= span.last]


def _axis(snapshot: Snapshot, parts: Sequence[Part]) -> Text:
    """The line below a chart: first and last step, the stages of parts with their own scales, round numbers between."""
    axis, line = Axis(snapshot.run, snapshot.options.unit), ""
    for part in parts:
        first, last = axis.label(part.x[0]), axis.label(part.x[1])
        if part is parts[-1]:
            last = {"step": f"step {last}", "tokens": f"{last} tokens"}.get(axis.unit, last)
        named = f"{first} {part.span.name}"
        if part.span.name and len(named) + (len(last) + 1 if part is parts[-1] else 0) <= part.columns:
            first = named
        own = labels_along(part.columns, part.x, axis, first, last if part is parts[-1] else "")
        line += " " * GUTTER + own + " " * (FOLLOWS if part.last else 1)
    return Text(line, style=DIM)
