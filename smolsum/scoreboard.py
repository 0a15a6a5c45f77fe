"""The tables of an evaluation, on stderr."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from smolsum import console
from smolsum.asking.endpoint import DEFAULT_JUDGE
from smolsum.evaluate.columns import PASS_RATE
from smolsum.evaluate.judgements import Judgement
from smolsum.tasks.criterion import COMPOSITE, Criterion
from smolsum.tasks.task import Task

LISTED = 5
Metrics = Mapping[str, float | None]


def show_measured(task: Task, metrics: Metrics, examples: int, *, of: str, how: str, remedy: str, quiet: bool) -> None:
    """Prints the task's tables, and for those that would be empty how to fill them; what the data cannot fill is left
    out. Examples that are in no mean are a warning, also when quiet."""
    if not quiet:
        console.narrate(f"{of} split, {examples} examples, {how}")
        _show_panels(task, metrics)
    if lacks := task.lacks(metrics, examples):
        console.warn(f"{lacks}; {remedy} asks again")


def _show_panels(task: Task, metrics: Metrics) -> None:
    for panel in task.panels:
        if all(metrics.get(h.metric) is None for h in panel.headlines):
            if not panel.remedy:
                continue
            names = ", ".join(h.title for h in panel.headlines)
            console.narrate(f"missing: {names}; to fill them: {panel.remedy}")
            continue
        values = [(h, metrics.get(h.metric)) for h in panel.headlines]
        row = ["-" if value is None else h.show(value) for h, value in values]
        console.table([h.title for h in panel.headlines], [row], title=panel.title)


def show_judged(
    criteria: Sequence[Criterion],
    metrics: Metrics,
    facts: Mapping[str, Any],
    missing: Sequence[Judgement],
    remedy: str,
    *,
    quiet: bool,
) -> None:
    """Prints the judge's means with their standard errors, its noise and its costs; what it did not score is a warning,
    also when quiet."""
    names = [*(c.name for c in criteria), COMPOSITE]
    if not quiet:
        rows = [
            [name, _show(metrics[name]), _show(metrics[f"{name}/se"]), *_noise(facts["noise"][name])] for name in names
        ]
        rows.append([PASS_RATE, _show(metrics[PASS_RATE]), _show(metrics[f"{PASS_RATE}/se"]), "-", "-", "-"])
        columns = ["metric", "mean", "+-", "between rounds", "ICC", "ICC of the mean"]
        count = f"{facts['rounds']} round{'' if facts['rounds'] == 1 else 's'}"
        console.table(columns, rows, title=f"judged by {facts['model']}, {count}")
        usage = facts["usage"]
        dollars = "" if usage["dollars"] is None else f", ${usage['dollars']:.2f}"
        tokens = f"{usage['input_tokens']:,} tokens in, {usage['output_tokens']:,} out"
        console.narrate(
            f"{usage['calls']:,} calls in all, {usage['cached']:,} scores from the cache; {tokens}{dollars}"
        )
        if second := facts.get("second"):
            _show_agreement(names, second)
    if missing:
        console.warn(f"{len(missing)} judgements are missing, and in no mean; {remedy} asks for them again")
        for j in missing[:LISTED]:
            console.narrate(f"  {j.id} {j.metric} round {j.round}: {j.error}")
        if len(missing) > LISTED:
            console.narrate(f"  … and {len(missing) - LISTED} more, in summary.json")


def say_unjudged(criteria: Sequence[Criterion], remedy: str, *, quiet: bool) -> None:
    """Says which columns are missing without a judge, and the command that fills them."""
    if quiet:
        return
    names = ", ".join([*(c.name for c in criteria), COMPOSITE, PASS_RATE])
    own = bool(os.environ.get("OPENAI_BASE_URL"))
    key = "" if own or os.environ.get("OPENAI_API_KEY") else "export OPENAI_API_KEY=… (or OPENAI_BASE_URL), then "
    command = f"{remedy.replace(' --judge none', '')} --judge {'MODEL' if own else DEFAULT_JUDGE}"
    console.narrate(f"missing: {names}; to fill them: {key}{command}")


def _show_agreement(names: Sequence[str], second: Mapping[str, Any]) -> None:
    figures = ("pearson", "spearman", "difference", "difference_sd")
    rows = [
        [name, str(found["n"]), *(_show(found[figure]) for figure in figures)]
        for name in names
        for found in [second["agreement"][name]]
    ]
    columns = ["metric", "n", "Pearson", "Spearman", "difference", "its sd"]
    console.table(columns, rows, title=f"agreement with {second['model']}")


def _noise(noise: Mapping[str, float | None]) -> list[str]:
    return [_show(noise[key]) for key in ("round_sd", "icc", "icc_mean")]


def _show(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
