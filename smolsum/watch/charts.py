"""The charts of runs: the metrics of each with letters, levels and scale, its legend, its `LinePlot`, and its first
curve in one line. What a task rewards and measures is read from the run.

Where the reward of a run changes, its curves end and begin anew behind a divider. In charts of rewards each part has
its own scale, as the values of two rewards cannot be compared.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, groupby
from string import ascii_lowercase, digits

from rich.style import Style
from rich.text import Text

from smolsum.config.differences import rewarded
from smolsum.config.targets import TOKENS
from smolsum.linechart.braille import Ends, Pattern, PlotPoint, Trace, draw, nearest
from smolsum.linechart.chart import Chart
from smolsum.linechart.plot import Axis, LinePlot, Part, side_by_side
from smolsum.linechart.scale import bounds, can_be_log, number, without_outliers
from smolsum.runs.reader import Run
from smolsum.runs.records import StageSettings
from smolsum.runs.series import MOST_POINTS, Point, smoothed
from smolsum.watch.formats import CURVES, DIM, NAME_WIDTH, RED, VALUE_WIDTH, PaneText
from smolsum.watch.model import Snapshot
from smolsum.watch.widgets import Pane

RUNS = "ABCDEFGHIJ"
"""Letters of compared runs."""
VALIDATION = "validation"
"""Title of the chart of validations."""
MAX_HEADLINES = 3
"""Headline metrics in the chart of validations, besides the reward."""
MIN_ROWS, MAX_LEGEND_ROWS = 5, 3
"""Rows that a legend leaves for the drawing, and that it may have."""
UNITS = {"step": "", "time": "perf/step_s", "tokens": "num_tokens"}
"""What a chart can have along it, and the metric whose sum over the steps it is."""
MIN_ROWS_WITH_AXIS = 7
"""Rows from which a chart has an axis."""
MIN_SPARKLINE = 4
"""Characters below which a sparkline shows nothing."""
PATTERNS: tuple[Pattern, ...] = ("solid", "dotted", "dashed")


@dataclass(frozen=True)
class Curve:
    """A metric in a chart; its letter marks the end of its line."""

    metric: str
    letter: str
    name: str


@dataclass(frozen=True)
class ChartSpec:
    """A title, the curves that a run has, a band between two metrics, and named levels."""

    title: str
    curves: Callable[[Run], list[Curve]]
    band: tuple[str, str] | None = None
    levels: Callable[[Run], dict[str, float]] = lambda run: {}
    log: bool = False
    least: float | None = None
    """the scale begins here or below; a log scale begins here or above"""
    by_reward: bool = False
    """whether the values depend on what is rewarded, so that each reward has its own scale"""


def _fixed(*curves: tuple[str, str, str]) -> Callable[[Run], list[Curve]]:
    return lambda run: [Curve(*curve) for curve in curves if curve[0] in run.series]


def _rewards(run: Run) -> list[Curve]:
    """The total reward (the sum of the signals, each times its weight), the signals by name, and the total of the
    validations."""
    parts = [name.removeprefix("rewards/").removesuffix("/mean") for name in run.named("rewards/", "/mean")]
    found = _fixed(("reward", "R", "total"))(run)
    if len(parts) > 1 or not found:
        marks = letters(parts, taken="v")
        found += [Curve(f"rewards/{name}/mean", mark, name) for name, mark in zip(parts, marks, strict=True)]
    return found + _fixed(("validation/reward", "v", "validation"))(run)


def _validation(run: Run) -> list[Curve]:
    """The reward and the first headlines that are shares or scores: a count would flatten them."""
    reward = _fixed(("validation/reward", "v", "reward"))(run)
    heads = [(f"validation/{metric}", title) for metric, title in run.headlines.items()]
    measured = [(run.series[metric], metric, title) for metric, title in heads if metric in run.series]
    fitting = [(metric, title) for one, metric, title in measured if -1 <= one.low <= one.high <= 1][:MAX_HEADLINES]
    marks = letters([title for _, title in fitting], taken="v")
    return reward + [Curve(metric, mark, title) for (metric, title), mark in zip(fitting, marks, strict=True)]


def letters(names: Iterable[str], *, taken: str = "") -> list[str]:
    """Return a letter for each name: the first free one of the name, else the first free one of the alphabet."""
    used = set(taken + RUNS[:2].lower())
    found = []
    for name in names:
        free = (c for c in name.lower() + ascii_lowercase + digits if c in ascii_lowercase + digits and c not in used)
        found.append(next(free, "?"))
        used.add(found[-1])
    return found


def _length_levels(run: Run) -> dict[str, float]:
    """The target length with its tolerance, in runs that measure it; other tasks have none."""
    target, tolerance = run.settings.target_tokens, run.settings.tolerance_tokens
    if run.settings.targets or run.settings.unit != TOKENS:
        return {}  # each prompt has its own, or lengths count something else
    if not target or "length/within_tol" not in run.series:
        return {}
    low, high = target - (tolerance or 0), target + (tolerance or 0)
    sides = {f"-{tolerance}": float(low), f"+{tolerance}": float(high)} if tolerance else {}
    return {f"target {target}" + (f", within {low}-{high}" if tolerance else ""): float(target), **sides}


def _clip_level(run: Run) -> dict[str, float]:
    level = run.settings.max_grad_norm
    return {} if level is None else {f"clipped above {number(level)}": level}


CHARTS = (
    ChartSpec("reward", _rewards, by_reward=True),
    ChartSpec(
        "length in tokens",
        _fixed(("completions/mean_length", "m", "mean"), ("length/mean_target", "t", "mean target")),
        band=("completions/min_length", "completions/max_length"),
        levels=_length_levels,
    ),
    ChartSpec("loss", _fixed(("loss", "l", "loss"))),
    ChartSpec("grad norm", _fixed(("grad_norm", "g", "norm")), levels=_clip_level, least=0.0),
    ChartSpec(
        "clip fraction",
        _fixed(
            ("clip_ratio/low_mean", "-", "low"),
            ("clip_ratio/high_mean", "+", "high"),
            ("clip_ratio/region_mean", "c", "all"),
            ("cispo_clip_ratio", "c", "cispo"),
        ),
        least=0.0,
    ),
    ChartSpec(VALIDATION, _validation, by_reward=True),
    ChartSpec(
        "spread in groups",
        _fixed(("reward_std", "s", "std"), ("frac_reward_zero_std", "z", "zero-std share")),
        least=0.0,
        by_reward=True,
    ),
    # below a millionth sampler and trainer differ only by rounding
    ChartSpec(
        "KL, mismatch",
        _fixed(("kl", "k", "kl"), ("sampling/mismatch_k3", "m", "sampler mismatch")),
        log=True,
        least=1e-6,
    ),
    ChartSpec(
        "entropy, repeats",
        _fixed(
            ("entropy", "e", "entropy"),
            ("completions/repeated_trigrams", "r", "repeated trigrams"),
            ("sampling/temperature", "t", "temperature"),
        ),
    ),
)
"""In the order of the keys 1 to 9; the first `CARD` are on every first page."""
CARD = 5


def chart_of(name: str) -> ChartSpec:
    """Return the chart of a single metric."""
    return ChartSpec(name, _fixed((name, "m", name)), by_reward=name.startswith(("reward", "validation/reward")))


def curves_of(snapshot: Snapshot, spec: ChartSpec) -> tuple[list[Curve], list[Curve]]:
    """Return the curves of the first run that are shown, at least one if it has any, and those that the user has
    hidden; next to other runs only its first one is shown."""
    curves = spec.curves(snapshot.run)
    if snapshot.others:
        return curves[:1], []
    shown = [curve for curve in curves if curve.metric not in snapshot.options.hidden] or curves
    return shown, [curve for curve in curves if curve not in shown]


def letter_of(snapshot: Snapshot, curve: Curve) -> str:
    """Return the letter at the end of a curve of the first run; next to other runs, that of the run."""
    return RUNS[0] if snapshot.others else curve.letter


def legend(
    snapshot: Snapshot, spec: ChartSpec, more: Sequence[str], *, room: int, width: int, height: int
) -> tuple[Text, list[Text]]:
    """Return the note in the frame, of at most `room` characters; where that is too short, lines below the drawing.

    With enough lines every curve has its name; otherwise only its letter and value. `more` is named at the end. An
    entry has its metric as `curve` in its `meta`, unless it is that of the only curve.
    """
    shown, hidden = curves_of(snapshot, spec)
    cursor = snapshot.options.view.cursor
    before = [] if cursor is None else [Text(f"at step {cursor:.0f}:")]
    behind = [*_others(snapshot, spec), *(Text(part) for part in (*[*spec.levels(snapshot.run)][:1], *more))]

    def entries(*, named: bool) -> list[Text]:
        found = []
        for place, curve in enumerate((*shown, *hidden)):
            several, look = len(shown) > 1 or bool(hidden), "" if curve in hidden else CURVES[place % len(CURVES)]
            entry = Text("", Style() if [curve] == shown else Style.from_meta({"curve": curve.metric}))
            entry.append(f"{letter_of(snapshot, curve)} " if several or snapshot.others else "", f"bold {look}".strip())
            entry.append(f"{curve.name} " if named and several else "")
            found.append(entry.append("off" if curve in hidden else _value(snapshot, spec, curve)))
        return found

    parts = [*before, *entries(named=True), *behind]
    if len(note := Text("  ").join(parts)) <= room:
        return note, []
    lines: list[list[Text]] = []
    for part in parts:
        if lines and len(Text("  ").join([*lines[-1], part])) < width:
            lines[-1].append(part)
        else:
            lines.append([part])
    if len(lines) <= min(height - MIN_ROWS, MAX_LEGEND_ROWS):
        return Text(), [Text(" ", style=DIM).append_text(Text("  ").join(line)) for line in lines]
    parts = [*before, *entries(named=False), *behind]
    while len(note := Text("  ").join(parts)) > room and len(parts) > 1 + len(before):
        parts.pop()
    return note if len(note) <= room else Text("  ").join(parts[len(before) :]), []


def _value(snapshot: Snapshot, spec: ChartSpec, curve: Curve) -> str:
    """The value at the cursor, or the newest one, with the band around it; of an earlier stage, the step of the last
    value."""
    run, cursor = snapshot.run, snapshot.options.view.cursor
    last = run.series[curve.metric].last_step or 0
    if cursor is None and last < run.stage_began.get(run.stage, 0):
        return f"until {last}"
    value = _at(run, curve.metric, cursor)
    if spec.band and set(spec.band) <= set(run.series):
        low, high = (_at(run, name, cursor) for name in spec.band)
        return f"{value} (min {low}, max {high})"
    return value


def _at(run: Run, metric: str, cursor: float | None) -> str:
    """The newest value, or that of the cursor's step; a value of an earlier step has its step."""
    if metric not in run.series:
        return "-"
    if cursor is None:
        return number(run.last(metric))
    found = run.series[metric].at(cursor)
    if found is None:
        return "-"
    step, value = found
    return number(value) if step == int(cursor) else f"{number(value)} ({step})"


