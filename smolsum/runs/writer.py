"""What a run writes: what it is made from (config.toml, run.json), which a resumed run has to match, and the only
writer of its metrics, events, status, completions and log."""

import dataclasses
import json
import os
import platform
import shlex
import sys
import threading
import traceback
from collections.abc import Iterable, Mapping
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from itertools import accumulate
from typing import Any, Self

from smolsum.config.hub import hub_name
from smolsum.config.resolve import to_toml
from smolsum.config.sections import Config
from smolsum.errors import SmolsumError, UsageError
from smolsum.files import Lines, finite, read_bytes, read_jsonl, replace, to_json, whole_lines, writing
from smolsum.runs import digests
from smolsum.runs.checkpoints import list_checkpoints
from smolsum.runs.paths import RunPaths, last_attempt, step_name
from smolsum.runs.records import SCHEMA_VERSION, Event, RunInfo, State, Status, StepRow
from smolsum.runs.typed_json import checked, encode, parse, read, read_object

FIXED = ("model", "tokenizer", "data", "meteor")
"""Facts that must be the same when a run is resumed."""
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
        self._rollouts: dict[int, bytes] = {}  # of the step whose metrics are still to come
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
        step = int(row["step"] or 0)
        line = to_json(head | self._checked(row, "metrics", step))
        # first the digest: a resumed run discards one whose step is not there
        digests.record(self._paths, {step_name(step): digests.of_bytes(line + self._rollouts.pop(step, b""))})
        self._metrics.append(line)

    def completions(self, step: int, rows: Iterable[Mapping[str, Any]]) -> None:
        """Write the rollouts of a step, replacing those of an earlier attempt."""
        content = b"".join(to_json(self._checked(row, "completions", step)) for row in rows)
        replace(self._paths.completions(step), content, self._paths.resume_command)
        self._rollouts = {step: content}

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
        # not `!=`, by which NaN differs from itself: `finite` returns another object only where it changed something
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
    digests.record(paths, {f"{digests.DISCARDED}{step_name(max(0, step))}": ""})
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


def write_info(
    paths: RunPaths,
    config: Config,
    steps: Mapping[str, int],
    fingerprints: Mapping[str, str],
    provenance: Mapping[str, Any],
) -> None:
    """Write both files of a new run: `steps` and `fingerprints` by stage, `provenance` of model, data and machine."""
    info = {
        "schema_version": SCHEMA_VERSION,
        "argv": sys.argv,
        "created": datetime.now().astimezone().isoformat(),
        "steps": dict(steps),
        "fingerprints": dict(fingerprints),
        **provenance,
    }
    replace(paths.config, to_toml(config).encode(), paths.resume_command, durable=True)
    _replace_info(paths, info)


def copy_plugins(paths: RunPaths, files: Mapping[str, bytes]) -> None:
    """Keep copies of the users' code that a new run executes, by relative path."""
    for name, content in files.items():
        (paths.plugins / name).parent.mkdir(parents=True, exist_ok=True)
        replace(paths.plugins / name, content, paths.resume_command)


def at_commit(config: Config, paths: RunPaths) -> Config:
    """Return the settings with the hub data set at the commit that the run read, so that a resumed run and its
    evaluations read the same; unchanged where run.json names no commit for it."""
    with suppress(SmolsumError):  # a damaged file is reported where the run is resumed
        commit, name = read(paths.info, RunInfo).revisions.get(config.data.path), hub_name(config.data.path)
        if commit and name:
            path = str(dataclasses.replace(name, revision=commit))
            return dataclasses.replace(config, data=dataclasses.replace(config.data, path=path))
    return config


def base_of(paths: RunPaths) -> str:
    """Return the fingerprint of the weights that the run began with; empty where run.json does not say."""
    with suppress(SmolsumError):
        return read(paths.info, RunInfo).model.weights
    return ""


def recorded_info(paths: RunPaths) -> RunInfo | None:
    """Return what run.json says of a run that is resumed; None where it has none yet. Raises SmolsumError where it is
    damaged."""
    return _read_info(paths)[1] if paths.info.exists() else None


def check_resume(
    paths: RunPaths, steps: Mapping[str, int], fingerprints: Mapping[str, str], provenance: Mapping[str, Any]
) -> None:
    """Check a resumed run against run.json, and record the new settings of stages that have not begun. UsageError where
    a stage that has begun has other settings or facts now. Raises SmolsumError where run.json is damaged."""
    again = _start_anew(paths)
    info, then = _read_info(paths)
    # facts are compared as run.json has them: keys as text, tuples as lists
    for key in FIXED:
        now = json.loads(json.dumps(provenance[key]))
        if info.get(key) != now:
            raise UsageError(
                f"run {paths.name} began with another {key}: {info.get(key)} then, {now} now",
                hint=f"restore it, or {again}",
            )
    settings = json.loads(json.dumps(provenance["settings"]))
    for number, name in enumerate(_begun(paths, then.steps)):
        if list(steps)[number : number + 1] != [name]:
            problem = f"has begun stage {name}, which config.toml no longer has in that place"
        elif fingerprints[name] != then.fingerprints.get(name):
            changed = _differences(then.settings, settings, name)
            problem = f"began stage {name} with other settings{changed and f': {changed}'}"
        else:
            continue
        raise UsageError(
            f"run {paths.name} {problem}",
            hint=f"restore {paths.config}; or, keeping the stages that are the same, {again}",
        )
    now = {"steps": dict(steps), "fingerprints": dict(fingerprints), "settings": settings}
    if any(info.get(key) != value for key, value in now.items()):
        _replace_info(paths, info | now)


def _start_anew(paths: RunPaths) -> str:
    return f"start a new run: smolsum train --config {shlex.quote(str(paths.config))} --name OTHER"


def _read_info(paths: RunPaths) -> tuple[dict[str, Any], RunInfo]:
    """Return run.json as it is, and as a record."""
    hint = f"restore it, or {_start_anew(paths)}"
    info = read_object(paths.info, hint=hint)
    return info, parse(info, RunInfo, str(paths.info), needs=("steps", "fingerprints"), hint=hint)


def _begun(paths: RunPaths, planned: Mapping[str, int]) -> list[str]:
    """The stages that may have left something on the disk: the first, since the start is evaluated with its settings,
    and those that have a step or a checkpoint."""
    rows = [parse(row, StepRow, str(paths.metrics)) for row in read_jsonl(paths.metrics)[-1:]]
    last = [row.step for row in rows] + [checkpoint.step for checkpoint in list_checkpoints(paths)[-1:]]
    starts = accumulate(planned.values(), initial=0)
    return [name for name, start in zip(planned, starts, strict=False) if start < max([*last, 1])]


def _differences(then: Mapping[str, Any], now: Mapping[str, Any], stage: str) -> str:
    """The settings of the stage and of all stages that differ, in words; empty where run.json does not have them."""
    keys = [key for key in {**then, **now} if not key.startswith("stages.") or key.startswith(f"stages.{stage}.")]
    changed = [key for key in keys if then.get(key) != now.get(key)] if then else []
    return ", ".join(f"{key} ({then.get(key, 'none')} then, {now.get(key, 'none')} now)" for key in changed)


def _replace_info(paths: RunPaths, info: dict[str, Any]) -> None:
    replace(
        paths.info, json.dumps(checked(RunInfo, info), indent=2).encode() + b"\n", paths.resume_command, durable=True
    )
