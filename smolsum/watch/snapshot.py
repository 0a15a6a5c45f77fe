"""A run at one moment without an app: the page as plain text, its state as JSON, and which runs are at work."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from smolsum.disk import finite
from smolsum.runs import RunPaths
from smolsum.watch.board import Board, Look
from smolsum.watch.completions import read_groups
from smolsum.watch.layout import page, pages
from smolsum.watch.run import Run
from smolsum.watch.signals import signals
from smolsum.watch.standing import pace, standing

SCHEMA_VERSION = 1
LAST_EVENTS = 10
READ_S = 60.0


def whole(paths: RunPaths) -> Run:
    """Returns a run read to its end."""
    run, until = Run(paths), time.monotonic() + READ_S
    while run.poll(READ_S) and run.behind() and time.monotonic() < until:
        pass
    return run


def plain_page(run: Run, other: Run | None, look: Look, width: int, height: int) -> list[str]:
    """Returns the first page of a view of this size as lines of text."""
    board = Board(run, look, other, read_groups(run.paths, run.step))
    return [line.plain.rstrip() for line in page(board, pages(width, height)[0], width, height)]


def document(run: Run) -> dict[str, Any]:
    """Returns the run's state, newest metrics, signals and events as JSON can hold them; times in seconds. What is no
    number to JSON is None."""
    now = datetime.now(UTC)
    stands = standing(run, now)
    took = pace(run, stands, now)
    found = {
        "schema_version": SCHEMA_VERSION,
        "name": run.paths.name,
        "path": str(run.paths.root),
        "state": stands.state,
        "detail": stands.detail,
        "hint": stands.hint,
        "step": run.step,
        "steps": run.total,
        "stage": run.stage,
        "stages": run.stages,
        "elapsed_s": took.elapsed_s,
        "eta_s": took.eta_s,
        "metrics": {key: value for key, value in run.row.items() if key != "schema_version"},
        "signals": [asdict(signal) for signal in signals(run)],
        "events": list(run.events)[-LAST_EVENTS:],
    }
    return dict(finite(found))


def at_work(runs: Sequence[RunPaths]) -> list[RunPaths]:
    """Returns those of the runs that are starting, running or paused now, in the same order."""
    found = []
    for paths in runs:
        run = Run(paths)
        run.status.refresh()
        if standing(run, datetime.now(UTC)).alive:
            found.append(paths)
    return found
