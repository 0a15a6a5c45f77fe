"""The completions browser: what it lists, read from the disk, and the moves through it.

It lists the rollouts of a prompt at a step, what a search found, a prompt at all its steps, or the test split before
and after training. A move is a function from a moment of the view to new options.
"""

import math
import re
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from msgspec import structs

from smolsum.runs.evaluation_records import GENERATIONS, SCORES
from smolsum.runs.reader import Run
from smolsum.runs.records import SampledRollout
from smolsum.runs.samples import (
    EvaluationSamples,
    Group,
    clean,
    error_size,
    first_group,
    ordered,
    read_groups,
    read_samples,
    scores_of,
    sort_keys,
    texts_of,
)
from smolsum.runs.search import Scan, Source, Wanted
from smolsum.watch.snapshot import BeforeAfter, Found, Listing, Snapshot, ViewOptions

WAIT_S = 0.05
"""Seconds that a page waits for a search or a file that may end at once."""
FOLLOW_S = 5.0
"""Seconds after which a search looks for what the run has gained."""
NEAR, MOST_NEAR = 60, 400
"""Hits on either side of the bar that are read for the table, and those that stay in memory."""
Version = tuple[int, int]
"""Bytes of an evaluation's two files."""


class Browser:
    """What the browser shows, read once: the completions of a step, with the first rollouts of the same prompt to
    compare with; what a search found; two evaluations. Searches run in threads."""

    def __init__(self, run: Run, others: tuple[Run, ...]) -> None:
        self._run, self._others = run, others
        self._groups: tuple[Group, ...] = ()
        self._step: int | None = None
        self._first: Group | None = None
        self._first_of: Group | None = None
        self._scans: dict[Wanted, Scan] = {}
        self._order: tuple[tuple[object, ...], Found] | None = None
        self._near: dict[tuple[Wanted, int], SampledRollout | None] = {}
        self._scores: tuple[str, Mapping[str, Mapping[str, float | None]]] = ("", {})
        self._tests = PairReader(run)

    def load(self, options: ViewOptions) -> Snapshot:
        """Return this moment of the view with what the browser lists."""
        self._search(options)
        found = tests = selected = None
        if options.listing in ("hits", "time"):
            found = self._found(options)
            groups, selected = self._selected(found, options)
        else:
            groups = self._read_step(options)
        if options.listing == "tests":
            tests = self._tests.read(options)
        snapshot = Snapshot(self._run, options, self._others, groups, found=found, selected=selected, tests=tests)
        group = group_of(snapshot)
        if not options.difference or group is None:
            return snapshot
        if group is not self._first_of:
            self._first_of = group
            self._first = None if group.evaluation else first_group(self._run.paths, group, self._run.first_step)
        return replace(snapshot, first=self._first)

    def progress(self) -> object:
        """Return how far searches and readers are, to be compared with what this was before."""
        scans = [(scan.done, scan.hits.count, scan.running and not scan.complete) for scan in self._scans.values()]
        return scans, self._tests.running

    def stop(self) -> bool:
        """End the searches that are under way; whether there was one."""
        running = [scan for scan in self._scans.values() if scan.running]
        for scan in running:
            scan.cancel()
        return bool(running)

    def _read_step(self, options: ViewOptions) -> tuple[Group, ...]:
        step = options.step if options.step is not None else self._run.step
        if step != self._step:
            groups = read_groups(self._run.paths, step)
            if groups or options.step is not None:  # while the newest step is being written, the one before stays
                self._groups, self._step = groups, step
        return self._groups

    def _search(self, options: ViewOptions) -> None:
        wanted = [Wanted(text=options.query)] if options.query else []
        wanted += [Wanted(prompt_id=options.prompt)] if options.listing == "time" else []
        for other in [one for one in self._scans if one not in wanted]:
            self._scans.pop(other).cancel()
        for one in wanted:
            scan = self._scans.get(one)
            if scan is None:
                scan = self._scans[one] = Scan(self._run.paths, one, self._run.settings)
                scan.follow(WAIT_S)
            elif time.monotonic() - scan.followed > FOLLOW_S:
                scan.follow()

    def _found(self, options: ViewOptions) -> Found:
        over_time = options.listing == "time"
        one = Wanted(prompt_id=options.prompt) if over_time else Wanted(text=options.query)
        scan = self._scans[one]
        size, natural = len(scan.hits), over_time or options.sort == "sample"
        key = (one, options.sort, options.backwards, scan.running)
        known = self._order
        # sorting 200,000 hits takes a moment: while a search runs, only each time that it has found a third more
        if known is None or known[0] != key or size > len(known[1].order) * (1 if natural else 4 / 3):
            order = range(size) if over_time else scan.hits.order(options.sort, backwards=options.backwards)
            known = self._order = key, Found(scan, order, scan.hits.spans() if over_time else ())
        found = known[1]
        if over_time:
            return found
        bar = row_of(options, len(found.order))
        near = found.order[max(bar - NEAR, 0) : bar + NEAR]
        if len(self._near) > MOST_NEAR:
            self._near = {}
        for hit in near:
            if (one, hit) not in self._near:
                self._near[one, hit] = scan.sample(hit)
        return replace(found, near={hit: self._near[one, hit] for hit in near})

    def _selected(self, found: Found, options: ViewOptions) -> tuple[tuple[Group, ...], tuple[str, int | None] | None]:
        """The groups of the source under the bar, and the sample in them."""
        rows = found.spans if options.listing == "time" else found.order
        if not rows:
            return (), None
        hits = found.scan.hits
        if options.listing == "time":
            span = found.spans[row_of(options, len(rows))]
            return self._groups_of(hits.source(span[0]), found.scan, span), (options.prompt, None)
        hit = found.order[row_of(options, len(rows))]
        sample = found.near.get(hit)
        if sample is None:
            return (), ("", None)
        return self._groups_of(hits.source(hit), found.scan, range(hit, hit + 1)), (sample.prompt_id, sample.number)

    def _groups_of(self, source: Source, scan: Scan, hits: range) -> tuple[Group, ...]:
        if isinstance(source, int):
            if source != self._step:
                self._groups, self._step = read_groups(self._run.paths, source), source
            return self._groups
        if self._scores[0] != source:
            self._scores = source, scores_of(self._run.paths.evaluations / source)
        samples = [sample for hit in hits if (sample := scan.sample(hit)) is not None]
        if not samples:
            return ()
        first = samples[0]
        measured = self._scores[1].get(first.prompt_id, {})
        samples[0] = structs.replace(first, rewards={clean(name): value for name, value in measured.items()})
        return (Group(-1, clean(first.prompt_id), "", (), tuple(samples), evaluation=source),)


