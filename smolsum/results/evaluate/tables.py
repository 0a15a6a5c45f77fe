"""How results are shown: the tables of an evaluation on stderr, a training's table of its stages, and the task's titles
and explanations in a summary, so that its readers need not know the task."""

import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from smolsum import console
from smolsum.llm.endpoints import DEFAULT_JUDGE, JUDGE, has_url
from smolsum.rewards import FACTS
from smolsum.runs.evaluation_records import Judgement
from smolsum.runs.paths import RunPaths
from smolsum.tasks.base import ErrorKind, Metric, MetricRow, Task
from smolsum.types import COMPOSITE, DEFAULT_ROUNDS, PASS_RATE, Criterion

MAX_LISTED = 5
"""missing judgements"""
Metrics = Mapping[str, float | None]
TitledTable = tuple[str, list[str], list[list[str]]]
"""title, columns, rows"""


def describe_task(task: Task, metrics: Metrics) -> dict[str, Any]:
    """Return the part of a summary that explains the task: the column that configurations are compared by, the judge's
    criteria, headlines and tables with their titles and shown values, the direction of each headline, the metrics to
    watch in training, the meaning of each error, and the task's own signals."""
    tables = [table for table in task.evaluation.tables if table.applies(metrics)]
    panels = [{"title": table.title, "headlines": _shown(table.metrics, metrics)} for table in tables]
    return {
        "score": task.evaluation.score,
        "prompting": list(task.prompts.prompt_settings),
        "criteria": [criterion.name for criterion in task.evaluation.criteria],
        "headlines": _shown((*task.evaluation.headlines, *filter(None, [task.evaluation.missing])), metrics),
        "measures": [
            {key: value for key, value in asdict(metric).items() if key != "meaning"}
            for metric in task.evaluation.headlines
            if metric.better
        ],
        "panels": [panel for panel in panels if panel["headlines"]],
        "watched": {name: list(chosen) for name, chosen in task.evaluation.watched.items()},
        "errors": {kind.name: kind.meaning for kind in task.evaluation.errors},
        "signals": {
            name: {"range": facts.range, "meaning": facts.meaning}
            for name, signal in task.rewards.signals.items()
            if name not in FACTS and (facts := getattr(signal, "facts", None))
        },
    }


def _shown(shown: Sequence[Metric], metrics: Metrics) -> list[dict[str, str]]:
    return [
        {"metric": metric.name, "title": metric.title, "text": metric.show(value)}
        for metric in shown
        if (value := metrics.get(metric.name)) is not None
    ]


def error_shares(kinds: Sequence[ErrorKind], rows: Sequence[MetricRow]) -> dict[str, float | None]:
    """Return `errors/<name>` for each kind: its share of the rows with a known answer; None without any."""
    shares: dict[str, float | None] = {}
    for kind in kinds:
        known = [shown for row in rows if (shown := kind.shown(row)) is not None]
        shares[f"errors/{kind.name}"] = sum(known) / len(known) if known else None
    return shares


def headline_table(headlines: Sequence[Metric], results: Mapping[str, Metrics]) -> tuple[list[str], list[list[str]]]:
    """Return column titles, and a row for the start and after each stage; metrics without any value are left out."""
    known = [name for metrics in results.values() for name, value in metrics.items() if value is not None]
    shown = [h for h in headlines if h.name in known]
    rows = []
    for label, metrics in results.items():
        cells = [h.show(v) if (v := metrics.get(h.name)) is not None else "-" for h in shown]
        rows.append([label if label == "start" else f"after {label}", *cells])
    return ["model", *(h.title for h in shown)], rows


def closing_tables(task: Task, results: Mapping[str, Metrics], title: str) -> list[TitledTable]:
    """Return what a training closes with, a row for the start and after each stage in each table: the headlines under
    this title, and the task's tables whose subject some evaluation has, such as the lengths that prompts ask for."""
    own = [
        (table.title, *headline_table(table.metrics, results))
        for table in task.evaluation.tables
        if table.subject and any(map(table.applies, results.values()))
    ]
    return [(title, *headline_table(task.evaluation.columns(*results.values()), results)), *own]


def missing_warnings(task: Task, results: Mapping[str, Metrics], examples: int, run: RunPaths) -> Iterator[str]:
    """Yield a warning for each label whose means are not over all examples; the last also names the command that asks
    again."""
    for label, metrics in results.items():
        if lacks := task.evaluation.lacks(metrics, examples):
            again = f"; {run.eval_command} asks again" if label == list(results)[-1] else ""
            yield f"{label}: {lacks}{again}"


def show_measured(task: Task, metrics: Metrics, examples: int, *, of: str, how: str, retry: str, quiet: bool) -> None:
    """Print the task's tables, and how to fill empty ones, or what the data lack for them. Examples that are in no mean
    are a warning, also when quiet."""
    if not quiet:
        console.narrate(f"{of} split, {examples} examples, {how}")
        for panel in task.evaluation.tables:
            if not panel.applies(metrics):
                continue
            if any(metrics.get(h.name) is not None for h in panel.metrics):
                row = ["-" if (v := metrics.get(h.name)) is None else h.show(v) for h in panel.metrics]
                console.table([h.title for h in panel.metrics], [row], title=panel.title)
            elif panel.hint or panel.needs:
                names = ", ".join(h.title for h in panel.metrics)
                why = f"to fill them: {panel.hint}" if panel.hint else f"the data have no {panel.needs}"
                console.narrate(f"missing: {names}; {why}")
    if lacks := task.evaluation.lacks(metrics, examples):
        console.warn(f"{lacks}; {retry} asks again")


