"""All charts of a small terminal: a line each, and beside it that of a second run.

Which metrics stand in which chart, as the run has them: what a task rewards and measures is named by the run.

What the letters of a chart mean, with the newest value of each curve.

How a chart of a run, and of a second one beside it, becomes lines of text.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from string import ascii_lowercase, digits

from rich.text import Text

from smolsum.runs.reader import Run
from smolsum.runs.series import Point, smoothed
from smolsum.watch.braille import Pattern, Trace, bounds, draw, heights, row_of
from smolsum.watch.pane import CURVES, DIM, RED, Pane, number
from smolsum.watch.snapshot import Snapshot, ViewOptions

RUNS = "AB"
"""the letters of two runs that are compared; no curve has them, whatever their case"""
HEADLINES = 3
"""Headline metrics beside the reward in the chart of validations."""


@dataclass(frozen=True)
class Curve:
    """A metric in a chart: its letter stands at the end of its line."""

    metric: str
    letter: str
    name: str


@dataclass(frozen=True)
class Chart:
    """A title, its curves as the run has them, a band between two metrics, and levels with what they mean."""

    title: str
    curves: Callable[[Run], list[Curve]]
    band: tuple[str, str] | None = None
    levels: Callable[[Run], dict[str, float]] = lambda run: {}
    log: bool = False
    least: float | None = None
    """where the scale begins at the most, and on a log scale at the least"""


def _fixed(*curves: tuple[str, str, str]) -> Callable[[Run], list[Curve]]:
    return lambda run: [Curve(*curve) for curve in curves if curve[0] in run.series]


def _rewards(run: Run) -> list[Curve]:
    """The total, each signal by its name, and the total of the validations."""
    parts = [name.removeprefix("rewards/").removesuffix("/mean") for name in run.named("rewards/", "/mean")]
    found = _fixed(("reward", "R", "reward"))(run)
    if len(parts) > 1 or not found:
        found += [
            Curve(f"rewards/{name}/mean", letter, name)
            for name, letter in zip(parts, letters(parts, taken="v"), strict=True)
        ]
    return found + _fixed(("validation/reward", "v", "validation"))(run)


def _validation(run: Run) -> list[Curve]:
    """The reward, and the first headlines of the run's task that are shares or scores: a count would flatten them."""
    reward = _fixed(("validation/reward", "v", "reward"))(run)
    heads = [(f"validation/{metric}", title) for metric, title in run.headlines.items()]
    fitting = [
        (metric, title)
        for metric, title in heads
        if metric in run.series and -1 <= run.series[metric].low <= run.series[metric].high <= 1
    ][:HEADLINES]
    marks = letters([title for _, title in fitting], taken="v")
    return reward + [Curve(metric, mark, title) for (metric, title), mark in zip(fitting, marks, strict=True)]


def letters(names: Iterable[str], *, taken: str = "") -> list[str]:
    """Returns a letter for each name, one of its own where that is free, else the next in the alphabet."""
    used = set(taken + RUNS.lower())
    found = []
    for name in names:
        free = (c for c in name.lower() + ascii_lowercase + digits if c in ascii_lowercase + digits and c not in used)
        found.append(next(free, "?"))
        used.add(found[-1])
    return found


def _length_levels(run: Run) -> dict[str, float]:
    """The wanted length with its tolerance, in runs that count who keeps to it: other tasks have none."""
    target, tolerance = run.settings.task.target_tokens, run.settings.task.tolerance_tokens
    if not target or "length/within_tol" not in run.series:
        return {}
    low, high = target - (tolerance or 0), target + (tolerance or 0)
    sides = {f"-{tolerance}": float(low), f"+{tolerance}": float(high)} if tolerance else {}
    return {f"target {target}" + (f" ({low}-{high})" if tolerance else ""): float(target), **sides}


def _clip_level(run: Run) -> dict[str, float]:
    level = run.settings.optimizer.max_grad_norm
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
    # below a millionth sampler and trainer agree but for rounding
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


