"""Everything that was evaluated on the same examples, in one table and one figure: runs before and after training,
baselines, models behind an endpoint."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from scipy.stats import t as student

from smolsum.passing import wilson
from smolsum.report import charts
from smolsum.report.page import Cell, Figure, Table, empty, number, plain, words
from smolsum.report.study import Evaluation, Study

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
