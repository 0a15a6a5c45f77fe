"""The page of compared runs: the state of each, the settings that differ, and the results next to each other."""

import json
from collections.abc import Callable, Mapping, Sequence

from rich.text import Text

from smolsum.config.presets import leaves
from smolsum.console import duration
from smolsum.runs.completion_groups import clean
from smolsum.runs.evaluation_records import MeasureInfo, Summary
from smolsum.runs.reader import Run
from smolsum.runs.run_state import TROUBLE, RunState, mean_step, pace, progress, run_state
from smolsum.watch.curves import RUNS, rewarded
from smolsum.watch.pane_text import CURVES, DIM, ORANGE, RED, Pane, cut, ending, number
from smolsum.watch.results_page import BETTER, shown
from smolsum.watch.snapshot import Snapshot

PLACE = ("run.",)
"""Beginnings of settings that say where a run is kept, and differ always."""
MIN_NAME, MIN_CELL, MAX_CELL, MIN_KEY, MAX_KEY = 12, 6, 40, 16, 36
BEST = "*"


def runs_of(snapshot: Snapshot) -> list[tuple[str, str, Run, RunState]]:
    """Return letter, colour, run and state of each run of the view."""
    runs = [snapshot.run, *snapshot.others]
    return [
        (letter, CURVES[place % len(CURVES)], run, run_state(run, snapshot.now))
        for place, (letter, run) in enumerate(zip(RUNS, runs, strict=False))
    ]


def compared_in_head(snapshot: Snapshot, room: int) -> Text:
    """Return letter, name, state and step of each other run in at most `room` characters; the names go first."""
    ascii, others = snapshot.options.ascii, runs_of(snapshot)[1:]
    forms: list[Callable[[str, Run, RunState], str]] = [
        lambda letter, run, at: f"{letter} {clean(run.paths.name)} {at.mark(ascii)} {at.state.upper()} {progress(run)}",
        lambda letter, run, at: f"{letter} {at.mark(ascii)} {at.state.upper()} {progress(run)}",
        lambda letter, run, at: f"{letter} {at.mark(ascii)} {run.step}",
    ]
    line = Text()
    for form in forms:
        line = Text()
        for letter, colour, run, at in others:
            line.append(f"  {form(letter, run, at)}", style=RED if at.state in TROUBLE else colour)
        if line.cell_len <= room:
            break
    return line


def states(snapshot: Snapshot, width: int, height: int) -> Pane:
    """Return a line for each run: letter, name, state, stage, step, newest reward, time so far, time left; then why one
    failed, and what helps."""
    head = ("run", "state", "stage", "step", "reward", "elapsed", "eta")
    rows, problems = [], []
    for letter, _, run, at in runs_of(snapshot):
        took = pace(run, at, snapshot.now)
        times = ["-" if seconds is None else duration(seconds) for seconds in (took.elapsed_s, took.eta_s)]
        state = f"{at.mark(snapshot.options.ascii)} {at.state}"
        rows.append([letter, state, clean(run.stage)[:12], progress(run), number(run.last("reward")), *times])
        if at.detail:
            hint = f"  -> {clean(at.hint)}" if at.hint else ""
            style = RED if at.state in TROUBLE else ORANGE
            problems.append(cut(Text(f"{letter} {clean(at.detail)}{hint}", style), width, ascii=snapshot.options.ascii))
    sizes = [max(len(row[n]) for row in (head, *rows)) for n in range(1, len(head))]
    room = max(width - 2 - sum(size + 2 for size in sizes), MIN_NAME)
    lines = [Text(f"  {'run':<{room}}{_cells(head[1:], sizes)}", style=DIM)]
    for row, (letter, colour, run, at) in zip(rows, runs_of(snapshot), strict=True):
        name = ending(clean(run.paths.name), room, ascii=snapshot.options.ascii)
        cells = (_cells(row[1:], sizes), RED if at.state in TROUBLE else "")
        lines.append(Text.assemble((f"{letter} {name:<{room}}", f"bold {colour}"), cells))
    return Pane("runs", "r, return: one run alone", tuple([*lines, *problems][:height]))


def _cells(row: Sequence[str], sizes: Sequence[int]) -> str:
    """State and stage to the left, numbers to the right."""
    return "".join(f"  {cell:{'<' if n < 2 else '>'}{sizes[n]}}" for n, cell in enumerate(row))


def differences(snapshot: Snapshot, width: int, height: int) -> Pane:
    """Return the settings that are not the same in all runs, a line for each, from the scrolled one on. Those of a
    stage are compared between the runs that have it."""
    settings = [leaves(run.config) for _, _, run, _ in runs_of(snapshot)]
    for one, (_, _, run, _) in zip(settings, runs_of(snapshot), strict=True):
        one["stages"] = " > ".join(run.settings.stages)
        one["rewarded for"] = " > ".join(rewarded(stage.rewards) for stage in run.settings.stages.values())
    keys = ["stages", "rewarded for", *(key for one in settings for key in one if not key.startswith(PLACE))]
    keys = [key for key in dict.fromkeys(keys) if _differs(key, settings)]
    if not keys:
        return Pane("settings that differ", "0", (Text("all runs have the same settings", style=DIM),))
    rows = {key: [_value(one, key) for one in settings] for key in keys}
    note, lines = _scrolled(snapshot, _table(snapshot, rows, width), height)
    return Pane("settings that differ", note or str(len(keys)), lines)


