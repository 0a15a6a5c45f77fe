"""The tables that a task shows of an evaluation, with a row for every evaluation: intervals, shares by kind, pass@k.

What the task itself says of its completions: headline metrics, errors, and for a task that is not the study's its
results.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from smolsum.evaluate.tables import PASSED
from smolsum.report.commands import judge_command
from smolsum.report.document import Cell, Table, empty, letter, number, p_value, percent, plain, sentence, signed, words
from smolsum.report.results import ConfigurationResult, baseline_of
from smolsum.report.sections.results import NOT_DONE, interval, test_cells
from smolsum.report.study import Evaluation, Study, Trained
from smolsum.stats.loading import Arm
from smolsum.stats.multiple_testing import holm
from smolsum.stats.paired import mcnemar
from smolsum.stats.seeds import MixedResult, compare_runs

ERRORS = "errors/"
"""before the names of errors among the metrics"""
FACTS, FACT_ERROR = "facts/", "wrong facts"
"""before what is counted where the data have facts, and the error that only they tell"""
NO_FACTS = "not known: data without facts"


def headlines_table(study: Study) -> Table:
    """Returns the task's headline metrics of every evaluation, as the task shows them."""
    shown = [*((run.paths.name, run.last) for run in study.trained), *((e.folder.name, e) for e in study.baselines)]
    titles = {h["metric"]: h["title"] for _, e in shown for h in e.summary.get("headlines", ())}
    rows = []
    for name, evaluation in shown:
        texts = {h["metric"]: h["text"] for h in evaluation.summary.get("headlines", ())}
        cells = [
            Cell(
                as_shown(texts[metric], evaluation.metric(metric)),
                evaluation.metric(metric),
                evaluation.source(metric),
            )
            if metric in texts
            else _unknown(evaluation, metric)
            for metric in titles
        ]
        rows.append((words(name), *cells))
    note = "Of the test split, greedy; the evaluation of a run is that of its last step."
    return Table("S10", "Headline metrics", ("Evaluation", *titles.values()), tuple(rows), (note,))


def as_shown(text: str, value: float | None) -> str:
    """As the task shows it, but a share as shares are shown in all of the report."""
    return text if value is None or not text.endswith("%") else percent(value)


def started_table(study: Study) -> Table:
    """Returns what training did to the score of each run: its last evaluation against the one before its first step."""
    tests = [started(run, study.score) for run in study.trained]
    adjusted = holm([math.nan if test is None else test.result.p for test in tests])
    named = {test_name(test) for test in tests if test is not None} or {"paired t-test"}
    rows = []
    for run, test, p in zip(study.trained, tests, adjusted, strict=True):
        head = (words(run.model), words(run.paths.name))
        if test is None:
            rows.append((*head, *[empty(judge_command(study, run.last))] * 8))
            continue
        result = test.result
        rows.append(
            (
                *head,
                number(result.mean_a, plain(3)),
                number(result.mean_b, plain(3), run.last.source(study.score) if run.last.metric(study.score) else None),
                number(result.delta, signed(3)),
                *test_cells(result.t, result.p, p),
                interval(result.ci_low, result.ci_high),
            )
        )
    columns = ("Model", "Run", "Before", "After", "Δ", "t", "p", "Sig", "p (Holm)", "95 % interval")
    note = f"{study.score}, mean over the test examples; p, two-sided: {' or '.join(sorted(named))}"
    note += "; interval of the difference by Student's t."
    return Table("S11", "What training did", columns, tuple(rows), (note,))


def test_name(test: MixedResult) -> str:
    """What the p of `started` is from."""
    return "McNemar's exact test" if math.isnan(test.result.t) and not test.result.note else "paired t-test"


def started(run: Trained, score: str) -> MixedResult | None:
    """The last evaluation against the first; None where one of them lacks the score. Where every score is 0 or 1 its p
    is McNemar's, which is exact, and there is no t."""
    if (pair := _both(run, score)) is None:
        return None
    found = compare_runs(*pair, alternative="two-sided")
    flips = mcnemar(*(values[0] for values in pair), alternative="two-sided")
    return found if flips is None else replace(found, result=replace(found.result, t=math.nan, p=flips.p, note=""))


def _both(run: Trained, column: str) -> tuple[Any, Any] | None:
    """A column of the first and of the last evaluation, by example; None where one of them lacks it."""
    if run.first is None or not all(column in e.scores.metrics for e in (run.first, run.last)):
        return None
    sides = [Arm(e.folder.name, (e.scores,)) for e in (run.first, run.last)]
    before, after = (side.values(column, sides[0].ids) for side in sides)
    return before, after


