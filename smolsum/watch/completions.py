"""The page of completions: tables of what the browser lists, and the texts of what is under the bar."""

import re
from collections.abc import Callable, Sequence
from statistics import fmean, pstdev

from rich.text import Text

from smolsum.config.targets import TOKENS
from smolsum.runs.reader import Run
from smolsum.runs.records import SampledRollout
from smolsum.runs.samples import Group, asked_and_got, changes, clean, ordered, sample_errors
from smolsum.runs.search import MAX_HITS, Hits, Scan, Source
from smolsum.watch.completion_browser import change_of, example_of, group_of, row_of, sample_of
from smolsum.watch.pane_text import (
    DIM,
    GREEN,
    ORANGE,
    RED,
    SKY,
    Pane,
    cut,
    ending,
    flowed,
    listed,
    number,
    scrolled,
    wrapped,
)
from smolsum.watch.snapshot import Snapshot

NAME, VALUE = 12, 7
"""Characters of the name of a step, prompt or evaluation, and of a number."""
ERRORS = 40
"""Characters for what is wrong with an example before and after training."""
BEFORE = 12
"""Characters of a hit's text before what was searched for."""
MIN_REWARDS = 3
"""Rewards from which the texts repeat them with their full names."""
CHANGE_STYLE = {"same": "", "gone": f"strike {RED}", "new": f"underline {GREEN}"}
CHANGE_MARKS = {"same": ("", ""), "gone": ("[-", "-]"), "new": ("{+", "+}")}
MOST_CHARACTERS = 100_000
"""Characters of a text that are laid out."""
MOST_COMPARED = 20_000
"""Characters of two texts that are compared word by word."""
CONTEXT = 2
"""Lines of a text above its first hit."""


def table(snapshot: Snapshot, width: int, height: int) -> Pane:
    listings: dict[str, Callable[[Snapshot, int, int], Pane]] = {"hits": _hits, "time": _over_time, "tests": _tests}
    return listings.get(snapshot.options.listing, _step)(snapshot, width, height)


def _step(snapshot: Snapshot, width: int, height: int) -> Pane:
    """A row for each rollout: tokens, every reward, the total, advantage, worker or what is wrong; then the group's
    mean."""
    group, options, settings = group_of(snapshot), snapshot.options, snapshot.run.settings
    title = f"step {snapshot.step}"
    if group is None:
        return Pane(title, "", (Text("no completions of this step", style=DIM),))
    title += f" prompt {options.group % len(snapshot.groups) + 1}/{len(snapshot.groups)}"
    names = list(group.samples[0].rewards)
    sizes = {name: max(len(name[:9]), 6) for name in ["tok", *names, *(["total"] if len(names) != 1 else []), "adv"]}
    sizes["tok"] += 2 * any(sample.target is not None for sample in group.samples)  # tokens, and what was asked for
    while sizes and 6 + sum(size + 1 for size in sizes.values()) > width:  # drop parts of the reward, not the advantage
        del sizes[list(sizes)[-2 if len(sizes) > 2 else 0]]
    titles = " ".join(f"{name[:9]:>{size}}" for name, size in sizes.items())
    by_error = options.sort == "error"
    kept = ordered(group, options.sort, settings, backwards=options.backwards)
    here = row_of(options, len(kept))

    def row(place: int) -> str:
        sample = kept[place]
        asked = "" if sample.target is None or settings.unit != TOKENS else f"/{sample.target}"
        cells = {name: number(value) for name, value in sample.rewards.items()}
        cells["tok"] = f"{sample.tokens}{asked}{'…' if sample.truncated and not options.ascii else ''}"
        cells["total"] = number(sample.reward)
        cells["adv"] = "-" if sample.advantage is None else f"{sample.advantage:+.2f}"
        text = " ".join(f"{cells.get(name, '-'):>{size}}" for name, size in sizes.items())
        start = f"{_mark(place == here)} {sample.number + 1:>2} {text} "
        if by_error:
            return start + ", ".join(sample_errors(sample, settings))
        return start + ending(sample.worker, width - len(start), ascii=options.ascii)

    rewards = [sample.reward for sample in group.samples if sample.reward is not None]
    below = []
    if rewards:
        by = f"by v{group.samples[0].version}  {group.prompt_id}"
        below = [Text(), Text(f"  mean {number(fmean(rewards))}  std {number(pstdev(rewards))}  {by}", style=DIM)]
    head = f"  {'#':>2} {titles} {'error' if by_error else 'worker'}"
    return listed(title, _note(snapshot), head, len(kept), here, row, height, below)