def _differs(key: str, settings: Sequence[Mapping[str, object]]) -> bool:
    """Whether runs that could have a setting have different values of it."""
    section, stage, *rest = [*key.split("."), ""]
    if section == "stages" and len(rest) > 1:
        beginning = f"{section}.{stage}."
        settings = [one for one in settings if any(name.startswith(beginning) for name in one)]
    return any(one.get(key) != settings[0].get(key) for one in settings)


def _value(settings: Mapping[str, object], key: str) -> str:
    if key not in settings:
        return "-"
    value = settings[key]
    return clean(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str))


def comparison(snapshot: Snapshot, width: int, height: int) -> Pane:
    """Return the newest evaluation of each run on the test split, the newest validation and the speed, a line for each
    metric. A star marks the best value of an evaluation, where a metric has a direction and the prompts are the
    same."""
    runs = [run for _, _, run, _ in runs_of(snapshot)]
    found = [run.newest_result for run in runs]
    titles = {metric: clean(title) for run in runs for metric, title in run.headlines.items()}
    measures = {one.name: one for _, summary in found for one in summary.measures}
    comparable = _same_prompts([summary for label, summary in found if label])
    rows = {"evaluated after": [_after(label, summary) for label, summary in found]}
    for metric, title in titles.items():
        values = [summary.metrics.get(metric) for _, summary in found]
        if any(value is not None for value in values):
            trained = [
                value if label not in ("", "start") else None for value, (label, _) in zip(values, found, strict=True)
            ]
            one = measures.get(metric, MeasureInfo(metric, title, form=""))
            best = _best(trained, one.better) if comparable else None
            rows[f"{title} {BETTER[one.better][snapshot.options.ascii]}".rstrip()] = [
                f"{shown(value, one.form)}{BEST if n == best else ' '}" for n, value in enumerate(values)
            ]
    for metric, title in {"reward": "reward", **titles}.items():
        values = [run.last(f"validation/{metric}") for run in runs]
        if any(value is not None for value in values):
            form = measures[metric].form if metric in measures else ""
            rows[f"validation: {title}"] = [f"{shown(value, form)} " for value in values]
    rows["training: reward"] = [f"{number(run.last('reward'))} " for run in runs]
    rows["seconds a step"] = [f"{number(mean_step(run))} " for run in runs]
    lines = _table(snapshot, rows, width)
    if not comparable:
        lines.append(Text("evaluated on different test prompts: not comparable", style=ORANGE))
    note, visible = _scrolled(snapshot, lines, height)
    starred = any(BEST in cell for cells in rows.values() for cell in cells)
    legend = f"newest of each run{f', {BEST} best' if starred else ''}"
    return Pane("results", "  ".join(filter(None, [note, legend])), visible)


def _after(label: str, summary: Summary) -> str:
    return f"{label} ({summary.so_far})" if summary.so_far else label or "-"


def _scrolled(snapshot: Snapshot, lines: Sequence[Text], height: int) -> tuple[str, tuple[Text, ...]]:
    """The head and the lines from the scrolled one on; where they do not all fit, which these are."""
    start = min(snapshot.options.scroll, max(len(lines) - height, 0))
    shown = (lines[0], *lines[1 + start : start + height])
    fits = len(shown) == len(lines)
    return "" if fits else f"{start + 1}-{start + len(shown) - 1} of {len(lines) - 1}", shown


def _same_prompts(summaries: Sequence[Summary]) -> bool:
    """Whether all were evaluated on the same examples, and those of one model on the same tokens."""
    found = [(one.model.path, split) for one in summaries if (split := one.data.get("test"))]
    models = {model for model, _ in found}
    texts, tokens = {split.fingerprint for _, split in found}, {(model, split.prompts) for model, split in found}
    return len(texts) <= 1 and len(tokens) == len(models)


def _best(values: Sequence[float | None], better: str) -> int | None:
    """The place of the best of at least two different values; None without a direction."""
    known = {place: value for place, value in enumerate(values) if value is not None}
    if not better or len(set(known.values())) < 2:
        return None
    return (max if better == "higher" else min)(known, key=lambda place: known[place])


def _table(snapshot: Snapshot, rows: Mapping[str, Sequence[str]], width: int) -> list[Text]:
    """A head with the letters, and a line for each row, with a column for each run; cells that are too wide show their
    ends."""
    found, ascii = runs_of(snapshot), snapshot.options.ascii
    cell = max(MIN_CELL, min(MAX_CELL, max(len(one) for cells in rows.values() for one in cells)))
    key = min(max(map(len, rows)), MAX_KEY, max(width - len(found) * (cell + 1), MIN_KEY))
    cell = max(min(cell, (width - key) // len(found) - 1), 1)
    head = Text(" " * key)
    for letter, colour, _, _ in found:
        head.append(f" {letter:>{cell}}", style=f"bold {colour}")
    lines = [head]
    for title, cells in rows.items():
        shown = "".join(f" {ending(one, cell, ascii=ascii):>{cell}}" for one in cells)
        lines.append(Text(f"{ending(title, key, ascii=ascii):<{key}}{shown}"))
    return lines
