"""How a chart of a run, and of a second one beside it, becomes lines of text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rich.text import Text

from smolsum.watch.block import CURVES, DIM, RED, Block, number
from smolsum.watch.board import Board, Look
from smolsum.watch.braille import Pattern, Trace, bounds, draw, row_of
from smolsum.watch.curves import RUNS, Chart
from smolsum.watch.panes.legend import legend
from smolsum.watch.run import Run
from smolsum.watch.series import Point, smoothed

GUTTER = 8
AXIS_FROM = 7
"""Lines from which a chart has an axis of steps."""


@dataclass(frozen=True)
class Layer:
    """A trace, the letter at its end, and its style."""

    trace: Trace
    letter: str
    style: str


def chart(board: Board, width: int, height: int, spec: Chart) -> Block:
    """Returns a chart of `width` x `height` characters: scale on the left, letters of the curves on the right.

    Below it a line of steps, and what the letters mean, where there is room and the title has none.
    """
    look = board.look
    log = spec.log != look.log
    title = f"{spec.title}{' log' if log else ''}"
    layers = _layers(board, spec)
    points = [point for layer in layers for point in layer.trace.points]
    if not points:
        return Block(title, "", (Text(_nothing(board), style=DIM),))
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
    return Block(title, note, (*lines, *below))


def _nothing(board: Board) -> str:
    """Why a chart is empty."""
    if not board.run.row:
        return "waiting for the first step" if board.standing.hopeful else "no step was finished"
    return "nothing measured yet" if board.standing.hopeful else "this run did not measure it"


def _layers(board: Board, spec: Chart) -> list[Layer]:
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


def points_of(run: Run, metric: str, look: Look, *, smooth: bool = True) -> list[Point]:
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
