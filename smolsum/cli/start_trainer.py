"""`train --watch`: starts a trainer that outlives the view, and finds its run by the lock that it takes."""

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
from smolsum.runs.paths import RunPaths, list_runs

POLL_S = 0.2
AGAIN_S = 5.0
"""Seconds after which a trainer that has not ended gets its Ctrl-C again."""
END_TIMEOUT_S = 60.0
"""Seconds that a trainer has to end before it is killed."""


@dataclass(frozen=True)
class Launched:
    """A trainer that outlives this process, and its output."""

    process: subprocess.Popen[bytes]
    stream: IO[bytes]

    def output(self) -> str:
        self.stream.seek(0)
        return self.stream.read().decode("utf-8", "replace")


def launch(arguments: Sequence[str], runs_dir: Path) -> tuple[Launched, RunPaths | None]:
    """Start `smolsum ARGUMENTS`, print its output, and return it with its run, or None if it ended before it had one.
    Ctrl-C ends the trainer too, and raises InterruptedRun with the command that resumes its run."""
    with _interrupts() as interrupts:
        console.narrate("the view opens once there is a run; until then Ctrl-C stops the training")
        launched, printed = _start(arguments), 0
        while not interrupts:
            ended = launched.process.poll() is not None
            text = launched.output()
            if text[printed:].strip():
                console.narrate(text[printed:].rstrip())
            printed = len(text)
            paths = _run_of(launched, runs_dir)
            if ended or paths is not None:
                return launched, paths
            time.sleep(POLL_S)
        console.narrate("stopping the training, which has just started")
        _end(launched, interrupts)
        paths = _run_of(launched, runs_dir)
        hint = paths.resume_command if paths else None
        raise InterruptedRun("interrupted while the training started; the training was stopped too", hint=hint)


@contextmanager
def _interrupts() -> Iterator[list[int]]:
    """Collect Ctrl-C in a list: an exception could strike before the started trainer is known."""
    interrupts: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: interrupts.append(number))
    try:
        yield interrupts
    finally:
        signal.signal(signal.SIGINT, before)


def _start(arguments: Sequence[str]) -> Launched:
    """Start the trainer in a new session, so that neither Ctrl-C nor a closed terminal reaches it."""
    stream = tempfile.TemporaryFile()  # noqa: SIM115, as the trainer uses it until it ends
    command = [sys.executable, "-m", "smolsum", *arguments]
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=stream, stderr=subprocess.STDOUT, start_new_session=True
    )
    # a trainer that ended looks alive to other views until its parent has waited for it
    threading.Thread(target=process.wait, name="trainer's end", daemon=True).start()
    return Launched(process, stream)


def _run_of(launched: Launched, runs_dir: Path) -> RunPaths | None:
    """The run whose lock has the process id of the trainer."""
    for paths in reversed(list_runs(runs_dir)):
        with suppress(OSError):
            if paths.lock.read_text().split(" ")[0] == str(launched.process.pid):
                return paths
    return None


def _end(launched: Launched, interrupts: Sequence[int]) -> None:
    """Pass each Ctrl-C on to the trainer, and kill it if it does not end in time. One is sent again: Python ignores an
    exception, and so a Ctrl-C, that strikes in a callback, of which the trainer's imports have many."""
    sent, last, until = 0, 0.0, time.monotonic() + END_TIMEOUT_S
    while launched.process.poll() is None:
        if time.monotonic() > until:
            launched.process.kill()
        elif sent < len(interrupts) or time.monotonic() > last + AGAIN_S:
            sent, last = sent + 1, time.monotonic()
            launched.process.send_signal(signal.SIGINT)
        time.sleep(POLL_S)
