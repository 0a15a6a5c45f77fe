"""The only writer of a run's metrics, events, status, completions and log."""

import os
import platform
import threading
import traceback
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from datetime import UTC, datetime
from typing import Any, Self

from smolsum.errors import SmolsumError
from smolsum.files import Lines, finite, read_bytes, read_jsonl, replace, to_json, whole_lines, writing
from smolsum.runs.paths import RunPaths, last_attempt
from smolsum.runs.record_io import encode, parse
from smolsum.runs.records import SCHEMA_VERSION, Event, State, Status, StepRow

AT_WORK_STATES: tuple[State, ...] = ("starting", "running", "pausing", "paused")
"""States of a run that a process works on."""


class RunWriter:
    """Writes one attempt of a run, in the process that holds the run (`paths.acquire`); only `beat` may be called from
    another thread.

    Each call leaves whole lines and whole files, or raises SmolsumError and leaves the files as they were. JSON cannot
    hold NaN or infinities: they become null.
    """

    def __init__(self, paths: RunPaths, attempt: int) -> None:
        self._paths = paths
        self._attempt = attempt
        self._status: dict[str, Any] = {}
        self._lock = threading.Lock()  # the heartbeat comes from another thread
        with ExitStack() as files:
            self._metrics = files.enter_context(Lines(paths.metrics, paths.resume_command))
            self._events = files.enter_context(Lines(paths.events, paths.resume_command))
            self._log = files.enter_context(Lines(paths.log(attempt), paths.resume_command))
            self._files = files.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._files.close()

    def metrics(self, row: Mapping[str, float | int | str | None]) -> None:
        """Append the line of a step, which `row` has under `step`; an event names the values that were not finite. The
        first line of the file starts with `schema_version`."""
        first = self._metrics.size == 0
        head = {"schema_version": SCHEMA_VERSION} if first else {}
        line = to_json(head | self._checked(row, "metrics", row["step"]))
        self._metrics.append(line)

    def completions(self, step: int, rows: Iterable[Mapping[str, Any]]) -> None:
        """Write the rollouts of a step, replacing those of an earlier attempt."""
        content = b"".join(to_json(self._checked(row, "completions", step)) for row in rows)
        replace(self._paths.completions(step), content, self._paths.resume_command)

    def event(self, kind: str, message: str, **fields: Any) -> None:
        """Append an event: a sentence for the user, with its time (ISO 8601, UTC) and attempt."""
        row = {"time": _now(), "attempt": self._attempt, "kind": kind, "message": message}
        self._events.append(encode(Event, finite(row | fields)))

    def status(self, state: State, *, step: int, phase: str, stage: str, **fields: Any) -> None:
        """Replace status.json; `heartbeat` is the time of writing (ISO 8601, UTC)."""
        row = {
            "schema_version": SCHEMA_VERSION,
            "state": state,
            "step": step,
            "phase": phase,
            "stage": stage,
            "attempt": self._attempt,
            "pid": os.getpid(),
            "host": platform.node(),
        }
        with self._lock:
            self._write_status(row | fields)

    def failure(self, error: BaseException, step: int) -> None:
        """Record how the attempt ended: the traceback in its log, an event, and the status with the hint."""
        hint = error.hint if isinstance(error, SmolsumError) else self._paths.resume_command
        state: State = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
        stopped = "interrupted by the user" if isinstance(error, KeyboardInterrupt) else type(error).__name__
        message = str(error) or stopped
        self.log("".join(traceback.format_exception(error)))
        self.event(state, message, hint=hint)
        self.status(state, step=step, phase=state, stage="", error=message, hint=hint)

    def beat(self, *, pausing: bool = False) -> None:
        """Renew the heartbeat of the last status, from any thread; do nothing before the first status and after the
        end of the run. `pausing`: the run pauses after the step under way."""
        with self._lock:
            if self._status.get("state") in AT_WORK_STATES:
                if self._status["state"] in ("running", "pausing"):
                    self._status["state"] = "pausing" if pausing else "running"
                self._write_status(self._status)

    def _write_status(self, row: dict[str, Any]) -> None:
        self._status = row
        content = encode(Status, finite(row | {"heartbeat": _now()}), indent=2)
        replace(self._paths.status, content, self._paths.resume_command)

    def log(self, text: str) -> None:
        """Append the time and a text, such as a traceback, to the log of the attempt."""
        content = f"{_now()} {text.rstrip()}\n".encode("utf-8", "backslashreplace")
        self._log.append(content)

    def _checked(self, row: Mapping[str, Any], what: str, step: object) -> dict[str, Any]:
        """Return `row` with null for values that are not finite, and record an event about them."""
        clean = {key: finite(value) for key, value in row.items()}
        changed = [key for key, value in row.items() if clean[key] is not value]
        if changed:
            message = f"{what} of step {step} not finite, written as null: {', '.join(changed)}"
            self.event("warning", message, step=step, keys=changed)
        return clean


def discard_after(paths: RunPaths, step: int) -> int:
    """Remove the metrics lines after `step`, which a resumed run writes again; -1 removes all. Returns their number.

    They move to `logs/attempt_<n>-discarded.jsonl`, together with a half-written last line; n is the last attempt, so
    call this before the RunWriter of the next one is open. Events stay: they did happen.
    """
    content, rows = read_bytes(paths.metrics), read_jsonl(paths.metrics)
    while rows and parse(rows[-1], StepRow, f"{paths.metrics}:{len(rows)}").step > step:
        rows.pop()
    kept = sum(len(line) + 1 for line in whole_lines(content)[: len(rows)])
    if kept == len(content):
        return 0
    taken = content[kept:].removesuffix(b"\n") + b"\n"
    target = paths.discarded(last_attempt(paths))
    with writing(target, paths.resume_command):
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("ab") as file:
            file.write(taken)
            file.flush()
            os.fsync(file.fileno())
    # in this order a kill in between leaves the lines twice, and loses none
    replace(paths.metrics, content[:kept], paths.resume_command, durable=True)
    return taken.count(b"\n")


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
