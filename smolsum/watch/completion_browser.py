"""The completions browser: what it lists, read from the disk; and the texts of the selected sample."""

import re
import time
from collections.abc import Mapping
from dataclasses import replace

from msgspec import structs
from rich.text import Text

from smolsum.runs.completion_groups import Group, changes, clean, first_group, ordered, read_groups
from smolsum.runs.evaluation_samples import measures_of
from smolsum.runs.reader import Run
from smolsum.runs.records import SampledRollout
from smolsum.runs.sample_errors import asked_and_got, sample_errors
from smolsum.runs.sample_scan import Scan, Source, Wanted
from smolsum.watch.before_after import PairReader, headlines_of
from smolsum.watch.pane_text import DIM, GREEN, ORANGE, RED, SKY, Pane, flowed, number, wrapped
from smolsum.watch.snapshot import Found, Snapshot, ViewOptions

MIN_REWARDS = 3
"""Rewards from which the texts repeat them with their full names."""
CHANGE_STYLE = {"same": "", "gone": f"strike {RED}", "new": f"underline {GREEN}"}
CHANGE_MARKS = {"same": ("", ""), "gone": ("[-", "-]"), "new": ("{+", "+}")}
WAIT_S = 0.05
"""Seconds that a page waits for a search that may end at once."""
FOLLOW_S = 5.0
"""Seconds after which a search looks for what the run has gained."""
NEAR, MOST_NEAR = 60, 400
"""Hits on either side of the bar that are read for the table, and those that stay in memory."""
MOST_CHARACTERS = 100_000
"""Characters of a text that are laid out."""
MOST_COMPARED = 20_000
"""Characters of two texts that are compared word by word."""
CONTEXT = 2
"""Lines of a text above its first hit."""


def group_of(snapshot: Snapshot) -> Group | None:
    """Return the selected group."""
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
    return kept[min(options.row, len(kept) - 1)]


def texts(snapshot: Snapshot, width: int, height: int) -> Pane:
    """Return completion, references and prompt of the selected rollout, from the scrolled line on."""
    group, sample, options = group_of(snapshot), sample_of(snapshot), snapshot.options
    if group is None or sample is None:
        gone = snapshot.selected is not None
        return Pane("text", "", (Text("its file is there no more", style=ORANGE),) if gone else ())
    title, completion = "COMPLETION", highlighted(sample.text, options.query, width)
    if options.difference and (first := snapshot.first) is not None:
        title += f"  changed since step {first.step}"
        before = first.samples[min(sample.number, len(first.samples) - 1)]
        completion = difference(before.text, sample.text, width)
    elif options.difference:
        title += "  no earlier rollouts of this prompt"
    lines = [Text(title, style=f"bold {SKY}"), *_rewards(snapshot, group, sample, width), *completion]
    for place, reference in enumerate(group.references):
        more = f" {place + 1}" if len(group.references) > 1 else ""
        lines += [Text(), Text(f"REFERENCE{more}", style=f"bold {SKY}"), *flowed(reference, width)]
    lines += [Text(), Text("PROMPT", style=f"bold {SKY}")]
    if group.post:
        lines += flowed(group.post, width)
    else:
        lines.append(Text(" an evaluation does not keep its prompts", style=DIM))
    where = f" of {group.evaluation or f'step {group.step}'}, {group.prompt_id}" if snapshot.found else ""
    note = f"{asked_and_got(sample, snapshot.run.settings)}{', cut' if sample.truncated else ''}"
    found = first_hit(lines) if options.listing == "hits" else 0
    return scrolled(f"rollout {sample.number + 1}{where}", note, lines, height, options.scroll, found)


def scrolled(title: str, note: str, lines: list[Text], height: int, scroll: int, first: int = 0) -> Pane:
    """Return a pane of the lines from the scrolled one on, counted from where line `first` is in view."""
    least = max(first - CONTEXT, 0) if first >= height else 0
    start = max(min(least + scroll, len(lines) - height), 0)
    if len(lines) > height:
        note += f"  {start + 1}-{min(start + height, len(lines))} of {len(lines)}"
    return Pane(title, note, tuple(lines[start : start + height]))


def first_hit(lines: list[Text]) -> int:
    """Return the first line with a highlighted text; 0 without any."""
    return next((place for place, line in enumerate(lines) if any("reverse" in str(s.style) for s in line.spans)), 0)


def highlighted(text: str, query: str, width: int) -> list[Text]:
    """Return a text in lines, with what is searched for highlighted, also where a line breaks in it."""
    found = Text(text[:MOST_CHARACTERS])
    if query:
        found.highlight_regex(re.compile(re.escape(query), re.IGNORECASE), f"bold reverse {ORANGE}")
    lines = flowed(found, width)
    more = len(text) - MOST_CHARACTERS
    return [*lines, Text(f" {more} more characters (c copies all)", style=DIM)] if more > 0 else lines


def difference(before: str, after: str, width: int) -> list[Text]:
    """Return the words of both texts, with those marked that went and came."""
    text = Text()
    for kind, words in changes(before[:MOST_COMPARED], after[:MOST_COMPARED]):
        opening, closing = CHANGE_MARKS[kind]
        text.append(f"{opening}{words}{closing}", style=CHANGE_STYLE[kind]).append(" ")
    return flowed(text, width)


