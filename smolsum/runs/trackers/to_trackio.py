"""Trackio: a run in its local database (`TRACKIO_DIR`), on a server (`TRACKIO_SERVER_URL`) or in a Space
(`TRACKIO_SPACE_ID`).

Trackio cannot remove a step: after a resume that goes back, the steps that it has stay as they were first sent.
"""

import time
from collections.abc import Mapping

from smolsum.errors import UnreachableError
from smolsum.runs.trackers.tracker import MARKER, CompletionTable, Level, TrackedIdentity

STORED_S = 20.0
"""Seconds that the local database has to take what was logged; a thread writes it every half second."""


def open_run(run: TrackedIdentity) -> "TrackioRun":
    """Return the Trackio run with this id, made or continued."""
    return TrackioRun(run)


class TrackioRun:
    """A Trackio run, which a thread of Trackio writes or uploads. Trackio only prints what goes wrong there, so a local
    run is read back."""

    keeps_first = True

    def __init__(self, run: TrackedIdentity) -> None:
        import trackio

        self._trackio = trackio
        self._project, self._name, self._id = run.project_or("TRACKIO_PROJECT"), run.name, run.id
        # Trackio resumes by name, of which it takes the newest run: only the id says which run is meant
        self._run = trackio.init(
            self._project, name=run.name, group=run.group, config={**run.config, "tags": list(run.tags)}, embed=False,
            auto_log_gpu=False, auto_log_cpu=False,
        )  # fmt: skip
        self._run.id = run.id
        self._local = trackio.context_vars.current_server.get() is None
        self.held, self._logged = self._last_step() if self._local else None, self._stored()
        where = f"{trackio.utils.TRACKIO_DIR}" if self._local else str(trackio.context_vars.current_server.get())
        self.url = f"project {self._project} in {where}"

    def log(self, step: int, values: Mapping[str, float], table: CompletionTable | None) -> None:
        """Take a step with its table."""
        extra = {}
        if table is not None:
            rows = [list(row) for row in table.rows]
            extra["completions"] = self._trackio.Table(columns=list(table.columns), data=rows)
        self._run.log({**values, **extra}, step=step)
        self._logged += 1

    def alert(self, title: str, text: str, level: Level, step: int | None) -> None:
        """Raise an alert of the run."""
        levels = self._trackio.AlertLevel
        named = {"info": levels.INFO, "warning": levels.WARN, "error": levels.ERROR}
        self._run.alert(title=title, text=text, level=named[level])

    def evaluation(self, step: int, values: Mapping[str, float]) -> None:
        """Log the metrics at the step."""
        self._run.log(dict(values), step=step)
        self._logged += 1

    def rewind(self, step: int) -> None:
        """Not possible."""

    def flush(self) -> None:
        """Wait until the local database has all that was logged. Raises UnreachableError where it does not take it."""
        until = time.monotonic() + STORED_S
        while self._local and self._stored() < self._logged:
            if time.monotonic() > until:
                raise UnreachableError(f"trackio: {self.url} does not take what is logged")
            time.sleep(0.1)

    def close(self, state: str) -> None:
        """Wait until everything is written or uploaded."""
        self._trackio.finish()

    def _stored(self) -> int:
        """Return how many rows the local database has."""
        from trackio.sqlite_storage import SQLiteStorage

        return int(SQLiteStorage.get_log_count(self._project, self._name, run_id=self._id)) if self._local else 0

    def _last_step(self) -> int:
        """Return the last step in the local database, where evaluations have rows too."""
        from trackio.sqlite_storage import SQLiteStorage

        rows = SQLiteStorage.get_metric_values(self._project, self._name, MARKER, run_id=self._id)
        return max((int(row["step"]) for row in rows), default=0)
