"""The charts of runs: what each curve of a run has along the axis, as a `LinePlot`, and its first curve in one line.

Where the reward of a run changes, its curves end and begin anew behind a divider. In charts of rewards each part has
its own scale, as the values of two rewards cannot be compared.
"""

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from rich.text import Text

from smolsum.console import duration
from smolsum.runs.reader import Run
from smolsum.runs.series import MOST_POINTS, Point, smoothed
from smolsum.watch.braille import Ends, Pattern, PlotPoint, Trace, draw, heights
from smolsum.watch.curves import CHARTS, RUNS, VALIDATION, ChartSpec, legend, letter_of, rewarded, shown_curves
from smolsum.watch.formats import CURVES, DIM, NAME_WIDTH, RED, VALUE_WIDTH, PaneText, number
from smolsum.watch.model import Snapshot
from smolsum.watch.plot import Chart, LinePlot, ScaledPart, can_be_log, scale, sections, without_outliers
from smolsum.watch.widgets import Pane

UNITS = {"step": "", "time": "perf/step_s", "tokens": "num_tokens"}
"""What a chart can have along it, and the metric whose sum over the steps it is."""
LAST = {"step": "step {}", "tokens": "{} tokens"}
"""How the last label is written."""
MIN_ROWS_WITH_AXIS = 7
"""Rows from which a chart has an axis."""
MIN_SPARKLINE = 4
"""Characters below which a sparkline shows nothing."""
PATTERNS: tuple[Pattern, ...] = ("solid", "dotted", "dashed")


class Axis:
    """The way from the steps of a run to places along a chart, and back. A run without the metric of a unit has the
    axis of steps."""

    def __init__(self, run: Run, unit: str) -> None:
        series = run.series.get(UNITS[unit])
        self.unit = unit if series is not None and series.count else "step"
        if self.unit != "step" and series is not None:
            self._steps: Sequence[int] = series.steps
            self._ends = list(accumulate(series.values))

    def place(self, step: float) -> float:
        """Return the place of a step: the step, or the seconds or tokens up to its end."""
        if self.unit == "step":
            return step
        after = min(max(bisect_left(self._steps, step), 0), len(self._steps) - 1)
        if self._steps[after] <= step or after == 0:
            return self._ends[after]
        share = (step - self._steps[after - 1]) / (self._steps[after] - self._steps[after - 1])
        return self._ends[after - 1] + share * (self._ends[after] - self._ends[after - 1])

    def step(self, place: float) -> float:
        """Return the nearest step of a place."""
        if self.unit == "step":
            return place
        after = min(bisect_left(self._ends, place), len(self._ends) - 1)
        if after and place - self._ends[after - 1] < self._ends[after] - place:
            after -= 1
        return float(self._steps[after])

    def points(self, points: Sequence[Point]) -> tuple[PlotPoint, ...]:
        return tuple(PlotPoint(self.place(one.step), one.low, one.mean, one.high) for one in points)

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


@dataclass(frozen=True)
class Span:
    """Point of a run, both ends included, and the name of the stages that they belong to."""

    first: float
    last: float
    name: str = ""


def spans_of_rewards(run: Run) -> list[Span]:
    """Return the parts of a run in which one reward holds: neighbouring stages with the same weights are one part."""
    parts: list[tuple[dict[str, tuple[float, float]], int, list[str]]] = []
    for stage, began in sorted(run.stage_began.items(), key=lambda item: item[1]):
        settings = run.settings.stages.get(stage)
        own, later = (settings.rewards, settings.rewards_end) if settings else ({}, {})
        weights = {name: (own.get(name, 0.0), end) for name, end in {**own, **later}.items()}
        if parts and parts[-1][0] == weights:
            parts[-1][2].append(stage)
        else:
            parts.append((weights, began, [stage]))
    ends = [began - 1 for _, began, _ in parts[1:]] + [max(run.step, parts[-1][1])] if parts else []
    return [Span(began, end, ", ".join(names)) for (_, began, names), end in zip(parts, ends, strict=True)]


def whole(snapshot: Snapshot) -> Ends:
    """Return the first and the last step of all shown runs."""
    runs = [snapshot.run, *snapshot.others]
    first = min((run.first_step for run in runs if run.row), default=0)
    return first, max(first, *(run.step for run in runs))


