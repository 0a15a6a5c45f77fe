"""A run directory as its readers see it: metrics by name, events, stages, checkpoints and evaluations.

The live view, `smolsum runs`, the report and notebooks read runs through `Run`, which is kept up to date by reading
what the directory gained since the last call. A run may be damaged, half written or gone: what is wrong counts as
missing. For errors that name file, line and field see `typed_json`.
"""

import os
import time
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from smolsum.errors import SmolsumError
from smolsum.files import json_objects
from smolsum.runs.control import Request, is_requested
from smolsum.runs.evaluation_records import SUMMARY, Summary
from smolsum.runs.paths import RunPaths
from smolsum.runs.records import LARGEST, Event, RunInfo, RunSettings, Status, StepRow
from smolsum.runs.series import Series
from smolsum.runs.typed_json import read_object, salvage

R = TypeVar("R", bound=msgspec.Struct)
CHUNK = 1 << 20
"""Bytes that are read at a time."""
EVENTS = 200
"""Newest events that are kept."""
LAST_BYTES = 1 << 15
"""Bytes at the end of metrics.jsonl that have the newest steps."""
LOGS, LOG_BYTES = 5, 1 << 16
"""Newest logs that are read, and how much from the end of each."""
NEVER_DRAWN = ("schema_version", "step", "stage_step")


