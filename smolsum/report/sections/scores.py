"""What the evaluations of any task say: headline metrics, scores with intervals, the task's own tables, errors and
samples of completions."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import t as student

from smolsum.report import charts
from smolsum.report.collect import EvaluationResult, ReportInputs
from smolsum.report.document import (
    DASH,
    Cell,
    CellSource,
    Figure,
    Table,
    empty,
    letter,
    number,
    percent,
    plain,
    sentence,
    shortened,
    words,
)
from smolsum.report.results import ConfigurationResult, baseline_of
from smolsum.report.shell_commands import judge_command
from smolsum.runs.evaluation_records import SCORES, SUMMARY
from smolsum.stats.paired import CONFIDENCE
from smolsum.tasks.success_rates import interval_of_means

ERRORS = "errors/"
"""prefix of the names of errors among the metrics"""
FACTS, FACT_ERROR = "facts/", "wrong facts"
"""prefix of the metrics that need facts in the data, and the error that needs them"""
NO_FACTS = "not known: data without facts"
MAX_SAMPLES, MAX_PRINTED = 20, 3
"""examples whose completions a page shows, and those that a paper does"""
_MAX_LETTERS = 420


def headlines_table(inputs: ReportInputs) -> Table:
    """Return Table S10: the task's headline metrics of every evaluation, formatted as the task does."""
    titles = {h.metric: h.title for _, e in inputs.named_evaluations for h in e.summary.headlines}
    rows = []
    for name, evaluation in inputs.named_evaluations:
        texts = {h.metric: h.text for h in evaluation.summary.headlines}
        cells = (
            _shown(evaluation, metric, texts[metric]) if metric in texts else _unknown(evaluation, metric)
            for metric in titles
        )
        rows.append((words(name), *cells))
    note = "Of the test split, greedy; the evaluation of a run is that of its last step."
    columns = ("Evaluation", *titles.values())
    return Table("S10", "Headline metrics", columns, tuple(rows), (note,), better=_directions(inputs, titles))


def _directions(inputs: ReportInputs, titles: Mapping[str, str]) -> dict[str, str]:
    """Which values are better, by the titles of metrics."""
    return {titles[metric.name]: metric.better for metric in inputs.measures if metric.name in titles}


def other_evaluations_table(inputs: ReportInputs) -> list[Table]:
    """Return Table S10a, the headline metrics of evaluations of these runs that are not compared with others: of other
    data, of another split. No table without any."""
    found = [(f"{run.name}/{one.folder.name}", one) for run in inputs.trained for one in run.others]
    titles = {h.metric: h.title for _, one in found for h in one.summary.headlines}
    rows = []
    for name, one in found:
        texts = {h.metric: h.text for h in one.summary.headlines}
        head = (words(name), words(one.summary.step), words(", ".join(one.differences)), words(one.summary.n))
        cells = (
            Cell(texts[key], one.summary.metrics.get(key), CellSource(one.folder / SUMMARY, f"metrics.{key}"))
            if key in texts
            else DASH
            for key in titles
        )
        rows.append((*head, *cells))
    columns = ("Evaluation", "Step", "Of", "n", *titles.values())
    note = "In no other table: the evaluation of the test split of its training represents a run."
    better = _directions(inputs, titles)
    return (
        [Table("S10a", "Other evaluations of these runs", columns, tuple(rows), (note,), better=better)]
        if found
        else []
    )


def _shown(evaluation: EvaluationResult, metric: str, text: str) -> Cell:
    """A metric as the task formats it; a percentage with one decimal, as everywhere in a report."""
    value = evaluation.metric(metric)
    shown = text if value is None or not text.endswith("%") else percent(value)
    return Cell(shown, value, evaluation.source(metric))


def _unknown(evaluation: EvaluationResult, metric: str) -> Cell:
    """A headline metric that an evaluation lacks."""
    if metric.startswith(FACTS) and not _has_facts(evaluation):
        return words(NO_FACTS)
    return empty(evaluation.command, "not known")


