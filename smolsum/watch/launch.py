"""A run at one moment without an app: the page as plain text, its state as JSON, and which runs are at work.

The question which of several running runs is meant.

`train --watch`: a training process of its own, found by the lock that it takes, and then watched like any other.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from smolsum import console
from smolsum.errors import InterruptedRun
from smolsum.files import finite
from smolsum.runs.completions import read_groups
from smolsum.runs.paths import RunPaths, list_runs
from smolsum.runs.reader import Run
from smolsum.runs.status import pace, run_state
from smolsum.watch.alerts import find_alerts
from smolsum.watch.layout import page, pages
from smolsum.watch.snapshot import Snapshot, ViewOptions

POLL_S = 0.2
PATIENCE_S = 60.0
"""Seconds that a trainer has for ending before it is killed."""


@dataclass(frozen=True)
class Launched:
    """A trainer that outlives this process, and what it says."""

    process: subprocess.Popen[bytes]
    said: IO[bytes]

    def output(self) -> str:
        """All that it wrote to its streams until now."""
        self.said.seek(0)
        return self.said.read().decode("utf-8", "replace")


def launch(arguments: Sequence[str], runs_dir: Path) -> tuple[Launched, RunPaths | None]:
    """Starts `smolsum ARGUMENTS` and returns it with the run that it took, or None if it ended before; tells what it
    says meanwhile.

    Ctrl-C ends the trainer, as nobody has seen it yet: InterruptedRun says so, and how a run that was made goes on.
    """
    with _hearing() as heard:
        console.narrate("the view opens once there is a run; until then Ctrl-C ends the training")
        launched, told = _start(arguments), 0
        while not heard:
            ended = launched.process.poll() is not None
            text = launched.output()
            if text[told:].strip():
                console.narrate(text[told:].rstrip())
            told = len(text)
            paths = _run_of(launched, runs_dir)
            if ended or paths is not None:
                return launched, paths
            time.sleep(POLL_S)
        console.narrate("ending the training, which has hardly begun")
        _end(launched, heard)
        paths = _run_of(launched, runs_dir)
        hint = paths.resume_command if paths else None
        raise InterruptedRun("interrupted while the training started; it was ended too", hint=hint)


@contextmanager
def _hearing() -> Iterator[list[int]]:
    """Ctrl-C as a list that grows: an exception could come between a trainer's start and what remembers it."""
    heard: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: heard.append(number))
    try:
        yield heard
    finally:
        signal.signal(signal.SIGINT, before)


def _start(arguments: Sequence[str]) -> Launched:
    """A session of its own, so that neither Ctrl-C nor a closed terminal reaches it."""
    said = tempfile.TemporaryFile()  # noqa: SIM115, as it is the trainer's for as long as that lives
    command = [sys.executable, "-m", "smolsum", *arguments]
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.STDOUT, start_new_session=True
    )
    # who died must not look alive to other views for want of a parent that asks
    threading.Thread(target=process.wait, name="trainer's end", daemon=True).start()
    return Launched(process, said)


def _run_of(launched: Launched, runs_dir: Path) -> RunPaths | None:
    """The run that has the trainer's number in its lock."""
    for paths in reversed(list_runs(runs_dir)):
        with suppress(OSError):
            if paths.lock.read_text().split(" ")[0] == str(launched.process.pid):
                return paths
    return None


def _end(launched: Launched, heard: Sequence[int]) -> None:
    """Interrupts the trainer as its own terminal would, once for each Ctrl-C, and kills one that hears nothing."""
    sent, until = 0, time.monotonic() + PATIENCE_S
    while launched.process.poll() is None:
        if time.monotonic() > until:
            launched.process.kill()
        elif sent < len(heard):
            sent += 1
            launched.process.send_signal(signal.SIGINT)
        time.sleep(POLL_S)


SCHEMA_VERSION = 1
LAST_EVENTS = 10
READ_S = 60.0


def whole(paths: RunPaths) -> Run:
    """Returns a run read to its end."""
    run, until = Run(paths), time.monotonic() + READ_S
    while run.poll(READ_S) and run.behind() and time.monotonic() < until:
        pass
    return run


def plain_page(run: Run, other: Run | None, look: ViewOptions, width: int, height: int) -> list[str]:
    """Returns the first page of a view of this size as lines of text."""
    board = Snapshot(run, look, other, read_groups(run.paths, run.step))
    return [line.plain.rstrip() for line in page(board, pages(width, height)[0], width, height)]


def document(run: Run) -> dict[str, Any]:
    """Returns the run's state, newest metrics, signals and events as JSON can hold them; times in seconds. What is no
    number to JSON is None."""
    now = datetime.now(UTC)
    stands = run_state(run, now)
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
        "signals": [asdict(signal) for signal in find_alerts(run)],
        "events": list(run.event_rows)[-LAST_EVENTS:],
    }
    return dict(finite(found))


def at_work(runs: Sequence[RunPaths]) -> list[RunPaths]:
    """Returns those of the runs that are starting, running or paused now, in the same order."""
    found = []
    for paths in runs:
        run = Run(paths)
        run.poll_status()
        if run_state(run, datetime.now(UTC)).alive:
            found.append(paths)
    return found
