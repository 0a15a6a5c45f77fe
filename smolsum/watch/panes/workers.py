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

from rich.text import Text

from smolsum.watch import typed
from smolsum.watch.block import DIM, ORANGE, RED, Block, number, wrapped
from smolsum.watch.board import Board
from smolsum.watch.completions import clean
from smolsum.watch.run import Run

MEAN_OVER = 20
STATES = {"worker_up": "ok", "worker_down": "DOWN"}


def workers(board: Board, width: int, height: int) -> Block:
    """Returns each worker's state, version lag, speed, queue and bytes, and its last trouble with the remedy."""
    run = board.run
    names = run.workers()
    if not names:
        return Block("workers", "local", tuple(_local(run, width)))
    lines = [Text(f"{'name':<12}{'state':<7}{'lag':>4}{'tok/s':>8}{'queue':>6}{'synced':>9}", style=DIM)]
    up = 0
    for name in names:
        event = run.worker_events.get(name, {})
        kind = str(event.get("kind", "worker_up"))
        state = STATES.get(kind, kind.removeprefix("worker_")[:6])
        up += state != "DOWN"
        lag, speed, queue, synced = (
            typed.number(run.row.get(f"workers/{name}/{key}")) for key in ("lag", "tok_s", "queue", "bytes_synced")
        )
        row = f"{clean(name)[:11]:<12}{state:<7}{_whole(lag):>4}{_whole(speed):>8}{_whole(queue):>6}{_bytes(synced):>9}"
        lines.append(Text(row, style=RED if state == "DOWN" else ""))
        if event.get("message") and state != "ok":
            hint = f" -> {event['hint']}" if event.get("hint") else ""
            lines += wrapped(clean(f"{event['message']}{hint}"), width, ORANGE, "  ")
    return Block("workers", f"{up}/{len(names)}", tuple(lines[:height]))


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
