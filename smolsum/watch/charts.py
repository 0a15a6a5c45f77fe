"""The charts: which metrics each one shows, drawn as braille with a legend, or as one line each on a small terminal.

A second run is drawn next to the first. What a task rewards and measures is read from the run.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from string import ascii_lowercase, digits

from rich.text import Text

from smolsum.runs.reader import Run
from smolsum.runs.series import Point, smoothed
from smolsum.watch.braille import Pattern, Trace, bounds, draw, heights, row_of
from smolsum.watch.pane_text import CURVES, DIM, NAME_WIDTH, RED, VALUE_WIDTH, Pane, number
from smolsum.watch.snapshot import Snapshot, ViewOptions

RUNS = "AB"
"""Letters of two compared runs; no curve has one of them in either case."""
MAX_HEADLINES = 3
"""Headline metrics in the chart of validations, besides the reward."""
GUTTER = 8
"""Characters of the scale on the left of a chart."""
MIN_ROWS, MAX_LEGEND_ROWS = 5, 3
"""Rows that a legend leaves for the drawing, and that it may have."""
MIN_ROWS_WITH_AXIS = 7
"""Rows from which a chart has an axis of steps."""
MIN_SPARKLINE = 4
"""Characters below which a sparkline shows nothing."""


@dataclass(frozen=True)
class Curve:
    """A metric in a chart; its letter marks the end of its line."""

    metric: str
    letter: str
    name: str


@dataclass(frozen=True)
class Chart:
    """A title, the curves that a run has, a band between two metrics, and named levels."""

    title: str
    curves: Callable[[Run], list[Curve]]
    band: tuple[str, str] | None = None
    levels: Callable[[Run], dict[str, float]] = lambda run: {}
    log: bool = False
    least: float | None = None
    """the scale begins here or below; a log scale begins here or above"""


def _fixed(*curves: tuple[str, str, str]) -> Callable[[Run], list[Curve]]:
    return lambda run: [Curve(*curve) for curve in curves if curve[0] in run.series]


def _rewards(run: Run) -> list[Curve]:
    """The total reward, each signal by its name, and the total of the validations."""
    parts = [name.removeprefix("rewards/").removesuffix("/mean") for name in run.named("rewards/", "/mean")]
    found = _fixed(("reward", "R", "reward"))(run)
    if len(parts) > 1 or not found:
        found += [
            Curve(f"rewards/{name}/mean", letter, name)
            for name, letter in zip(parts, letters(parts, taken="v"), strict=True)
        ]
    return found + _fixed(("validation/reward", "v", "validation"))(run)


def _validation(run: Run) -> list[Curve]:
    """The reward and the first headlines that are shares or scores: a count would flatten them."""
    reward = _fixed(("validation/reward", "v", "reward"))(run)
    heads = [(f"validation/{metric}", title) for metric, title in run.headlines.items()]
    fitting = [
        (metric, title)
        for metric, title in heads
        if metric in run.series and -1 <= run.series[metric].low <= run.series[metric].high <= 1
    ][:MAX_HEADLINES]
    marks = letters([title for _, title in fitting], taken="v")
    return reward + [Curve(metric, mark, title) for (metric, title), mark in zip(fitting, marks, strict=True)]


def letters(names: Iterable[str], *, taken: str = "") -> list[str]:
    """Return a letter for each name: the first free one of the name, else the first free one of the alphabet."""
    used = set(taken + RUNS.lower())
    found = []
    for name in names:
        free = (c for c in name.lower() + ascii_lowercase + digits if c in ascii_lowercase + digits and c not in used)
        found.append(next(free, "?"))
        used.add(found[-1])
    return found


def _length_levels(run: Run) -> dict[str, float]:
    """The target length with its tolerance, in runs that measure it; other tasks have none."""
    target, tolerance = run.settings.target_tokens, run.settings.tolerance_tokens
    if not target or "length/within_tol" not in run.series:
        return {}
    low, high = target - (tolerance or 0), target + (tolerance or 0)
    sides = {f"-{tolerance}": float(low), f"+{tolerance}": float(high)} if tolerance else {}
    return {f"target {target}" + (f" ({low}-{high})" if tolerance else ""): float(target), **sides}


def _clip_level(run: Run) -> dict[str, float]:
    level = run.settings.max_grad_norm
    return {} if level is None else {f"clipped above {number(level)}": level}


CHARTS = (
    Chart("reward", _rewards),
    Chart(
        "spread in groups",
        _fixed(("reward_std", "s", "std"), ("frac_reward_zero_std", "z", "zero-std share")),
        least=0.0,
    ),
    Chart(
        "tokens",
        _fixed(("completions/mean_length", "m", "mean")),
        band=("completions/min_length", "completions/max_length"),
        levels=_length_levels,
    ),
    Chart("grad norm", _fixed(("grad_norm", "g", "norm")), levels=_clip_level, least=0.0),
    Chart("loss", _fixed(("loss", "l", "loss"))),
    Chart(
        "clip fraction",
        _fixed(
            ("clip_ratio/low_mean", "-", "low"),
            ("clip_ratio/high_mean", "+", "high"),
            ("clip_ratio/region_mean", "c", "all"),
            ("cispo_clip_ratio", "c", "cispo"),
        ),
        least=0.0,
    ),
    # below a millionth sampler and trainer differ only by rounding
    Chart(
        "KL, mismatch",
        _fixed(("kl", "k", "kl"), ("sampling/mismatch_k3", "m", "sampler mismatch")),
        log=True,
        least=1e-6,
    ),
    Chart("validation", _validation),
    Chart(
        "entropy, repeats",
        _fixed(("entropy", "e", "entropy"), ("completions/repeated_trigrams", "r", "repeated trigrams")),
    ),
)
"""In the order of the keys 1 to 9."""


def legend(snapshot: Snapshot, spec: Chart, *, room: int, width: int, height: int) -> tuple[str, list[Text]]:
    """Return the note in the title, of at most `room` characters; where that is too short, lines below the drawing.

    With enough lines every curve has its name; otherwise only its letter and value.
    """
    curves, others, levels = spec.curves(snapshot.run), _others(snapshot, spec), [*spec.levels(snapshot.run)][:1]
    named = short = [_value(snapshot, spec, curve) for curve in curves]
    if len(curves) > 1 or others:
        marks = _letters(snapshot, curves)
        short = [f"{mark} {value}" for mark, value in zip(marks, named, strict=True)]
    if len(curves) > 1:
        named = [f"{mark} {curve.name} {value}" for mark, curve, value in zip(marks, curves, named, strict=True)]
    else:
        named = short
    parts = [*named, *others, *levels]
    if len("  ".join(parts)) <= room:
        return "  ".join(parts), []
    lines = _wrapped(parts, width - 1)
    if len(lines) <= min(height - MIN_ROWS, MAX_LEGEND_ROWS):
        return "", [Text(f" {line}", style=DIM) for line in lines]
    return _fitting([*short, *others, *levels], room), []


def _letters(snapshot: Snapshot, curves: Sequence[Curve]) -> list[str]:
    """The letter at the end of each curve; of two runs, the first curve has the letter of its run."""
    own = [curve.letter for curve in curves]
    return own if snapshot.other is None else [RUNS[0], *own[1:]]


def _value(snapshot: Snapshot, spec: Chart, curve: Curve) -> str:
    """The newest value, with the band around it; of an earlier stage, the step of the last value."""
    run = snapshot.run
    last = run.series[curve.metric].last_step or 0
    if last < run.stage_began.get(run.stage, 0):
        return f"until {last}"
    value = number(run.last(curve.metric))
    if spec.band and set(spec.band) <= set(run.series):
        low, high = (number(run.last(name)) for name in spec.band)
        return f"{value} ({low}-{high})"
    return value


def _others(snapshot: Snapshot, spec: Chart) -> list[str]:
    """The newest value of the second run's first curve."""
    curves = spec.curves(snapshot.run)[:1]
    if snapshot.other is None or not curves or curves[0].metric not in snapshot.other.series:
        return []
    return [f"{RUNS[1]} {number(snapshot.other.last(curves[0].metric))}"]


