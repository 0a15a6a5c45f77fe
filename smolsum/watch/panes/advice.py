"""The signals of a run, as sentences."""

from __future__ import annotations

from rich.text import Text

from smolsum.watch.block import DIM, ORANGE, RED, SKY, Block, wrapped
from smolsum.watch.board import Board
from smolsum.watch.completions import clean
from smolsum.watch.signals import Signal, signals
from smolsum.watch.standing import TROUBLE

LEVELS = {"trouble": ("!!", RED), "warning": ("!", ORANGE), "note": ("i", SKY)}

LEAST = 3
"""Lines of which one can be spared to say that there is more."""


def advice(board: Board, width: int, height: int, *, full: bool = False) -> Block:
    """Returns the signals as sentences, with what to do about each where there is room or `full` asks for it; before
    them what a run died of."""
    state = board.standing
    found = [Signal("trouble", clean(state.detail), clean(state.hint))] if state.state in TROUBLE else []
    found += signals(board.run)
    if not found:
        told = "nothing unusual" if board.run.row else "nothing to judge yet" if state.hopeful else "nothing to judge"
        return Block("signals", "0", (Text(told, style=DIM),))
    lines = [line for signal in found for line in _signal(signal, width, full=True)]
    if len(lines) > height and not full:
        lines = [line for signal in found for line in _signal(signal, width, full=signal.level == "trouble")]
    if len(lines) > height >= LEAST:
        lines = [*lines[: height - 1], Text("e shows all, with advice", style=DIM)]
    return Block("signals", str(len(found)), tuple(lines))


def _signal(signal: Signal, width: int, *, full: bool) -> list[Text]:
    mark, style = LEVELS[signal.level]
    first, *rest = wrapped(signal.sentence, width - 3)
    lines = [Text.assemble((f"{mark:<3}", f"bold {style}"), first), *(Text("   ").append_text(line) for line in rest)]
    return lines + (wrapped(f"-> {signal.advice}", width - 3, DIM, "   ") if full else [])
