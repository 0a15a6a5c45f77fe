"""The charts: which metrics stand in which, and how a chart becomes lines of text."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from rich.text import Text

from smolsum.watch.block import CURVES, DIM, RED, Block, number
from smolsum.watch.board import Board, Look
from smolsum.watch.braille import Pattern, Trace, bounds, draw, heights, row_of
from smolsum.watch.run import Run
from smolsum.watch.series import Point, smoothed

GUTTER = 8
LETTERS = "abcdefgh"
AXIS_FROM = 7
"""Lines from which a chart has an axis of steps."""


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


@dataclass(frozen=True)
class Layer:
    """A trace with what the legend says of it."""

    trace: Trace
    letter: str
    label: str
    style: str


def _fixed(*curves: tuple[str, str, str]) -> Callable[[Run], list[Curve]]:
    return lambda run: [Curve(*curve) for curve in curves if curve[0] in run.series]


def _rewards(run: Run) -> list[Curve]:
    parts = [name.split("/")[1] for name in run.named("rewards/", "/mean")]
    found = [Curve("reward", "R", "reward")] if "reward" in run.series else []
    if len(parts) > 1 or "reward" not in run.series:
        found += [Curve(f"rewards/{name}/mean", LETTERS[n % 8], name) for n, name in enumerate(parts)]
    return found + _fixed(("validation/reward", "v", "validation"))(run)


def _length_levels(run: Run) -> dict[str, float]:
    target, tolerance = run.setting("task", "target_tokens"), run.setting("task", "tolerance_tokens", 0)
    if target is None:
        return {}
    low, high = target - tolerance, target + tolerance
    return {f"target {target} ({low}-{high})": target} | (
        {f"-{tolerance}": low, f"+{tolerance}": high} if tolerance else {}
    )


def _clip_level(run: Run) -> dict[str, float]:
    level = run.setting("optimizer", "max_grad_norm")
    return {} if level is None else {f"clipped above {number(float(level))}": float(level)}


CHARTS = (
    Chart("reward", _rewards),
    Chart(
        "spread in groups",
        _fixed(("reward_std", "s", "std"), ("frac_reward_zero_std", "z", "groups without")),
        least=0.0,
    ),
    Chart(
        "tokens",
        _fixed(("completions/mean_length", "m", "mean")),
        band=("completions/min_length", "completions/max_length"),
        levels=_length_levels,
    ),
    Chart("grad norm", _fixed(("grad_norm", "g", "norm")), levels=_clip_level),
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
    Chart(
        "validation",
        _fixed(("validation/reward", "v", "reward"), ("validation/length/within_tol", "t", "on target")),
    ),
    Chart(
        "entropy, repeats",
        _fixed(("entropy", "e", "entropy"), ("completions/repeated_trigrams", "r", "repeated trigrams")),
    ),
)
"""In the order of the keys 1 to 9."""


def chart(board: Board, width: int, height: int, spec: Chart) -> Block:
    """Returns a chart of `width` x `height` characters: scale on the left, letters of the curves on the right.

    A line of steps below it where there is room; with a single line, a sparkline.
    """
    look = board.look
    log = spec.log != look.log
    layers = _layers(board, spec)
    title = f"{spec.title}{' log' if log else ''}"
    note = _note(layers, board.run, spec, width - len(title) - 6)
    points = [point for layer in layers for point in layer.trace.points]
    if not points:
        return Block(title, note, (Text("waiting for the first step", style=DIM),))
    x = (points[0].step, points[0].step) if len(points) == 1 else _reach(points)
    values = [v for p in points for v in (p.low, p.high)]
    y = _scale([*values, *_levels_in_view(layers, values)], log, spec.least)
    axis = height >= AXIS_FROM
    rows, room = height - axis, max(width - GUTTER - 2, 4)
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
    return Block(title, note, tuple(lines))


def sparkline(board: Board, width: int, spec: Chart) -> Text:
    """Returns a chart as one line: title, the newest value, its course."""
    curves = spec.curves(board.run)[:1]
    value = number(board.run.last(curves[0].metric)) if curves else "-"
    head = f"{spec.title[:16]:<16} {value:>8} "
    points = _points(board.run, curves[0].metric, board.look) if curves else []
    if not points or width - len(head) < 4:
        return Text(head)
    room, y = width - len(head), bounds([v for p in points for v in (p.low, p.high)])
    if board.look.ascii:  # a single line of ASCII has one row: the character says how high
        course = heights(points, room, x=_reach(points), y=y)
    else:
        course = draw([Trace(tuple(points))], room, 1, x=_reach(points), y=y).lines[0]
    return Text(head).append(course, style=CURVES[0])


def _layers(board: Board, spec: Chart) -> list[Layer]:
    """What is drawn, from the back to the front."""
    run, look = board.run, board.look
    layers = []
    if spec.band and set(spec.band) <= set(run.series):
        low, high = (_points(run, name, look, smooth=False) for name in spec.band)
        both = [Point(a.step, a.low, a.mean, b.high) for a, b in zip(low, high, strict=False)]
        layers.append(Layer(Trace(tuple(both), "band"), "", "", DIM))
    layers += [Layer(Trace(pattern="rule", level=v), "", label, RED) for label, v in spec.levels(run).items()]
    curves = spec.curves(run)
    for place, curve in reversed(list(enumerate(curves))):
        if board.other is not None and curve.metric in board.other.series and place == 0:
            points = tuple(_points(board.other, curve.metric, look))
            layers.append(Layer(Trace(points, "dotted"), "B", "B", CURVES[1]))
        style = CURVES[(place + (board.other is not None and place > 0)) % len(CURVES)]
        points = tuple(_points(run, curve.metric, look))
        pattern: Pattern = "solid" if place == 0 or board.other is None else "dotted"
        layers.append(Layer(Trace(points, pattern), curve.letter, curve.name, style))
    return layers


def _points(run: Run, metric: str, look: Look, *, smooth: bool = True) -> list[Point]:
    since = run.step - look.window if look.window else -math.inf
    points = run.series[metric].points(since)
    return smoothed(points, look.smoothing) if smooth else points


def _note(layers: list[Layer], run: Run, spec: Chart, room: int) -> str:
    """The newest values of the stage at hand, with the names of the curves if there is room; then the levels."""
    curves = [c for c in spec.curves(run) if (run.series[c.metric].last_step or 0) >= run.stage_began.get(run.stage, 0)]
    others = [f"B {number(layer.trace.points[-1].mean)}" for layer in layers if layer.letter == "B"][:1]
    levels = [layer.label for layer in layers if layer.trace.pattern == "rule" and layer.label[0] not in "+-"]
    short = [f"{c.letter} {number(run.last(c.metric))}" for c in curves]
    long = [f"{c.letter} {c.name} {number(run.last(c.metric))}" for c in curves]
    if len(curves) == 1:
        short = long = [number(run.last(curves[0].metric))]
    forms = ("  ".join([*values, *others, *levels]) for values in (long, short))
    return next((form for form in forms if len(form) <= room), _fitting([*short, *others], room))


def _fitting(parts: list[str], room: int) -> str:
    """As many of the parts, from the first, as have room; at least one."""
    while len(parts) > 1 and len("  ".join(parts)) > room:
        parts = parts[:-1]
    return "  ".join(parts)


def _scale(values: list[float], log: bool, least: float | None) -> tuple[float, float]:
    """The ends of the scale; shares begin at 0 even where they are 0 throughout."""
    if least is None or (least == 0 and log):
        return bounds(values, log=log)
    if log:
        low, high = bounds([max(value, least) for value in values], log=True)
        return low, high
    low, high = min(*values, least), max(*values, least)
    return (low, high) if low < high else (low, low + 1.0)


def _levels_in_view(layers: list[Layer], values: list[float]) -> list[float]:
    """The levels that are near enough to the values to be shown without flattening them."""
    low, high = min(values), max(values)
    reach = 2 * (high - low) or abs(high) or 1.0
    levels = [layer.trace.level for layer in layers if layer.trace.pattern == "rule"]
    return [level for level in levels if low - reach <= level <= high + reach]


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


def _reach(points: list[Point]) -> tuple[float, float]:
    steps = [point.step for point in points]
    return min(steps), max(steps)
