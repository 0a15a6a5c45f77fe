"""`train --watch`: a training process of its own, found by the lock that it takes, and then watched like any other."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from smolsum import console
from smolsum.runs import RunPaths, list_runs

POLL_S = 0.2


@dataclass(frozen=True)
class Launched:
    """A trainer that outlives this process, and what it says."""

    process: subprocess.Popen[bytes]
    said: IO[bytes]

    def output(self) -> str:
        """All that it wrote to its streams until now."""
        self.said.seek(0)
        return self.said.read().decode("utf-8", "replace")


def launch(arguments: Sequence[str]) -> Launched:
    """Starts `smolsum ARGUMENTS` in a session of its own, so that neither Ctrl-C nor a closed terminal reaches it."""
    said = tempfile.TemporaryFile()  # noqa: SIM115, as it is the trainer's for as long as that lives
    command = [sys.executable, "-m", "smolsum", *arguments]
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.STDOUT, start_new_session=True
    )
    # who died must not look alive to other views for want of a parent that asks
    threading.Thread(target=process.wait, name="trainer's end", daemon=True).start()
    return Launched(process, said)


def wait_for_run(launched: Launched, runs_dir: Path) -> RunPaths | None:
    """Returns the run that the trainer took, once it has one; None if it ended before. Tells what it says meanwhile."""
    told = 0
    while True:
        ended = launched.process.poll() is not None
        text = launched.output()
        if text[told:].strip():
            console.narrate(text[told:].rstrip())
        told = len(text)
        for paths in reversed(list_runs(runs_dir)):
            with suppress(OSError):
                if paths.lock.read_text().split(" ")[0] == str(launched.process.pid):
                    return paths
        if ended:
            return None
        time.sleep(POLL_S)
