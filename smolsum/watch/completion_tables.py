"""The tables of the completions browser: the rollouts of a prompt at a step, what a search found, a prompt over time,
and the test split before and after training."""

from collections.abc import Callable, Sequence
from statistics import fmean, pstdev

from rich.text import Text

from smolsum.config.targets import TOKENS
from smolsum.runs.completion_groups import clean, ordered
from smolsum.runs.records import SampledRollout
from smolsum.runs.sample_errors import asked_and_got, sample_errors
from smolsum.runs.sample_scan import MAX_HITS, Hits, Scan, Source
from smolsum.watch.before_after import change_of, headlines_of, title_of
from smolsum.watch.completion_browser import difference, first_hit, group_of, highlighted, row_of, scrolled, texts
from smolsum.watch.pane_text import DIM, ORANGE, Pane, cut, ending, number, wrapped
from smolsum.watch.snapshot import Snapshot

NAME, VALUE = 12, 7
"""Characters of the name of a step, prompt or evaluation, and of a number."""
ERRORS = 40
"""Characters for what is wrong with an example before and after training."""
BEFORE = 12
"""Characters of a hit's text before what was searched for."""


def table(snapshot: Snapshot, width: int, height: int) -> Pane:
    """Return what the browser lists."""
    listings: dict[str, Callable[[Snapshot, int, int], Pane]] = {"hits": _hits, "time": _over_time, "tests": _tests}
    return listings.get(snapshot.options.listing, _step)(snapshot, width, height)


def _step(snapshot: Snapshot, width: int, height: int) -> Pane:
    """A row for each rollout: tokens, every reward, the total, advantage, worker or what is wrong; then the group's
    mean."""
    group, options = group_of(snapshot), snapshot.options
    title = f"step {snapshot.step}"
    if group is None:
        return Pane(title, "", (Text("no completions of this step", style=DIM),))
    title += f" prompt {options.group % len(snapshot.groups) + 1}/{len(snapshot.groups)}"
    names = list(group.samples[0].rewards)
    columns = ["tok", *names, *(["total"] if len(names) != 1 else []), "adv"]
    sizes = [max(len(name[:9]), 6) for name in columns]
    sizes[0] += 2 * any(sample.target is not None for sample in group.samples)  # tokens, and what was asked for
    while columns and 6 + sum(size + 1 for size in sizes) > width:  # drop parts of the reward, keep the advantage
        place = len(columns) - 2 if len(columns) > 2 else 0
        del columns[place], sizes[place]
    titles = " ".join(f"{name[:9]:>{size}}" for name, size in zip(columns, sizes, strict=True))
    by_error = options.sort == "error"
    kept = ordered(group, options.sort, snapshot.run.settings, backwards=options.backwards)
    here = min(options.row, len(kept) - 1)

    def row(place: int) -> str:
        sample = kept[place]
        asked = "" if sample.target is None or snapshot.run.settings.unit != TOKENS else f"/{sample.target}"
        cells = {"tok": f"{sample.tokens}{asked}{'…' if sample.truncated and not options.ascii else ''}"}
        cells |= {name: number(value) for name, value in sample.rewards.items()}
        cells |= {
            "total": number(sample.reward),
            "adv": "-" if sample.advantage is None else f"{sample.advantage:+.2f}",
        }
        text = " ".join(f"{cells.get(name, '-'):>{size}}" for name, size in zip(columns, sizes, strict=True))
        mark = ">" if place == here else " "
        start = f"{mark} {sample.number + 1:>2} {text} "
        if by_error:
            return start + ", ".join(sample_errors(sample, snapshot.run.settings))
        return start + ending(sample.worker, width - len(start), ascii=options.ascii)

    head = f"  {'#':>2} {titles} {'error' if by_error else 'worker'}"
    lines = _rows(head, len(kept), here, row, max(height - 3, 1))
    rewards = [sample.reward for sample in group.samples if sample.reward is not None]
    version = group.samples[0].version
    if rewards:
        summary = f"  mean {number(fmean(rewards))}  std {number(pstdev(rewards))}  by v{version}  {group.prompt_id}"
        lines += [Text(), Text(summary, style=DIM)]
    return Pane(title, _note(snapshot), tuple(lines[:height]))


