"""The journal of a run: the one writer of its metrics, events, status, completions and log."""

from __future__ import annotations

import os
import platform
import threading
import traceback
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from datetime import UTC, datetime
from typing import Any, Literal, Self

from smolsum.errors import SmolsumError
from smolsum.files import Lines, end_of_lines, finite, read_bytes, replace, rows_with_starts, to_json, writing
from smolsum.runs.paths import RunPaths, last_attempt

SCHEMA_VERSION = 1
State = Literal["starting", "running", "pausing", "paused", "finished", "failed", "interrupted"]
ALIVE: tuple[State, ...] = ("starting", "running", "pausing", "paused")
"""States of a run that a process is at work on."""


class Journal:
    """Writes one attempt of a run, from one thread of the process that holds the run (`runs.acquire`), but for `beat`.

    Each call leaves whole lines and whole files, or raises SmolsumError and leaves what was there before.
    JSON has no NaN and no infinity: they are written as null.
    """

    def __init__(self, paths: RunPaths, attempt: int) -> None:
        self._paths = paths
        self._attempt = attempt
        self._said: dict[str, Any] = {}
        self._saying = threading.Lock()  # the heartbeat comes from another thread
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
        """Appends a step's line; `row` has its number under `step`. An event tells what was not finite.

        The first line of the file starts with `schema_version`.
        """
        first = self._metrics.size == 0
        head = {"schema_version": SCHEMA_VERSION} if first else {}
        line = to_json(head | self._checked(row, "metrics", row["step"]))
        self._metrics.append(line)

    def completions(self, step: int, rows: Iterable[Mapping[str, Any]]) -> None:
        """Writes the rollouts of a step, in the place of those that an earlier attempt wrote for it."""
        content = b"".join(to_json(self._checked(row, "completions", step)) for row in rows)
        replace(self._paths.completions(step), content, self._paths.resume_command)

    def event(self, kind: str, message: str, **fields: Any) -> None:
        """Appends what happened, a sentence for the user, with its time (ISO 8601, UTC) and attempt."""
        row = {"time": _now(), "attempt": self._attempt, "kind": kind, "message": message}
        self._events.append(to_json(finite(row | fields)))

    def status(self, state: State, *, step: int, phase: str, stage: str, **fields: Any) -> None:
        """Replaces what the run says of itself; `heartbeat` is the time of it (ISO 8601, UTC)."""
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
        with self._saying:
            self._say(row | fields)

    def failure(self, error: BaseException, step: int) -> None:
        """Writes down how the attempt ended: the traceback in its log, an event and the status with the hint."""
        hint = error.hint if isinstance(error, SmolsumError) else self._paths.resume_command
        state: State = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
        stopped = "interrupted by the user" if isinstance(error, KeyboardInterrupt) else type(error).__name__
        message = str(error) or stopped
        self.log("".join(traceback.format_exception(error)))
        self.event(state, message, hint=hint)
        self.status(state, step=step, phase=state, stage="", error=message, hint=hint)

    def beat(self, *, pausing: bool = False) -> None:
        """Renews the heartbeat of the last status, from any thread; does nothing before the first and after the last.

        `pausing` says that the step under way is the last before a pause.
        """
        with self._saying:
            if self._said.get("state") in ALIVE:
                if self._said["state"] in ("running", "pausing"):
                    self._said["state"] = "pausing" if pausing else "running"
                self._say(self._said)

    def _say(self, row: dict[str, Any]) -> None:
        self._said = row
        content = to_json(finite(row | {"heartbeat": _now()}), indent=2)
        replace(self._paths.status, content, self._paths.resume_command)

    def log(self, text: str) -> None:
        """Appends text, a traceback say, to the attempt's log, after the time."""
        content = f"{_now()} {text.rstrip()}\n".encode("utf-8", "backslashreplace")
        self._log.append(content)

    def _checked(self, row: Mapping[str, Any], what: str, step: object) -> dict[str, Any]:
        """Returns `row` as JSON can hold it, after an event if that changed it."""
        clean = {key: finite(value) for key, value in row.items()}
        changed = [key for key, value in row.items() if clean[key] is not value]
        if changed:
            message = f"{what} of step {step} not finite, written as null: {', '.join(changed)}"
            self.event("warning", message, step=step, keys=changed)
        return clean


def discard_after(paths: RunPaths, step: int) -> int:
    """Takes back the metrics lines after `step`, which a resumed run writes again; returns their number.

    They move to `logs/attempt_<n>-discarded.jsonl`, and with them a last line that is half written; n is the
    last attempt, so call this before the next one's Journal is open. -1 takes back all. Events stay: they did
    happen.
    """
    content = read_bytes(paths.metrics)
    kept = end = end_of_lines(content)
    for start, row in reversed(rows_with_starts(content, paths.metrics)):
        if row["step"] <= step:
            break
        kept = start
    if kept == len(content):
        return 0
    taken = content[kept:] if end == len(content) else content[kept:] + b"\n"
    target = paths.discarded(last_attempt(paths))
    with writing(target, paths.resume_command):
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("ab") as file:
            file.write(taken)
            file.flush()
            os.fsync(file.fileno())
    # only now: killed in between, the lines are twice on the disk, and not lost
    replace(paths.metrics, content[:kept], paths.resume_command, durable=True)
    return taken.count(b"\n")


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
