"""What training did to the model: the evaluations on the test split, from the start to the newest."""

from collections.abc import Mapping

from rich.text import Text

from smolsum.runs.completion_groups import clean
from smolsum.runs.evaluation_records import MeasureInfo
from smolsum.runs.reader import Run
from smolsum.watch.curves import RUNS
from smolsum.watch.pane_text import DIM, NAME_WIDTH, VALUE_WIDTH, Pane, number, wrapped
from smolsum.watch.snapshot import Snapshot

BETTER = {"higher": ("↑", "^"), "lower": ("↓", "v"), "": ("", "")}
"""Marks of the direction that is better, also without Unicode."""
CHANGE = "change"


def results(snapshot: Snapshot, width: int, height: int) -> Pane:
    """Return what the stages did to the model: a row for each headline metric; columns for the start, each stage, the
    change from the first to the last, and the newest validation, as many from the right as there is room for."""
    run = snapshot.run
    title = f"results of {RUNS[0]}" if snapshot.others else "results"
    evaluated = {
        label if label == "start" else f"after {label}": dict(summary.metrics)
        for label, summary in run.results.items()
        if summary.metrics
    }
    columns, part = dict(evaluated), _sampled_start(run)
    if len(columns) > 1 and not part:
        columns[CHANGE] = _changes(*[*columns.values()][:: len(columns) - 1])
    validated = {metric: run.last(f"validation/{metric}") for metric in ("reward", *run.headlines)}
    if any(value is not None for value in validated.values()):
        columns["validation"] = validated
    if not columns:
        hopeful = snapshot.run_state.hopeful
        nothing = "the model as it starts is being measured" if hopeful else "this run measured nothing"
        return Pane(title, "", tuple(wrapped(nothing, width, DIM)))
    measures = {one.name: one for one in run.newest_result[1].measures}
    titles = {metric: clean(title) for metric, title in {"reward": "reward", **run.headlines}.items()}
    known = [metric for metric in titles if any(row.get(metric) is not None for row in columns.values())]
    sizes = {label: max(len(label), VALUE_WIDTH - 2) + 2 for label in columns}
    while len(columns) > 1 and NAME_WIDTH + sum(sizes[label] for label in columns) > width:
        del columns[next(iter(columns))]
    head = f"{'':<{NAME_WIDTH}}" + "".join(f"{clean(label):>{sizes[label]}}" for label in columns)
    lines = [Text(head, style=DIM)]
    for metric in known:
        one = measures.get(metric, MeasureInfo(metric, titles[metric], form=""))
        mark = BETTER[one.better][snapshot.options.ascii]
        cells = "".join(f"{_cell(row.get(metric), one, label):>{sizes[label]}}" for label, row in columns.items())
        lines.append(Text(f"{f'{titles[metric][: NAME_WIDTH - 2]} {mark}':<{NAME_WIDTH}}{cells}"))
    lines += [Text(f"stage {clean(stage)}: from {clean(origin)}", style=DIM) for stage, origin in run.reused.items()]
    step = run.series["validation/reward"].last_step if "validation/reward" in run.series else None
    note = "greedy, test split" + (f"; validation of step {step}" if "validation" in columns and step else "")
    return Pane(title, f"{note}; start: {part} so far" if part else note, tuple(lines[:height]))


def _changes(first: Mapping[str, float | None], last: Mapping[str, float | None]) -> dict[str, float | None]:
    pairs = {metric: (first.get(metric), last.get(metric)) for metric in last}
    return {metric: None if None in pair else pair[1] - pair[0] for metric, pair in pairs.items()}  # type: ignore[operator]


def _cell(value: float | None, measure: MeasureInfo, label: str) -> str:
    """A value as its task writes it; a change with its sign, that of a share in points."""
    if value is None or label != CHANGE:
        return shown(value, measure.form)
    if measure.form.endswith("%"):
        return f"{100 * value:+.1f}"
    return format(value, f"+{measure.form}") if measure.form else f"{'+' if value > 0 else ''}{number(value)}"


def shown(value: float | None, form: str) -> str:
    """Return a value in the format of its task, if that has one."""
    return number(value) if value is None or not form else format(value, form)


def gained(run: Run, *, ascii: bool) -> list[str]:
    """Return when the model was last measured, then the constraint and the quality at the start and then:
    `after length:`, `on target 4.5% → 96.0%`. That is the newest evaluation of the test split, or a validation after it
    (`step 210:`). Empty before the first evaluation, and for runs whose task did not say what they are."""
    label, newest = run.newest_result
    start, arrow = run.results["start"].metrics if "start" in run.results else {}, "->" if ascii else "→"
    part = _sampled_start(run)
    start = {} if part else start
    when = f"at the start{part and f' ({part})'}" if label == "start" else f"after {clean(label)}"
    now: Mapping[str, float | None] = newest.metrics
    validated = {one.name: run.last(f"validation/{one.name}") for one in newest.measures if one.role}
    step = max((run.series[f"validation/{name}"].last_step or 0 for name in validated if validated[name] is not None),
               default=0)  # fmt: skip
    if step > (newest.step or 0):
        label, when, now = "", f"validation {step}", validated
    found = []
    for one in newest.measures:
        first, last = start.get(one.name), now.get(one.name)
        if one.role and last is not None:
            ends = [format(value, one.form) for value in (first, last) if value is not None]
            ends = ends[:1] if label == "start" else ends
            found.append(f"{clean(one.title)} {f' {arrow} '.join(ends)}")
    return [f"{when}:", *found] if found else []


def _sampled_start(run: Run) -> str:
    return run.results["start"].so_far if "start" in run.results else ""
