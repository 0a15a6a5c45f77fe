"""What the page of completions lists: the rollouts of a prompt at a step, the hits of a search, a prompt at all its
steps, the test split before and after training; and the text of what is under the bar, with what was searched for
marked, with its rewards, or with what changed in it."""

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import lru_cache
from statistics import fmean, pstdev
from typing import Any

from msgspec import structs
from rich.text import Text

from smolsum.config.targets import TOKENS
from smolsum.linechart.scale import number
from smolsum.runs.pairs import BeforeAfter, PairReader, headlines
from smolsum.runs.reader import Run
from smolsum.runs.records import SampledRollout
from smolsum.runs.samples import (
    Group,
    Order,
    asked_and_got,
    changes,
    clean,
    first_group,
    ordered,
    read_groups,
    sample_errors,
    scores_of,
    sort_keys,
)
from smolsum.runs.search import MAX_HITS, Scan, Searches, Source, Wanted
from smolsum.watch.formats import DIM, GREEN, ORANGE, RED, SKY, PaneText, Rows, cut, ending

PORTION = 200
"""Hits whose lines are read at once: at first, and when the bar comes near the last one."""
NAME = 12
"""Characters of the name of a prompt or evaluation in a table."""
BEFORE, AROUND = 12, 120
"""Characters of a hit's text before what was searched for, and in all."""
GONE = "its file is there no more"
MIN_REWARDS = 3
"""Rewards from which the texts repeat them with their full names."""
CHANGE_STYLE = {"same": "", "gone": f"strike {RED}", "new": f"underline {GREEN}"}
CHANGE_MARKS = {"same": ("", ""), "gone": ("[-", "-]"), "new": ("{+", "+}")}
MOST_CHARACTERS, MOST_COMPARED = 100_000, 20_000
"""Characters of a text that are shown, and that are compared word by word."""
MARK = f"bold reverse {ORANGE}"
Found = tuple[Group, SampledRollout]
"""A sample, and the rollouts of its prompt at its step, or its evaluation."""


class Samples:
    """All samples of a run, and how the user wants to see them."""

    def __init__(self, run: Run) -> None:
        self.run, self.searches, self.pairs = run, Searches(run), PairReader(run)
        self.query, self.order, self.difference = "", Order(), False
        self._groups: tuple[int, tuple[Group, ...]] = (-1, ())
        self._first: tuple[Group | None, Group | None] = (None, None)
        self._measured = lru_cache(maxsize=1)(lambda name: scores_of(run.paths.evaluations / name))

    def groups(self, step: int) -> tuple[Group, ...]:
        """Return the rollouts of a step by prompt, read once; empty before its file is written."""
        if step != self._groups[0]:
            found = read_groups(self.run.paths, step)
            if not found:
                return ()
            self._groups = step, found
        return self._groups[1]

    def first(self, group: Group) -> Group | None:
        """Return the first rollouts of a prompt."""
        if self._first[0] is not group:
            self._first = group, first_group(self.run.paths, group, self.run.first_step)
        return self._first[1]

    def sorted(self, group: Group) -> list[SampledRollout]:
        """Return the rollouts of a group in the order of the user."""
        return ordered(group, self.order.by, self.run.settings, backwards=self.order.backwards)

    def group_of(self, scan: Scan, span: range) -> Group | None:
        """Return the group that hits of one source belong to; None where their file is gone."""
        samples = [sample for hit in span if (sample := scan.sample(hit)) is not None]
        if not samples:
            return None
        source, first = scan.hits.source(span[0]), samples[0]
        if isinstance(source, int):
            return next((one for one in self.groups(source) if one.samples[0].prompt_id == first.prompt_id), None)
        measured = self._measured(source).get(first.prompt_id, {})
        first = structs.replace(first, rewards={clean(name): value for name, value in measured.items()})
        return Group(-1, clean(first.prompt_id), "", (), (first, *samples[1:]), evaluation=source)


