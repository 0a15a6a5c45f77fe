"""The tables of an evaluation, on stderr.

From judgements to the columns of a scores file: means, rounds, composite, passes, and what is missing.

What a summary says of its own metrics, so that whoever reads it needs to know no task.

What people look at first: a row for the model at the start and after each stage.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

from smolsum import console
from smolsum.llm.client import DEFAULT_JUDGE
from smolsum.runs.paths import RunPaths
from smolsum.runs.records import Judgement
from smolsum.tasks.base import ErrorKind, Headline, Row, Task
from smolsum.types import COMPOSITE, Criterion

PASS_RATE, PASSED = "pass_rate", "passed"


def judged_columns(criteria: Sequence[Criterion], rounds: int, judgements: Iterable[Judgement]) -> dict[str, Any]:
    """Returns one example's columns: each metric's mean over its rounds, their sum as `composite`, the share of rounds
    in which all metrics reach their thresholds as `pass_rate`, whether that is most of them as `passed`; in `rounds`
    every score, None where it is missing.

    A mean is over the scores that there are, and None without any; a composite needs all metrics, a round that passes
    or not all of its scores.
    """
    found = {(j.metric, j.round): j.score for j in judgements}
    scores = {c.name: [found.get((c.name, number)) for number in range(1, rounds + 1)] for c in criteria}
    means = {name: _mean(row) for name, row in scores.items()}
    passes: list[float | None] = []
    sums: list[float | None] = []
    for number in range(rounds):
        row = [scores[c.name][number] for c in criteria]
        known = [score for score in row if score is not None]
        complete = len(known) == len(row)
        sums.append(sum(known) if complete else None)
        # half a billionth: a score is a tenth, which floats do not have
        reached = [s >= c.threshold - 5e-10 for s, c in zip(known, criteria, strict=False)]
        passes.append(float(all(reached)) if complete else None)
    values = [mean for mean in means.values() if mean is not None]
    pass_rate = _mean(passes)
    return {
        **means,
        COMPOSITE: sum(values) if len(values) == len(criteria) else None,
        PASS_RATE: pass_rate,
        PASSED: None if pass_rate is None else float(pass_rate > 0.5),
        "rounds": {**scores, COMPOSITE: sums, PASSED: passes},
    }


def judged_summary(criteria: Sequence[Criterion], rows: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    """Returns the mean over the examples of every judged column, and its standard error below `<column>/se`; None where
    nothing, or only one example, has a value."""
    summary: dict[str, float | None] = {}
    for name in (*(c.name for c in criteria), COMPOSITE, PASS_RATE):
        values = [row[name] for row in rows if row[name] is not None]
        summary[name] = fmean(values) if values else None
        summary[f"{name}/se"] = stdev(values) / len(values) ** 0.5 if len(values) > 1 else None
    return summary


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def legend(task: Task, metrics: Mapping[str, float | None]) -> dict[str, Any]:
    """The column that configurations are compared by, what a judge is asked, the headline metrics and those of each
    panel with their titles and values as they are shown, what is watched of a training, what each error means, and each
    of the task's own signals; `metrics` are the summary's."""
    panels = [{"title": panel.title, "headlines": _shown(panel.headlines, metrics)} for panel in task.panels]
    return {
        "score": task.score,
        "prompting": list(task.prompting),
        "criteria": [criterion.name for criterion in task.criteria],
        "headlines": _shown((*task.headlines, *filter(None, [task.missing])), metrics),
        "panels": [panel for panel in panels if panel["headlines"]],
        "watched": {name: list(chosen) for name, chosen in task.watched.items()},
        "errors": {kind.name: kind.meaning for kind in task.errors},
        "signals": {name: {"range": span, "meaning": words} for name, (span, words) in task.meanings.items()},
    }


def _shown(headlines: Sequence[Headline], metrics: Mapping[str, float | None]) -> list[dict[str, str]]:
    return [
        {"metric": h.metric, "title": h.title, "text": h.show(value)}
        for h in headlines
        if (value := metrics.get(h.metric)) is not None
    ]


def error_shares(kinds: Sequence[ErrorKind], rows: Sequence[Row]) -> dict[str, float | None]:
    """Returns `errors/<name>` for each kind: the share of the rows that have it, of those that can tell; None where
    none can."""
    shares: dict[str, float | None] = {}
    for kind in kinds:
        told = [shown for row in rows if (shown := kind.shown(row)) is not None]
        shares[f"errors/{kind.name}"] = sum(told) / len(told) if told else None
    return shares


def headline_table(
    headlines: Sequence[Headline], results: Mapping[str, Mapping[str, float | None]]
) -> tuple[list[str], list[list[str]]]:
    """Titles and rows of the metrics by label; a metric that has no value anywhere is left out."""
    known = [name for metrics in results.values() for name, value in metrics.items() if value is not None]
    shown = [h for h in headlines if h.metric in known]
    rows = []
    for label, metrics in results.items():
        cells = [h.show(v) if (v := metrics.get(h.metric)) is not None else "-" for h in shown]
        rows.append([label if label == "start" else f"after {label}", *cells])
    return ["model", *(h.title for h in shown)], rows


def lacking(
    task: Task, results: Mapping[str, Mapping[str, float | None]], examples: int, run: RunPaths
) -> Iterator[str]:
    """A sentence for each label whose means are not of all examples; those of the last can be asked again."""
    for label, metrics in results.items():
        if lacks := task.lacks(metrics, examples):
            yield f"{label}: {lacks}" + (f"; {run.evaluate_command} asks again" if label == list(results)[-1] else "")


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
