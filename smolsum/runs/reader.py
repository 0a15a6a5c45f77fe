"""What is known of a run, kept up to date by reading what its directory gained since the last look.

What a file says, where it says it in the right form: a run may be damaged, or written by something else.

Files that grow, read from where the last look ended.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path

import tomli

from smolsum.runs.control import Request, asked
from smolsum.runs.paths import RunPaths
from smolsum.runs.records import SUMMARY
from smolsum.runs.series import LARGEST, Series


def number(value: object) -> float | None:
    """The value as a float, None if it is no number that can be reckoned with: NaN, an infinity, true."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if abs(value) < LARGEST and not math.isnan(value) else None


def whole(value: object) -> int | None:
    """The value if it is an integer that counts something, else None."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53 else None


def text(value: object) -> str:
    """The value if it is a text, else an empty one."""
    return value if isinstance(value, str) else ""


def table(value: object) -> Mapping[str, object]:
    """The value if it has keys, else nothing."""
    return value if isinstance(value, Mapping) else {}


def items(value: object) -> Sequence[object]:
    """The value if it is a list, else nothing."""
    return value if isinstance(value, list) else ()


CHUNK = 1 << 20


class Tail:
    """The whole lines of a JSON Lines file as they come.

    A last line without its end waits for its end; a line that is no JSON object is passed over. A file that
    was replaced or cut (a resumed run takes steps back) is read again from its start: `restarts` goes up.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.restarts = 0
        self._offset = 0
        self._inode = self._size = self._half = 0

    def more(self) -> bool:
        """Whether there may be new lines; notices a file that began anew."""
        try:
            stat = self.path.stat()
        except OSError:
            return False
        if self._inode not in (0, stat.st_ino) or stat.st_size < self._offset:
            self.restarts += 1
            self._offset = self._half = 0
        self._inode, self._size = stat.st_ino, stat.st_size
        return stat.st_size > max(self._offset, self._half)

    def read(self) -> Iterator[dict[str, object]]:
        """Yields the objects of at most a chunk of new lines; none where the file cannot be read."""
        if not self.more():
            return
        content = self._next_lines()
        # a last line that is half written is looked at again once it has grown
        self._half = 0 if content else self._size
        self._offset += len(content)
        for line in content.splitlines():
            try:
                row = json.loads(line)
            except (ValueError, RecursionError):
                row = None
            if isinstance(row, dict):
                yield row

    def _next_lines(self) -> bytes:
        """Up to a chunk from the offset to the last line end in it, more only for a line that is longer."""
        try:
            with self.path.open("rb") as file:
                file.seek(self._offset)
                content = file.read(CHUNK)
                while b"\n" not in content and (more := file.read(CHUNK)):
                    content += more
        except OSError:
            return b""
        return content[: content.rfind(b"\n") + 1]