class Listing(ABC):
    """A list of samples, whose rows are `items`."""

    wanted: Wanted | None = None
    """what has to be searched for it"""

    def __init__(self, samples: Samples) -> None:
        self.samples, self.run = samples, samples.run
        self.items: Sequence[Any] = ()
        self.row = 0
        """under the bar when the list was left"""

    @abstractmethod
    def rows(self) -> Rows:
        """Return what there is to list by now; `#` in its title is the place of the bar."""

    @abstractmethod
    def found(self, item: Any) -> Found | None:
        """Return the rollout of an item with its group; None where its file is gone."""

    def selected(self, bar: int) -> Found | None:
        """Return the rollout under the bar with its group; None in an empty list."""
        return self.found(self.items[bar]) if bar < len(self.items) else None

    @property
    def scan(self) -> Scan:
        """The search for it."""
        assert self.wanted is not None
        return self.samples.searches.of(self.wanted)

    def sort_keys(self, bar: int) -> list[str]:
        """Return what the list can be sorted by."""
        found = self.selected(bar)
        return sort_keys(found[0]) if found else ["sample"]

    def texts(self, bar: int) -> list[PaneText]:
        """Return the text of what is under the bar, or two next to each other."""
        found = self.selected(bar)
        if found is None:
            return [PaneText("text", "", (Text(GONE if self.items else "", style=ORANGE),))]
        group, sample = found
        source = group.evaluation or f"step {group.step}"
        named = "" if isinstance(self, Rollouts) else f" of {source}, {group.prompt_id}"
        note = f"{asked_and_got(sample, self.run.settings)}{', cut' if sample.truncated else ''}"
        text = _rollout(self.samples, group, sample, repeated=bool(named))
        return [PaneText(f"rollout {sample.number + 1}{named}", note, (text,))]

    def order_note(self) -> str:
        """Return how the list is sorted."""
        by, backwards = self.samples.order
        natural = by == "sample" and not isinstance(self, Rollouts)
        searched = f"  /{self.samples.query}" if self.samples.query and not isinstance(self, HitList) else ""
        return f"by {'order' if natural else by}{', reversed' * backwards}{searched}"


class Rollouts(Listing):
    """The rollouts of a prompt at a step: tokens, the total, the advantage, every reward and what rewards logged; at
    its end the worker or what is wrong."""

    step: int | None = None
    """None: the newest one"""
    place = 0
    """of the prompt in the step"""
    groups: tuple[Group, ...] = ()

    @property
    def group(self) -> Group | None:
        return self.groups[self.place % len(self.groups)] if self.groups else None

    def found(self, item: SampledRollout) -> Found | None:
        return (self.group, item) if self.group else None

    def rows(self) -> Rows:
        step = self.run.step if self.step is None else self.step
        # while the newest step is being written, the one before stays
        self.groups = self.samples.groups(step) or (self.groups if self.step is None else ())
        group, settings, by = self.group, self.run.settings, self.samples.order.by
        if group is None:
            self.items = ()
            return Rows(f"step {step}", "", [""], [["no completions of this step"]])
        kept = self.items = self.samples.sorted(group)
        several = len({sample.worker for one in self.groups for sample in one.samples}) > 1
        last = "error" if by == "error" else "worker" if several else ""
        signals = list(dict.fromkeys(name for sample in kept for name in sample.rewards))
        extras = list(dict.fromkeys(name for sample in kept for name in sample.extra))
        total = ["total"] if len(signals) != 1 else []
        rows = []
        for sample in kept:
            asked = "" if sample.target is None or settings.unit != TOKENS else f"/{sample.target}"
            cells = [str(sample.number + 1), f"{sample.tokens}{asked}{'…' if sample.truncated else ''}"]
            cells += [number(sample.reward)] if total else []
            cells += ["-" if sample.advantage is None else f"{sample.advantage:+z.2f}"]
            cells += [number(sample.rewards.get(name)) for name in signals]
            cells += [_logged(sample.extra.get(name)) for name in extras]
            ends = {"error": ", ".join(sample_errors(sample, settings)), "worker": sample.worker}
            rows.append([*cells, *([ends[last]] if last else [])])
        rewards = [sample.reward for sample in group.samples if sample.reward is not None]
        mean = f"mean {number(fmean(rewards))}  std {number(pstdev(rewards))}  " if rewards else ""
        note = f"{self.order_note()}  {mean}v{group.samples[0].version}  {group.prompt_id}"
        titles = ["#", "tok", *total, "adv", *signals, *(clean(name) for name in extras), *([last] if last else [])]
        title = f"step {group.step} prompt {self.place % len(self.groups) + 1}/{len(self.groups)}"
        return Rows(title, note, titles, rows, left=(last,))