class Run:
    """A run directory, read without changing it. `poll` reads what is new; everything else is what is known so far.

    run = Run(open_run("latest", Path("runs")))
    while run.poll():
        pass
    rewards = run.series["reward"].points()
    """

    series: dict[str, Series]
    """each metric of metrics.jsonl over the steps"""
    row: dict[str, Any]
    """the newest line of metrics.jsonl, as it is"""
    first_step: int
    """the first step in metrics.jsonl; 0 before it"""
    stage_began: dict[str, int]
    """the first step of each stage that has one"""
    events: deque[Event]
    """the newest `EVENTS` events, oldest first"""
    event_rows: deque[dict[str, Any]]
    """the same lines of events.jsonl, as they are"""
    worker_events: dict[str, Event]
    """the newest event of each worker, by its id"""
    reused: dict[str, str]
    """the stages that were taken from another run, and its name"""

    def __init__(self, paths: RunPaths, *, last_bytes: int | None = None) -> None:
        """With `last_bytes`, only so much of the ends of metrics and events is read: enough for the state, the newest
        values and the time left, but `first_step` and `stage_began` are those of what was read."""
        self.paths = paths
        self.config: dict[str, Any] = {}
        """config.toml, as it is"""
        self.settings = RunSettings()
        self.gone = False
        """whether the directory was removed since it was read"""
        self.log_lines: list[tuple[int, str]] = []
        """the newest lines of the logs, each with its attempt: tracebacks, with their times"""
        self._log_sizes: dict[int, int] = {}
        self.evaluation_s: float | None = None
        """seconds that the newest evaluation took or, of a part of the split, would have taken for all of it; None
        where none was timed"""
        self._status = Document(paths.status, Status)
        self._info = Document(paths.info, RunInfo)
        self._results: dict[str, Document[Summary]] = {}
        self._metrics, self._events = Tail(paths.metrics, last_bytes), Tail(paths.events, last_bytes)
        self._restarts = (0, 0)
        self._requests = (False, False)
        self._forget_metrics()
        self._forget_events()

    def poll(self, budget_s: float = 0.2) -> bool:
        """Read what is new, for about `budget_s` seconds at most; whether anything changed. `behind` is True if
        there is more."""
        until = time.monotonic() + budget_s
        gone = not self.paths.root.is_dir()
        changed = gone != self.gone
        self.gone = gone
        if gone:
            return changed
        changed |= self.poll_status() | self._refresh_results()
        changed |= self._read_logs()
        if not self.config:
            changed |= self._read_config()
        while self.behind():
            if self._restarts[0] != self._metrics.restarts:
                self._forget_metrics()
            if self._restarts[1] != self._events.restarts:
                self._forget_events()
            self._restarts = (self._metrics.restarts, self._events.restarts)
            lines = self._read_lines()
            changed |= lines > 0
            if not lines or time.monotonic() > until:
                break
        return changed

    def poll_status(self) -> bool:
        """Read status.json, run.json and the requests in `control/` alone; whether one changed."""
        before = self._requests
        self._requests = (is_requested(self.paths, "pause"), is_requested(self.paths, "stop"))
        # `|`, which reads both files, where `or` would stop at the first change
        return (self._requests != before) | self._status.refresh() | self._info.refresh()

    def behind(self) -> bool:
        """Whether the files hold more than was read."""
        # a list, so that both are asked: `more` also notices a file that was replaced
        return any([self._metrics.more(), self._events.more()])

    @property
    def reading(self) -> bool:
        """Whether the files held more at the last look than was read; what came since then is for the next look."""
        return self._metrics.unread or self._events.unread

    @property
    def last_row_s(self) -> float | None:
        """When metrics.jsonl was last written, in seconds since 1970; None before its first line."""
        return self._metrics.written if self.row else None

    @property
    def read_share(self) -> float:
        """The part of metrics.jsonl that was read, in [0, 1]; 1 for a file that is missing or ends in half a line."""
        return self._metrics.share

    @property
    def damaged_lines(self) -> dict[str, int]:
        """Lines that were left out because they cannot be read, by the name of their file; without files in order."""
        found = {
            self.paths.metrics.name: self._metrics.damaged + self._without_step,
            self.paths.events.name: self._events.damaged,
        }
        return {name: count for name, count in found.items() if count}

    @property
    def status(self) -> Status:
        """What the run last said it is doing."""
        return self._status.value

    @property
    def info(self) -> RunInfo:
        """What the run was made from."""
        return self._info.value

    def requested(self, request: Request) -> bool:
        """Whether this request was in `control/` at the last poll."""
        return self._requests[request == "stop"]

    @property
    def step(self) -> int:
        """The last finished optimizer step."""
        return (self._last.step if self._last else 0) or self.status.step

    @property
    def stage(self) -> str:
        """The stage of the last step; before the first, of the status."""
        return (self._last.stage if self._last else "") or self.status.stage

    @property
    def stages(self) -> dict[str, int]:
        """Planned steps of each stage, in order; empty while unknown."""
        return self.info.steps

    @property
    def total(self) -> int:
        """Planned steps of the run; 0 while unknown."""
        return sum(self.stages.values()) or self.status.steps

    @property
    def headlines(self) -> dict[str, str]:
        """Titles of the metrics that people look at first, by metric; in runs that do not name them, all that were
        validated."""
        validated = [name.removeprefix("validation/") for name in self.named("validation/")]
        return self.info.headlines or {name: name for name in validated if name != "reward"}

    def weights(self) -> dict[str, float]:
        """The weight of each reward signal in the current stage: the newest one where weights change."""
        stage = self.settings.stages.get(self.stage)
        if stage is None:
            return {}
        found = {**dict.fromkeys(stage.rewards_end, 0.0), **stage.rewards}
        for name in found:
            if (now := self.in_last_step(f"rewards/{name}/weight")) is not None:
                found[name] = now
        return found

    def recent(self, metric: str, most: int) -> list[float]:
        """The newest values of a metric in the current stage, at most `most`, oldest first."""
        since = self.stage_began.get(self.stage, 0)
        return self.series[metric].recent(most, since) if metric in self.series else []

    def last(self, metric: str) -> float | None:
        """The newest value of a metric."""
        return self.series[metric].last if metric in self.series else None

    def in_last_step(self, metric: str) -> float | None:
        """The value of a metric in the last step; None if the step has none."""
        value = self.row.get(metric)
        if isinstance(value, bool) or not isinstance(value, int | float):
            return None
        return float(value) if abs(value) < LARGEST else None

    def named(self, prefix: str, suffix: str = "") -> list[str]:
        """The metrics with this beginning and end, in order of their first appearance."""
        return [name for name in self.series if name.startswith(prefix) and name.endswith(suffix)]

    def workers(self) -> list[str]:
        """The ids of all workers, in order of their first appearance."""
        known = [name.removeprefix("workers/").rpartition("/")[0] for name in self.named("workers/")]
        return list(dict.fromkeys([*known, *self.worker_events]))

    @property
    def results(self) -> dict[str, Summary]:
        """The run's own evaluations, of the start and after each stage; empty summaries for those still missing."""
        return {label: document.value for label, document in self._results.items()}

    @property
    def newest_result(self) -> tuple[str, Summary]:
        """The label and the summary of the newest evaluation that training made; an empty label before the first."""
        found = [(label, summary) for label, summary in self.results.items() if summary.metrics]
        return found[-1] if found else ("", Summary())

    @property
    def tested(self) -> bool:
        """Whether the newest evaluation that training made is that after the last stage."""
        return bool(self.stages) and self.newest_result[0] == [*self.stages][-1]

    def evaluations(self) -> dict[str, Summary]:
        """All finished evaluations in `eval/`, by the name of their folder; empty summaries for damaged ones."""
        return {path.parent.name: read_leniently(path) for path in sorted(self.paths.evaluations.glob(f"*/{SUMMARY}"))}

    def _forget_metrics(self) -> None:
        self.series, self.row, self.first_step, self.stage_began = {}, {}, 0, {}
        self._last: StepRow | None = None
        self._without_step = 0

    def _forget_events(self) -> None:
        self.events, self.event_rows, self.worker_events = deque(maxlen=EVENTS), deque(maxlen=EVENTS), {}
        self.reused = {}

    def _refresh_results(self) -> bool:
        for label in ("start", *self.stages):
            if label not in self._results:
                self._results[label] = Document(self.paths.stage_evaluation(label) / SUMMARY, Summary)
        changed = [summary.refresh() for summary in self._results.values()]
        return any(changed)

    def _read_logs(self) -> bool:
        """Read the ends of the newest logs again where one has changed."""
        attempts = range(max(1, self.status.attempt - LOGS + 1), self.status.attempt + 1)
        sizes = {}
        for attempt in attempts:
            with suppress(OSError):
                sizes[attempt] = self.paths.log(attempt).stat().st_size
        if sizes == self._log_sizes:
            return False
        self._log_sizes, self.log_lines = sizes, []
        for attempt, size in sizes.items():
            with suppress(OSError), self.paths.log(attempt).open("rb") as file:
                file.seek(max(0, size - LOG_BYTES))
                text = file.read(LOG_BYTES).decode("utf-8", "replace")
                self.log_lines += [(attempt, line) for line in text.splitlines()]
        return True

    def _read_config(self) -> bool:
        try:
            self.config = read_object(self.paths.config)
        except SmolsumError:
            return False
        self.settings = salvage(self.config, RunSettings) or RunSettings()
        return True

    def _read_lines(self) -> int:
        rows = list(self._metrics.read())
        self._take(rows)
        events = list(self._events.read())
        for row in events:
            event = salvage(row, Event) or Event()
            self.events.append(event)
            self.event_rows.append(row)
            if event.worker and event.kind.startswith("worker_"):
                self.worker_events[event.worker] = event
            if event.kind == "stage_reused" and event.stage and event.origin:
                self.reused[event.stage] = event.origin
            if event.kind == "evaluated":
                self.evaluation_s = event.seconds and event.seconds / (event.share or 1.0)
        return len(rows) + len(events)

    def _take(self, rows: Sequence[dict[str, Any]]) -> None:
        """Add lines of metrics to the series metric by metric, so that ten thousand lines take a moment."""
        columns: defaultdict[str, tuple[list[int], list[float | None]]] = defaultdict(lambda: ([], []))
        for row in rows:
            last = salvage(row, StepRow)
            if last is None:
                self._without_step += 1
                continue
            self._last, self.row = last, row
            self.first_step = self.first_step or last.step
            self.stage_began.setdefault(last.stage, last.step)
            for name, value in row.items():
                # by type and not isinstance, for which true is a whole number
                if (
                    type(value) is float
                    or value is None
                    or (type(value) is int and abs(value) < LARGEST and name not in NEVER_DRAWN)
                ):
                    steps, values = columns[name]
                    steps.append(last.step)
                    values.append(value)
        for name, (steps, values) in columns.items():
            self.series.setdefault(name, Series()).extend(steps, values)