def _wrapped(parts: Sequence[str], width: int) -> list[str]:
    """The parts in lines of at most `width` characters, without breaking a part."""
    lines: list[str] = []
    for part in parts:
        if lines and len(lines[-1]) + 2 + len(part) <= width:
            lines[-1] += f"  {part}"
        else:
            lines.append(part)
    return lines


def _fitting(parts: Sequence[str], room: int) -> str:
    """As many of the first parts as fit; at least one."""
    shown = list(parts)
    while len(shown) > 1 and len("  ".join(shown)) > room:
        shown.pop()
    return "  ".join(shown)


@dataclass(frozen=True)
class Layer:
    """A trace, the letter at its end, and its style."""

    trace: Trace
    letter: str
    style: str


def chart(snapshot: Snapshot, width: int, height: int, spec: Chart) -> Pane:
    """Return a chart of `width` x `height` characters: scale on the left, letters of the curves on the right.

    Below it are the steps, and the legend if the title has no room for it.
    """
    options = snapshot.options
    log = spec.log != options.log
    title = f"{spec.title}{' log' if log else ''}"
    layers = _layers(snapshot, spec)
    points = [point for layer in layers for point in layer.trace.points]
    if not points:
        return Pane(title, "", (Text(_nothing(snapshot), style=DIM),))
    axis = height >= MIN_ROWS_WITH_AXIS
    note, below = legend(snapshot, spec, room=width - len(title) - 6, width=width, height=height - axis)
    x, values = reach(points), [v for p in points for v in (p.low, p.high)]
    y = scale([*values, *_levels_in_view(layers, values)], log, spec.least)
    rows, room = height - axis - len(below), max(width - GUTTER - 2, 4)
    drawing = draw([layer.trace for layer in layers], room, rows, x=x, y=y, log=log, ascii=options.ascii)
    ends = _ends(layers, rows, y, log)
    lines = []
    for row, (line, owners) in enumerate(zip(drawing.lines, drawing.owners, strict=True)):
        label = number(y[1]) if row == 0 else number(y[0]) if row == rows - 1 else ""
        text = Text(f"{label:>{GUTTER - 1}}{'|' if options.ascii else '│'}", style=DIM)
        lines.append(text.append_text(_colored(line, owners, layers)).append_text(ends.get(row, Text())))
    if axis:
        first, last = f"{x[0]:.0f}", f"step {x[1]:.0f}"
        lines.append(Text(f"{'':{GUTTER}}{first}{last:>{max(room - len(first), 1)}}", style=DIM))
    return Pane(title, note, (*lines, *below))


