"""The workers: what each one does, and what helps where one does nothing.

A worker is known by its id, as completions name it in `worker`; it is whatever has one of these.
The newest line of metrics.jsonl, each key where it is known (a worker that did nothing in the step has none):
    workers/<id>/lag            policy versions that its weights are behind the trainer's
    workers/<id>/tok_s          completion tokens a second, while it sampled
    workers/<id>/queue          prompts that it has and has not answered
    workers/<id>/bytes_synced   bytes of weights that it was sent since the attempt began
The newest line of events.jsonl with `worker: <id>`, which may come in the middle of a step:
    kind      worker_up: ok; worker_down: DOWN; any other worker_<word> shows the word
    message   the last error, as a sentence; shown unless the kind is worker_up
    hint      the remedy, a command where there is one
Nothing is read from status.json.
"""

from __future__ import annotations

from collections.abc import Mapping

from rich.text import Text

from smolsum.runs.completions import clean
from smolsum.runs.reader import Run
from smolsum.watch.pane import DIM, ORANGE, RED, Pane, ending, number, wrapped
from smolsum.watch.snapshot import Snapshot

MEAN_OVER = 20
STATES = {"worker_up": "ok", "worker_down": "DOWN"}

COLUMNS = {"state": 7, "lag": 4, "tok/s": 8, "queue": 6, "synced": 9}
SPARE = ("queue", "synced")
"""Columns that give way to whole names, in this order."""


def workers(board: Snapshot, width: int, height: int) -> Pane:
    """Returns each worker's state, version lag, speed, queue and bytes, and its last trouble with the remedy."""
    run = board.run
    names = run.workers()
    if not names:
        return Pane("workers", "local", tuple(_local(run, width)))
    columns = dict(COLUMNS)
    for spare in SPARE:
        if max(map(len, names)) + 1 + sum(columns.values()) > width:
            del columns[spare]
    room = min(max(max(map(len, names)) + 1, 12), max(width - sum(columns.values()), 2))
    lines = [Text(f"{'name':<{room}}{_row(columns, {key: key for key in columns})}", style=DIM)]
    up = 0
    for name in names:
        event = run.worker_events.get(name)
        kind = event.kind if event else "worker_up"
        state = STATES.get(kind, kind.removeprefix("worker_")[:6])
        up += state != "DOWN"
        lag, speed, queue, synced = (
            run.newest(f"workers/{name}/{key}") for key in ("lag", "tok_s", "queue", "bytes_synced")
        )
        cells = {"state": state, "lag": _whole(lag), "tok/s": _whole(speed)}
        cells |= {"queue": _whole(queue), "synced": _bytes(synced)}
        shown = ending(clean(name), room - 1, ascii=board.look.ascii)
        lines.append(Text(f"{shown:<{room}}{_row(columns, cells)}", style=RED if state == "DOWN" else ""))
        if event and event.message and state != "ok":
            hint = f" -> {event.hint}" if event.hint else ""
            lines += wrapped(clean(f"{event.message}{hint}"), width, ORANGE, "  ")
    return Pane("workers", f"{up}/{len(names)}", tuple(lines[:height]))


def _row(columns: Mapping[str, int], cells: Mapping[str, str]) -> str:
    """The cells in their columns, words on the left and numbers on the right."""
    return "".join(f"{cells[key]:{'<' if key == 'state' else '>'}{size}}" for key, size in columns.items())


def _local(run: Run, width: int) -> list[Text]:
    """The trainer samples by itself: how fast, in the mean of the last steps."""
    tokens, seconds = run.recent("num_tokens", MEAN_OVER), run.recent("perf/rollout_s", MEAN_OVER)
    if not tokens or not sum(seconds):
        return [Text("sampled by the trainer itself", style=DIM)]
    memory = run.last("perf/peak_memory_gb")
    told = f"sampled by the trainer: {sum(tokens) / sum(seconds):,.0f} tok/s"
    return wrapped(told + ("" if memory is None else f", peak memory {memory:.2f} GB"), width)


def _whole(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


def _bytes(value: float | None) -> str:
    if value is None:
        return "-"
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{number(value)} {unit}" if unit != "B" else f"{value:.0f} B"
        value /= 1000
    return f"{value:.1f} TB"
