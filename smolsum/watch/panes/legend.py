"""What the letters of a chart mean, with the newest value of each curve."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from smolsum.watch.block import DIM, number
from smolsum.watch.board import Board
from smolsum.watch.curves import RUNS, Chart, Curve

LEAST_ROWS = 5
"""Rows of a drawing that a legend leaves at least."""
MOST_LINES = 3


def legend(board: Board, spec: Chart, *, room: int, width: int, height: int) -> tuple[str, list[Text]]:
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


def _letters(board: Board, curves: Sequence[Curve]) -> list[str]:
    """What stands at the end of each curve: of two runs the letter of the run at its first."""
    letters = [curve.letter for curve in curves]
    return letters if board.other is None else [RUNS[0], *letters[1:]]


def _value(board: Board, spec: Chart, curve: Curve) -> str:
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


def _others(board: Board, spec: Chart) -> list[str]:
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