def _nothing(snapshot: Snapshot) -> str:
    """Why a chart is empty."""
    if not snapshot.run.row:
        return "waiting for the first step" if snapshot.run_state.hopeful else "no step was finished"
    return "nothing measured yet" if snapshot.run_state.hopeful else "this run did not measure it"


def _layers(snapshot: Snapshot, spec: Chart) -> list[Layer]:
    """The traces from back to front, with the first curve of the second run."""
    run, other, options = snapshot.run, snapshot.other, snapshot.options
    layers = []
    if spec.band and set(spec.band) <= set(run.series):
        low, high = (points_of(run, name, options, smooth=False) for name in spec.band)
        both = [Point(a.step, a.low, a.mean, b.high) for a, b in zip(low, high, strict=False)]
        layers.append(Layer(Trace(tuple(both), "band"), "", DIM))
    layers += [Layer(Trace(pattern="rule", level=level), "", RED) for level in spec.levels(run).values()]
    curves = spec.curves(run)
    marks = _letters(snapshot, curves)
    for place, curve in reversed(list(enumerate(curves))):
        style = CURVES[(place + (other is not None and place > 0)) % len(CURVES)]
        pattern: Pattern = "solid" if place == 0 or other is None else "dotted"
        if place == 0 and other is not None and curve.metric in other.series:
            theirs = tuple(points_of(other, curve.metric, options))
            layers.append(Layer(Trace(theirs, "dotted"), RUNS[1], CURVES[1]))
        layers.append(Layer(Trace(tuple(points_of(run, curve.metric, options)), pattern), marks[place], style))
    return layers


def points_of(run: Run, metric: str, options: ViewOptions, *, smooth: bool = True) -> list[Point]:
    """Return the points of a metric in the shown window of steps, smoothed as chosen."""
    since = run.step - options.window if options.window else -math.inf
    points = run.series[metric].points(since)
    return smoothed(points, options.smoothing) if smooth else points


def scale(values: Sequence[float], log: bool, least: float | None) -> tuple[float, float]:
    """Return the ends of the scale; `least` as in `Chart`."""
    if least is None or (least == 0 and log):
        return bounds(values, log=log)
    if log:
        return bounds([max(value, least) for value in values], log=True)
    low, high = min(*values, least), max(*values, least)
    return (low, high) if low < high else (low, low + 1.0)