def _others(snapshot: Snapshot, spec: ChartSpec) -> list[Text]:
    """The letter of each other run, and the value of its first curve."""
    cursor, found = snapshot.options.view.cursor, []
    for place, run in enumerate(snapshot.others, start=1):
        for curve in spec.curves(run)[:1]:
            letter = (RUNS[place], f"bold {CURVES[place % len(CURVES)]}")
            found.append(Text.assemble(letter, f" {_at(run, curve.metric, cursor)}"))
    return found


def axis_of(run: Run, unit: str) -> Axis:
    """Return the axis of a run; that of steps for a run without the metric of a unit."""
    series = run.series.get(UNITS[unit])
    return Axis(unit, series.steps, list(accumulate(series.values))) if series and series.count else Axis()


def placed(points: Sequence[Point], axis: Axis) -> tuple[PlotPoint, ...]:
    return tuple(PlotPoint(axis.place(one.step), one.low, one.mean, one.high) for one in points)


def rewards_of(run: Run) -> list[Part]:
    """Return the parts of a run in which one reward holds: neighbouring stages with the same weights are one part."""

    def weights(stage: str) -> dict[str, tuple[float, float]]:
        found = run.settings.stages.get(stage, StageSettings())
        ends = {**found.rewards, **found.rewards_end}
        return {name: (found.rewards.get(name, 0.0), end) for name, end in ends.items()}

    stages = sorted(run.stage_began, key=run.stage_began.__getitem__)
    alike = [list(own) for _, own in groupby(stages, weights)]
    began = [run.stage_began[own[0]] for own in alike]
    ends = [*began[1:], max([run.step, *began]) + 1]
    return [Part(first, end - 1, ", ".join(own)) for own, first, end in zip(alike, began, ends, strict=False)]