LEAST_ROWS = 5
"""Rows of a drawing that a legend leaves at least."""
MOST_LINES = 3


def legend(board: Snapshot, spec: Chart, *, room: int, width: int, height: int) -> tuple[str, list[Text]]:
    """Returns the note in the title, of at most `room` characters, and lines below the drawing for what it cannot hold.

    Names go before brevity: with lines enough every curve is named, without them the letters have their values alone.
    """
    curves, others, levels = spec.curves(board.run), _others(board, spec), [*spec.levels(board.run)][:1]
    named = short = [_value(board, spec, curve) for curve in curves]
    if len(curves) > 1 or others:
        marks = _letters(board, curves)
        short = [f"{mark} {value}" for mark, value in zip(marks, named, strict=True)]
    if len(curves) > 1:
        named = [f"{mark} {curve.name} {value}" for mark, curve, value in zip(marks, curves, named, strict=True)]
    else:
        named = short
    parts = [*named, *others, *levels]
    if len("  ".join(parts)) <= room:
        return "  ".join(parts), []
    lines = _wrapped(parts, width - 1)
    if len(lines) <= min(height - LEAST_ROWS, MOST_LINES):
        return "", [Text(f" {line}", style=DIM) for line in lines]
    return _fitting([*short, *others, *levels], room), []


def _letters(board: Snapshot, curves: Sequence[Curve]) -> list[str]:
    """What stands at the end of each curve: of two runs the letter of the run at its first."""
    letters = [curve.letter for curve in curves]
    return letters if board.other is None else [RUNS[0], *letters[1:]]


def _value(board: Snapshot, spec: Chart, curve: Curve) -> str:
    """The newest value, with the band around it; of a stage that is over, how long there were any."""
    run = board.run
    last = run.series[curve.metric].last_step or 0
    if last < run.stage_began.get(run.stage, 0):
        return f"until {last}"
    value = number(run.last(curve.metric))
    if spec.band and set(spec.band) <= set(run.series):
        low, high = (number(run.last(name)) for name in spec.band)
        return f"{value} ({low}-{high})"
    return value


def _others(board: Snapshot, spec: Chart) -> list[str]:
    """The newest value of the second run's first curve."""
    curves = spec.curves(board.run)[:1]
    if board.other is None or not curves or curves[0].metric not in board.other.series:
        return []
    return [f"{RUNS[1]} {number(board.other.last(curves[0].metric))}"]


def _wrapped(parts: Sequence[str], width: int) -> list[str]:
    """The parts in lines of at most `width` characters, none broken."""
    lines: list[str] = []
    for part in parts:
        if lines and len(lines[-1]) + 2 + len(part) <= width:
            lines[-1] += f"  {part}"
        else:
            lines.append(part)
    return lines


def _fitting(parts: Sequence[str], room: int) -> str:
    """As many of the parts, from the first, as have room; at least one."""
    shown = list(parts)
    while len(shown) > 1 and len("  ".join(shown)) > room:
        shown.pop()
    return "  ".join(shown)


GUTTER = 8
AXIS_FROM = 7
"""Lines from which a chart has an axis of steps."""


@dataclass(frozen=True)
class Layer:
    """A trace, the letter at its end, and its style."""

    trace: Trace
    letter: str
    style: str