def reach(points: Sequence[Point]) -> tuple[float, float]:
    """Return the first and the last step of the points."""
    steps = [point.step for point in points]
    return min(steps), max(steps)


def _levels_in_view(layers: list[Layer], values: list[float]) -> list[float]:
    """The levels near enough to the values to be shown without flattening them."""
    low, high = min(values), max(values)
    distance = 2 * (high - low) or abs(high) or 1.0
    levels = [layer.trace.level for layer in layers if layer.trace.pattern == "rule"]
    return [level for level in levels if low - distance <= level <= high + distance]


def _ends(layers: list[Layer], rows: int, y: tuple[float, float], log: bool) -> dict[int, Text]:
    """The letters by the row in which their curves end, the front one first where several end."""
    ends: dict[int, Text] = {}
    for layer in layers:
        if layer.letter and layer.trace.points:
            row = row_of(layer.trace.points[-1].mean, rows, y, log)
            before = ends.get(row, Text())
            ends[row] = Text(layer.letter, style=layer.style).append_text(before)[:2]
    return ends


def _colored(line: str, owners: tuple[int, ...], layers: list[Layer]) -> Text:
    """A line of a drawing in the colours of its traces."""
    text, start = Text(), 0
    for place in range(1, len(line) + 1):
        if place == len(line) or owners[place] != owners[start]:
            text.append(line[start:place], style=layers[owners[start]].style if owners[start] >= 0 else "")
            start = place
    return text


def sparklines(snapshot: Snapshot, width: int, height: int) -> Pane:
    """Return a line for each chart: its title, and the newest value and a sparkline of its first curve; those of two
    runs side by side, on one scale. There is a head above if there is room, or if there are two runs."""
    runs = 1 if snapshot.other is None else 2
    head = [_head(snapshot, width, runs)] if runs == 2 or height > len(CHARTS) else []
    lines = [_line(snapshot, width, spec) for spec in CHARTS[: max(height - len(head), 0)]]
    return Pane("charts", "1-9 enlarges", (*head, *lines))


def _head(snapshot: Snapshot, width: int, runs: int) -> Text:
    """The head of the columns: the newest value and the steps of one run, or the letters of two."""
    names, room = list(RUNS) if runs == 2 else ["newest"], _room(width, runs)
    line = f"{'':<{NAME_WIDTH}}{''.join(f'{name:>{VALUE_WIDTH}}' for name in names)}"
    if room >= MIN_SPARKLINE and runs == 2:
        line += "".join(f" {name:<{room}}" for name in names)
    elif room >= MIN_SPARKLINE and snapshot.run.row:
        first, last = str(snapshot.run.first_step), f"step {snapshot.run.step}"
        line += f" {first}{last:>{max(room - len(first), 1)}}"
    return Text(line, style=DIM)


def _room(width: int, runs: int) -> int:
    """Characters of each sparkline."""
    return (width - NAME_WIDTH - VALUE_WIDTH * runs) // runs - 1


def _line(snapshot: Snapshot, width: int, spec: Chart) -> Text:
    curves = spec.curves(snapshot.run)[:1] or (spec.curves(snapshot.other)[:1] if snapshot.other is not None else [])
    metric = curves[0].metric if curves else ""
    runs = [run for run in (snapshot.run, snapshot.other) if run is not None]
    values = "".join(f"{number(run.last(metric)):>{VALUE_WIDTH}}" for run in runs)
    line = Text(f"{spec.title[:NAME_WIDTH]:<{NAME_WIDTH}}{values}")
    parts = [points_of(run, metric, snapshot.options) if metric in run.series else [] for run in runs]
    both = [point for points in parts for point in points]
    room = _room(width, len(runs))
    if not both or room < MIN_SPARKLINE:
        return line
    y = scale([v for p in both for v in (p.low, p.high)], False, spec.least if not spec.log else None)
    for place, points in enumerate(parts):
        line.append(" ").append(_sparkline(points, room, reach(both), y, snapshot.options.ascii), style=CURVES[place])
    return line


def _sparkline(points: Sequence[Point], room: int, x: tuple[float, float], y: tuple[float, float], ascii: bool) -> str:
    """A sparkline; in ASCII, the character shows the height."""
    if ascii:
        return heights(points, room, x=x, y=y)
    return draw([Trace(tuple(points))], room, 1, x=x, y=y).lines[0]