def read_run(paths: RunPaths, timeout_s: float = 60.0) -> Run:
    """Return a run read to its end, in at most `timeout_s` seconds."""
    run, until = Run(paths), time.monotonic() + timeout_s
    while run.poll(timeout_s) and run.behind() and time.monotonic() < until:
        pass
    return run


def read_leniently(path: Path) -> Summary:
    """Return what is right in a summary.json; an empty summary for a file that cannot be read."""
    try:
        return salvage(read_object(path), Summary) or Summary()
    except SmolsumError:
        return Summary()


class Tail:
    """The whole lines of a JSON Lines file as they come.

    A last line without its end waits for its end; a line that is not a JSON object is left out, and counted in
    `damaged`. A file that was replaced or cut, as a resumed run does, is read again from its start: `restarts` goes up.
    With `last_bytes`, it is read from the first whole line of its end only.
    """

    def __init__(self, path: Path, last_bytes: int | None = None) -> None:
        self.path = path
        self.restarts = self.damaged = 0
        self._last_bytes = last_bytes
        self._offset = 0
        self._inode = self._size = self._half = 0
        self.written = 0.0
        """when the file was last written, in seconds since 1970"""

    def more(self) -> bool:
        """Whether there may be new lines. Notices a file that was replaced or cut."""
        try:
            stat = self.path.stat()
        except OSError:
            return False
        if self._inode not in (0, stat.st_ino) or stat.st_size < self._offset:
            self.restarts += 1
            self._offset = self._half = self.damaged = 0
        if self._last_bytes is not None and self._offset == 0 and stat.st_size > self._last_bytes:
            self._offset = self._line_start(stat.st_size - self._last_bytes)
        self._inode, self._size, self.written = stat.st_ino, stat.st_size, stat.st_mtime
        return self.unread

    @property
    def unread(self) -> bool:
        """Whether the file had more lines at the last look than were read."""
        return self._size > max(self._offset, self._half)

    @property
    def share(self) -> float:
        """The part of the file that was read, by its size at the last look."""
        return 1.0 if self._size in (0, self._half) else min(self._offset / self._size, 1.0)

    def read(self) -> Iterator[dict[str, Any]]:
        """Yield the objects of at most a chunk of new lines; none where the file cannot be read."""
        if not self.more():
            return
        content = self._next_lines()
        # a last line that is half written is looked at again once it has grown
        self._half = 0 if content else self._size
        self._offset += len(content)
        lines = [line for line in content.split(b"\n") if line.strip()]
        for row in json_objects(lines):
            if row is None:
                self.damaged += 1
            else:
                yield row

    def _line_start(self, place: int) -> int:
        """Where the first line at or after `place` begins, or the byte before `place` if no line begins there."""
        try:
            with self.path.open("rb") as file:
                file.seek(place - 1)
                return place + file.read(CHUNK).find(b"\n")
        except OSError:
            return 0

    def _next_lines(self) -> bytes:
        """Up to a chunk from the offset to the last line end in it, more only for a longer line."""
        try:
            with self.path.open("rb") as file:
                file.seek(self._offset)
                content = file.read(CHUNK)
                while b"\n" not in content and (more := file.read(CHUNK)):
                    content += more
        except OSError:
            return b""
        return content[: content.rfind(b"\n") + 1]


class Document(Generic[R]):
    """A JSON file that its writer replaces, as a record; parsed again only when it changed."""

    def __init__(self, path: Path, kind: type[R]) -> None:
        self.path, self.value = path, kind()
        self._seen: tuple[int, int, int] | None = None

    def refresh(self) -> bool:
        """Read the file again if it changed; whether it did. The last readable value stays while it is unreadable."""
        try:
            stat = os.stat(self.path)
            seen = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
            if seen == self._seen:
                return False
            value = read_object(self.path)
        except (OSError, SmolsumError):
            return False
        self._seen = seen
        self.value = salvage(value, type(self.value)) or self.value
        return True