def chart(board: Snapshot, width: int, height: int, spec: Chart) -> Pane:
    """Returns a chart of `width` x `height` characters: scale on the left, letters of the curves on the right.

    Below it a line of steps, and what the letters mean, where there is room and the title has none.
    """
    look = board.look
    log = spec.log != look.log
    title = f"{spec.title}{' log' if log else ''}"
    layers = _layers(board, spec)
    points = [point for layer in layers for point in layer.trace.points]
    if not points:
        return Pane(title, "", (Text(_nothing(board), style=DIM),))
    axis = height >= AXIS_FROM
    note, below = legend(board, spec, room=width - len(title) - 6, width=width, height=height - axis)
    x, values = reach(points), [v for p in points for v in (p.low, p.high)]
    y = scale([*values, *_levels_in_view(layers, values)], log, spec.least)
    rows, room = height - axis - len(below), max(width - GUTTER - 2, 4)
    drawing = draw([layer.trace for layer in layers], room, rows, x=x, y=y, log=log, ascii=look.ascii)
    ends = _ends(layers, rows, y, log)
    lines = []
    for row, (line, owners) in enumerate(zip(drawing.lines, drawing.owners, strict=True)):
        label = number(y[1]) if row == 0 else number(y[0]) if row == rows - 1 else ""
        text = Text(f"{label:>{GUTTER - 1}}{'|' if look.ascii else '│'}", style=DIM)
        lines.append(text.append_text(_colored(line, owners, layers)).append_text(ends.get(row, Text())))
    if axis:
        first, last = f"{x[0]:.0f}", f"step {x[1]:.0f}"
        lines.append(Text(f"{'':{GUTTER}}{first}{last:>{max(room - len(first), 1)}}", style=DIM))
    return Pane(title, note, (*lines, *below))


def _nothing(board: Snapshot) -> str:
    """Why a chart is empty."""
    if not board.run.row:
        return "waiting for the first step" if board.run_state.hopeful else "no step was finished"
    return "nothing measured yet" if board.run_state.hopeful else "this run did not measure it"


def _layers(board: Snapshot, spec: Chart) -> list[Layer]:
    """What is drawn, from the back to the front; of two runs that are compared, the first curve of the second too."""
    run, look = board.run, board.look
    layers = []
    if spec.band and set(spec.band) <= set(run.series):
        low, high = (points_of(run, name, look, smooth=False) for name in spec.band)
        both = [Point(a.step, a.low, a.mean, b.high) for a, b in zip(low, high, strict=False)]
        layers.append(Layer(Trace(tuple(both), "band"), "", DIM))
    layers += [Layer(Trace(pattern="rule", level=level), "", RED) for level in spec.levels(run).values()]
    curves = spec.curves(run)
    for place, curve in reversed(list(enumerate(curves))):
        style = CURVES[(place + (board.other is not None and place > 0)) % len(CURVES)]
        pattern: Pattern = "solid" if place == 0 or board.other is None else "dotted"
        letter = RUNS[0] if place == 0 and board.other is not None else curve.letter
        if place == 0 and board.other is not None and curve.metric in board.other.series:
            theirs = tuple(points_of(board.other, curve.metric, look))
            layers.append(Layer(Trace(theirs, "dotted"), RUNS[1], CURVES[1]))
        layers.append(Layer(Trace(tuple(points_of(run, curve.metric, look)), pattern), letter, style))
    return layers


def points_of(run: Run, metric: str, look: ViewOptions, *, smooth: bool = True) -> list[Point]:
    """Returns a metric's points in the window of steps that is looked at, smoothed as the reader wants."""
    since = run.step - look.window if look.window else -math.inf
    points = run.series[metric].points(since)
    return smoothed(points, look.smoothing) if smooth else points


def scale(values: Sequence[float], log: bool, least: float | None) -> tuple[float, float]:
    """Returns the ends of the scale; shares begin at 0 even where they are 0 throughout."""
    if least is None or (least == 0 and log):
        return bounds(values, log=log)
    if log:
        low, high = bounds([max(value, least) for value in values], log=True)
        return low, high
    low, high = min(*values, least), max(*values, least)
    return (low, high) if low < high else (low, low + 1.0)


def reach(points: Sequence[Point]) -> tuple[float, float]:
    """Returns the first and the last step of some points."""
    steps = [point.step for point in points]
    return min(steps), max(steps)