def _rewards(snapshot: Snapshot, group: Group, sample: SampledRollout, width: int) -> list[Text]:
    """What is wrong with the sample, and every reward with its full name, if there are too many for the table."""
    errors = sample_errors(sample, snapshot.run.settings)
    lines = wrapped(", ".join(errors), width - 1, ORANGE, " ") if errors and snapshot.options.sort == "error" else []
    if len(sample.rewards) >= MIN_REWARDS or (snapshot.found and sample.rewards):
        names = list(sample.rewards)
        if group.evaluation:
            names = headlines_of(snapshot.run, names)
        parts = "  ".join(f"{name} {number(sample.rewards[name])}" for name in names)
        total = "" if sample.reward is None else f"  total {number(sample.reward)}"
        lines += wrapped(f"{parts}{total}", width - 1, DIM, " ")
    return [*lines, Text()] if lines else []


class Browser:
    """What the browser shows, read once: the completions of a step, with the first rollouts of the same prompt to
    compare with; what a search found; two evaluations. Searches go on in threads."""

    def __init__(self, run: Run, others: tuple[Run, ...]) -> None:
        self._run, self._others = run, others
        self._groups: tuple[Group, ...] = ()
        self._step: int | None = None
        self._first: Group | None = None
        self._first_of: Group | None = None
        self._scans: dict[Wanted, Scan] = {}
        self._order: tuple[tuple[object, ...], Found] | None = None
        self._near: dict[tuple[Wanted, int], SampledRollout | None] = {}
        self._measures: tuple[str, Mapping[str, Mapping[str, float | None]]] = ("", {})
        self._tests = PairReader(run)
        self._last: Snapshot | None = None
        self._drawn: object = None

    def snapshot(self, options: ViewOptions) -> Snapshot:
        """Return this moment of the view without reading the disk."""
        first = self._first if options.difference else None
        now = Snapshot(self._run, options, self._others, self._groups, first)
        if self._last is None or self._last.options.listing != options.listing or options.listing == "step":
            return now
        return replace(
            now, groups=self._last.groups, found=self._last.found, selected=self._last.selected, tests=self._last.tests
        )

    def load(self, options: ViewOptions) -> Snapshot:
        """Return this moment of the view with what the browser lists."""
        self._drawn = self._progress()
        self._search(options)
        found = tests = selected = None
        if options.listing in ("hits", "time"):
            found = self._found(options)
            groups, selected = self._selected(found, options)
        else:
            groups = self._read_step(options)
        if options.listing == "tests":
            tests = self._tests.read(options, WAIT_S)
        snapshot = Snapshot(self._run, options, self._others, groups, found=found, selected=selected, tests=tests)
        group = group_of(snapshot)
        if options.difference and group is not None and group is not self._first_of:
            self._first_of = group
            self._first = None if group.evaluation else first_group(self._run.paths, group, self._run.first_step)
        self._last = replace(snapshot, first=self._first if options.difference else None)
        return self._last

    def moved(self) -> bool:
        """Whether a search or a reader has come further since the last `load`."""
        return self._progress() != self._drawn

    def stop(self) -> bool:
        """End the searches that are under way; whether there was one."""
        running = [scan for scan in self._scans.values() if scan.running]
        for scan in running:
            scan.cancel()
        return bool(running)

    def _progress(self) -> object:
        scans = [(scan.done, scan.hits.count, scan.running and not scan.complete) for scan in self._scans.values()]
        return scans, self._tests.running

    def _read_step(self, options: ViewOptions) -> tuple[Group, ...]:
        step = options.step if options.step is not None else self._run.step
        if step != self._step:
            groups = read_groups(self._run.paths, step)
            if groups or options.step is not None:  # while the newest step is being written, the one before stays
                self._groups, self._step = groups, step
        return self._groups

    def _search(self, options: ViewOptions) -> None:
        """Start the searches that these options need, end the others, and let complete ones follow the run."""
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
        one = Wanted(prompt_id=options.prompt) if options.listing == "time" else Wanted(text=options.query)
        scan = self._scans[one]
        size, natural = len(scan.hits), options.sort == "sample" or options.listing == "time"
        key = (one, options.sort, options.backwards, scan.running)
        known = self._order
        # sorting 200,000 hits takes a moment: while a search goes on, only each time that it has found a third more
        if known is None or known[0] != key or size > len(known[1].order) * (1 if natural else 4 / 3):
            if options.listing == "time":
                known = key, Found(scan, range(size), scan.hits.spans())
            else:
                known = key, Found(scan, scan.hits.order(options.sort, backwards=options.backwards))
            self._order = known
        found = known[1]
        if options.listing == "time":
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
            source = hits.source(span[0])
            return self._groups_of(source, found.scan, span), (options.prompt, None)
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
        if self._measures[0] != source:
            self._measures = source, measures_of(self._run.paths.evaluations / source)
        samples = [sample for hit in hits if (sample := scan.sample(hit)) is not None]
        if not samples:
            return ()
        first = samples[0]
        measured = self._measures[1].get(first.prompt_id, {})
        samples[0] = structs.replace(first, rewards={clean(name): value for name, value in measured.items()})
        return (Group(-1, clean(first.prompt_id), "", (), tuple(samples), evaluation=source),)


def row_of(options: ViewOptions, rows: int) -> int:
    """Return the row under the bar."""
    bar = options.hit if options.listing == "hits" else options.bar
    return rows - 1 if bar < 0 else min(bar, rows - 1)
