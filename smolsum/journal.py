"""The journal of a run: the one writer of its metrics, events, status, completions and log.

A line counts once its line end is written. What a killed process leaves after the last one is no line:
readers pass over it, and the next journal removes it before it appends.
"""

from __future__ import annotations

import io
import json
import math
import os
import platform
import threading
import traceback
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, Self

from smolsum.disk import replace, to_json, writing
from smolsum.errors import SmolsumError
from smolsum.runs import RunPaths, last_attempt

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
            self._metrics = files.enter_context(_open_lines(paths.metrics, paths))
            self._events = files.enter_context(_open_lines(paths.events, paths))
            self._log = files.enter_context(_open_lines(paths.log(attempt), paths))
            self._files = files.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._files.close()

    def metrics(self, row: Mapping[str, float | int | str | None]) -> None:
        """Appends a step's line; `row` has its number under `step`. An event tells what was not finite.

        The first line of the file starts with `schema_version`.
        """
        first = os.fstat(self._metrics.fileno()).st_size == 0
        head = {"schema_version": SCHEMA_VERSION} if first else {}
        line = to_json(head | self._checked(row, "metrics", row["step"]))
        self._append(self._metrics, self._paths.metrics, line)

    def completions(self, step: int, rows: Iterable[Mapping[str, Any]]) -> None:
        """Writes the rollouts of a step, in the place of those that an earlier attempt wrote for it."""
        content = b"".join(to_json(self._checked(row, "completions", step)) for row in rows)
        replace(self._paths.completions(step), content, self._paths.resume_command)

    def event(self, kind: str, message: str, **fields: Any) -> None:
        """Appends what happened, a sentence for the user, with its time (ISO 8601, UTC) and attempt."""
        row = {"time": _now(), "attempt": self._attempt, "kind": kind, "message": message}
        self._append(self._events, self._paths.events, to_json(_finite(row | fields)))

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
        message = str(error) or type(error).__name__
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
        content = to_json(_finite(row | {"heartbeat": _now()}), indent=2)
        replace(self._paths.status, content, self._paths.resume_command)

    def log(self, text: str) -> None:
        """Appends text, a traceback say, to the attempt's log, after the time."""
        content = f"{_now()} {text.rstrip()}\n".encode("utf-8", "backslashreplace")
        self._append(self._log, self._paths.log(self._attempt), content)

    def _checked(self, row: Mapping[str, Any], what: str, step: object) -> dict[str, Any]:
        """Returns `row` as JSON can hold it, after an event if that changed it."""
        clean = {key: _finite(value) for key, value in row.items()}
        changed = [key for key, value in row.items() if clean[key] is not value]
        if changed:
            message = f"{what} of step {step} not finite, written as null: {', '.join(changed)}"
            self.event("warning", message, step=step, keys=changed)
        return clean

    def _append(self, file: io.FileIO, path: Path, content: bytes) -> None:
        """Writes through to the system; a full disk takes a part first, which is then taken back."""
        with writing(path, self._paths.resume_command):
            size = os.fstat(file.fileno()).st_size
            try:
                rest = memoryview(content)
                while rest:
                    rest = rest[file.write(rest) :]
            except BaseException:
                file.truncate(size)
                raise


def discard_after(paths: RunPaths, step: int) -> int:
    """Takes back the metrics lines after `step`, which a resumed run writes again; returns their number.

    They move to `logs/attempt_<n>-discarded.jsonl`, and with them a last line that is half written; n is the
    last attempt, so call this before the next one's Journal is open. -1 takes back all. Events stay: they did
    happen.
    """
    content = _read(paths.metrics)
    kept = end = _end_of_lines(content)
    for start, row in reversed(_rows(content, paths.metrics)):
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


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """Returns the objects of a JSON Lines file that may still be growing; none if it does not exist yet.

    A last line without its line end is passed over. SmolsumError, with the line, for a file that is damaged.
    """
    return [row for _, row in _rows(_read(path), path)]


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""
    except OSError as error:
        what = f"cannot read {path}: {error.strerror or error}"
        raise SmolsumError(what, hint="check that it is a file and that you may read it") from error


def _rows(content: bytes, path: Path) -> list[tuple[int, dict[str, Any]]]:
    """The objects of whole lines, each with the byte at which its line starts."""
    rows, start = [], 0
    for number, line in enumerate(content[: _end_of_lines(content)].split(b"\n")[:-1], start=1):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            row = None
        if not isinstance(row, dict):
            raise SmolsumError(
                f"{path}:{number} is not a JSON object, so the file is damaged",
                hint="restore it from a copy, or remove that line",
            )
        rows.append((start, row))
        start += len(line) + 1
    return rows


def _end_of_lines(content: bytes) -> int:
    return content.rfind(b"\n") + 1


def _open_lines(path: Path, paths: RunPaths) -> io.FileIO:
    """Opens a file of lines to append to, without a buffer that could keep a line from its readers."""
    end = _end_of_lines(_read(path))
    with writing(path, paths.resume_command):
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("ab", buffering=0)
        file.truncate(end)
    return file


def _finite(value: Any) -> Any:
    """Returns `value` itself if JSON can hold it, else a copy with None for every NaN and infinity."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        clean = {key: _finite(item) for key, item in value.items()}
        return value if all(clean[key] is item for key, item in value.items()) else clean
    if isinstance(value, list | tuple):
        items = [_finite(item) for item in value]
        return value if all(new is old for new, old in zip(items, value, strict=True)) else items
    return value


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
