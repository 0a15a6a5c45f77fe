"""What the constraint costs in quality: both over the steps of each run, the area that they cover, and the multipliers
of runs under constraints."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from smolsum.config.constraints import parse_constraints
from smolsum.errors import UsageError
from smolsum.report import charts
from smolsum.report.collect import ReportInputs, TrainedRun
from smolsum.report.document import DASH, Cell, CellSource, Figure, Item, Table, number, plain, words
from smolsum.report.outcomes import Compared
from smolsum.report.sections.findings import show, titled
from smolsum.stats.pareto import Point, hypervolume
from smolsum.tasks.base import Metric

LAST = 20
"""steps at the end of a run that a constraint's numbers are the mean of"""


def trade_off_items(inputs: ReportInputs, metrics: Compared) -> list[Item]:
    """Return Table S18 and Figure S5: the constraint against the quality at every validation. Nothing where the task
    has no constraint, where higher is not better in both, and where no run has validations with both or constraints."""
    quality, constraint = metrics.quality, metrics.constraint
    if constraint is None or {quality.better, constraint.better} != {"higher"}:
        return []
    ways = {run.name: _way(run, constraint, quality) for run in inputs.trained}
    if not any(ways.values()) and not any(map(_constraints, inputs.trained)):
        return []
    return [_table(inputs, ways, quality, constraint), *_figure(ways, quality, constraint)]


def _way(run: TrainedRun, constraint: Metric, quality: Metric) -> list[Point]:
    """The constraint and the quality at each validation."""
    keys = [f"validation/{metric.name}" for metric in (constraint, quality)]
    rows = [[row.get(key) for key in keys] for row in run.metrics]
    return [(float(x), float(y)) for x, y in rows if isinstance(x, int | float) and isinstance(y, int | float)]


def _table(inputs: ReportInputs, ways: Mapping[str, Sequence[Point]], quality: Metric, constraint: Metric) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for run in inputs.trained:
        pair = [run.last.metric(metric.name) for metric in (constraint, quality)]
        ends = [(float(x), float(y)) for x, y in [pair] if x is not None and y is not None]
        rows.append(
            (
                words(run.name),
                run.last.cell(constraint.name, lambda value: show(constraint, value)),
                run.last.cell(quality.name, lambda value: show(quality, value)),
                number(hypervolume(ends), plain(3)) if ends else DASH,
                number(hypervolume(way), plain(3)) if (way := ways[run.name]) else DASH,
                _last(run, "constraint/cost", 4),
                words(_constraints(run) or DASH.text),
            )
        )
    columns = (
        "Run", titled(constraint), titled(quality), "Hypervolume, end", "Hypervolume, steps", "Cost in reward",
        "Constraints",
    )  # fmt: skip
    note = (
        f"Hypervolume: the area between 0 and what nothing beats in both {constraint.title} and {quality.title}, for "
        "the test split at the end, and for all validations. Cost: the best reward of a group of rollouts less the "
        f"best that meets the constraints. Constraints: mean of the last {LAST} steps, with the multiplier."
    )
    better = {"Hypervolume, end": "higher", "Hypervolume, steps": "higher", "Cost in reward": "lower"}
    return Table("S18", "Constraint and quality", columns, tuple(rows), (note,), better=better)


def _last(run: TrainedRun, key: str, digits: int) -> Cell:
    values = _values(run.metrics, key)
    source = CellSource(run.paths.metrics, f"mean of the last {key}")
    return number(fmean(values), plain(digits), source) if values else DASH


def _values(rows: Sequence[Mapping[str, Any]], key: str) -> list[float]:
    return [float(row[key]) for row in rows[-LAST:] if isinstance(row.get(key), int | float)]


def _constraints(run: TrainedRun) -> str:
    """How the constraints of the last stage stood at its end, in words; empty without any."""
    stage = list(run.config["stages"].values())[-1]
    try:
        constraints = parse_constraints(str(stage.get("constraints", "")))
    except UsageError:
        return ""
    parts = []
    for one in constraints:
        name = f"constraint/{one.slug}"
        found = _values(run.metrics, f"{name}/{'mean' if one.level is None else 'share'}")
        weights = _values(run.metrics, f"{name}/multiplier")
        if found:
            value = f"{fmean(found):.3g}" if one.level is None else f"{fmean(found):.1%} of {one.level:.0%}"
            parts.append(f"{one.text}: {value}" + (f" (x {fmean(weights):.2f})" if weights else ""))
    return "; ".join(parts)


def _figure(ways: Mapping[str, Sequence[Point]], quality: Metric, constraint: Metric) -> list[Figure]:
    series = [charts.PlotSeries(name, tuple(way)) for name, way in ways.items() if way]
    if not series:
        return []
    ends = ", ".join(f"{one.name} ends at {one.values[-1][1]:.3f} and {one.values[-1][0]:.1%}" for one in series)
    alt = f"{quality.title} against {constraint.title} at every validation: {ends}"
    svg = charts.scatter(series, alt=alt, x_title=titled(constraint), y_title=titled(quality))
    title = f"{quality.title} against {constraint.title}, at every validation"
    return [Figure("S5", title[:1].upper() + title[1:], svg, alt)]