def _hits(snapshot: Snapshot, width: int, height: int) -> Pane:
    """A row for each hit: where it is from, the number that it is sorted by, and the text around what was found."""
    found, options = snapshot.found, snapshot.options
    if found is None or not found.order:
        searched = (Text(_searched(found.scan), style=DIM),) if found else ()
        return Pane(f"no hit /{options.query}", _progress(found.scan) or _note(snapshot) if found else "", searched)
    scan, hits = found.scan, found.scan.hits
    here = row_of(options, len(found.order))
    shown = options.sort if hits.column(options.sort) is not None else "reward"

    def row(place: int) -> Text:
        hit = found.order[place]
        sample = found.near.get(hit)
        start = f"{_mark(place == here)} {_where(hits.source(hit), options.ascii):<{NAME}} "
        if sample is None:
            return Text(f"{start}its file is there no more", style=ORANGE)
        prompt = ending(clean(sample.prompt_id), NAME, ascii=options.ascii)
        column = hits.column(shown) or ()
        value = number(None if column[hit] != column[hit] else column[hit])
        if shown == "error":
            value = (sample_errors(sample, snapshot.run.settings) or ["-"])[0][:VALUE]
        start += f"{prompt:<{NAME}} {sample.number + 1:>2} {value:>{VALUE}} "
        return Text(start).append_text(_around(sample, options.query, width - len(start), options.ascii))

    title = f"hit {here + 1}/{hits.count} /{options.query}"
    head = f"  {'from':<{NAME}} {'prompt':<{NAME}} {'#':>2} {shown[:VALUE]:>{VALUE}} text"
    return listed(title, _progress(scan) or _note(snapshot), head, len(found.order), here, row, height)