def line_plot(snapshot: Snapshot, width: int, spec: ChartSpec) -> LinePlot:
    """Return what a chart of this width draws."""
    run, options, axis = snapshot.run, snapshot.options, axis_of(snapshot.run, snapshot.options.unit)
    changes, cursor, parts = [part.first for part in rewards_of(run)[1:]], options.view.cursor, []
    for part in parts_of(snapshot, width, spec):
        pointed = axis.place(cursor) if cursor is not None and part.first <= cursor <= part.last else None
        dividers = [axis.place(step) for step in changes if part.first < step <= part.last]
        parts.append(replace(part, traces=_traces(snapshot, spec, part), dividers=dividers, cursor=pointed))
    least = min((point.low for part in parts for trace in part.traces for point in trace.points), default=1.0)
    log = (spec.log != (spec.title in options.logs)) and can_be_log(least, spec.least)
    return LinePlot(parts, axis, log, spec.least)


def chart(snapshot: Snapshot, width: int, height: int, spec: ChartSpec, plot: LinePlot | None = None) -> PaneText:
    """Return a chart of `width` x `height` characters; its legend is below it if the frame has no room."""
    plot = plot or line_plot(snapshot, width, spec)
    smoothing, signals = snapshot.options.smoothing, rewarded(snapshot.run.weights())
    title = spec.title + (" log" if plot.log else "") + (f" smooth {smoothing:g}" if smoothing else "")
    if spec is CHARTS[0] and signals and not snapshot.others and len(title) + len(signals) < width - 4:
        title += f": {signals}"
    if height < 1 or not any(trace.points for part in plot.parts for trace in part.traces):
        return PaneText(title, "", (Text(_nothing(snapshot, spec), style=DIM),))
    with_axis = height >= MIN_ROWS_WITH_AXIS
    rows = height - with_axis
    note, below = legend(snapshot, spec, plot.beyond(), room=width - 4, width=width, height=rows)
    return PaneText(title, note, (*plot.lines(rows - len(below), axis=with_axis), *below))


