"""What the page of completions shows: the rows of each listing, and the text of what is under its bar, with what was
searched for marked, with its rewards, or with what changed in it."""

import re
from collections.abc import Sequence
from statistics import fmean, pstdev
from typing import NamedTuple

from rich.text import Text

from smolsum.config.targets import TOKENS
from smolsum.runs.pairs import BeforeAfter, headlines
from smolsum.runs.reader import Run
from smolsum.runs.records import RunSettings, SampledRollout
from smolsum.runs.samples import Group, asked_and_got, changes, clean, sample_errors
from smolsum.runs.search import MAX_HITS, Hits, Scan, Source
from smolsum.watch.formats import DIM, GREEN, ORANGE, RED, SKY, PaneText, Rows, cut, ending, number

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


class Look(NamedTuple):
    """How the user wants to see texts: what was searched for, what the listing is sorted by, with the changes."""

    query: str
    by: str
    difference: bool


def rollout_rows(group: Group, kept: Sequence[SampledRollout], settings: RunSettings, last: str, order: str) -> Rows:
    """Return a row for each rollout: tokens, the total, the advantage, every reward and what rewards logged; at its end
    the worker or what is wrong (`last`)."""
    signals = list(dict.fromkeys(name for sample in kept for name in sample.rewards))
    extras = list(dict.fromkeys(name for sample in kept for name in sample.extra))
    total = ["total"] if len(signals) != 1 else []
    rows = []
    for sample in kept:
        asked = "" if sample.target is None or settings.unit != TOKENS else f"/{sample.target}"
        cells = [str(sample.number + 1), f"{sample.tokens}{asked}{'…' if sample.truncated else ''}"]
        cells += [number(sample.reward)] if total else []
        cells += ["-" if sample.advantage is None else f"{sample.advantage:+.2f}"]
        cells += [number(sample.rewards.get(name)) for name in signals]
        cells += [_logged(sample.extra.get(name)) for name in extras]
        ends = {"error": ", ".join(sample_errors(sample, settings)), "worker": sample.worker}
        rows.append([*cells, *([ends[last]] if last else [])])
    rewards = [sample.reward for sample in group.samples if sample.reward is not None]
    mean = f"mean {number(fmean(rewards))}  std {number(pstdev(rewards))}  " if rewards else ""
    note = f"{order}  {mean}v{group.samples[0].version}  {group.prompt_id}"
    titles = ["#", "tok", *total, "adv", *signals, *(clean(name) for name in extras), *([last] if last else [])]
    return Rows("", note, titles, rows, left=(last,))


def hit_row(scan: Scan, hit: int, shown: str, query: str, settings: RunSettings) -> list[str | Text]:
    """Return where a hit is from, the number that hits are sorted by, and the text around what was found."""
    sample, hits = scan.sample(hit), scan.hits
    if sample is None:
        return [_where(hits.source(hit)), "", "", "", Text(GONE, style=ORANGE)]
    value = number(_known(hits, shown, hit))
    if shown == "error":
        value = (sample_errors(sample, settings) or ["-"])[0]
    name, text = ending(clean(sample.prompt_id), NAME), sample.text.replace("\n", " ")
    begin = max(text.lower().find(query.lower()) - BEFORE, 0)
    line = Text(f"{'…' if begin else ''}{text[begin : begin + AROUND]}")
    line.highlight_words([query], f"bold {ORANGE}", case_sensitive=False)
    return [_where(hits.source(hit)), name, str(sample.number + 1), value, cut(line, AROUND)]


def time_rows(scan: Scan, order: str) -> Rows:
    """Return a row for each step at which a prompt was sampled, and each evaluation: rollouts, mean tokens and
    rewards."""
    hits, spans = scan.hits, scan.hits.spans()
    if not spans:
        return Rows("", progress_of(scan), [""], [[searched(scan)]])
    columns = ["tokens", "reward", *hits.signals]
    rows = []
    for span in spans:
        values = [[known for hit in span if (known := _known(hits, name, hit)) is not None] for name in columns]
        means = [number(fmean(found)) if found else "-" for found in values]
        rows.append([_where(hits.source(span[0])), str(len(span)), *means])
    note = progress_of(scan) or order
    if len(spans) == 1 and not scan.running:
        note = "sampled once so far; b compares the test split before and after"
    return Rows("", note, ["step", "n", *columns], rows, left=("step",))


def test_rows(run: Run, tests: BeforeAfter, by: str, order: str) -> Rows:
    """Return a row for each example: tokens and measures before and after training, and what is wrong."""
    if tests.missing:
        return Rows("", "", [""], [[tests.missing]])
    sides = (tests.before,) if tests.alone else (tests.before, tests.after)
    measures = headlines(run, tests.after.metrics, by)
    rows = []
    for name in tests.examples:
        errors = [", ".join(sample_errors(one.samples[name], run.settings, one.tokens[name])) or "-" for one in sides]
        cells = ["→".join(str(one.tokens[name]) for one in sides)]
        cells += ["→".join(number(one.samples[name].rewards.get(m)) for one in sides) for m in measures]
        rows.append([clean(name), *cells, " → ".join(errors)])
    note = order
    if by in tests.after.metrics and by != "tokens" and not tests.alone:
        note = note.replace(f"by {by}", f"by change of {measures.get(by, by)}")
    if len(tests.names) > 1:
        note = f"[ ] {tests.names.index(tests.after.name) + 1}/{len(tests.names)}  {note}"
    return Rows("", note, ["example", "tokens", *measures.values(), "errors"], rows, left=("example", "errors"))