def _over_time(snapshot: Snapshot, width: int, height: int) -> Pane:
    """A row for each step at which a prompt was sampled, and each evaluation: rollouts, mean tokens and rewards."""
    found, options = snapshot.found, snapshot.options
    title = f"{clean(options.prompt)} over time"
    if found is None or not found.spans:
        return Pane(title, _progress(found.scan), (Text(_searched(found.scan), style=DIM),)) if found else Pane(title)
    hits, spans = found.scan.hits, found.spans
    here = row_of(options, len(spans))
    columns = ["tokens", "reward", *hits.signals][: max((width - NAME - 6) // (VALUE + 1), 0)]

    def row(place: int) -> str:
        span = spans[place]
        where = _where(hits.source(span[0]), options.ascii)
        values = " ".join(f"{number(_mean(hits, name, span)):>{VALUE}}" for name in columns)
        return f"{_mark(place == here)} {where:<{NAME}} {len(span):>2} {values}"

    below = []
    if len(spans) == 1 and not found.scan.running:
        hint = "sampled once so far; b compares the test split before and after"
        below = [Text(), *wrapped(hint, width - 1, DIM, " ")]
    note = _progress(found.scan) or ("" if options.sort == "sample" else f"first {_note(snapshot)}")
    head = f"  {'step':<{NAME}} {'n':>2} " + " ".join(f"{name[:VALUE]:>{VALUE}}" for name in columns)
    return listed(f"{title} {here + 1}/{len(spans)}", note, head, len(spans), here, row, height, below)


def _tests(snapshot: Snapshot, width: int, height: int) -> Pane:
    """A row for each example: tokens and measures before and after training, and what is wrong."""
    tests, options, run = snapshot.tests, snapshot.options, snapshot.run
    if tests is None or tests.missing:
        return Pane("before and after", "", tuple(wrapped(tests.missing if tests else "", width - 1, ORANGE, " ")))
    here = row_of(options, len(tests.order))
    arrow = ">" if options.ascii else "→"
    sides = (tests.before,) if tests.alone else (tests.before, tests.after)
    metrics = _headlines(run, tests.after.metrics, options.sort)[: max((width - 2 * NAME - ERRORS) // 16, 0)]

    def row(place: int) -> str:
        name = tests.order[place]
        cells = [arrow.join(str(one.tokens[name]) for one in sides).rjust(11)]
        cells += [arrow.join(number(one.samples[name].rewards.get(m)) for one in sides).rjust(15) for m in metrics]
        errors = [", ".join(sample_errors(one.samples[name], run.settings, one.tokens[name])) or "-" for one in sides]
        shown = ending(clean(name), NAME, ascii=options.ascii)
        return f"{_mark(place == here)} {shown:<{NAME}} {' '.join(cells)}  {f' {arrow} '.join(errors)}"

    by_change = options.sort in tests.after.metrics and options.sort != "tokens" and not tests.alone
    note = f"by change of {_title(run, options.sort)}{_way(snapshot)}" if by_change else _note(snapshot)
    if len(tests.names) > 1:
        note = f"[ ] {tests.names.index(tests.after.name) + 1}/{len(tests.names)}  {note}"
    heads = " ".join(f"{_title(run, name)[:15]:>15}" for name in metrics)
    head = f"  {'example':<{NAME}} {'tokens':>11} {heads}  errors"
    title = f"example {here + 1}/{len(tests.order)}"
    return listed(title, note, head, len(tests.order), here, row, height)


def _mark(here: bool) -> str:
    return ">" if here else " "


def _around(sample: SampledRollout, query: str, width: int, ascii: bool) -> Text:
    """The text around what was searched for, in one line."""
    text = sample.text.replace("\n", " ")
    place = max(text.lower().find(query.lower()), 0)
    begin = max(place - BEFORE, 0)
    line = Text(f"{'' if not begin else '..' if ascii else '…'}{text[begin : place + max(width, 0)]}")
    line.highlight_words([query], f"bold {ORANGE}", case_sensitive=False)
    return cut(line, max(width, 0), ascii=ascii)


def _where(source: Source, ascii: bool) -> str:
    return f"step {source}" if isinstance(source, int) else ending(source, NAME, ascii=ascii)


def _mean(hits: Hits, name: str, span: Sequence[int]) -> float | None:
    column = hits.column(name) or ()
    values = [column[hit] for hit in span if column[hit] == column[hit]]
    return fmean(values) if values else None


def _note(snapshot: Snapshot) -> str:
    options = snapshot.options
    searched = f"  /{options.query}" if options.query and options.listing != "hits" else ""
    natural = options.sort == "sample" and options.listing != "step"
    return f"by {'order' if natural else options.sort}{_way(snapshot)}{searched}"


def _way(snapshot: Snapshot) -> str:
    return ", reversed" if snapshot.options.backwards else ""


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
        return " searching"
    return f" in {scan.done} files of completions" if scan.done else " there are no completions yet"


def text(snapshot: Snapshot, width: int, height: int) -> Pane:
    """Return completion, references and prompt of the rollout under the bar, from the scrolled line on; of an example
    of the test split the text after training."""
    if snapshot.options.listing == "tests":
        return after(snapshot, width, height)
    group, sample, options = group_of(snapshot), sample_of(snapshot), snapshot.options
    if group is None or sample is None:
        gone = snapshot.selected is not None
        return Pane("text", "", (Text("its file is there no more", style=ORANGE),) if gone else ())
    title, completion = "COMPLETION", _highlighted(sample.text, options.query, width)
    if options.difference and (first := snapshot.first) is not None:
        title += f"  changed since step {first.step}"
        before = first.samples[min(sample.number, len(first.samples) - 1)]
        completion = _difference(before.text, sample.text, width)
    elif options.difference:
        title += "  no earlier rollouts of this prompt"
    lines = [Text(title, style=f"bold {SKY}"), *_rewards(snapshot, group, sample, width), *completion]
    for place, reference in enumerate(group.references):
        more = f" {place + 1}" if len(group.references) > 1 else ""
        lines += [Text(), Text(f"REFERENCE{more}", style=f"bold {SKY}"), *flowed(reference, width)]
    lines += [Text(), Text("PROMPT", style=f"bold {SKY}")]
    lines += flowed(group.post, width) if group.post else [Text(" an evaluation does not keep its prompts", style=DIM)]
    where = f" of {group.evaluation or f'step {group.step}'}, {group.prompt_id}" if snapshot.found else ""
    note = f"{asked_and_got(sample, snapshot.run.settings)}{', cut' if sample.truncated else ''}"
    begin = _first_hit(lines, height) if options.listing == "hits" else 0
    return scrolled(f"rollout {sample.number + 1}{where}", note, lines, height, begin + options.scroll)


def before(snapshot: Snapshot, width: int, height: int) -> Pane:
    """Return the example under the bar as the first evaluation has it."""
    return _side(snapshot, width, height, after=False)


def after(snapshot: Snapshot, width: int, height: int) -> Pane:
    """Return the same example as the later evaluation has it."""
    return _side(snapshot, width, height, after=True)


def _side(snapshot: Snapshot, width: int, height: int, *, after: bool) -> Pane:
    tests, options, run, title = snapshot.tests, snapshot.options, snapshot.run, "after" if after else "before"
    if tests is None or not tests.order:
        return Pane(title)
    if after and tests.alone:
        return Pane(title, "", tuple(wrapped("not yet: training evaluates after each stage", width - 1, DIM, " ")))
    side, name = tests.after if after else tests.before, example_of(snapshot)
    sample = side.samples[name]
    if after and options.difference:
        lines = _difference(tests.before.samples[name].text, sample.text, width)
    else:
        lines = _highlighted(sample.text, options.query, width)
    first = _first_hit(lines, height)
    lines.append(Text())
    for metric in _headlines(run, tests.after.metrics, options.sort):
        value, change = sample.rewards.get(metric), change_of(tests.before, tests.after, name, metric)
        grown = f"  {'+' if change > 0 else ''}{number(change)}" if after and change else ""
        lines.append(Text.assemble((f" {_title(run, metric)} {number(value)}", DIM), grown))
    tokens = side.tokens[name]
    note = ", ".join([asked_and_got(sample, run.settings, tokens), *sample_errors(sample, run.settings, tokens)])
    return scrolled(f"{title}: {side.name}", note, lines, height, first + options.scroll)


def _headlines(run: Run, metrics: Sequence[str], sort: str = "") -> list[str]:
    """The measures of an example that the task puts first, after the one that examples are sorted by."""
    known = [name for name in metrics if name != "tokens"]
    short = [name if name in known else name.rpartition("/")[2] for name in run.headlines]
    return list(dict.fromkeys(name for name in (sort, *short) if name in known))


def _title(run: Run, metric: str) -> str:
    """The title that the task gives to a measure of an example; its name where it has none."""
    titles = (clean(title) for name, title in run.headlines.items() if metric in (name, name.rpartition("/")[2]))
    return next(titles, metric)


def _rewards(snapshot: Snapshot, group: Group, sample: SampledRollout, width: int) -> list[Text]:
    """What is wrong with the sample, and every reward with its full name, if there are too many for the table."""
    errors = sample_errors(sample, snapshot.run.settings)
    lines = wrapped(", ".join(errors), width - 1, ORANGE, " ") if errors and snapshot.options.sort == "error" else []
    if len(sample.rewards) >= MIN_REWARDS or (snapshot.found and sample.rewards):
        names = _headlines(snapshot.run, list(sample.rewards)) if group.evaluation else list(sample.rewards)
        parts = "  ".join(f"{name} {number(sample.rewards[name])}" for name in names)
        total = "" if sample.reward is None else f"  total {number(sample.reward)}"
        lines += wrapped(f"{parts}{total}", width - 1, DIM, " ")
    return [*lines, Text()] if lines else []


def _first_hit(lines: list[Text], height: int) -> int:
    """The line to begin with so that the first highlighted text is in view."""
    hits = (place for place, line in enumerate(lines) if any("reverse" in str(span.style) for span in line.spans))
    first = next(hits, 0)
    return max(first - CONTEXT, 0) if first >= height else 0


def _highlighted(text: str, query: str, width: int) -> list[Text]:
    """A text in lines, with what is searched for highlighted, also where a line breaks in it."""
    found = Text(text[:MOST_CHARACTERS])
    if query:
        found.highlight_regex(re.compile(re.escape(query), re.IGNORECASE), f"bold reverse {ORANGE}")
    lines = flowed(found, width)
    more = len(text) - MOST_CHARACTERS
    return [*lines, Text(f" {more} more characters (c copies all)", style=DIM)] if more > 0 else lines


def _difference(before: str, after: str, width: int) -> list[Text]:
    """The words of both texts, with those marked that went and came."""
    text = Text()
    for kind, words in changes(before[:MOST_COMPARED], after[:MOST_COMPARED]):
        opening, closing = CHANGE_MARKS[kind]
        text.append(f"{opening}{words}{closing}", style=CHANGE_STYLE[kind]).append(" ")
    return flowed(text, width)
