"""All charts of a small terminal: a line each, and beside it that of a second run."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from smolsum.watch.block import CURVES, DIM, Block, number
from smolsum.watch.board import Board
from smolsum.watch.braille import Trace, draw, heights
from smolsum.watch.curves import CHARTS, RUNS, Chart
from smolsum.watch.panes.charts import points_of, reach, scale
from smolsum.watch.series import Point

NAME, VALUE = 16, 9
LEAST = 4
"""Characters below which a course says nothing."""


def sparklines(board: Board, width: int, height: int) -> Block:
    """Returns a line for each chart: its title, the newest value of its first curve, its course; of two runs the
    values and the courses side by side, on one scale. A head above them where there is room, or two runs to tell."""
    runs = 1 if board.other is None else 2
    head = [_head(board, width, runs)] if runs == 2 or height > len(CHARTS) else []
    lines = [_line(board, width, spec) for spec in CHARTS[: max(height - len(head), 0)]]
    return Block("charts", "1-9 enlarges", (*head, *lines))


def _head(board: Board, width: int, runs: int) -> Text:
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


def _line(board: Board, width: int, spec: Chart) -> Text:
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