def _hits(snapshot: Snapshot, width: int, height: int) -> Pane:
    """A row for each hit: where it is from, the number that it is sorted by, and the text around what was found."""
    found, options = snapshot.found, snapshot.options
    if found is None:
        return Pane("search", "", ())
    scan, hits = found.scan, found.scan.hits
    here = row_of(options, len(found.order))
    count = f"{here + 1}/{scan.hits.count}" if found.order else "0"
    title = f"hit {count} /{options.query}" if found.order else f"no hit /{options.query}"
    shown = options.sort if hits.column(options.sort) is not None else "reward"
    head = f"  {'from':<{NAME}} {'prompt':<{NAME}} {'#':>2} {shown[:VALUE]:>{VALUE}} text"

    def row(place: int) -> Text:
        hit = found.order[place]
        sample = found.near.get(hit)
        mark, where = ">" if place == here else " ", _where(hits.source(hit), options.ascii)
        if sample is None:
            return Text(f"{mark} {where:<{NAME}} its file is there no more", style=ORANGE)
        prompt = ending(clean(sample.prompt_id), NAME, ascii=options.ascii)
        column = hits.column(shown) or ()
        value = number(None if column[hit] != column[hit] else column[hit])
        if shown == "error":
            value = (sample_errors(sample, snapshot.run.settings) or ["-"])[0][:VALUE]
        start = f"{mark} {where:<{NAME}} {prompt:<{NAME}} {sample.number + 1:>2} {value:>{VALUE}} "
        return Text(start).append_text(_around(sample, options.query, width - len(start), options.ascii))

    lines = _rows(head, len(found.order), here, row, height - 1) if found.order else [Text(_searched(scan), style=DIM)]
    return Pane(title, _progress(scan) or _note(snapshot), tuple(lines[:height]))