def in_view(snapshot: Snapshot) -> Ends:
    """Return the first and the last step that charts show."""
    return snapshot.options.view.ends(whole(snapshot))


def chart(snapshot: Snapshot, width: int, height: int, spec: ChartSpec) -> PaneText:
    """Return a chart of `width` x `height` characters; its legend is below it if the frame has no room."""
    options, axis = snapshot.options, Axis(snapshot.run, snapshot.options.unit)
    changes = [one.first for one in spans_of_rewards(snapshot.run)[1:]]
    cursor, parts = options.view.cursor, []
    for span, part in parts_of(snapshot, width, spec):
        pointed = axis.place(cursor) if cursor is not None and span.first <= cursor <= span.last else None
        dividers = [axis.place(step) for step in changes if span.first < step <= span.last]
        traces = _traces(snapshot, spec, span, part)
        parts.append(replace(part, traces=traces, name=span.name, dividers=dividers, cursor=pointed))
    lows = [point.low for part in parts for trace in part.traces for point in trace.points]
    log = (spec.log != (spec.title in options.logs)) and can_be_log(min(lows, default=1.0), spec.least)
    title = spec.title + (" log" if log else "") + (f" smooth {options.smoothing:g}" if options.smoothing else "")
    signals = rewarded(snapshot.run.weights())
    if spec is CHARTS[0] and signals and not snapshot.others and len(title) + len(signals) < width - 4:
        title += f": {signals}"
    if not lows or height < 1:
        return PaneText(title, "", (Text(_nothing(snapshot, spec), style=DIM),))
    plot = LinePlot(
        parts,
        axis.label,
        LAST.get(axis.unit, "{}"),
        whole=axis.unit == "step",
        time=axis.unit == "time",
        log=log,
        least=spec.least,
        ascii=options.ascii,
        quiet=DIM,
        marked=RED,
    )
    with_axis = height >= MIN_ROWS_WITH_AXIS
    rows = height - with_axis
    note, below = legend(snapshot, spec, plot.beyond(), room=width - 4, width=width, height=rows)
    return PaneText(title, note, (*plot.lines(rows - len(below), axis=with_axis), *below))