class PairReader:
    """Reads the test split before and after training, the evaluations of a run, in a thread, each once."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._known: dict[str, tuple[Version, EvaluationSamples]] = {}
        self._thread: threading.Thread | None = None
        self._order: tuple[tuple[object, ...], list[str]] | None = None

    @property
    def running(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def read(self, options: ViewOptions) -> BeforeAfter:
        """Return the first evaluation next to the chosen later one, or alone before there is one, as far as they are
        read."""
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
            self._thread.join(WAIT_S)
        if first not in self._known or later not in self._known:
            return _nothing(f"reading {' and '.join(dict.fromkeys((first, later)))}")
        (version, before), (later_version, after) = self._known[first], self._known[later]
        if not any(name in after.samples for name in before.samples):
            return _nothing(f"{first} and {later} have no example in common", rest)
        key = (first, version, later, later_version, options.sort, options.backwards, options.prompt)
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
        texts, scores = (path.stat().st_size if path.is_file() else 0 for path in files)
        return texts, scores

    def _load(self, names: list[str]) -> None:
        for name in names:
            version = self._version(name)  # before the files are read: what comes meanwhile makes this stale
            self._known[name] = version, read_samples(self._run.paths.evaluations / name)

    def _sorted(self, before: EvaluationSamples, after: EvaluationSamples, options: ViewOptions) -> list[str]:
        """The examples of both: in the order of the data, or by the length or what is wrong after training, or by the
        change of a measure; the greatest first, or the reverse, what is missing last."""
        common = [name for name in before.samples if name in after.samples]
        if options.prompt:  # the one that was searched for comes first
            common.sort(key=lambda name: not _is_meant(name, options.prompt))
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


def _nothing(missing: str, names: Sequence[str] = ()) -> BeforeAfter:
    none = EvaluationSamples("")
    return BeforeAfter(none, none, (), names, missing)


def _is_meant(example: str, query: str) -> bool:
    """Whether a search names an example: by its id, or by the number that the id ends with (17: test-0017)."""
    number = re.fullmatch(r"(?:.*\D)?0*(\d+)", example)
    return example == query or (number is not None and query.lstrip("0") == number[1].lstrip("0") and query.isdigit())


def _has_example(run: Run, query: str) -> bool:
    """Whether a search names an example of the first evaluation that has completions."""
    folder = run.paths.stage_evaluation("start")
    with suppress(OSError):
        ids = re.findall(rb'"id": ?"([^"]*)"', (folder / GENERATIONS).read_bytes()) if query.isprintable() else []
        return any(_is_meant(name.decode(errors="replace"), query) for name in ids)
    return False


def change_of(before: EvaluationSamples, after: EvaluationSamples, name: str, metric: str) -> float | None:
    """Return by how much a measure of an example grew; None where one of the values is missing."""
    old, new = (one.samples[name].rewards.get(metric) for one in (before, after))
    return None if old is None or new is None else new - old


def row_of(options: ViewOptions, rows: int) -> int:
    row = options.rows.get(options.listing, 0)
    return rows - 1 if row < 0 else min(row, rows - 1)


def group_of(snapshot: Snapshot) -> Group | None:
    if snapshot.selected is not None:
        prompt, _ = snapshot.selected
        return next((group for group in snapshot.groups if group.samples[0].prompt_id == prompt), None)
    return snapshot.groups[snapshot.options.group % len(snapshot.groups)] if snapshot.groups else None


def sample_of(snapshot: Snapshot) -> SampledRollout | None:
    """Return the selected rollout."""
    group, options = group_of(snapshot), snapshot.options
    if group is None:
        return None
    if snapshot.selected is not None and snapshot.selected[1] is not None:
        return next((sample for sample in group.samples if sample.number == snapshot.selected[1]), None)
    kept = ordered(group, options.sort, snapshot.run.settings, backwards=options.backwards)
    return kept[min(options.rows.get("step", 0), len(kept) - 1)]


def example_of(snapshot: Snapshot) -> str:
    """Return the id of the example of the test split under the bar; empty for none."""
    order = snapshot.tests.order if snapshot.tests else ()
    return order[row_of(snapshot.options, len(order))] if order else ""


def moved(snapshot: Snapshot, by: int) -> ViewOptions:
    """Return the options with the bar moved by so many rows."""
    return at_row(snapshot, row_of(snapshot.options, max(_count(snapshot), 1)) + by)


def at_row(snapshot: Snapshot, row: int) -> ViewOptions:
    """Return the options with the bar at a row, or at the nearest one."""
    options = snapshot.options
    row = min(max(row, 0), max(_count(snapshot) - 1, 0))
    return replace(options, rows={**options.rows, options.listing: row}, scroll=0)


def _count(snapshot: Snapshot) -> int:
    found, tests, group = snapshot.found, snapshot.tests, group_of(snapshot)
    match snapshot.options.listing:
        case "hits":
            return len(found.order) if found else 0
        case "time":
            return len(found.spans) if found else 0
        case "tests":
            return len(tests.order) if tests else 0
        case "step":
            return len(group.samples) if group else 0


def next_one(snapshot: Snapshot, by: int) -> ViewOptions:
    """Return the options with the next hit of a search, or the next row of another listing; without either, with the
    next prompt of the step."""
    options = snapshot.options
    if options.listing != "step":
        return moved(snapshot, by)
    if options.query:
        hit = max(options.rows.get("hits", 0) + by, 0)
        return replace(options, listing="hits", rows={**options.rows, "hits": hit}, scroll=0)
    return next_prompt(snapshot, by)


def next_prompt(snapshot: Snapshot, by: int) -> ViewOptions:
    """Return the options with another prompt of the step."""
    options, group = snapshot.options, (snapshot.options.group + by) % max(len(snapshot.groups), 1)
    return replace(options, group=group, rows={**options.rows, "step": 0}, scroll=0)


def other_step(snapshot: Snapshot, by: int) -> ViewOptions:
    """Return the options with the completions of another step, after the last one those of the newest as it comes; in a
    list of steps or hits with another row; of the test split with another evaluation."""
    options, run = snapshot.options, snapshot.run
    if options.listing in ("hits", "time"):
        return moved(snapshot, by)
    if options.listing == "tests":
        names = snapshot.tests.names if snapshot.tests else ()
        shown = names.index(snapshot.tests.after.name) if snapshot.tests and snapshot.tests.after.name in names else 0
        return replace(options, later=min(max(shown + by, 0), max(len(names) - 1, 0)), scroll=0)
    step = snapshot.step + by
    newest = None if step >= run.step else max(step, run.first_step)
    return replace(options, step=newest, rows={**options.rows, "step": 0}, scroll=0)


def next_order(snapshot: Snapshot) -> ViewOptions:
    """Return the options with the next column to sort by."""
    options, group = snapshot.options, group_of(snapshot)
    if options.listing == "hits" and snapshot.found:
        keys = snapshot.found.scan.hits.sort_keys()
    elif options.listing == "tests" and snapshot.tests:
        keys = snapshot.tests.sort_keys
    else:
        keys = sort_keys(group) if group else ["sample"]
    place = keys.index(options.sort) if options.sort in keys else -1
    return reordered(options, sort=keys[(place + 1) % len(keys)])


def reordered(options: ViewOptions, **order: str | bool) -> ViewOptions:
    """Return the options with another order and the bar at its top; that of a prompt over time, which keeps its order,
    stays."""
    kept: dict[Listing, int] = {"time": options.rows.get("time", 0)}
    return replace(options, rows=kept, scroll=0, **order)  # type: ignore[arg-type]


def searching(snapshot: Snapshot, query: str) -> ViewOptions:
    """Return the options with the hits of a search; for the number or id of an example of the test split, with that
    before and after training; without a text, with the rollouts of a step."""
    options = replace(snapshot.options, query=query, rows={}, scroll=0)
    if query and _has_example(snapshot.run, query):
        return replace(options, listing="tests", prompt=query, later=-1)
    return replace(options, listing="hits" if query else "step")


def over_time(snapshot: Snapshot) -> ViewOptions:
    """Return the options with all steps at which the shown prompt was sampled, the newest one first under the bar; or
    back."""
    options, sample = snapshot.options, sample_of(snapshot)
    if options.listing == "time":
        return back(snapshot)
    prompt = example_of(snapshot) if options.listing == "tests" else sample.prompt_id if sample else ""
    rows: dict[Listing, int] = {**options.rows, "time": -1}
    return replace(options, listing="time", prompt=prompt, rows=rows, scroll=0) if prompt else options


def test_split(snapshot: Snapshot) -> ViewOptions:
    """Return the options with the test split before and after training, or back."""
    options = snapshot.options
    if options.listing == "tests":
        return back(snapshot)
    return replace(options, listing="tests", prompt="", rows={**options.rows, "tests": 0}, later=-1, scroll=0)


def opened(snapshot: Snapshot) -> ViewOptions:
    """Return the options with the step of the row under the bar, and the sample of that row; a hit in an evaluation is
    listed over time."""
    options, group, sample = snapshot.options, group_of(snapshot), sample_of(snapshot)
    if options.listing not in ("hits", "time") or group is None or sample is None:
        return options
    if group.evaluation:
        return options if options.listing == "time" else over_time(snapshot)
    kept = ordered(group, options.sort, snapshot.run.settings, backwards=options.backwards)
    rows: dict[Listing, int] = {**options.rows, "step": kept.index(sample)}
    return replace(options, listing="step", step=group.step, group=snapshot.groups.index(group), rows=rows, scroll=0)


def back(snapshot: Snapshot) -> ViewOptions:
    """Return the options with what was listed before: after a prompt over time or the test split the hits, if there
    was a search, and then the rollouts of a step."""
    options = snapshot.options
    if options.listing in ("time", "tests") and options.query:
        return replace(options, listing="hits", scroll=0)
    return replace(options, listing="step", query="", scroll=0)


def copied(snapshot: Snapshot) -> tuple[str, str]:
    """Return what the key for copying takes, in words, and its text; empty for nothing."""
    if snapshot.options.listing == "tests":
        tests, name = snapshot.tests, example_of(snapshot)
        return (f"{name} of {tests.after.name}", tests.after.samples[name].text) if tests and name else ("", "")
    sample = sample_of(snapshot)
    return ("the completion", sample.text) if sample else ("", "")