def _over_time(snapshot: Snapshot, width: int, height: int) -> Pane:
    """A row for each step at which a prompt was sampled, and each evaluation: rollouts, mean tokens and rewards."""
    found, options = snapshot.found, snapshot.options
    if found is None:
        return Pane("prompt", "", ())
    hits, spans = found.scan.hits, found.spans
    here = row_of(options, len(spans))
    title = f"{clean(options.prompt)} over time" + (f" {here + 1}/{len(spans)}" if spans else "")
    columns = ["tokens", "reward", *hits.signals][: max((width - NAME - 6) // (VALUE + 1), 0)]
    head = f"  {'step':<{NAME}} {'n':>2} " + " ".join(f"{name[:VALUE]:>{VALUE}}" for name in columns)

    def row(place: int) -> str:
        span = spans[place]
        values = " ".join(f"{number(_mean(hits, name, span)):>{VALUE}}" for name in columns)
        mark = ">" if place == here else " "
        return f"{mark} {_where(hits.source(span[0]), options.ascii):<{NAME}} {len(span):>2} {values}"

    lines = _rows(head, len(spans), here, row, height - 1) if spans else [Text(_searched(found.scan), style=DIM)]
    if len(spans) == 1 and not found.scan.running:
        hint = "sampled once so far; b compares the test split before and after"
        lines += [Text(), *wrapped(hint, width - 1, DIM, " ")]
    note = "" if options.sort == "sample" else f"first {_note(snapshot)}"
    return Pane(title, _progress(found.scan) or note, tuple(lines[:height]))


def _tests(snapshot: Snapshot, width: int, height: int) -> Pane:
    """A row for each example: tokens and measures before and after training, and what is wrong."""
    tests, options = snapshot.tests, snapshot.options
    if tests is None or tests.missing:
        missing = "" if tests is None else tests.missing
        return Pane("before and after", "", tuple(wrapped(missing, width - 1, ORANGE, " ")))
    here = row_of(options, len(tests.order))
    arrow = ">" if options.ascii else "→"
    metrics = headlines_of(snapshot.run, tests.after.metrics, options.sort)[: max((width - 2 * NAME - ERRORS) // 16, 0)]
    heads = " ".join(f"{title_of(snapshot.run, name)[:15]:>15}" for name in metrics)
    head = f"  {'example':<{NAME}} {'tokens':>11} {heads}  errors"

    def row(place: int) -> str:
        name = tests.order[place]
        sides = (tests.before,) if tests.alone else (tests.before, tests.after)
        cells = [arrow.join(str(one.tokens[name]) for one in sides).rjust(11)]
        cells += [arrow.join(number(one.samples[name].rewards.get(m)) for one in sides).rjust(15) for m in metrics]
        errors = [
            ", ".join(sample_errors(one.samples[name], snapshot.run.settings, one.tokens[name])) or "-" for one in sides
        ]
        mark, shown = ">" if place == here else " ", ending(clean(name), NAME, ascii=options.ascii)
        return f"{mark} {shown:<{NAME}} {' '.join(cells)}  {f' {arrow} '.join(errors)}"

    title = f"example {here + 1}/{len(tests.order)}"
    by_change = options.sort in tests.after.metrics and options.sort != "tokens" and not tests.alone
    note = f"by change of {title_of(snapshot.run, options.sort)}{_way(snapshot)}" if by_change else _note(snapshot)
    if len(tests.names) > 1:
        note = f"[ ] {tests.names.index(tests.after.name) + 1}/{len(tests.names)}  {note}"
    return Pane(title, note, tuple(_rows(head, len(tests.order), here, row, height - 1)))


def text(snapshot: Snapshot, width: int, height: int) -> Pane:
    """Return the text of what is under the bar."""
    return (after if snapshot.options.listing == "tests" else texts)(snapshot, width, height)


def before(snapshot: Snapshot, width: int, height: int) -> Pane:
    """Return the example under the bar as the first evaluation has it."""
    return _side(snapshot, width, height, after=False)


def after(snapshot: Snapshot, width: int, height: int) -> Pane:
    """Return the same example as the later evaluation has it."""
    return _side(snapshot, width, height, after=True)


def _side(snapshot: Snapshot, width: int, height: int, *, after: bool) -> Pane:
    tests, options = snapshot.tests, snapshot.options
    if tests is None or not tests.order:
        return Pane("after" if after else "before", "", ())
    if after and tests.alone:
        return Pane("after", "", tuple(wrapped("not yet: training evaluates after each stage", width - 1, DIM, " ")))
    side = tests.after if after else tests.before
    name = tests.order[row_of(options, len(tests.order))]
    sample = side.samples[name]
    if after and options.difference:
        lines = difference(tests.before.samples[name].text, sample.text, width)
    else:
        lines = highlighted(sample.text, options.query, width)
    first = first_hit(lines)
    lines.append(Text())
    for metric in headlines_of(snapshot.run, tests.after.metrics, options.sort):
        value, change = sample.rewards.get(metric), change_of(tests.before, tests.after, name, metric)
        line = Text(f" {title_of(snapshot.run, metric)} {number(value)}", style=DIM)
        if after and change:
            line.append(f"  {'+' if change > 0 else ''}{number(change)}", style="")
        lines.append(line)
    errors = sample_errors(sample, snapshot.run.settings, side.tokens[name])
    note = ", ".join([asked_and_got(sample, snapshot.run.settings, side.tokens[name]), *errors])
    return scrolled(f"{'after' if after else 'before'}: {side.name}", note, lines, height, options.scroll, first)


def _rows(head: str, count: int, here: int, row: Callable[[int], str | Text], room: int) -> list[Text]:
    """The head and at most `room` rows, with the chosen one among them in reverse video."""
    room = max(room, 1)
    start = max(0, min(here - room // 2, count - room))
    lines = [Text(head, style=DIM)]
    for place in range(start, min(start + room, count)):
        made = row(place)
        line = made if isinstance(made, Text) else Text(made)
        if place == here:
            line.stylize("reverse")
        lines.append(line)
    return lines


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