def started_flips_table(study: Study) -> Table:
    """Returns the examples that training rescued and regressed, of the runs whose evaluations say which are right."""
    rows = []
    for run in study.trained:
        if (pair := _both(run, PASSED)) is None:
            continue
        flips = mcnemar(*(values[0] for values in pair), alternative="two-sided")
        if flips is None:
            continue
        counts = (number(flips.gained, plain(0)), number(flips.lost, plain(0)), number(flips.p, p_value))
        rows.append((words(run.model), words(run.paths.name), *counts))
    columns = ("Model", "Run", "Rescued", "Regressed", "p (McNemar)")
    note = "Rescued: right after training and not before; regressed: the reverse."
    return Table("S5", "Rescued and regressed examples", columns, tuple(rows), (note,))


def error_names(study: Study, outcomes: Sequence[ConfigurationResult]) -> list[str]:
    """Names of all errors that an evaluation counts."""
    evaluations = [*(one.evaluations[0] for one in outcomes), *study.evaluations]
    keys = dict.fromkeys(key for e in evaluations for key in e.summary["metrics"] if key.startswith(ERRORS))
    return [key.removeprefix(ERRORS) for key in keys]


def errors_table(study: Study, outcomes: Sequence[ConfigurationResult]) -> Table:
    """Returns what is wrong with the completions, in shares of the examples; one may have several faults."""
    names = error_names(study, outcomes)
    shown = [*filter(None, (baseline_of(study, model) for model in study.models)), *outcomes]
    rows = [(words(one.model), words(one.name), *(_share(study, one, name) for name in names)) for one in shown]
    for evaluation in study.baselines:
        cells = [_share(study, evaluation, name) for name in names]
        rows.append((words(evaluation.model), words(evaluation.folder.name), *cells))
    meanings = {k: v for e in study.evaluations for k, v in e.summary.get("errors", {}).items()}
    note = "; ".join(f"{name}: {meanings[name]}" for name in names if name in meanings)
    columns = ("Model", "Configuration", *(sentence(name) for name in names))
    return Table("S6", "Error taxonomy", columns, tuple(rows), (f"{sentence(note)}.",) if note else ())


def _share(study: Study, of: ConfigurationResult | Evaluation, name: str) -> Cell:
    """A share; where nothing could tell it, the command that might: with a judge, if there was none."""
    evaluation = of.evaluations[0] if isinstance(of, ConfigurationResult) else of
    if (value := of.metric(key := ERRORS + name)) is None and name == FACT_ERROR and not _has_facts(evaluation):
        return words(NO_FACTS)
    command = evaluation.again if evaluation.judge else judge_command(study, evaluation)
    return number(value, percent, evaluation.source(key), command=command)


def _has_facts(evaluation: Evaluation) -> bool:
    return any(key.startswith(FACTS) for key in evaluation.summary["metrics"])


def _unknown(evaluation: Evaluation, metric: str) -> Cell:
    """A headline that an evaluation does not have."""
    if metric.startswith(FACTS) and not _has_facts(evaluation):
        return words(NO_FACTS)
    return empty(evaluation.again, "not known")


def panels_tables(study: Study) -> list[Table]:
    """Returns a table for each panel that an evaluation has a value of."""
    shown = list(_named(study))
    panels: dict[str, dict[str, str]] = {}
    for _, evaluation in shown:
        for panel in evaluation.summary.get("panels", ()):
            panels.setdefault(panel["title"], {}).update({h["metric"]: h["title"] for h in panel["headlines"]})
    return [
        _table(f"S15{letter(place)}", title, columns, shown) for place, (title, columns) in enumerate(panels.items())
    ]


def _named(study: Study) -> Iterator[tuple[str, Evaluation]]:
    """Every evaluation with what it is called: the baselines, then those of each run, the sampled ones last."""
    for baseline in study.baselines:
        yield baseline.folder.name, baseline
    for run in study.trained:
        for evaluation in (*run.evaluations, *run.sampled):
            yield f"{run.paths.name}, {evaluation.folder.name}", evaluation


def _table(label: str, title: str, columns: dict[str, str], shown: list[tuple[str, Evaluation]]) -> Table:
    rows = []
    for name, evaluation in shown:
        texts = {
            h["metric"]: h["text"]
            for panel in evaluation.summary.get("panels", ())
            if panel["title"] == title
            for h in panel["headlines"]
        }
        if texts:
            rows.append((words(name), *(_cell(evaluation, metric, texts.get(metric)) for metric in columns)))
    return Table(label, sentence(title), ("Evaluation", *columns.values()), tuple(rows))


def _cell(evaluation: Evaluation, metric: str, text: str | None) -> Cell:
    if text is None:
        return words(NOT_DONE)
    value = evaluation.metric(metric)
    return Cell(as_shown(text, value), value, evaluation.source(metric))
