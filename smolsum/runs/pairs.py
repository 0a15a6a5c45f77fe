"""The test split before and after training: two evaluations of a run, example by example, read in a thread."""

import math
import re
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from smolsum.runs.evaluation_records import GENERATIONS, SCORES
from smolsum.runs.reader import Run
from smolsum.runs.samples import EvaluationSamples, Order, error_size, read_samples, texts_of
from smolsum.runs.search import WAIT_S


@dataclass(frozen=True)
class BeforeAfter:
    """The same examples in two evaluations."""

    before: EvaluationSamples
    after: EvaluationSamples
    examples: Sequence[str]
    """ids, in the order of the list"""
    names: Sequence[str]
    """of all evaluations that can be compared with the first one"""
    missing: str = ""
    """why there is nothing to compare"""

    @property
    def alone(self) -> bool:
        """Whether there is no later evaluation yet."""
        return self.before is self.after

    @property
    def sort_keys(self) -> list[str]:
        return list(dict.fromkeys(["sample", "tokens", *self.after.metrics, "error"]))

    def change(self, example: str, metric: str) -> float | None:
        """Return by how much a measure of an example grew; None where one of the values is missing."""
        old, new = (one.samples[example].rewards.get(metric) for one in (self.before, self.after))
        return None if old is None or new is None else new - old


class PairReader:
    """Reads the evaluations of a run on the test split, each once, and pairs two of them."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._known: dict[str, tuple[tuple[int, int], EvaluationSamples]] = {}
        """by evaluation: bytes of its two files, and its completions"""
        self._thread: threading.Thread | None = None
        self._pair: tuple[tuple[object, ...], BeforeAfter] | None = None

    @property
    def running(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def read(self, later: int, order: Order, wanted: str) -> BeforeAfter:
        """Return the first evaluation next to the later one with this index (-1: the newest of the training), or alone
        before there is one, as far as they are read; an example that is `wanted` comes first."""
        own, names = self._names()
        if not names:
            return _nothing("no evaluation has completions: training evaluates at its start and after each stage")
        first, rest = names[0], names[1:] or names
        newest = max((place for place, name in enumerate(rest) if name in own), default=len(rest) - 1)
        second = rest[newest if later < 0 else min(later, len(rest) - 1)]
        stale = [one for one in (first, second) if one not in self._known or self._known[one][0] != self._version(one)]
        if stale and not self.running:
            self._thread = threading.Thread(target=self._load, args=(stale,), name="smolsum-pairs", daemon=True)
            self._thread.start()
            self._thread.join(WAIT_S)
        if first not in self._known or second not in self._known:
            return _nothing(f"reading {' and '.join(dict.fromkeys((first, second)))}")
        (version, before), (later_version, after) = self._known[first], self._known[second]
        if not any(name in after.samples for name in before.samples):
            return _nothing(f"{first} and {second} have no example in common", rest)
        key = (first, version, second, later_version, order, wanted)
        if self._pair is None or self._pair[0] != key:
            pair = BeforeAfter(before, after, [name for name in before.samples if name in after.samples], rest)
            self._pair = key, self._sorted(pair, order, wanted)
        return self._pair[1]

    def _names(self) -> tuple[list[str], list[str]]:
        """The evaluations that training makes, and all that have completions: those first, in order."""
        paths = self._run.paths
        own = [paths.stage_evaluation(label).name for label in ("start", *self._run.stages)]
        others = sorted(path.name for path in paths.evaluations.glob("*") if path.name not in own)
        return own, [name for name in (*own, *others) if texts_of(paths.evaluations / name)]

    def _version(self, name: str) -> tuple[int, int]:
        files = (self._run.paths.evaluations / name / file for file in (GENERATIONS, SCORES))
        texts, scores = (path.stat().st_size if path.is_file() else 0 for path in files)
        return texts, scores

    def _load(self, names: list[str]) -> None:
        for name in names:
            version = self._version(name)  # before the files are read: what comes meanwhile makes this stale
            self._known[name] = version, read_samples(self._run.paths.evaluations / name)

    def _sorted(self, pair: BeforeAfter, order: Order, wanted: str) -> BeforeAfter:
        """The examples in the order of the data, or by the length or what is wrong after training, or by the change of
        a measure; the greatest first, or the reverse, what is missing last."""
        after, settings = pair.after, self._run.settings
        examples = sorted(pair.examples, key=lambda name: bool(wanted) and not is_meant(name, wanted))

        def key(name: str) -> float:
            if order.by == "tokens":
                value: float | None = after.tokens[name]
            elif order.by == "error":
                value = error_size(after.samples[name], settings, after.tokens[name])
            else:
                value = pair.change(name, order.by)
            return math.inf if value is None else value if order.backwards else -value

        if order.by in pair.sort_keys[1:]:
            examples.sort(key=key)
        elif order.backwards:
            examples.reverse()
        return BeforeAfter(pair.before, after, examples, pair.names)


def _nothing(missing: str, names: Sequence[str] = ()) -> BeforeAfter:
    none = EvaluationSamples("")
    return BeforeAfter(none, none, (), names, missing)


def is_meant(example: str, query: str) -> bool:
    """Return whether a search names an example: by its id, or by the number that the id ends with: `17`, `#17`,
    `prompt 17` and `example 17` are test-0017."""
    number = re.fullmatch(r"(?:.*\D)?0*(\d+)", example)
    asked = re.fullmatch(r"(?:(?:prompt|example) +|#)?0*(\d+)", query, re.IGNORECASE | re.ASCII)
    return example == query or (number is not None and asked is not None and number[1] == asked[1])


def has_example(run: Run, query: str) -> bool:
    """Return whether a search names an example of the first evaluation that has completions."""
    folder = run.paths.stage_evaluation("start")
    with suppress(OSError):
        ids = re.findall(rb'"id": ?"([^"]*)"', (folder / GENERATIONS).read_bytes()) if query.isprintable() else []
        return any(is_meant(name.decode(errors="replace"), query) for name in ids)
    return False


def headlines(run: Run, metrics: Sequence[str], sort: str = "") -> dict[str, str]:
    """Return the measures of an example that the task puts first, after the one that examples are sorted by, with the
    titles that the task gives them."""
    known = [name for name in metrics if name != "tokens"]
    titles: Mapping[str, str] = {
        name if name in known else name.rpartition("/")[2]: title for name, title in run.headlines.items()
    }
    return {name: titles.get(name, name) for name in dict.fromkeys((sort, *titles)) if name in known}
