"""MLflow: a run of an experiment at `MLFLOW_TRACKING_URI`, by default the database mlflow.db in this folder.

MLflow cannot remove a step: after a resume that goes back, the steps that it has stay as they were first sent.
"""

import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

from smolsum.runs.trackers.tracker import MARKER, CompletionTable, Level, TrackedIdentity, without_secrets

BATCH = 1000
"""Metrics of one request, the most that MLflow takes."""
LONGEST = 6000
"""Characters of a parameter that MLflow takes."""
PATIENCE = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2", "MLFLOW_HTTP_REQUEST_TIMEOUT": "30"}
"""Where the user does not say how long MLflow waits for a server: its own tries would take minutes, and are repeated
here."""
STATES = {"finished": "FINISHED", "failed": "FAILED", "STALE": "FAILED", "interrupted": "KILLED"}


def open_run(run: TrackedIdentity) -> "MlflowRun":
    """Return the MLflow run with this id as a tag, made or continued."""
    return MlflowRun(run)


class MlflowRun:
    """An MLflow run, whose metrics go out in batches."""

    keeps_first = True

    def __init__(self, run: TrackedIdentity) -> None:
        for variable, value in PATIENCE.items():
            os.environ.setdefault(variable, value)
        from mlflow import MlflowClient, get_tracking_uri
        from mlflow.entities import Metric, Param

        self._metric, self._client, self._waiting = Metric, MlflowClient(), list[Any]()
        project = run.project_or("MLFLOW_EXPERIMENT_NAME")
        experiment = self._client.get_experiment_by_name(project)
        number = experiment.experiment_id if experiment else self._client.create_experiment(project)
        found = self._client.search_runs([number], filter_string=f"tags.`smolsum.run` = '{run.id}'", max_results=1)
        if found:
            self._id, known = found[0].info.run_id, found[0].data.params
            self._client.update_run(self._id, status="RUNNING")
            self.held = max((one.step for one in self._client.get_metric_history(self._id, MARKER)), default=0)
        else:
            tags = {"smolsum.run": run.id, "group": run.group, "mlflow.source.name": "smolsum"}
            tags |= dict.fromkeys(run.tags, "true")
            made = self._client.create_run(number, run_name=run.name, tags=tags)
            self._id, known, self.held = made.info.run_id, {}, 0
        # a parameter never changes: those that a resumed run has differently are in the file
        new = [Param(key, str(value)[:LONGEST]) for key, value in run.settings.items() if key not in known]
        for first in range(0, len(new), 100):
            self._client.log_batch(self._id, params=new[first : first + 100])
        self._client.log_dict(self._id, dict(run.config), "config.json")
        self.url = without_secrets(f"{get_tracking_uri()}, experiment {project}, run {self._id}")

    def log(self, step: int, values: Mapping[str, float], table: CompletionTable | None) -> None:
        """Take a step; its table becomes a file `completions/step-….json`."""
        self._take(step, values)
        if table is not None:
            self._table(table.columns, table.rows, f"completions/step-{step:06d}.json")

    def alert(self, title: str, text: str, level: Level, step: int | None) -> None:
        """Add a row to the file alerts.json, as MLflow has no alerts."""
        self._table(["level", "step", "title", "text"], [[level, step, title, text]], "alerts.json")

    def evaluation(self, step: int, values: Mapping[str, float]) -> None:
        """Log the metrics at the step."""
        self._take(step, values)

    def rewind(self, step: int) -> None:
        """Not possible."""

    def flush(self) -> None:
        """Send what waits for a full batch."""
        waiting, self._waiting = self._waiting, []
        if waiting:
            self._client.log_batch(self._id, metrics=waiting)

    def close(self, state: str) -> None:
        """Send the rest, and mark how the run ended."""
        self.flush()
        if state in STATES:
            self._client.set_terminated(self._id, STATES[state])

    def _take(self, step: int, values: Mapping[str, float]) -> None:
        if len(self._waiting) + len(values) > BATCH:
            self.flush()
        now = int(time.time() * 1000)
        self._waiting += [self._metric(name, value, now, step) for name, value in values.items()]

    def _table(self, columns: Sequence[str], rows: Sequence[Sequence[Any]], file: str) -> None:
        data = {name: [row[place] for row in rows] for place, name in enumerate(columns)}
        self._client.log_table(self._id, data, artifact_file=file)