class RunChart(Pane, Chart):
    """A chart of the runs of the view."""

    def __init__(self, spec: ChartSpec, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(self._drawing, id=id, classes=classes)
        self.spec = spec

    def _drawing(self, snapshot: Snapshot, width: int, height: int) -> PaneText:
        self.view, self.whole = snapshot.options.view, whole(snapshot)
        self.drawn = [part for _, part in parts_of(snapshot, width, self.spec)]
        return chart(snapshot, width, height, self.spec)

    def step(self, place: float) -> float:
        """Return the step of the first run at a place along the axis."""
        return Axis(self.snapshot.run, self.snapshot.options.unit).step(place) if self.snapshot else place


def log_is_possible(snapshot: Snapshot, spec: ChartSpec) -> bool:
    """Whether a logarithmic scale of this chart would mean something."""
    runs = [snapshot.run, *snapshot.others]
    series = [run.series[curve.metric] for run in runs for curve in spec.curves(run)]
    return any(one.count for one in series) and can_be_log(min(one.low for one in series), spec.least)


def parts_of(snapshot: Snapshot, width: int, spec: ChartSpec) -> list[tuple[Span, ScaledPart]]:
    """Return the parts of a chart with their own scales, from left to right; most charts have one."""
    first, last = in_view(snapshot)
    own = [span for span in spans_of_rewards(snapshot.run) if span.last >= first and span.first <= last]
    spans = [Span(max(span.first, first), min(span.last, last), span.name) for span in own]
    if not spec.by_reward or len(spans) < 2:
        spans = [Span(first, last)]
    spans[-1] = replace(spans[-1], last=last)
    spans = [span for span in spans if len(spans) == 1 or _has(snapshot, spec, span)] or [Span(first, last)]
    found = sections([_places(snapshot, span) for span in spans], width)
    return list(zip(spans[-len(found) :], found, strict=True))


def _has(snapshot: Snapshot, spec: ChartSpec, span: Span) -> bool:
    series = [snapshot.run.series[curve.metric] for curve in shown_curves(snapshot, spec)]
    return any((found := one.at(span.last)) is not None and found[0] >= span.first for one in series)


def _places(snapshot: Snapshot, span: Span) -> Ends:
    """The ends of a span on the axis; of several runs, all of them are within."""
    axis = Axis(snapshot.run, snapshot.options.unit)
    low, high = axis.place(span.first), axis.place(span.last)
    if snapshot.others and not span.name and not snapshot.options.view.steps:
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


def _traces(snapshot: Snapshot, spec: ChartSpec, span: Span, part: ScaledPart) -> list[Trace]:
    """The traces of a part from back to front: the band, levels, other runs, and the curves of the first run. A curve
    is in pieces that no change of reward divides; behind it, faintly, are the values that it is the mean of."""
    run, unit, smoothing = snapshot.run, snapshot.options.unit, snapshot.options.smoothing
    found: list[Trace] = []

    def pieces(run: Run, metric: str) -> list[list[Point]]:
        axis, first, last = Axis(run, unit), span.first, span.last
        if run is not snapshot.run and axis.unit != "step":
            first, last = axis.step(part.x[0]), axis.step(part.x[1])
        divided = _divided(run, metric, first, last, 4 * part.columns, spans_of_rewards(run) or [span])
        return [points for _, points in divided]

    def add(run: Run, metric: str, look: Trace) -> None:
        lines, axis = [], Axis(run, unit)
        for points in pieces(run, metric):
            if smoothing or any(point.low < point.high for point in points):
                found.append(Trace(axis.points(points), "haze", style=f"dim {look.style}"))
            means = [Point(p.step, p.mean, p.mean, p.mean) for p in smoothed(points, smoothing)]
            lines.append(replace(look, points=axis.points(means), letter=""))
        found.extend([*lines[:-1], *(replace(line, letter=look.letter) for line in lines[-1:])])

    if spec.band and set(spec.band) <= set(run.series):
        for low, high in zip(*(pieces(run, name) for name in spec.band), strict=False):
            both = [Point(a.step, a.low, a.mean, b.high) for a, b in zip(low, high, strict=False)]
            found.append(Trace(Axis(run, unit).points(both), "band", style=DIM))
    found += [Trace(pattern="rule", level=level, style=RED) for level in spec.levels(run).values()]
    for place, other in reversed([*enumerate(snapshot.others, start=1)]):
        style, pattern = CURVES[place % len(CURVES)], PATTERNS[place % len(PATTERNS)]
        for curve in spec.curves(other)[:1]:
            add(other, curve.metric, Trace((), pattern, style=style, letter=RUNS[place]))
    for place, curve in reversed([*enumerate(shown_curves(snapshot, spec))]):
        add(run, curve.metric, Trace(style=CURVES[place % len(CURVES)], letter=letter_of(snapshot, curve)))
    return found


def _divided(
    run: Run, metric: str, first: float, last: float, most: int, spans: Sequence[Span]
) -> list[tuple[Span, list[Point]]]:
    """The points of a metric between two steps in each of the spans where it has any, at most so many."""
    found = []
    for span in spans if metric in run.series else ():
        low, high = max(span.first, first), min(span.last, last)
        if low <= high and (points := run.series[metric].points(low - 1, high, most)):
            found.append((Span(low, high), points))
    return found


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
    axis, (first, last), options = Axis(run, snapshot.options.unit), in_view(snapshot), snapshot.options
    pieces = _divided(run, metric, first, last, MOST_POINTS, spans_of_rewards(run))
    known = [each.series[metric] for each in (snapshot.run, *snapshot.others) if metric in each.series]
    common = [point for series in known for point in Axis(run, "step").points(series.points(first - 1, last))]
    begin, end = axis.place(first), axis.place(last)
    text = ""
    for place, (span, measured) in enumerate(pieces):
        x = axis.place(span.first), axis.place(span.last)
        points = axis.points(smoothed(measured, options.smoothing))
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
            text += "".join(char for char, _ in draw([Trace(points)], columns, 1, x=x, y=y)[0])
    return text[:room].ljust(room)
