"""What training did to the model, from the start to the newest evaluation on the test split; and runs compared: the
state of each, the settings that differ, and the results next to each other."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from rich.text import Text

from smolsum.config.differences import differing
from smolsum.config.presets import leaves
from smolsum.console import duration
from smolsum.linechart.scale import number
from smolsum.runs.alerts import find_alerts
from smolsum.runs.evaluation_records import MeasureInfo, Summary
from smolsum.runs.reader import Run
from smolsum.runs.samples import clean
from smolsum.runs.state import TROUBLE, RunState, mean_step, pace, progress, run_state
from smolsum.watch.charts import RUNS
from smolsum.watch.formats import CURVES, NAME_WIDTH, ORANGE, RED, VALUE_WIDTH, Rows, ending
from smolsum.watch.model import Snapshot

BETTER = {"higher": "↑", "lower": "↓", "": ""}
"""Marks of the direction that is better."""
CHANGE = "change"
MAX_CELL, AROUND = 40, 5
"""Characters of a setting or result of a compared run, and those around it and its name."""
BEST = "*"


def results(snapshot: Snapshot, width: int) -> Rows:
    """Return what the stages did to the model: a row for each headline metric; columns for the start, each stage, the
    change from the first to the last, and the newest validation, as many from the right as there is room for."""
    run = snapshot.run
    title = f"results of {RUNS[0]}" if snapshot.others else "results"
    columns: dict[str, Mapping[str, float | None]] = {
        label if label == "start" else f"after {label}": summary.metrics
        for label, summary in run.results.items()
        if summary.metrics
    }
    part = _sampled_start(run)
    if len(columns) > 1 and not part:
        first, *_, last = columns.values()
        both = [(metric, first.get(metric), value) for metric, value in last.items()]
        columns[CHANGE] = {m: None if None in (old, new) else new - old for m, old, new in both}  # type: ignore[operator]
    validated = {metric: run.last(f"validation/{metric}") for metric in ("reward", *run.headlines)}
    if any(value is not None for value in validated.values()):
        columns["validation"] = validated
    if not columns:
        hopeful = snapshot.run_state.hopeful
        nothing = "the model as it starts is being measured" if hopeful else "this run measured nothing"
        return Rows(title, "", [""], [[nothing]])
    room = width - max(map(len, columns)) - AROUND - len(" ↑")
    titles = {metric: ending(clean(title), room) for metric, title in {"reward": "reward", **run.headlines}.items()}
    while len(columns) > 1 and NAME_WIDTH + sum(max(len(label), VALUE_WIDTH - 2) + 2 for label in columns) > width:
        del columns[next(iter(columns))]
    infos = _infos(titles, [run.newest_result[1]])
    rows = [
        [f"{titles[name]} {BETTER[one.better]}", *(_cell(row.get(name), one, label) for label, row in columns.items())]
        for name, one in infos.items()
        if any(row.get(name) is not None for row in columns.values())
    ]
    reused = [f"stage {clean(stage)}: from {clean(origin)}" for stage, origin in run.reused.items()]
    rows += [[line, *[""] * len(columns)] for line in reused]
    step = run.series["validation/reward"].last_step if "validation/reward" in run.series else None
    note = "greedy, test split" + (f"; validation of step {step}" if "validation" in columns and step else "")
    return Rows(title, f"{note}; start: {part} so far" if part else note, ["", *map(clean, columns)], rows)


def _infos(titles: Mapping[str, str], summaries: Sequence[Summary]) -> dict[str, MeasureInfo]:
    """How each metric is written and which of its values are better, as far as an evaluation says."""
    known = {one.name: one for summary in summaries for one in summary.measures}
    return {metric: known.get(metric, MeasureInfo(metric, title, form="")) for metric, title in titles.items()}


def _cell(value: float | None, measure: MeasureInfo, label: str) -> str:
    """A value as its task writes it; a change with its sign, that of a share in points."""
    if value is None or label != CHANGE:
        return _shown(value, measure.form)
    if measure.form.endswith("%"):
        return f"{100 * value:+z.1f}"
    return format(value, f"+{measure.form}") if measure.form else f"{'+' if value > 0 else ''}{number(value)}"


def _shown(value: float | None, form: str) -> str:
    return number(value) if value is None or not form else format(value, form)


class Gained(NamedTuple):
    """What training did so far."""

    text: str
    """when it was last measured, then the constraint and the quality at the start and then:
    `after length: on target 4.5% → 96.0%`"""
    validated: bool
    """whether that was a validation, which came after the last evaluation of the test split
    (`start → val. 210: ...`)"""


def gained(run: Run) -> Gained | None:
    """Return what training did so far; None before the first evaluation, and for runs whose task did not say what its
    constraint and its quality are."""
    label, newest = run.newest_result
    part = _sampled_start(run)
    start = run.results["start"].metrics if "start" in run.results and not part else {}
    when = f"at the start{part and f' ({part})'}" if label == "start" else f"after {clean(label)}"
    now: Mapping[str, float | None] = newest.metrics
    validations = {one.name: run.last(f"validation/{one.name}") for one in newest.measures if one.role}
    known = [name for name, value in validations.items() if value is not None]
    steps = [run.series[f"validation/{name}"].last_step or 0 for name in known]
    validated = (step := max(steps, default=0)) > (newest.step or 0)
    if validated:
        label, now = "", validations
        when = f"{'start → val.' if start else 'validation'} {step}"
    found = []
    for one in newest.measures:
        first, last = start.get(one.name), now.get(one.name)
        if one.role and last is not None:
            ends = [format(value, one.form) for value in (first, last) if value is not None]
            found.append(f"{clean(one.title)} {' → '.join(ends[:1] if label == 'start' else ends)}")
    return Gained(" ".join([f"{when}:", *found]), validated) if found else None


def _sampled_start(run: Run) -> str:
    return run.results["start"].so_far if "start" in run.results else ""


def _runs_of(snapshot: Snapshot) -> list[tuple[str, str, Run, RunState]]:
    """Letter, colour, run and state of each run of the view."""
    return [
        (letter, CURVES[place % len(CURVES)], run, run_state(run, snapshot.now))
        for place, (letter, run) in enumerate(zip(RUNS, snapshot.runs, strict=False))
    ]


def compared_in_head(snapshot: Snapshot, room: int) -> Text:
    """Return letter, name, state and step of each other run in at most `room` characters; the names go first."""
    for form in ("named", "unnamed", "short"):
        line = Text()
        for letter, colour, run, at in _runs_of(snapshot)[1:]:
            name = f"{clean(run.paths.name)} " if form == "named" else ""
            state = f"{run.step}" if form == "short" else f"{at.state.upper()} {progress(run)}"
            line.append(f"  {letter} {name}{at.mark} {state}", style=RED if at.state in TROUBLE else colour)
        if line.cell_len <= room:
            break
    return line


def states(snapshot: Snapshot, _width: int) -> Rows:
    """Return a row for each run: letter, name, state, stage, step, newest reward, time so far, time left, and why one
    failed with what helps, or its first alert."""
    rows: list[list[str | Text]] = []
    for letter, colour, run, at in _runs_of(snapshot):
        took = pace(run, at, snapshot.now)
        times = ["-" if seconds is None else duration(seconds) for seconds in (took.elapsed_s, took.eta_s)]
        style = RED if at.state in TROUBLE else ""
        state = Text(f"{at.mark} {at.state}", style)
        name = Text(f"{letter} {clean(run.paths.name)}", f"bold {colour}")
        alarms = [alert for alert in find_alerts(run) if alert.level != "note"] if at.alive else []
        hint = f"  -> {at.hint}" if at.detail and at.hint else ""
        problem = Text(clean(f"{at.detail}{hint}" or (alarms[0].sentence if alarms else "")), style or ORANGE)
        rows.append([name, state, clean(run.stage), progress(run), number(run.last("reward")), *times, problem])
    titles = ["run", "state", "stage", "step", "reward", "elapsed", "eta", "what is wrong"]
    return Rows("runs", "r, return: one run alone", titles, rows, left=("run", "state", "stage", "what is wrong"))


def differences(snapshot: Snapshot, width: int) -> Rows:
    """Return the settings that are not the same in all runs, a row for each."""
    rows = differing([leaves(run.config) for run in snapshot.runs])
    if not rows:
        return Rows("settings that differ", "0", [""], [["all runs have the same settings"]])
    return _by_run("settings that differ", str(len(rows)), snapshot, rows, width)


def comparison(snapshot: Snapshot, width: int) -> Rows:
    """Return the newest evaluation of each run on the test split, the newest validation and the speed, a row for each
    metric. A star marks the best value of an evaluation after the last stage, where a metric has a direction and the
    prompts are the same."""
    runs = snapshot.runs
    newest = [run.newest_result for run in runs]
    summaries = [summary for _, summary in newest]
    titles = {metric: clean(title) for run in runs for metric, title in run.headlines.items()}
    comparable = _same_prompts([summary for label, summary in newest if label])
    after = [f"{label} ({one.so_far})" if one.so_far else label or "-" for label, one in newest]
    rows = {"evaluated after": after}
    starred = False
    for metric, one in _infos(titles, summaries).items():
        values = [summary.metrics.get(metric) for summary in summaries]
        if any(value is not None for value in values):
            ended = [value if run.tested else None for run, value in zip(runs, values, strict=True)]
            best = _best(ended, one.better) if comparable else None
            starred |= best is not None
            rows[f"{titles[metric]} {BETTER[one.better]}".rstrip()] = [
                f"{_shown(value, one.form)}{BEST if n == best else ' '}" for n, value in enumerate(values)
            ]
    for metric, one in _infos({"reward": "reward", **titles}, summaries).items():
        values = [run.last(f"validation/{metric}") for run in runs]
        if any(value is not None for value in values):
            rows[f"validation: {titles.get(metric, metric)}"] = [f"{_shown(value, one.form)} " for value in values]
    rows["training: reward"] = [f"{number(run.last('reward'))} " for run in runs]
    rows["seconds a step"] = [f"{number(mean_step(run))} " for run in runs]
    note = f"newest of each run{f', {BEST} best' if starred else ''}"
    if not comparable:
        note = "evaluated on different test prompts: not comparable"
    return _by_run("results", note, snapshot, rows, width)


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


def _by_run(title: str, note: str, snapshot: Snapshot, rows: Mapping[str, Sequence[str]], width: int) -> Rows:
    """A column for each run; cells that have no room next to their name show their ends."""
    most = min(max(width - max(map(len, rows)) - AROUND, VALUE_WIDTH), MAX_CELL)
    cells = [[name, *(ending(one, most) for one in values)] for name, values in rows.items()]
    return Rows(title, note, ["", *(letter for letter, *_ in _runs_of(snapshot))], cells)