class HitList(Listing):
    """What a search found: where it is from, the number that hits are sorted by, and the text around it."""

    def __init__(self, samples: Samples, query: str) -> None:
        super().__init__(samples)
        self.wanted = Wanted(text=query)
        self.most = PORTION
        self._line = lru_cache(maxsize=None)(self._read_line)

    def sort_keys(self, bar: int) -> list[str]:
        return self.scan.hits.sort_keys()

    def found(self, item: int) -> Found | None:
        group, sample = self.samples.group_of(self.scan, range(item, item + 1)), self.scan.sample(item)
        if group is None or sample is None:
            return None
        return next(((group, one) for one in group.samples if one.number == sample.number), None)

    def rows(self) -> Rows:
        scan, order, query = self.scan, self.samples.order, self.samples.query
        self.items = self.samples.searches.order(scan.wanted, order)
        note = _progress(scan) or self.order_note()
        if not self.items:
            return Rows(f"no hit /{query}", note, [""], [[_searched(scan)]])
        shown = order.by if scan.hits.column(order.by) is not None else "reward"
        lines = [self._line(hit, shown) for hit in self.items[: self.most]]
        titles = ["from", "prompt", "#", shown, "text"]
        return Rows(f"hit #/{scan.hits.count} /{query}", note, titles, lines, ("from", "prompt", "text"))

    def _read_line(self, hit: int, shown: str) -> list[str | Text]:
        scan = self.scan
        sample, where = scan.sample(hit), _where(scan.hits.source(hit))
        if sample is None:
            return [where, "", "", "", Text(GONE, style=ORANGE)]
        value = number(_known(scan, shown, hit))
        if shown == "error":
            value = (sample_errors(sample, self.run.settings) or ["-"])[0]
        text, query = sample.text.replace("\n", " "), self.samples.query
        begin = max(text.lower().find(query.lower()) - BEFORE, 0)
        line = Text(f"{'…' if begin else ''}{text[begin : begin + AROUND]}")
        line.highlight_words([query], f"bold {ORANGE}", case_sensitive=False)
        return [where, ending(clean(sample.prompt_id), NAME), str(sample.number + 1), value, cut(line, AROUND)]


class OverTime(Listing):
    """Each step at which a prompt was sampled, and each evaluation: rollouts, mean tokens and rewards."""

    def __init__(self, samples: Samples, prompt: str) -> None:
        super().__init__(samples)
        self.wanted = Wanted(prompt_id=prompt)

    def found(self, item: range) -> Found | None:
        group = self.samples.group_of(self.scan, item)
        return (group, group.samples[0] if group.evaluation else self.samples.sorted(group)[0]) if group else None

    def rows(self) -> Rows:
        scan, prompt = self.scan, clean(self.scan.wanted.prompt_id)
        spans = self.items = scan.hits.spans()
        if not spans:
            return Rows(f"{prompt} over time", _progress(scan), [""], [[_searched(scan)]])
        columns, rows = [*dict.fromkeys(("tokens", "reward", *scan.hits.signals))], []
        for span in spans:
            values = [[known for hit in span if (known := _known(scan, name, hit)) is not None] for name in columns]
            means = [number(fmean(found)) if found else "-" for found in values]
            rows.append([_where(scan.hits.source(span[0])), str(len(span)), *means])
        note = _progress(scan) or ("" if self.samples.order.by == "sample" else f"first {self.order_note()}")
        if len(spans) == 1 and not scan.running:
            note = "sampled once so far"
        return Rows(f"#/{len(spans)} {prompt} over time", note, ["step", "n", *columns], rows, left=("step",))


