"""The test split before and after training: each example in the first evaluation of a run and in a later one."""

import math
import re
import threading
from collections.abc import Sequence
from contextlib import suppress

from smolsum.runs.completion_groups import clean
from smolsum.runs.evaluation_records import GENERATIONS, SCORES
from smolsum.runs.evaluation_samples import EvaluationSamples, read_samples, texts_of
from smolsum.runs.reader import Run
from smolsum.runs.sample_errors import error_size
from smolsum.watch.snapshot import BeforeAfter, ViewOptions

Version = tuple[str, int, int]
"""of an evaluation: its name, and the sizes of its files, in bytes"""


class PairReader:
    """Reads evaluations in a thread, each once."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._known: dict[str, tuple[Version, EvaluationSamples]] = {}
        self._thread: threading.Thread | None = None
        self._order: tuple[tuple[object, ...], list[str]] | None = None

    @property
    def running(self) -> bool:
        """Whether a file is being read."""
        return self._thread is not None and self._thread.is_alive()

    def read(self, options: ViewOptions, wait_s: float) -> BeforeAfter:
        """Return the first evaluation next to the chosen later one, or alone before there is one, as far as they are
        read after `wait_s` seconds."""
        own, names = self._names()
        if not names:
            return _nothing("no evaluation has completions: training evaluates at its start and after each stage")
        first, rest = names[0], names[1:] or names  # with one alone, that
        newest = max((place for place, name in enumerate(rest) if name in own), default=len(rest) - 1)
        later = rest[newest if options.later < 0 else min(options.later, len(rest) - 1)]
        stale = [
            name for name in (first, later) if name not in self._known or self._known[name][0] != self._version(name)
        ]
        if stale and not self.running:
            self._thread = threading.Thread(target=self._load, args=(stale,), name="smolsum-pairs", daemon=True)
            self._thread.start()
            self._thread.join(wait_s)
        if first not in self._known or later not in self._known:
            return _nothing(f"reading {' and '.join(dict.fromkeys((first, later)))}")
        (seen, before), (seen_later, after) = self._known[first], self._known[later]
        if not any(name in after.samples for name in before.samples):
            return _nothing(f"{first} and {later} have no example in common", rest)
        key = (seen, seen_later, options.sort, options.backwards, options.prompt)
        if self._order is None or self._order[0] != key:
            self._order = key, self._sorted(before, after, options)
        return BeforeAfter(before, after, self._order[1], rest)

    def _names(self) -> tuple[list[str], list[str]]:
        """The evaluations that training makes, and all that have completions: those first, in order."""
        paths = self._run.paths
        own = [paths.stage_evaluation(label).name for label in ("start", *self._run.stages)]
        others = sorted(path.name for path in paths.evaluations.glob("*") if path.name not in own)
        return own, [name for name in (*own, *others) if texts_of(paths.evaluations / name)]

    def _version(self, name: str) -> Version:
        files = (self._run.paths.evaluations / name / file for file in (GENERATIONS, SCORES))
        sizes = [path.stat().st_size if path.is_file() else 0 for path in files]
        return name, sizes[0], sizes[1]

    def _load(self, names: list[str]) -> None:
        for name in names:
            version = self._version(name)
            self._known[name] = version, read_samples(self._run.paths.evaluations / name)

    def _sorted(self, before: EvaluationSamples, after: EvaluationSamples, options: ViewOptions) -> list[str]:
        """The examples of both: in the order of the data, or by the length or what is wrong after training, or by the
        change of a measure; the greatest first, or the reverse, what is missing last."""
        common = [name for name in before.samples if name in after.samples]
        if options.prompt:  # the one that was searched for comes first
            common.sort(key=lambda name: not is_meant(name, options.prompt))
        sort, settings = options.sort, self._run.settings
        if sort not in BeforeAfter(before, after, (), ()).sort_keys or sort == "sample":
            return common[:: -1 if options.backwards else 1]

        def key(name: str) -> float:
            if sort == "tokens":
                value: float | None = after.tokens[name]
            elif sort == "error":
                value = error_size(after.samples[name], settings, after.tokens[name])
            else:
                value = change_of(before, after, name, sort)
            return math.inf if value is None else value if options.backwards else -value

        return sorted(common, key=key)


def is_meant(example: str, query: str) -> bool:
    """Return whether a search names an example: by its id, or by the number that the id ends with (17: test-0017)."""
    number = re.fullmatch(r"(?:.*\D)?0*(\d+)", example)
    return example == query or (number is not None and query.lstrip("0") == number[1].lstrip("0") and query.isdigit())


def has_example(run: Run, query: str) -> bool:
    """Return whether a search names an example of the first evaluation that has completions."""
    folder = run.paths.stage_evaluation("start")
    with suppress(OSError):
        ids = re.findall(rb'"id": ?"([^"]*)"', (folder / GENERATIONS).read_bytes()) if query.isprintable() else []
        return any(is_meant(name.decode(errors="replace"), query) for name in ids)
    return False


def headlines_of(run: Run, metrics: Sequence[str], sort: str = "") -> list[str]:
    """Return the measures of an example that the task puts first, after the one that examples are sorted by."""
    known = [name for name in metrics if name != "tokens"]
    short = [name if name in known else name.rpartition("/")[2] for name in run.headlines]
    return list(dict.fromkeys(name for name in (sort, *short) if name in known))


def title_of(run: Run, metric: str) -> str:
    """Return the title that the task gives to a measure of an example; its name where it has none."""
    return next(
        (clean(title) for name, title in run.headlines.items() if metric in (name, name.rpartition("/")[2])), metric
    )


def change_of(before: EvaluationSamples, after: EvaluationSamples, name: str, metric: str) -> float | None:
    """Return by how much a measure of an example grew; None where one of the values is missing."""
    old, new = (one.samples[name].rewards.get(metric) for one in (before, after))
    return None if old is None or new is None else new - old


def _nothing(missing: str, names: list[str] | None = None) -> BeforeAfter:
    none = EvaluationSamples("")
    return BeforeAfter(none, none, (), names or (), missing)
