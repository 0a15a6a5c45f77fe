"""The completions browser: a table of the rollouts of a prompt, and the texts of the selected one."""

from statistics import fmean, pstdev

from rich.text import Text

from smolsum.runs.completion_groups import Group, changes, chosen
from smolsum.runs.records import SampledRollout
from smolsum.watch.pane_text import DIM, GREEN, ORANGE, RED, SKY, Pane, ending, number, wrapped
from smolsum.watch.snapshot import Snapshot

MIN_REWARDS = 3
"""Rewards from which the texts repeat them with their full names."""
CHANGE_STYLE = {"same": "", "gone": f"strike {RED}", "new": f"underline {GREEN}"}
CHANGE_MARKS = {"same": ("", ""), "gone": ("[-", "-]"), "new": ("{+", "+}")}


def group_of(snapshot: Snapshot) -> Group | None:
    """Return the selected group."""
    return snapshot.groups[snapshot.options.group % len(snapshot.groups)] if snapshot.groups else None


def sample_of(snapshot: Snapshot) -> SampledRollout | None:
    """Return the selected rollout, after sorting and search."""
    group = group_of(snapshot)
    kept = chosen(group, snapshot.options.sort, snapshot.options.query) if group else []
    return kept[min(snapshot.options.row, len(kept) - 1)] if kept else None


def table(snapshot: Snapshot, width: int, height: int) -> Pane:
    """Return a row for each rollout: tokens, every reward, the total, advantage, worker; then the group's mean."""
    group, options = group_of(snapshot), snapshot.options
    title = f"step {snapshot.step}"
    if group is None:
        return Pane(title, "", (Text("no completions of this step", style=DIM),))
    title += f" prompt {options.group % len(snapshot.groups) + 1}/{len(snapshot.groups)}"
    names = list(group.samples[0].rewards)
    columns = ["tok", *names, *(["total"] if len(names) != 1 else []), "adv"]
    sizes = [max(len(name[:9]), 6) for name in columns]
    while columns and 6 + sum(size + 1 for size in sizes) > width:  # drop parts of the reward, keep the advantage
        place = len(columns) - 2 if len(columns) > 2 else 0
        del columns[place], sizes[place]
    titles = " ".join(f"{name[:9]:>{size}}" for name, size in zip(columns, sizes, strict=True))
    lines = [Text(f"  {'#':>2} {titles} worker", style=DIM)]
    kept = chosen(group, options.sort, options.query)
    here = min(options.row, len(kept) - 1)
    room = max(height - 3, 1)
    start = max(0, min(here - room // 2, len(kept) - room))
    for place, sample in list(enumerate(kept))[start : start + room]:
        cells = {"tok": f"{sample.tokens}{'…' if sample.truncated and not options.ascii else ''}"}
        cells |= {name: number(value) for name, value in sample.rewards.items()}
        cells |= {
            "total": number(sample.reward),
            "adv": "-" if sample.advantage is None else f"{sample.advantage:+.2f}",
        }
        row = " ".join(f"{cells.get(name, '-'):>{size}}" for name, size in zip(columns, sizes, strict=True))
        mark = ">" if place == here else " "
        start_of_row = f"{mark} {sample.number + 1:>2} {row} "
        worker = ending(sample.worker, width - len(start_of_row), ascii=options.ascii)
        lines.append(Text(f"{start_of_row}{worker}", "reverse" if place == here else ""))
    if not kept:
        lines.append(Text(f"no rollout has {options.query!r}", style=ORANGE))
    rewards = [sample.reward for sample in group.samples if sample.reward is not None]
    version = group.samples[0].version
    if rewards:
        summary = f"  mean {number(fmean(rewards))}  std {number(pstdev(rewards))}  by v{version}  {group.prompt_id}"
        lines += [Text(), Text(summary, style=DIM)]
    note = f"by {options.sort}" + (f"  /{options.query}" if options.query else "")
    return Pane(title, note, tuple(lines[:height]))


def texts(snapshot: Snapshot, width: int, height: int) -> Pane:
    """Return completion, references and prompt of the selected rollout, from the scrolled line on."""
    group, sample = group_of(snapshot), sample_of(snapshot)
    if group is None or sample is None:
        return Pane("text", "", ())
    title, completion = "COMPLETION", _found(snapshot, sample.text, width)
    if snapshot.options.difference and (first := snapshot.first) is not None:
        title += f"  changed since step {first.step}"
        completion = _difference(first, sample, width)
    elif snapshot.options.difference:
        title += "  no earlier rollouts of this prompt"
    lines = [Text(title, style=f"bold {SKY}"), *_rewards(sample, width), *completion]
    for place, reference in enumerate(group.references):
        more = f" {place + 1}" if len(group.references) > 1 else ""
        lines += [Text(), Text(f"REFERENCE{more}", style=f"bold {SKY}"), *_paragraphs(reference, width)]
    lines += [Text(), Text("PROMPT", style=f"bold {SKY}")]
    lines += _paragraphs(group.post, width) if group.post else [Text(" this run did not keep its prompts", style=DIM)]
    start = min(snapshot.options.scroll, max(len(lines) - height, 0))
    note = f"{sample.tokens} tokens{', cut' if sample.truncated else ''}"
    if len(lines) > height:
        note += f"  {start + 1}-{min(start + height, len(lines))} of {len(lines)}"
    return Pane(f"rollout {sample.number + 1}", note, tuple(lines[start : start + height]))


def _rewards(sample: SampledRollout, width: int) -> list[Text]:
    """Every reward with its full name, if there are too many for the table."""
    if len(sample.rewards) < MIN_REWARDS:
        return []
    parts = "  ".join(f"{name} {number(value)}" for name, value in sample.rewards.items())
    return [*wrapped(f"{parts}  total {number(sample.reward)}", width - 1, DIM, " "), Text()]


def _difference(first: Group, sample: SampledRollout, width: int) -> list[Text]:
    """The words that were added and removed since the prompt was first sampled, by the rollout of the same number."""
    before = first.samples[min(sample.number, len(first.samples) - 1)]
    text = Text(" ")
    for kind, words in changes(before.text, sample.text):
        opening, closing = CHANGE_MARKS[kind]
        text.append(f"{opening}{words}{closing}", style=CHANGE_STYLE[kind]).append(" ")
    from rich.console import Console  # Rich needs a console to measure styled text

    return list(text.wrap(Console(width=width, color_system=None), width - 1))


def _found(snapshot: Snapshot, text: str, width: int) -> list[Text]:
    """A text with the search words highlighted."""
    lines = _paragraphs(text, width)
    for line in lines:
        if snapshot.options.query:
            line.highlight_words([snapshot.options.query], f"bold reverse {ORANGE}", case_sensitive=False)
    return lines


def _paragraphs(text: str, width: int) -> list[Text]:
    return [line for part in text.split("\n") for line in wrapped(part, width, indent=" ")]
