"""What happened in a run, and the settings that it runs with."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from rich.text import Text

from smolsum.watch.block import DIM, ORANGE, RED, Block, wrapped
from smolsum.watch.board import Board
from smolsum.watch.completions import clean


def events(board: Board, width: int, height: int) -> Block:
    """Returns what happened, the newest last; older ones by scrolling."""
    lines: list[Text] = []
    for event in board.run.events:
        kind = str(event.get("kind", ""))
        style = RED if kind == "failed" else ORANGE if kind in ("warning", "interrupted") or "worker" in kind else ""
        hint = f" -> {event['hint']}" if event.get("hint") else ""
        told = wrapped(clean(f"{event.get('message', '')}{hint}"), width - 10, style)
        lines += [Text(f"{clock(event.get('time'))}  ", style=DIM).append_text(told[0])]
        lines += [Text(" " * 10).append_text(line) for line in told[1:]]
    end = max(len(lines) - board.look.scroll, min(height, len(lines)))
    shown = lines[max(end - height, 0) : end]
    return Block("events", f"{len(board.run.events)}", tuple(shown or [Text("none yet", style=DIM)]))


def settings(board: Board, width: int, height: int) -> Block:
    """Returns the resolved configuration, from the line that was scrolled to."""
    lines = [Text(clean(f"{key} = {value}")) for key, value in _flat(board.run.config)]
    start = min(board.look.scroll, max(len(lines) - height, 0))
    return Block("config", str(board.run.paths.config), tuple(lines[start : start + height]))


def _flat(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Every key of nested tables with its value, as --set takes them."""
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", json.dumps(value, ensure_ascii=False, default=str)


def clock(stamp: object) -> str:
    """Returns the local time of day of a time in the journal, dashes for anything else."""
    try:
        return datetime.fromisoformat(str(stamp)).astimezone().strftime("%H:%M:%S")
    except ValueError:
        return "--:--:--"