def rollout(run: Run, group: Group, sample: SampledRollout, first: Group | None, look: Look, *, repeated: bool) -> Text:
    """Return a rollout with its rewards, references and prompt. With `look.difference`, what changed since `first`, the
    rollouts when the prompt was first sampled; `repeated`: the rewards, too, where they may not be in the table."""
    title, parts = "COMPLETION", _marked(sample.text, look.query)
    if look.difference and not group.evaluation:
        title += "  no earlier rollouts of this prompt"
        if first is not None:
            title = f"COMPLETION  changed since step {first.step}"
            parts = _difference(first.samples[min(sample.number, len(first.samples) - 1)].text, sample.text)
    text = Text.assemble((title, f"bold {SKY}"), "\n", _rewards(run, group, sample, look, repeated=repeated), parts)
    for place, reference in enumerate(group.references):
        more = f" {place + 1}" if len(group.references) > 1 else ""
        text.append_text(Text.assemble("\n\n", (f"REFERENCE{more}", f"bold {SKY}"), "\n", reference))
    text.append_text(Text.assemble("\n\n", ("PROMPT", f"bold {SKY}"), "\n"))
    return text.append(group.post or "an evaluation does not keep its prompts", "" if group.post else DIM)


def side(run: Run, tests: BeforeAfter, example: str, name: str, look: Look) -> PaneText:
    """Return an example as the first evaluation has it (`before`), or the later (`after`)."""
    later = name == "after"
    if not example:
        return PaneText(name)
    if later and tests.alone:
        return PaneText(name, "", (Text("not yet: training evaluates after each stage", style=DIM),))
    own = tests.after if later else tests.before
    sample, tokens = own.samples[example], own.tokens[example]
    text = _marked(sample.text, look.query)
    if later and look.difference:
        text = _difference(tests.before.samples[example].text, sample.text)
    text.append("\n")
    for metric, title in headlines(run, tests.after.metrics, look.by).items():
        change = tests.change(example, metric)
        grown = f"  {'+' if change > 0 else ''}{number(change)}" if later and change else ""
        text.append(f"\n{title} {number(sample.rewards.get(metric))}", DIM).append(grown)
    errors = sample_errors(sample, run.settings, tokens)
    note = ", ".join([asked_and_got(sample, run.settings, tokens), *errors])
    return PaneText(f"{name}: {own.name}", note, (text,))


def _marked(text: str, query: str) -> Text:
    """A text with what is searched for marked."""
    found = Text(text[:MOST_CHARACTERS])
    if query:
        found.highlight_regex(re.compile(re.escape(query), re.IGNORECASE), MARK)
    if more := max(len(text) - MOST_CHARACTERS, 0):
        found.append(f"\n{more} more characters (c copies all)", DIM)
    return found


def _rewards(run: Run, group: Group, sample: SampledRollout, look: Look, *, repeated: bool) -> Text:
    """What is wrong with the sample, and every reward, also what rewards logged, with its full name, if there are too
    many for the table."""
    errors = sample_errors(sample, run.settings) if look.by == "error" else []
    text = Text()
    if errors:
        text.append(f"{', '.join(errors)}\n", ORANGE)
    if len(sample.rewards) + len(sample.extra) >= MIN_REWARDS or (repeated and sample.rewards):
        names = headlines(run, list(sample.rewards)) if group.evaluation else sample.rewards
        parts = [f"{name} {number(sample.rewards[name])}" for name in names]
        parts += [] if sample.reward is None else [f"total {number(sample.reward)}"]
        parts += [f"{clean(name)} {_logged(value)}" for name, value in sample.extra.items()]
        text.append("  ".join(parts) + "\n", DIM)
    return text.append("\n") if text else text


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


def _known(hits: Hits, name: str, hit: int) -> float | None:
    column = hits.column(name)
    return None if column is None or column[hit] != column[hit] else column[hit]


def progress_of(scan: Scan) -> str:
    """How far a search is, and what it left out; empty for one that has searched everything."""
    if scan.running and not scan.complete:
        return f"searching {scan.done / max(scan.files, 1):.0%}  esc stops"
    parts = [f"stopped at {scan.done}/{scan.files} files"] if scan.cancelled else []
    parts += [f"{scan.damaged} damaged lines"] if scan.damaged else []
    parts += [f"the first {MAX_HITS} are listed"] if scan.hits.count > MAX_HITS else []
    return "  ".join(parts)


def searched(scan: Scan) -> str:
    if scan.running and not scan.complete:
        return "searching"
    return f"in {scan.done} files of completions" if scan.done else "there are no completions yet"