def show_judged(
    criteria: Sequence[Criterion],
    metrics: Metrics,
    facts: Mapping[str, Any],
    missing: Sequence[Judgement],
    retry: str,
    *,
    quiet: bool,
) -> None:
    """Print the judge's means with their standard errors, its noise and its costs; missing judgements are a warning,
    also when quiet."""
    names = [*(c.name for c in criteria), COMPOSITE]
    if not quiet:
        noise = {name: _cells(facts["noise"][name], "round_sd", "icc", "icc_mean") for name in names}
        noise[PASS_RATE] = ["-", "-", "-"]
        rows = [[name, *_cells(metrics, name, f"{name}/se"), *spread] for name, spread in noise.items()]
        columns = ["metric", "mean", "+-", "between rounds", "ICC", "ICC of the mean"]
        count = f"{facts['rounds']} round{'' if facts['rounds'] == 1 else 's'}"
        console.table(columns, rows, title=f"judged by {facts['model']}, {count}")
        usage = facts["usage"]
        dollars = "" if usage["dollars"] is None else f", ${usage['dollars']:.2f}"
        tokens = f"{usage['input_tokens']:,} tokens in, {usage['output_tokens']:,} out"
        console.narrate(
            f"{usage['calls']:,} calls in all, {usage['cached']:,} scores from the cache; {tokens}{dollars}"
        )
        for other in filter(None, (facts.get("second"), *facts.get("others", ()))):
            _show_agreement(names, other)
        if alpha := facts.get("alpha"):
            row = ["-" if alpha[name] is None else f"{alpha[name]:.3f}" for name in names]
            console.table(names, [row], title="agreement of all judges, Krippendorff's alpha")
        _show_corrected(facts.get("corrected", ()))
    if missing:
        console.warn(f"{len(missing)} judgements are missing, and in no mean; {retry} asks for them again")
        for j in missing[:MAX_LISTED]:
            console.narrate(f"  {j.id} {j.metric} round {j.round}: {j.error}")
        if len(missing) > MAX_LISTED:
            console.narrate(f"  … and {len(missing) - MAX_LISTED} more, in summary.json")


def show_unjudged(criteria: Sequence[Criterion], retry: str, *, quiet: bool) -> None:
    """Print the columns that are missing without a judge, and the command that fills them."""
    if quiet:
        return
    names = ", ".join([*(c.name for c in criteria), COMPOSITE, PASS_RATE])
    own = has_url(JUDGE, os.environ)
    key = "" if own or os.environ.get("OPENAI_API_KEY") else "export OPENAI_API_KEY=… (or SMOLSUM_JUDGE_URL), then "
    command = with_judge(retry, "MODEL" if own else DEFAULT_JUDGE)
    console.narrate(f"missing: {names}; to fill them: {key}{command}")


def with_judge(command: str, judge: str, rounds: int = 0) -> str:
    """Return a command of `smolsum eval` or `baseline` with this judge in place of the one that it names, if any; with
    `rounds` also with that number of rounds."""
    replaced = ("--judge", "--rounds") if rounds else ("--judge",)
    kept, words = list[str](), iter(shlex.split(command))
    for word in words:
        flag, joined, _ = word.partition("=")
        if flag not in replaced:
            kept.append(word)
        elif not joined:
            next(words, None)  # its value
    own = ["--rounds", str(rounds)] if rounds not in (0, DEFAULT_ROUNDS) else []
    return shlex.join([*kept, "--judge", judge, *own])


def _show_agreement(names: Sequence[str], second: Mapping[str, Any]) -> None:
    found = {name: second["agreement"][name] for name in names}
    figures = ("pearson", "spearman", "difference", "difference_sd")
    rows = [[name, str(one["n"]), *_cells(one, *figures)] for name, one in found.items()]
    columns = ["metric", "n", "Pearson", "Spearman", "difference", "its sd"]
    console.table(columns, rows, title=f"agreement with {second['model']}")
    if (kappa := second.get("kappa")) and kappa["n"]:
        (beyond, low, high) = _cells(kappa, "kappa", "low", "high")
        agreed = f"{100 * kappa['agreed']:.1f} %"
        console.narrate(f"same verdict on {agreed} of {kappa['n']} examples, kappa {beyond} [{low}, {high}]")


def _show_corrected(found: Sequence[Mapping[str, Any]]) -> None:
    """Print the share that passes next to the one that is corrected for the judge's errors, by each source of these."""
    if not found:
        return
    rows = []
    for one in found:
        shares = [f"{100 * one[key]:.1f} %" for key in ("raw", "sensitivity", "specificity")]
        ends = [f"{100 * one[key]:.1f} %" for key in ("share", "low", "high")] if one["share"] is not None else None
        corrected = [ends[0], f"[{ends[1]}, {ends[2]}]"] if ends else ["-", "it passes good and bad alike"]
        rows.append([one["source"], str(one["n"]), *shares, *corrected])
    columns = ["errors by", "n", "passed", "sensitivity", "specificity", "corrected", "95 % interval"]
    console.table(columns, rows, title="passed, corrected for the judge's errors")


def _cells(values: Metrics, *keys: str) -> list[str]:
    return ["-" if (value := values[key]) is None else f"{value:.3f}" for key in keys]