class Tests(Listing):
    """The examples of the test split: tokens and measures before and after training, and what is wrong; the one that is
    asked for comes first."""

    def __init__(self, samples: Samples, asked: str = "") -> None:
        super().__init__(samples)
        self._asked, self._later = asked, -1
        self._pair = samples.pairs.read(-1, samples.order, asked)

    def sort_keys(self, bar: int) -> list[str]:
        return self._pair.sort_keys

    def go(self, by: int) -> None:
        """Compare with another evaluation."""
        names, after = self._pair.names, self._pair.after.name
        here = names.index(after) if after in names else 0
        self._later = min(max(here + by, 0), max(len(names) - 1, 0))

    def rows(self) -> Rows:
        pair = self._pair = self.samples.pairs.read(self._later, self.samples.order, self._asked)
        self.items, by = pair.examples, self.samples.order.by
        if pair.missing:
            return Rows("before and after", "", [""], [[pair.missing]])
        sides = (pair.before,) if pair.alone else (pair.before, pair.after)
        measures, settings, rows = headlines(self.run, pair.after.metrics, by), self.run.settings, []
        for name in pair.examples:
            errors = [", ".join(sample_errors(one.samples[name], settings, one.tokens[name])) or "-" for one in sides]
            cells = [" → ".join(str(one.tokens[name]) for one in sides)]
            cells += [" → ".join(number(one.samples[name].rewards.get(m)) for one in sides) for m in measures]
            rows.append([clean(name), *cells, " → ".join(errors)])
        note = self.order_note()
        if by in pair.after.metrics and by != "tokens" and not pair.alone:
            note = note.replace(f"by {by}", f"by change of {measures.get(by, by)}")
        if len(pair.names) > 1:
            note = f"[ ] {pair.names.index(pair.after.name) + 1}/{len(pair.names)}  {note}"
        titles = ["example", "tokens", *measures.values(), "errors"]
        return Rows(f"example #/{len(rows)}", note, titles, rows, left=("example", "errors"))

    def found(self, item: str) -> Found | None:
        after = self._pair.after
        return Group(-1, item, "", (), (after.samples[item],), evaluation=after.name), after.samples[item]

    def texts(self, bar: int) -> list[PaneText]:
        if bar >= len(self.items):
            return [PaneText("before"), PaneText("after")]
        pair, example = self._pair, self.items[bar]
        later = PaneText("after", "", (Text("not yet: training evaluates after each stage", style=DIM),))
        return [self._side(pair, example, "before"), later if pair.alone else self._side(pair, example, "after")]

    def _side(self, pair: BeforeAfter, example: str, name: str) -> PaneText:
        later, settings = name == "after", self.run.settings
        own = pair.after if later else pair.before
        sample, tokens = own.samples[example], own.tokens[example]
        text = _marked(sample.text, self.samples.query)
        if later and self.samples.difference:
            text = _difference(pair.before.samples[example].text, sample.text)
        text.append("\n")
        for metric, title in headlines(self.run, pair.after.metrics, self.samples.order.by).items():
            change = pair.change(example, metric)
            grown = f"  {'+' if change > 0 else ''}{number(change)}" if later and change else ""
            text.append(f"\n{title} {number(sample.rewards.get(metric))}", DIM).append(grown)
        note = ", ".join([asked_and_got(sample, settings, tokens), *sample_errors(sample, settings, tokens)])
        steps = {self.run.paths.stage_evaluation(label).name: one.step for label, one in self.run.results.items()}
        step = steps.get(own.name)
        when = f", step {step} (now {self.run.step})" if later and step not in (None, self.run.step) else ""
        return PaneText(f"{name}: {own.name}{when}", note, (text,))