def _levels_in_view(layers: list[Layer], values: list[float]) -> list[float]:
    """The levels that are near enough to the values to be shown without flattening them."""
    low, high = min(values), max(values)
    distance = 2 * (high - low) or abs(high) or 1.0
    levels = [layer.trace.level for layer in layers if layer.trace.pattern == "rule"]
    return [level for level in levels if low - distance <= level <= high + distance]


def _ends(layers: list[Layer], rows: int, y: tuple[float, float], log: bool) -> dict[int, Text]:
    """The letter of each curve in the line in which it ends; the front one where several end there."""
    ends: dict[int, Text] = {}
    for layer in layers:
        if layer.letter and layer.trace.points:
            row = row_of(layer.trace.points[-1].mean, rows, y, log)
            before = ends.get(row, Text())
            ends[row] = Text(layer.letter, style=layer.style).append_text(before)[:2]
    return ends


def _colored(line: str, owners: tuple[int, ...], layers: list[Layer]) -> Text:
    """A line of a drawing in the colours of its traces, a span for each stretch of one colour."""
    text, start = Text(), 0
    for place in range(1, len(line) + 1):
        if place == len(line) or owners[place] != owners[start]:
            text.append(line[start:place], style=layers[owners[start]].style if owners[start] >= 0 else "")
            start = place
    return text


NAME, VALUE = 16, 9
LEAST = 4
"""Characters below which a course says nothing."""


def sparklines(board: Snapshot, width: int, height: int) -> Pane:
    """Returns a line for each chart: its title, the newest value of its first curve, its course; of two runs the
    values and the courses side by side, on one scale. A head above them where there is room, or two runs to tell."""
    runs = 1 if board.other is None else 2
    head = [_head(board, width, runs)] if runs == 2 or height > len(CHARTS) else []
    lines = [_line(board, width, spec) for spec in CHARTS[: max(height - len(head), 0)]]
    return Pane("charts", "1-9 enlarges", (*head, *lines))


def _head(board: Snapshot, width: int, runs: int) -> Text:
    """What the columns are: one run's newest value with the steps of its course, or two runs."""
    names, room = list(RUNS) if runs == 2 else ["newest"], _room(width, runs)
    line = f"{'':<{NAME}}{''.join(f'{name:>{VALUE}}' for name in names)}"
    if room >= LEAST and runs == 2:
        line += "".join(f" {name:<{room}}" for name in names)
    elif room >= LEAST and board.run.row:
        first, last = str(board.run.first_step), f"step {board.run.step}"
        line += f" {first}{last:>{max(room - len(first), 1)}}"
    return Text(line, style=DIM)


def _room(width: int, runs: int) -> int:
    """Characters of each run's course."""
    return (width - NAME - VALUE * runs) // runs - 1


def _line(board: Snapshot, width: int, spec: Chart) -> Text:
    curves = spec.curves(board.run)[:1] or (spec.curves(board.other)[:1] if board.other is not None else [])
    metric = curves[0].metric if curves else ""
    runs = [run for run in (board.run, board.other) if run is not None]
    values = "".join(f"{number(run.last(metric)):>{VALUE}}" for run in runs)
    line = Text(f"{spec.title[:NAME]:<{NAME}}{values}")
    courses = [points_of(run, metric, board.look) if metric in run.series else [] for run in runs]
    both = [point for points in courses for point in points]
    room = _room(width, len(runs))
    if not both or room < LEAST:
        return line
    y = scale([v for p in both for v in (p.low, p.high)], False, spec.least if not spec.log else None)
    for place, points in enumerate(courses):
        line.append(" ").append(_course(points, room, reach(both), y, board.look.ascii), style=CURVES[place])
    return line


def _course(points: Sequence[Point], room: int, x: tuple[float, float], y: tuple[float, float], ascii: bool) -> str:
    """A course in one line; where that has one row of characters only, the character says how high."""
    if ascii:
        return heights(points, room, x=x, y=y)
    return draw([Trace(tuple(points))], room, 1, x=x, y=y).lines[0]