class RunChart(Pane, Chart):
    def __init__(self, spec: ChartSpec, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(self._drawing, id=id, classes=classes)
        self.spec = spec

    def _drawing(self, snapshot: Snapshot, width: int, height: int) -> PaneText:
        self.view, self.whole = snapshot.options.view, snapshot.whole
        self.plot = line_plot(snapshot, width, self.spec)
        return chart(snapshot, width, height, self.spec, self.plot)


def log_is_possible(snapshot: Snapshot, spec: ChartSpec) -> bool:
    """Whether a logarithmic scale of this chart would mean something."""
    series = [run.series[curve.metric] for run in snapshot.runs for curve in spec.curves(run)]
    return any(one.count for one in series) and can_be_log(min(one.low for one in series), spec.least)


def parts_of(snapshot: Snapshot, width: int, spec: ChartSpec) -> list[Part]:
    """Return the parts of a chart with their own scales, from left to right; most charts have one."""
    (first, last), (curves, _) = snapshot.in_view, curves_of(snapshot, spec)

    def has(part: Part) -> bool:
        found = (snapshot.run.series[curve.metric].at(part.last) for curve in curves)
        return any(one is not None and one[0] >= part.first for one in found)

    own = [part for part in rewards_of(snapshot.run) if part.last >= first and part.first <= last]
    parts = [Part(max(part.first, first), min(part.last, last), part.name) for part in own]
    if not spec.by_reward or len(parts) < 2:
        parts = [Part(first, last)]
    parts[-1] = replace(parts[-1], last=last)
    parts = [part for part in parts if len(parts) == 1 or has(part)] or [Part(first, last)]
    return side_by_side([replace(part, x=_ends(snapshot, part)) for part in parts], width)


def _ends(snapshot: Snapshot, part: Part) -> Ends:
    """The ends of a part on the axis; of several runs, all of them are within."""
    axis = axis_of(snapshot.run, snapshot.options.unit)
    low, high = axis.place(part.first), axis.place(part.last)
    if snapshot.others and not part.name and not snapshot.options.view.steps:
        axes = [(axis_of(run, snapshot.options.unit), run) for run in snapshot.others if run.row]
        low = min([low, *(each.place(run.first_step) for each, run in axes)])
        high = max([high, *(each.place(run.step) for each, run in axes)])
    return low, high


def _nothing(snapshot: Snapshot, spec: ChartSpec) -> str:
    if spec.title == VALIDATION and snapshot.run.settings.validate_every == 0:
        return "this run does not validate: train.validate_every = 0"
    if not snapshot.run.row:
        return "waiting for the first step" if snapshot.run_state.hopeful else "no step was finished"
    return "nothing measured yet" if snapshot.run_state.hopeful else "this run did not measure it"


def _traces(snapshot: Snapshot, spec: ChartSpec, part: Part) -> list[Trace]:
    """The traces of a part from back to front: the band, levels, other runs, and the curves of the first run. A curve
    is in pieces that no change of reward divides; behind it, faintly, are the values that it is the mean of."""
    run, unit, smoothing = snapshot.run, snapshot.options.unit, snapshot.options.smoothing
    found: list[Trace] = []

    def pieces(run: Run, metric: str) -> list[list[Point]]:
        axis, first, last = axis_of(run, unit), part.first, part.last
        if run is not snapshot.run and axis.unit != "step":
            first, last = axis.step(part.x[0]), axis.step(part.x[1])
        return [points for _, points in _divided(run, metric, (first, last), 4 * part.columns)]

    def add(run: Run, metric: str, look: Trace) -> None:
        lines, axis = [], axis_of(run, unit)
        for points in pieces(run, metric):
            if smoothing or any(point.low < point.high for point in points):
                found.append(Trace(placed(points, axis), "haze", style=f"dim {look.style}"))
            means = [Point(p.step, p.mean, p.mean, p.mean) for p in smoothed(points, smoothing)]
            lines.append(replace(look, points=placed(means, axis), letter=""))
        found.extend([*lines[:-1], *(replace(line, letter=look.letter) for line in lines[-1:])])

    if spec.band and set(spec.band) <= set(run.series):
        for low, high in zip(*(pieces(run, name) for name in spec.band), strict=False):
            both = [Point(a.step, a.low, a.mean, b.high) for a, b in zip(low, high, strict=False)]
            found.append(Trace(placed(both, axis_of(run, unit)), "band", style=DIM))
    found += [Trace(pattern="rule", level=level, style=RED) for level in spec.levels(run).values()]
    for place, other in reversed([*enumerate(snapshot.others, start=1)]):
        style, pattern = CURVES[place % len(CURVES)], PATTERNS[place % len(PATTERNS)]
        for curve in spec.curves(other)[:1]:
            add(other, curve.metric, Trace((), pattern, style=style, letter=RUNS[place]))
    for place, curve in reversed([*enumerate(curves_of(snapshot, spec)[0])]):
        add(run, curve.metric, Trace(style=CURVES[place % len(CURVES)], letter=letter_of(snapshot, curve)))
    return found


def _divided(run: Run, metric: str, ends: Ends, most: int) -> list[tuple[float, list[Point]]]:
    """The points of a metric between two steps, at most so many, in each part with one reward, after its first step."""
    found = []
    for part in rewards_of(run) or [Part(*ends)] if metric in run.series else ():
        low, high = max(part.first, ends[0]), min(part.last, ends[1])
        if low <= high and (points := run.series[metric].points(low - 1, high, most)):
            found.append((low, points))
    return found


def sparkline(
    snapshot: Snapshot, width: int, spec: ChartSpec, *, name_width: int = NAME_WIDTH, value_width: int = VALUE_WIDTH
) -> Text:
    """Return one line of a chart: its title, and the newest value and the course of its first curve; those of several
    runs side by side, on one scale. What has a width of 0 is left out."""
    runs = list(snapshot.runs)
    metric = next((curve.metric for run in runs for curve in spec.curves(run)[:1]), "")
    while (room := sparkline_room(width, len(runs), name_width, value_width)) < MIN_SPARKLINE and len(runs) > 2:
        runs.pop()
    line = Text(f"{spec.title[:name_width]:<{name_width}}")
    line.append("".join(f"{number(run.last(metric)):>{value_width}}" for run in runs if value_width))
    for place, run in enumerate(runs if room >= MIN_SPARKLINE else ()):
        line.append(" ").append(course(snapshot, run, metric, spec, room), style=CURVES[place % len(CURVES)])
    return line


def sparkline_room(width: int, runs: int, name_width: int = NAME_WIDTH, value_width: int = VALUE_WIDTH) -> int:
    """Return the characters of each sparkline in a line of so many runs."""
    return (width - name_width - value_width * runs) // runs - 1


def course(snapshot: Snapshot, run: Run, metric: str, spec: ChartSpec, room: int) -> str:
    """Return the course of a metric in the shown steps; behind a divider, it begins anew where the reward changes. All
    runs have one scale, but each reward of a chart of rewards has its own."""
    axis, (first, last) = axis_of(run, snapshot.options.unit), snapshot.in_view
    pieces = _divided(run, metric, (first, last), MOST_POINTS)
    known = [each.series[metric] for each in snapshot.runs if metric in each.series]
    common = [point for series in known for point in placed(series.points(first - 1, last), Axis())]
    x, traces, dividers = (axis.place(first), axis.place(last)), [], []
    for begin, measured in pieces:
        points = placed(smoothed(measured, snapshot.options.smoothing), axis)
        alone = spec.by_reward and len(pieces) > 1
        low, high = bounds(without_outliers(points if alone else common), least=None if spec.log else spec.least)
        heights = [[(value - low) / (high - low) for value in point[1:]] for point in points]
        traces.append(Trace(tuple(PlotPoint(point.x, *each) for point, each in zip(points, heights, strict=True))))
        dividers.append(nearest(room, x, axis.place(begin)))
    line = [char for char, _ in draw(traces, room, 1, x=x, y=(0.0, 1.0))[0]]
    for column in dividers[1:]:
        line[max(column - 1, 0)] = "│"
    return "".join(line)
