"""A search through all samples of a run, in a thread that can be cancelled: the rollouts of every step, and the
completions of its evaluations.

Only numbers of what was found stay in memory, about 60 bytes each; a text is read again when it is shown.
"""

import json
import math
import os
import re
import threading
import time
from array import array
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from smolsum.files import LONGEST_LINE, line_blocks
from smolsum.runs.evaluation_records import SUMMARY
from smolsum.runs.paths import RunPaths
from smolsum.runs.reader import Run, read_leniently
from smolsum.runs.records import RunSettings, SampledRollout
from smolsum.runs.samples import Order, as_rollout, as_sample, cleaned, error_size, scores_of, texts_of

MAX_HITS = 200_000
"""Samples whose numbers are kept; further ones are only counted."""
MAX_SIGNALS = 16
"""Signals and measures that hits can be sorted by."""
WAIT_S = 0.05
"""Seconds that a page waits for a search or a file that may end at once."""
FOLLOW_S = 5.0
"""Seconds after which a search looks for what the run has gained."""
GROWN = 4 / 3
"""Growth of the hits after which they are sorted anew, as sorting 200,000 takes a moment."""
Source = int | str
"""Where a sample is from: a step of training, or the folder of an evaluation."""


@dataclass(frozen=True)
class Wanted:
    """What a scan looks for: a text in any case, or else all samples of a prompt. A text that is the id of a prompt, or
    the number at its end, finds its samples too."""

    text: str = ""
    prompt_id: str = ""

    def fits(self, sample: SampledRollout) -> bool:
        """Whether it is such a sample."""
        if self.prompt_id:
            return sample.prompt_id == self.prompt_id
        numbered = len(self.text) > 1 and self.text[-1].isdigit()  # 0017 finds test-0017
        of_prompt = sample.prompt_id == self.text or (numbered and sample.prompt_id.endswith(self.text))
        return of_prompt or self.text.lower() in sample.text.lower()

    def may_be_in(self, content: str) -> bool:
        """Whether lines of JSON, in lower case, may have such a sample."""
        wanted = self.prompt_id or self.text
        mark = json.dumps(wanted.lower(), ensure_ascii=False)[1:-1]
        # whoever wrote the file may have escaped what is not ASCII
        return mark in content or (not wanted.isascii() and "\\u" in content)


class Hits:
    """The samples that a scan found, in the order of the run: each by a number from 0."""

    def __init__(self) -> None:
        self.count = 0
        """with those above MAX_HITS"""
        self.rewards, self.tokens, self.errors = array("d"), array("l"), array("d")
        self.signals: dict[str, array[float]] = {}
        """by name; a missing value is NaN, also among the rewards"""
        self.sources: list[Source] = []
        self._sources, self._offsets = array("l"), array("q")
        self._places: dict[Source, int] = {}

    def __len__(self) -> int:
        return len(self._offsets)

    def add(self, source: Source, offset: int, sample: SampledRollout, error: float) -> None:
        """Add a sample that begins at an offset of the file of its source."""
        self.count += 1
        if len(self) == MAX_HITS:
            return
        for name in sample.rewards:
            if name not in self.signals and len(self.signals) < MAX_SIGNALS:
                self.signals[name] = array("d", [math.nan]) * len(self)
        for name, column in self.signals.items():
            column.append(_or_nan(sample.rewards.get(name)))
        self.rewards.append(_or_nan(sample.reward))
        self.tokens.append(sample.tokens)
        self.errors.append(error)
        if source not in self._places:
            self._places[source] = len(self.sources)
            self.sources.append(source)
        self._sources.append(self._places[source])
        self._offsets.append(offset)  # the last one: readers in other threads go by its length

    def source(self, hit: int) -> Source:
        """Return where a sample is from."""
        return self.sources[self._sources[hit]]

    def offset(self, hit: int) -> int:
        """Return the place of a sample in the file of its source, in bytes."""
        return self._offsets[hit]

    def sort_keys(self) -> list[str]:
        """Return what `order` can sort by."""
        return ["sample", "reward", *self.signals, "tokens", "error"]

    def order(self, sort: str, *, backwards: bool = False) -> Sequence[int]:
        """Return the hits sorted: `sample` in the order of the run, all else from the greatest to the least; backwards
        from the end, or from the least. Missing values are last."""
        hits = range(len(self))
        column, sign = self.column(sort), 1 if backwards else -1
        if column is None:
            return hits[::-1] if backwards else hits
        return sorted(hits, key=lambda hit: math.inf if (value := column[hit]) != value else sign * value)

    def column(self, name: str) -> Sequence[float] | None:
        """Return the numbers of a column by hit, with NaN for missing ones; None for a name that no column has."""
        fixed: dict[str, Sequence[float]] = {"reward": self.rewards, "tokens": self.tokens, "error": self.errors}
        return fixed.get(name, self.signals.get(name))

    def spans(self) -> list[range]:
        """Return the hits of each source, in the order of the run."""
        found, first = [], 0
        for hit in range(1, len(self) + 1):
            if hit == len(self) or self._sources[hit] != self._sources[first]:
                found.append(range(first, hit))
                first = hit
        return found