class Document:
    """A JSON file that its writer replaces; parsed again only when it changed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.value: dict[str, object] = {}
        self._seen: tuple[int, int, int] | None = None

    def refresh(self) -> bool:
        """Whether it changed; the last readable value is kept while it is gone or unreadable."""
        try:
            stat = os.stat(self.path)
            seen = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
            if seen == self._seen:
                return False
            value = json.loads(self.path.read_bytes())
        except (OSError, ValueError, RecursionError):
            return False
        self._seen = seen
        if not isinstance(value, dict):
            return False
        self.value = value
        return True


EVENTS = 200
NEVER_DRAWN = ("schema_version", "step", "stage_step")


class Run:
    """A run directory as seen by a reader: its numbers by metric, its newest events, what it says of itself.

    Nothing here is written, and nothing that is missing, half written or gone is an error: it is not known yet, or what
    was last known stays.
    """

    def __init__(self, paths: RunPaths) -> None:
        self.paths = paths
        self.status = Document(paths.status)
        self.info = Document(paths.info)
        self.config: dict[str, object] = {}
        self.gone = False
        self._metrics = Tail(paths.metrics)
        self._events = Tail(paths.events)
        self._restarts = (0, 0)
        self._asked: tuple[bool, bool] = (False, False)
        self.results: dict[str, Document] = {}
        self._forget_metrics()
        self._forget_events()

    def _forget_metrics(self) -> None:
        self.series: dict[str, Series] = {}
        self.row: dict[str, object] = {}
        self.first_step = 0
        self.stage_began: dict[str, int] = {}

    def _forget_events(self) -> None:
        self.events: deque[dict[str, object]] = deque(maxlen=EVENTS)
        self.worker_events: dict[str, dict[str, object]] = {}

    def poll(self, budget_s: float = 0.2) -> bool:
        """Reads what is new, for about `budget_s` seconds at most; whether anything changed.

        `behind` then says whether there is more.
        """
        until = time.monotonic() + budget_s
        gone = not self.paths.root.is_dir()
        changed = gone != self.gone
        self.gone = gone
        if gone:
            return changed
        requests = (asked(self.paths, "pause"), asked(self.paths, "stop"))
        changed |= requests != self._asked
        self._asked = requests
        changed |= self.status.refresh() | self.info.refresh() | self._refresh_results()
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

    def behind(self) -> bool:
        """Whether the files hold more than was read."""
        return any([self._metrics.more(), self._events.more()])

    def asks(self, request: Request) -> bool:
        """Whether somebody asked the run for this when it was last looked at."""
        return self._asked[request == "stop"]

    @property
    def step(self) -> int:
        """The last step that was finished."""
        return whole(self.row.get("step")) or whole(self.status.value.get("step")) or 0

    @property
    def stage(self) -> str:
        """The stage of the last step; of what the status tells before the first."""
        return text(self.row.get("stage")) or text(self.status.value.get("stage"))

    @property
    def stages(self) -> dict[str, int]:
        """Planned steps of each stage, in order; empty while unknown."""
        return {name: whole(steps) or 0 for name, steps in table(self.info.value.get("steps")).items()}

    @property
    def total(self) -> int:
        """Planned steps of the run; 0 while unknown."""
        return sum(self.stages.values()) or whole(self.status.value.get("steps")) or 0

    @property
    def headlines(self) -> dict[str, str]:
        """What people look at first of this run's task, by metric, with their titles; in runs that do not say all
        that its validations measure."""
        told = {name: text(title) for name, title in table(self.info.value.get("headlines")).items()}
        measured = [name.removeprefix("validation/") for name in self.named("validation/")]
        return told or {name: name for name in measured if name != "reward"}

    def setting(self, section: str, key: str) -> object:
        """A value of config.toml, of whatever kind somebody wrote there: `typed` says what it can be used as."""
        return table(self.config.get(section)).get(key)

    def weights(self) -> dict[str, float]:
        """The weight of each signal in the stage at hand."""
        rewards = table(table(table(self.config.get("stages")).get(self.stage)).get("rewards"))
        return {name: number(weight) or 0.0 for name, weight in rewards.items()}

    def recent(self, metric: str, most: int) -> list[float]:
        """The newest values of a metric in the stage at hand, at most `most`, oldest first."""
        since = self.stage_began.get(self.stage, 0)
        return self.series[metric].recent(most, since) if metric in self.series else []

    def last(self, metric: str) -> float | None:
        """The newest value of a metric."""
        return self.series[metric].last if metric in self.series else None

    def named(self, prefix: str, suffix: str = "") -> list[str]:
        """The metrics with this beginning and end, in order of their first appearance."""
        return [name for name in self.series if name.startswith(prefix) and name.endswith(suffix)]

    def workers(self) -> list[str]:
        """The ids of all workers that the run told of, in order of their first appearance."""
        told = [name.removeprefix("workers/").rpartition("/")[0] for name in self.named("workers/")]
        return list(dict.fromkeys([*told, *self.worker_events]))

    def _refresh_results(self) -> bool:
        """Looks for the evaluations of the start and of each stage, as far as they are known and there."""
        for label in ("start", *self.stages):
            if label not in self.results:
                self.results[label] = Document(self.paths.stage_evaluation(label) / SUMMARY)
        changed = [summary.refresh() for summary in self.results.values()]
        return any(changed)

    def _read_config(self) -> bool:
        try:
            self.config = tomli.loads(self.paths.config.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            return False
        return True

    def _read_lines(self) -> int:
        lines = 0
        rows = list(self._metrics.read())
        lines += len(rows)
        self._take(rows)
        for event in self._events.read():
            lines += 1
            self.events.append(event)
            if event.get("worker") and str(event.get("kind")).startswith("worker_"):
                self.worker_events[str(event["worker"])] = event
        return lines

    def _take(self, rows: Sequence[dict[str, object]]) -> None:
        """Adds the lines of steps to the series, metric by metric: ten thousand lines are to be read in a moment."""
        columns: defaultdict[str, tuple[list[int], list[float | None]]] = defaultdict(lambda: ([], []))
        for row in rows:
            step = whole(row.get("step"))
            if step is None:
                continue
            self.row = row
            self.first_step = self.first_step or step
            self.stage_began.setdefault(str(row.get("stage")), step)
            for name, value in row.items():
                if (
                    type(value) is float
                    or value is None
                    or (type(value) is int and abs(value) < LARGEST and name not in NEVER_DRAWN)
                ):
                    steps, values = columns[name]
                    steps.append(step)
                    values.append(value)
        for name, (steps, values) in columns.items():
            self.series.setdefault(name, Series()).extend(steps, values)


def seconds_since(stamp: object, now: datetime) -> float | None:
    """Seconds from a time as the journal writes it (ISO 8601, UTC) to `now`; None for anything else."""
    if not isinstance(stamp, str):
        return None
    try:
        return max(0.0, (now - datetime.fromisoformat(stamp)).total_seconds())
    except (ValueError, TypeError):
        return None


def process_lives(pid: object) -> bool:
    """Whether a process of this machine has this number."""
    if not isinstance(pid, int) or pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):  # no process can have a number that large
        return False
    except OSError:
        return True
    return not _defunct(pid)


def _defunct(pid: int) -> bool:
    """Whether a process has ended and only waits to be asked how, which in a container perhaps nobody does."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[:1] == [b"Z"]
    except OSError:
        return False
