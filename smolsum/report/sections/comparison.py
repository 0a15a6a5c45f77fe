"""What became of a model from stage to stage and from validation to validation: rescued examples, and errors.

Everything that was evaluated on the same examples, in one table and one figure: runs before and after training,
baselines, models behind an endpoint.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import t as student

from smolsum.report import charts
from smolsum.report.document import Cell, Figure, Table, empty, letter, number, p_value, percent, plain, sentence, words
from smolsum.report.sections.figures import curves, panel
from smolsum.report.sections.task import ERRORS
from smolsum.report.study import Evaluation, Study, Trained
from smolsum.stats.loading import Arm
from smolsum.stats.paired import McNemar, mcnemar
from smolsum.tasks.sampling_stats import wilson

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Interval:
    """A mean over `n` examples with its 95 % interval; both ends NaN for fewer than two examples."""

    n: int
    mean: float
    low: float
    high: float


def mean_interval(values: np.ndarray) -> Interval:
    """Of the values that are there: Wilson's interval where each is 0 or 1 (Student's would say that 20 of 20 is
    certain), else Student's t."""
    known = values[~np.isnan(values)]
    n, mean = len(known), float(known.mean()) if len(known) else math.nan
    if n < 2:
        return Interval(n, mean, math.nan, math.nan)
    if np.isin(known, (0, 1)).all():
        return Interval(n, mean, *wilson(int(known.sum()), n, CONFIDENCE))
    half = float(student.ppf((1 + CONFIDENCE) / 2, n - 1) * known.std(ddof=1) / math.sqrt(n))
    return Interval(n, mean, mean - half, mean + half)


def named(study: Study) -> Iterator[tuple[str, Evaluation]]:
    """Every evaluation with what it is called, the runs' own before the others."""
    for run in study.trained:
        if run.first is not None:
            yield f"{run.paths.name}, start", run.first
        yield run.paths.name, run.last
    for evaluation in study.baselines:
        yield evaluation.folder.name, evaluation


def intervals(study: Study) -> list[tuple[str, Evaluation, Interval | None]]:
    """The score of every evaluation, the best first; those without it last."""
    found = []
    for name, evaluation in named(study):
        has = study.score in evaluation.scores.metrics
        values = evaluation.scores.frame[study.score].cast(float).to_numpy() if has else None
        found.append((name, evaluation, None if values is None else mean_interval(values)))
    return sorted(found, key=lambda row: -math.inf if row[2] is None else row[2].mean, reverse=True)


def side_by_side_table(study: Study) -> Table:
    """Returns the score of every evaluation with its interval."""
    rows = []
    for name, evaluation, found in intervals(study):
        head = (words(name), words(evaluation.model))
        if found is None:
            rows.append((*head, *[empty(evaluation.again, "not known")] * 3))
            continue
        mean = number(found.mean, plain(3), evaluation.source(study.score))
        rows.append((*head, Cell(str(found.n), found.n), mean, words(_ends(found))))
    note = f"{study.score}, mean over the test examples that have it; interval over examples: "
    note += "Wilson's where each is 0 or 1, else by Student's t."
    return Table("S12", "Side by side", ("Evaluation", "Model", "n", "Mean", "95 % interval"), tuple(rows), (note,))


def side_by_side_figure(study: Study) -> list[Figure]:
    """Returns the same as a chart; nothing where fewer than two have an interval."""
    drawn = [(name, f) for name, _, f in intervals(study) if f is not None and math.isfinite(f.low)]
    if len(drawn) < 2:
        return []
    told = ", ".join(f"{name} {f.mean:.3f} [{f.low:.3f}, {f.high:.3f}]" for name, f in drawn)
    alt = f"{study.score} with 95 % intervals: {told}"
    svg = charts.spans([name for name, _ in drawn], [(f.mean, f.low, f.high) for _, f in drawn], alt=alt)
    return [Figure("S13", f"{study.score} with 95 % intervals", svg, alt)]


def _ends(found: Interval) -> str:
    """The interval in a cell; a dash where there is none."""
    return f"[{found.low:.3f}, {found.high:.3f}]" if math.isfinite(found.low) else "\N{EN DASH}"


PASSED = "passed"
"""the column of a task that tells right examples from wrong ones"""
VALIDATION = f"validation/{ERRORS}"


def stages_table(study: Study) -> list[Table]:
    """Returns each run's model at its start and after every stage: the share of right examples, which of them the
    stages rescued and regressed against the start, and its errors. Nothing for tasks without right and wrong."""
    runs = [run for run in study.trained if all(e.metric(PASSED) is not None for e in run.evaluations)]
    if not runs:
        return []
    errors = list(dict.fromkeys(key for run in runs for e in run.evaluations for key in _errors(e)))
    rows = [_row(run, e, errors) for run in runs for e in run.evaluations]
    titles = [sentence(key.removeprefix(ERRORS)) for key in errors]
    note = "Rescued: right now and not at the start; regressed: the reverse; p by McNemar's exact test, two-sided."
    columns = ("Run", "Evaluation", "Right", "Rescued", "Regressed", "p (McNemar)", *titles)
    return [Table("S14", "From stage to stage", columns, tuple(rows), (note,))]


def _errors(evaluation: Evaluation) -> list[str]:
    return [key for key, value in evaluation.summary["metrics"].items() if key.startswith(ERRORS) and value is not None]


def _row(run: Trained, evaluation: Evaluation, errors: Sequence[str]) -> tuple[Cell, ...]:
    first = run.evaluations[0]
    flips = None if evaluation is first else _flips(first, evaluation)
    told = (
        (words(""), words(""), words(""))
        if flips is None
        else (number(flips.gained, plain(0)), number(flips.lost, plain(0)), number(flips.p, p_value))
    )
    return (
        words(run.paths.name),
        words(evaluation.folder.name),
        number(evaluation.metric(PASSED), percent, evaluation.source(PASSED)),
        *told,
        *(number(evaluation.metric(key), percent, evaluation.source(key), command=evaluation.again) for key in errors),
    )


def _flips(before: Evaluation, after: Evaluation) -> McNemar | None:
    sides = [Arm(e.folder.name, (e.scores,)) for e in (before, after)]
    return mcnemar(*(side.values(PASSED, sides[0].ids)[0] for side in sides), alternative="two-sided")


def errors_figures(study: Study) -> list[Figure]:
    """Returns, for each model, the share of each error at every validation of its runs."""
    figures: list[Figure] = []
    for model in study.models:
        runs = [run for run in study.trained if run.model == model]
        keys = dict.fromkeys(key for run in runs for row in run.metrics for key in row if key.startswith(VALIDATION))
        panels = [panel(runs, key, key.removeprefix(VALIDATION)) for key in keys]
        panels = [p for p in panels if any(y for one in p.series for _, y in one.values)]
        if panels:
            alt = (
                f"Errors of {model} by step, in shares of the validation prompts: {', '.join(p.title for p in panels)}"
            )
            label, names = f"S4{letter(len(figures))}", [run.paths.name for run in runs]
            figures.append(curves(label, f"Errors by step, {model}", panels, names, alt))
    return figures
