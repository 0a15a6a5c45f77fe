"""The workers: what each one does, and what helps where one does nothing."""

from __future__ import annotations

from typing import Any

from rich.text import Text

from smolsum.watch.block import DIM, ORANGE, RED, Block, number, wrapped
from smolsum.watch.board import Board
from smolsum.watch.completions import clean
from smolsum.watch.run import Run

MEAN_OVER = 20


def workers(board: Board, width: int, height: int) -> Block:
    """Returns each worker's state, version lag, speed, queue and bytes, and its last trouble with the remedy."""
    run = board.run
    names = dict.fromkeys([name.split("/")[1] for name in run.named("workers/")] + [n for n in run.worker_events if n])
    if not names:
        return Block("workers", "local", tuple(_local(run, width)))
    head = f"{'name':<12}{'state':<7}{'lag':>4}{'tok/s':>8}{'queue':>6}{'synced':>9}"
    lines = [Text(head, style=DIM)]
    up = 0
    for name in names:
        event = run.worker_events.get(name, {})
        state = _worker_state(event)
        up += state != "DOWN"
        figures = {key: run.last(f"workers/{name}/{key}") for key in ("lag", "tok_s", "queue", "bytes_synced")}
        row = (
            f"{clean(name)[:11]:<12}{state:<7}{_whole(figures['lag']):>4}{_whole(figures['tok_s']):>8}"
            f"{_whole(figures['queue']):>6}{_bytes(figures['bytes_synced']):>9}"
        )
        lines.append(Text(row, style=RED if state == "DOWN" else ""))
        if event.get("message") and state != "ok":
            hint = f" -> {event['hint']}" if event.get("hint") else ""
            lines += wrapped(clean(f"{event['message']}{hint}"), width, ORANGE, "  ")
    return Block("workers", f"{up}/{len(names)}", tuple(lines[:height]))


def _worker_state(event: dict[str, Any]) -> str:
    """`DOWN`, `slow` … by the kind of the worker's last event; `ok` without one, or after it came back."""
    kind = str(event.get("kind", "")).removeprefix("worker_")
    if kind in ("", "up", "ok", "joined", "recovered", "back", "synced"):
        return "ok"
    return "DOWN" if kind in ("down", "failed", "lost", "unreachable", "refused") else kind[:6]


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