def _has_facts(evaluation: EvaluationResult) -> bool:
    return any(key.startswith(FACTS) for key in evaluation.summary.metrics)


@dataclass(frozen=True)
class Interval:
    """A mean over `n` examples with its 95 % interval; both ends are NaN for fewer than two examples."""

    n: int
    mean: float
    low: float
    high: float

    @property
    def text(self) -> str:
        """The interval in brackets; a dash if it is undefined."""
        return f"[{self.low:.3f}, {self.high:.3f}]" if math.isfinite(self.low) else "\N{EN DASH}"


def mean_interval(values: np.ndarray) -> Interval:
    """Return the mean of the values that are not NaN. Its interval is that of a share if all are in [0, 1] and some
    are 0 or 1 (Student's would call 20 of 20 certain), else Student's."""
    known = values[~np.isnan(values)]
    n, mean = len(known), float(known.mean()) if len(known) else math.nan
    if n < 2:
        return Interval(n, mean, math.nan, math.nan)
    if ((known >= 0) & (known <= 1)).all() and np.isin(known, (0, 1)).any():
        return Interval(n, mean, *interval_of_means(known.tolist()))
    half = float(student.ppf((1 + CONFIDENCE) / 2, n - 1) * known.std(ddof=1) / math.sqrt(n))
    return Interval(n, mean, mean - half, mean + half)


def side_by_side(inputs: ReportInputs) -> list[Table | Figure]:
    """Return Table S12, the score of every evaluation with its interval, the best first; and S13, the same as a chart
    if at least two have an interval."""
    found = _intervals(inputs)
    rows = []
    for name, evaluation, one in found:
        head = (words(name), words(evaluation.model))
        if one is None:
            rows.append((*head, *[empty(evaluation.command, "not known")] * 3))
            continue
        mean = number(one.mean, plain(3), evaluation.source(inputs.score))
        rows.append((*head, Cell(str(one.n), one.n), mean, words(one.text)))
    note = f"{inputs.score}, mean over the test examples that have it; interval over examples: "
    note += "exact for shares (Clopper-Pearson, Korn-Graubard), else by Student's t."
    columns = ("Evaluation", "Model", "n", "Mean", "95 % interval")
    table = Table("S12", "Side by side", columns, tuple(rows), (note,), better={"Mean": "higher"})
    drawn = [(name, one) for name, _, one in found if one is not None and math.isfinite(one.low)]
    if len(drawn) < 2:
        return [table]
    alt = f"{inputs.score} with 95 % intervals: " + ", ".join(
        f"{name} {one.mean:.3f} {one.text}" for name, one in drawn
    )
    svg = charts.spans(
        [name for name, _ in drawn],
        [(one.mean, one.low, one.high) for _, one in drawn],
        alt=alt,
        x_title=f"{inputs.score} ↑",
    )
    return [table, Figure("S13", f"{inputs.score} with 95 % intervals", svg, alt)]


def _intervals(inputs: ReportInputs) -> list[tuple[str, EvaluationResult, Interval | None]]:
    """The score of every evaluation, also before training; the best first, those without a score last."""
    evaluations = []
    for run in inputs.trained:
        evaluations += [(f"{run.name}, start", run.first)] if run.first is not None else []
        evaluations.append((run.name, run.last))
    evaluations += [(e.folder.name, e) for e in inputs.baselines]
    found = []
    for name, evaluation in evaluations:
        scores = evaluation.scores
        has = inputs.score in scores.metrics
        values = mean_interval(scores.frame[inputs.score].cast(float).to_numpy()) if has else None
        found.append((name, evaluation, values))
    return sorted(found, key=lambda row: -math.inf if row[2] is None else row[2].mean, reverse=True)


