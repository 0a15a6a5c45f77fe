"""What happened in a run, and the settings that it runs with.

The signals of a run, as sentences.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from rich.text import Text

from smolsum.runs.completions import clean
from smolsum.runs.status import TROUBLE
from smolsum.watch.alerts import Alert, find_alerts
from smolsum.watch.pane import DIM, ORANGE, RED, SKY, Pane, wrapped
from smolsum.watch.snapshot import Snapshot

LEVELS = {"trouble": ("!!", RED), "warning": ("!", ORANGE), "note": ("i", SKY)}

LEAST = 3
"""Lines of which one can be spared to say that there is more."""


def advice(board: Snapshot, width: int, height: int, *, full: bool = False) -> Pane:
    """Returns the signals as sentences, with what to do about each where there is room or `full` asks for it; before
    them what a run died of."""
    state = board.run_state
    found = [Alert("trouble", clean(state.detail), clean(state.hint))] if state.state in TROUBLE else []
    found += find_alerts(board.run)
    if not found:
        told = "nothing unusual" if board.run.row else "nothing to judge yet" if state.hopeful else "nothing to judge"
        return Pane("signals", "0", (Text(told, style=DIM),))
    lines = [line for signal in found for line in _signal(signal, width, full=True)]
    if len(lines) > height and not full:
        lines = [line for signal in found for line in _signal(signal, width, full=signal.level == "trouble")]
    if len(lines) > height >= LEAST:
        lines = [*lines[: height - 1], Text("e shows all, with advice", style=DIM)]
    return Pane("signals", str(len(found)), tuple(lines))


def _signal(signal: Alert, width: int, *, full: bool) -> list[Text]:
    mark, style = LEVELS[signal.level]
    first, *rest = wrapped(signal.sentence, width - 3)
    lines = [Text.assemble((f"{mark:<3}", f"bold {style}"), first), *(Text("   ").append_text(line) for line in rest)]
    return lines + (wrapped(f"-> {signal.advice}", width - 3, DIM, "   ") if full else [])


def events(board: Snapshot, width: int, height: int) -> Pane:
    """Returns what happened, the newest last; older ones by scrolling."""
    lines: list[Text] = []
    for event in board.run.events:
        noted = event.kind in ("warning", "interrupted") or "worker" in event.kind
        style = RED if event.kind == "failed" else ORANGE if noted else ""
        hint = f" -> {event.hint}" if event.hint else ""
        told = wrapped(clean(f"{event.message}{hint}"), width - 10, style)
        lines += [Text(f"{clock(event.time)}  ", style=DIM).append_text(told[0])]
        lines += [Text(" " * 10).append_text(line) for line in told[1:]]
    end = max(len(lines) - board.look.scroll, min(height, len(lines)))
    shown = lines[max(end - height, 0) : end]
    return Pane("events", f"{len(board.run.events)}", tuple(shown or [Text("none yet", style=DIM)]))


def settings(board: Snapshot, width: int, height: int) -> Pane:
    """Returns the resolved configuration, from the line that was scrolled to."""
    lines = [Text(clean(f"{key} = {value}")) for key, value in _flat(board.run.config)]
    start = min(board.look.scroll, max(len(lines) - height, 0))
    return Pane("config", str(board.run.paths.config), tuple(lines[start : start + height]))


def _flat(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Every key of nested tables with its value, as --set takes them."""
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", json.dumps(value, ensure_ascii=False, default=str)


def clock(stamp: str) -> str:
    """Returns the local time of day of a time in the journal, dashes for anything else."""
    try:
        return datetime.fromisoformat(stamp).astimezone().strftime("%H:%M:%S")
    except ValueError:
        return "--:--:--"
