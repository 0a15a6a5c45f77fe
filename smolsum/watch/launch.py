"""`train --watch`: a training process of its own, found by the lock that it takes, and then watched like any other."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from smolsum import console
from smolsum.errors import InterruptedRun
from smolsum.runs import RunPaths, list_runs

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
