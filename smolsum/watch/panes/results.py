"""Where a step's time goes.

What the stages did to the model: the headline metrics of the run's task at its start and after each stage.
"""

from __future__ import annotations

from statistics import fmean

from rich.text import Text

from smolsum.runs.completions import clean
from smolsum.watch.pane import DIM, SKY, Pane, bar, number, wrapped
from smolsum.watch.snapshot import Snapshot

NAME, VALUE = 16, 9


def results(board: Snapshot, width: int, height: int) -> Pane:
    """Returns a row for each metric, a column for the model at the start, after each stage, and at the newest
    validation; the columns that have no room are left out from the left."""
    run = board.run
    columns = {
        label if label == "start" else f"after {label}": dict(summary.metrics)
        for label, summary in run.results.items()
        if summary.metrics
    }
    validated = {metric: run.last(f"validation/{metric}") for metric in ("reward", *run.headlines)}
    if any(value is not None for value in validated.values()):
        columns["validation"] = validated
    if not columns:
        return Pane("results", "", tuple(wrapped(_nothing(board), width, DIM)))
    titles = {metric: clean(title) for metric, title in {"reward": "reward", **run.headlines}.items()}
    known = [metric for metric in titles if any(row.get(metric) is not None for row in columns.values())]
    sizes = {label: max(len(label), VALUE - 2) + 2 for label in columns}
    while len(columns) > 1 and NAME + sum(sizes[label] for label in columns) > width:
        del columns[next(iter(columns))]
    head = f"{'':<{NAME}}" + "".join(f"{clean(label):>{sizes[label]}}" for label in columns)
    lines = [Text(head, style=DIM)]
    for metric in known:
        cells = "".join(f"{number(row.get(metric)):>{sizes[label]}}" for label, row in columns.items())
        lines.append(Text(f"{titles[metric][:NAME]:<{NAME}}{cells}"))
    step = run.series["validation/reward"].last_step if "validation/reward" in run.series else None
    note = "greedy, test split" + (f"; validation of step {step}" if "validation" in columns and step else "")
    return Pane("results", note, tuple(lines[:height]))


def _nothing(board: Snapshot) -> str:
    return "the model as it starts is being measured" if board.run_state.hopeful else "this run measured nothing"


TIMES = {
    "rollout_s": "sampling",
    "rollout_wait_s": "waiting for rollouts",
    "score_s": "rewards",
    "fwd_bwd_s": "forward, backward",
    "optimizer_s": "optimizer",
    "weight_sync_s": "weight sync",
    "validate_s": "validation",
}
MEAN_OVER = 20


def times(board: Snapshot, width: int, height: int) -> Pane:
    """Returns the parts of a step in the mean of the last steps, each with a bar, the longest first."""
    run = board.run
    steps = run.recent("perf/step_s", MEAN_OVER)
    if not steps:
        return Pane("step time", "", (Text("waiting for the first step", style=DIM),))
    mean = fmean(steps)
    parts = {}
    for name in run.named("perf/", "_s"):
        part = name.removeprefix("perf/")
        # a part that not every step has, a validation say, counts with its share of the steps
        seconds = sum(run.series[name].recent(len(steps), run.step - len(steps) + 1)) / len(steps)
        if part != "step_s" and "tok_s" not in part and seconds:
            parts[TIMES.get(part, part.removesuffix("_s").replace("_", " "))] = seconds
    rest = mean - sum(parts.values())
    if rest > 0.01 * mean:
        parts["other"] = rest
    lines = []
    for label, seconds in sorted(parts.items(), key=lambda part: -part[1])[:height]:
        head = f"{label[:17]:<17} {seconds:>7.2f}s "
        lines.append(Text(head).append(bar(seconds / mean, max(width - len(head) - 1, 1), ascii=board.look.ascii), SKY))
    return Pane("step time", f"{mean:.2f} s, mean of {len(steps)}", tuple(lines))
