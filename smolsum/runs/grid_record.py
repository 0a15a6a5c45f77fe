"""`.grid.json` in a directory of runs: the runs of the grid that is trained there, and how far it is."""

import os
import platform
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from msgspec.structs import replace as changed

from smolsum.errors import SmolsumError
from smolsum.files import replace
from smolsum.runs.record_io import encode, to_row
from smolsum.runs.records import GridRecord, RunOfGrid, RunOfGridState

GRID = ".grid.json"


class GridWriter:
    """Keeps `.grid.json` up to date for the process that trains the grid; where all runs are done, it writes nothing. A
    disk that refuses is passed over: the file is for views alone, and training says what is wrong with the disk."""

    def __init__(self, runs_dir: Path, runs: Sequence[RunOfGrid], command: str) -> None:
        self._path = runs_dir / GRID
        self._idle = all(run.state == "done" for run in runs)
        self._record = GridRecord(
            pid=os.getpid(), host=platform.node(), command=command, state="training", runs=list(runs)
        )
        self._write()

    def mark(self, number: int, state: RunOfGridState, *, error: str = "") -> None:
        """Note the state of the run with this index."""
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        run = self._record.runs[number]
        times = {"loading": {"began": now}, "done": {"ended": now}, "failed": {"ended": now}}.get(state, {})
        self._record.runs[number] = changed(run, state=state, error=error, **times)
        self._write()

    def end(self) -> None:
        """Note that no more runs are trained."""
        self._record = changed(self._record, state="ended")
        self._write()

    def _write(self) -> None:
        if self._idle:
            return
        with suppress(SmolsumError):
            replace(self._path, encode(GridRecord, to_row(self._record), indent=2), "")