class Scan:
    """A search that runs in a thread until `running` is False; `follow` continues it with what a run has
    gained since."""

    def __init__(self, paths: RunPaths, wanted: Wanted, settings: RunSettings) -> None:
        self.paths, self.wanted = paths, wanted
        self.hits = Hits()
        self.done = self.files = 0
        """files that were searched, of how many"""
        self.damaged = 0
        """lines with the text that cannot be read"""
        self.complete = False
        """whether all that there was at the beginning is searched"""
        self.followed = 0.0
        """when the last search began, in seconds of the monotonic clock"""
        self._settings = settings
        self._last_step, self._steps, self._read_to = -1, 0, 0
        self._ends: dict[str, int] = {}
        self._cancelled = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def running(self) -> bool:
        """Whether it is under way."""
        return self._thread is not None and self._thread.is_alive()

    @property
    def cancelled(self) -> bool:
        """Whether it was ended before its end."""
        return self._cancelled.is_set()

    def follow(self, wait_s: float = 0.0) -> None:
        """Search what was not searched yet, unless that is under way or was cancelled; wait that long for its end."""
        if self.running or self.cancelled:
            return
        self.followed = time.monotonic()
        self._thread = threading.Thread(target=self._search, name="smolsum-scan", daemon=True)
        self._thread.start()
        self._thread.join(wait_s)

    def cancel(self) -> None:
        """End the search; what was found stays."""
        self._cancelled.set()

    def sample(self, hit: int) -> SampledRollout | None:
        """Return a hit, read from the disk; None where it cannot be found any more."""
        source = self.hits.source(hit)
        path = _file_of(self.paths, source)
        try:
            with path.open("rb") as file:
                file.seek(self.hits.offset(hit))
                line = file.readline(LONGEST_LINE + 1)
        except OSError:
            return None
        sample = as_sample(line) if isinstance(source, int) else as_rollout(line, {})
        return cleaned(sample) if sample is not None and self.wanted.fits(sample) else None

    def _search(self) -> None:
        steps = [step for step in list_steps(self.paths) if step > self._last_step]
        evaluations = list_evaluations(self.paths)
        self.done, self.files = self._steps, self._steps + len(steps) + len(evaluations)
        for step in steps:
            for offset, line in self._lines(self.paths.completions(step), 0):
                self._take(step, offset, as_sample(line))
            self._last_step = step
            self._steps += 1
            self.done += 1
            if self.cancelled:
                return
        for name in evaluations:
            self._search_evaluation(name)
            self.done += 1
            if self.cancelled:
                return
        self.complete = True

    def _search_evaluation(self, name: str) -> None:
        """Search what an evaluation gained since the last time."""
        folder, path = self.paths.evaluations / name, _file_of(self.paths, name)
        measured: Mapping[str, Mapping[str, float | None]] | None = None
        for offset, line in self._lines(path, self._ends.get(name, 0)):
            if line.endswith(b"\n"):  # else it is still being written
                measured = scores_of(folder) if measured is None else measured
                self._take(name, offset, as_rollout(line, measured))
        self._ends[name] = self._read_to

    def _lines(self, path: Path, begin: int) -> Iterator[tuple[int, bytes]]:
        """The lines that may have what is wanted, each with its offset."""
        self._read_to = begin
        for start, block in line_blocks(path, begin):
            if self.cancelled:
                return
            if block.endswith(b"\n"):
                self._read_to = start + len(block)
            if not block:
                self.damaged += 1
            elif self._has(block):
                offset = start
                for line in block.splitlines(keepends=True):
                    if self._has(line):
                        yield offset, line
                    offset += len(line)

    def _has(self, content: bytes) -> bool:
        return self.wanted.may_be_in(content.decode("utf-8", "replace").lower())

    def _take(self, source: Source, offset: int, sample: SampledRollout | None) -> None:
        if sample is None:
            self.damaged += 1
        elif self.wanted.fits(sample):
            self.hits.add(source, offset, sample, error_size(sample, self._settings))


class Searches:
    """The searches of a view, which follow the run."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._scans: dict[Wanted, Scan] = {}
        self._order: tuple[tuple[object, ...], Sequence[int]] = ((), ())

    def keep(self, *wanted: Wanted) -> None:
        """Begin these searches or let them follow the run, and end all others."""
        for other in [one for one in self._scans if one not in wanted]:
            self._scans.pop(other).cancel()
        for one in wanted:
            scan = self._scans.get(one)
            if scan is None:
                scan = self._scans[one] = Scan(self._run.paths, one, self._run.settings)
                scan.follow(WAIT_S)
            elif time.monotonic() - scan.followed > FOLLOW_S:
                scan.follow()

    def of(self, wanted: Wanted) -> Scan:
        return self._scans[wanted]

    def order(self, wanted: Wanted, order: Order) -> Sequence[int]:
        """Return the hits as they are listed."""
        scan, natural = self._scans[wanted], order.by == "sample"
        key = (wanted, order, scan.running)
        if self._order[0] != key or len(scan.hits) > len(self._order[1]) * (1 if natural else GROWN):
            self._order = key, scan.hits.order(order.by, backwards=order.backwards)
        return self._order[1]

    @property
    def running(self) -> bool:
        return any(scan.running for scan in self._scans.values())

    def stop(self) -> bool:
        """End the searches that are under way; whether there was one."""
        running = [scan for scan in self._scans.values() if scan.running]
        for scan in running:
            scan.cancel()
        return bool(running)


def list_steps(paths: RunPaths) -> list[int]:
    """Return the steps whose rollouts were kept, in order."""
    with suppress(OSError):
        names = (re.fullmatch(r"step-(\d+)\.jsonl", name) for name in os.listdir(paths.completions(0).parent))
        return sorted(int(match[1]) for match in names if match)
    return []


def list_evaluations(paths: RunPaths) -> list[str]:
    """Return the folders of the evaluations with completions, by their step; those under way are last."""
    folders = [path for path in paths.evaluations.glob("*") if texts_of(path)]
    steps = {path.name: read_leniently(path / SUMMARY).step for path in folders}
    return sorted(steps, key=lambda name: (math.inf if steps[name] is None else steps[name], name))


def _file_of(paths: RunPaths, source: Source) -> Path:
    if isinstance(source, int):
        return paths.completions(source)
    folder = paths.evaluations / source
    return texts_of(folder) or folder


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else value