def _rollout(samples: Samples, group: Group, sample: SampledRollout, *, repeated: bool) -> Text:
    """A rollout with what is wrong, its rewards, references and prompt, or with what changed since the prompt was first
    sampled; `repeated`: the rewards, too, where they may not be in the table."""
    run, title, parts = samples.run, "COMPLETION", _marked(sample.text, samples.query)
    if samples.difference and not group.evaluation:
        title += "  no earlier rollouts of this prompt"
        if first := samples.first(group):
            title = f"COMPLETION  changed since step {first.step}"
            parts = _difference(first.samples[min(sample.number, len(first.samples) - 1)].text, sample.text)
    text, begin = Text.assemble((title, f"bold {SKY}"), "\n"), len(title) + 1
    if samples.order.by == "error" and (errors := sample_errors(sample, run.settings)):
        text.append(f"{', '.join(errors)}\n", ORANGE)
    if len(sample.rewards) + len(sample.extra) >= MIN_REWARDS or (repeated and sample.rewards):
        names = headlines(run, list(sample.rewards)) if group.evaluation else sample.rewards
        values = [f"{name} {number(sample.rewards[name])}" for name in names]
        values += [] if sample.reward is None else [f"total {number(sample.reward)}"]
        values += [f"{clean(name)} {_logged(value)}" for name, value in sample.extra.items()]
        text.append("  ".join(values) + "\n", DIM)
    text.append("\n" if len(text) > begin else "").append_text(parts)
    for place, reference in enumerate(group.references):
        more = f" {place + 1}" if len(group.references) > 1 else ""
        text.append_text(Text.assemble("\n\n", (f"REFERENCE{more}", f"bold {SKY}"), "\n", reference))
    text.append_text(Text.assemble("\n\n", ("PROMPT", f"bold {SKY}"), "\n"))
    return text.append(group.post or "an evaluation does not keep its prompts", "" if group.post else DIM)


def _marked(text: str, query: str) -> Text:
    """A text with what is searched for marked."""
    found = Text(text[:MOST_CHARACTERS])
    if query:
        found.highlight_regex(re.compile(re.escape(query), re.IGNORECASE), MARK)
    if more := max(len(text) - MOST_CHARACTERS, 0):
        found.append(f"\n{more} more characters (c copies all)", DIM)
    return found


def _logged(value: str | int | float | bool | None) -> str:
    """What a reward logged of a rollout."""
    return number(value) if isinstance(value, int | float) and not isinstance(value, bool) else clean(str(value or "-"))


def _difference(before: str, after: str) -> Text:
    """The words of both texts, with those marked that went and came."""
    text = Text()
    for kind, words in changes(before[:MOST_COMPARED], after[:MOST_COMPARED]):
        opening, closing = CHANGE_MARKS[kind]
        text.append(f"{opening}{words}{closing}", style=CHANGE_STYLE[kind]).append(" ")
    return text


def _where(source: Source) -> str:
    return f"step {source}" if isinstance(source, int) else source


def _known(scan: Scan, name: str, hit: int) -> float | None:
    column = scan.hits.column(name)
    return None if column is None or column[hit] != column[hit] else column[hit]


def _progress(scan: Scan) -> str:
    """How far a search is, and what it left out; empty for one that has searched everything."""
    if scan.running and not scan.complete:
        return f"searching {scan.done / max(scan.files, 1):.0%}  esc stops"
    parts = [f"stopped at {scan.done}/{scan.files} files"] if scan.cancelled else []
    parts += [f"{scan.damaged} damaged lines"] if scan.damaged else []
    parts += [f"the first {MAX_HITS} are listed"] if scan.hits.count > MAX_HITS else []
    return "  ".join(parts)


def _searched(scan: Scan) -> str:
    if scan.running and not scan.complete:
        return "searching"
    return f"in {scan.done} files of completions" if scan.done else "there are no completions yet"
