"""TensorBoard: event files in the folder `tensorboard` of the run directory, so that `tensorboard --logdir runs` shows
each run by its name.

A resume that goes back is written as a restart: TensorBoard forgets the steps that were discarded. Event files hold
values in single precision.
"""

import time
from collections.abc import Mapping
from typing import Any

from smolsum.runs.trackers.tracker import CompletionTable, Level, TrackedIdentity

QUEUE = 1000
"""Events that wait for the writer's thread."""


def open_run(run: TrackedIdentity) -> "TensorboardRun":
    """Return a new event file of the run."""
    return TensorboardRun(run)


class TensorboardRun:
    """An event file. Each process that writes a run begins one, and readers take them together."""

    keeps_first = False

    def __init__(self, run: TrackedIdentity) -> None:
        from tensorboard.compat.proto import event_pb2, summary_pb2
        from tensorboard.plugins.text import summary_v2
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._event, self._session, self._summary = event_pb2.Event, event_pb2.SessionLog, summary_pb2.Summary
        self._text = summary_v2.text_pb
        folder = run.root / "tensorboard"
        self.url = f"tensorboard --logdir {run.root.parent}"
        self.held = None if any(folder.glob("events.out.tfevents.*")) else 0
        self._writer = EventFileWriter(str(folder), max_queue_size=QUEUE)
        self.rewind(0 if self.held == 0 else run.step)
        settings = [[key, str(value)] for key, value in sorted(run.settings.items())]
        if self.held == 0:
            self._add(0, self._text("config", _markdown(["setting", "value"], settings)))

    def log(self, step: int, values: Mapping[str, float], table: CompletionTable | None) -> None:
        """Write a step, and its table as text."""
        found = self._summary(value=[self._summary.Value(tag=tag, simple_value=x) for tag, x in values.items()])
        self._add(step, found)
        if table is not None:
            self._add(step, self._text("completions", _markdown(table.columns, table.rows)))

    def alert(self, title: str, text: str, level: Level, step: int | None) -> None:
        """Write a text."""
        self._add(step or 0, self._text(f"alerts/{title}", f"{level}: {text}"))

    def evaluation(self, step: int, values: Mapping[str, float]) -> None:
        """Write the metrics at the step."""
        self.log(step, values, None)

    def rewind(self, step: int) -> None:
        """Write a restart, at which readers drop all later steps."""
        start = self._session(status=self._session.START)
        self._writer.add_event(self._event(wall_time=time.time(), step=step + 1, session_log=start))

    def flush(self) -> None:
        """Wait until the file has everything."""
        self._writer.flush()

    def close(self, state: str) -> None:
        """Close the file."""
        self._writer.close()

    def _add(self, step: int, summary: Any) -> None:
        self._writer.add_event(self._event(wall_time=time.time(), step=step, summary=summary))


def _markdown(columns: Any, rows: Any) -> str:
    """Return a table, whose cells take one line each."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(map(_cell, line)) + " |" for line in lines)


def _cell(value: object) -> str:
    shown = "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
    return " ".join(shown.split()).replace("|", "\\|")