def panels_tables(inputs: ReportInputs) -> list[Table]:
    """Return Tables S15: a table for each of the task's panels, with a row for every evaluation that has it."""
    shown = [(e.folder.name, e) for e in inputs.baselines]
    shown += [(f"{run.name}, {e.folder.name}", e) for run in inputs.trained for e in (*run.evaluations, *run.sampled)]
    panels: dict[str, dict[str, str]] = {}
    for _, evaluation in shown:
        for panel in evaluation.summary.panels:
            panels.setdefault(panel.title, {}).update({h.metric: h.title for h in panel.headlines})
    tables = []
    for place, (title, columns) in enumerate(panels.items()):
        rows = []
        for name, evaluation in shown:
            found = [panel for panel in evaluation.summary.panels if panel.title == title]
            texts = {h.metric: h.text for panel in found for h in panel.headlines}
            if texts:
                cells = (_shown(evaluation, key, texts[key]) if key in texts else DASH for key in columns)
                rows.append((words(name), *cells))
        heads, better = ("Evaluation", *columns.values()), _directions(inputs, columns)
        tables.append(Table(f"S15{letter(place)}", sentence(title), heads, tuple(rows), better=better))
    return tables


def errors_table(inputs: ReportInputs, results: Sequence[ConfigurationResult]) -> Table:
    """Return Table S6: the share of the examples with each error; an example may have several."""
    evaluations = [*(one.first for one in results), *inputs.evaluations]
    keys = dict.fromkeys(key for e in evaluations for key in e.summary.metrics if key.startswith(ERRORS))
    names = [key.removeprefix(ERRORS) for key in keys]
    shown: list[tuple[str, ConfigurationResult | EvaluationResult]] = [
        *((one.name, one) for model in inputs.models if (one := baseline_of(inputs, model)) is not None),
        *((one.name, one) for one in results),
        *((e.folder.name, e) for e in inputs.baselines),
    ]
    rows = [(words(one.model), words(name), *(_share(inputs, one, error) for error in names)) for name, one in shown]
    meanings = {k: v for e in inputs.evaluations for k, v in e.summary.errors.items()}
    note = "; ".join(f"{name}: {meanings[name]}" for name in names if name in meanings)
    columns = ("Model", "Configuration", *map(sentence, names))
    better = dict.fromkeys(columns[2:], "lower")
    return Table("S6", "Error taxonomy", columns, tuple(rows), (f"{sentence(note)}.",) if note else (), better=better)


def _share(inputs: ReportInputs, one: ConfigurationResult | EvaluationResult, error: str) -> Cell:
    """The share of an error; if it is not known, the command that may find it, with a judge if there was none."""
    evaluation = one.first if isinstance(one, ConfigurationResult) else one
    key = ERRORS + error
    if one.metric(key) is None and error == FACT_ERROR and not _has_facts(evaluation):
        return words(NO_FACTS)
    return one.cell(key, percent, evaluation.command if evaluation.judge else judge_command(inputs, evaluation))


def samples_tables(inputs: ReportInputs, results: Sequence[ConfigurationResult]) -> list[Table]:
    """Return Tables S9: for each model, completions of the same examples side by side, spread evenly over the
    split."""
    tables = []
    for place, model in enumerate(inputs.models):
        label = f"S9{letter(place)}" if len(inputs.models) > 1 else "S9"
        own = [*filter(None, [baseline_of(inputs, model)]), *(one for one in results if one.model == model)]
        shown = [(one.name, one.first) for one in own]
        shown = shown or [(e.folder.name, e) for e in inputs.baselines if e.model == model]
        ids = shown[0][1].scores.frame["id"].to_list() if shown else []
        picked = ids[:: max(1, math.ceil(len(ids) / MAX_SAMPLES))]
        rows = tuple((words(key), *(_completion(evaluation, key) for _, evaluation in shown)) for key in picked)
        columns = ("Example", *(name for name, _ in shown))
        if rows:
            title = f"Completions side by side, {model}"
            tables.append(Table(label, title, columns, rows, folded=True, selected=MAX_PRINTED))
    return tables


def _completion(evaluation: EvaluationResult, key: str) -> Cell:
    text = evaluation.scores.texts.get(key, "")
    return Cell(shortened(text, _MAX_LETTERS) or "(empty)", source=CellSource(evaluation.folder / SCORES, key))
