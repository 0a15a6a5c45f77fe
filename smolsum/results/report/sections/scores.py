"""What the evaluations of any task say: headline metrics, scores with intervals, the task's own tables, errors and
samples of completions; and how far the judge can be trusted."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

from smolsum.results.report import charts
from smolsum.results.report.collect import EvaluationResult, ReportInputs
from smolsum.results.report.document import (
    DASH,
    Cell,
    CellSource,
    Figure,
    Item,
    Table,
    empty,
    letter,
    number,
    percent,
    plain,
    sentence,
    shortened,
    table,
)
from smolsum.results.report.results import ConfigurationResult, Interval, baseline_of, interval_of
from smolsum.results.report.shell_commands import judge_command
from smolsum.runs.evaluation_records import SCORES, SUMMARY, HeadlineText, Judging
from smolsum.stats.several import correlate
from smolsum.types import COMPOSITE

ERRORS = "errors/"
"""prefix of the names of errors among the metrics"""
FACT_PREFIX, FACT_ERROR = "facts/", "wrong facts"
"""prefix of the metrics that need facts in the data, and the error that needs them"""
NO_FACTS = "not known: data without facts"
MAX_SAMPLES, MAX_PRINTED = 20, 3
"""examples whose completions a page shows, and those that a paper does"""
_MAX_LETTERS = 420


OVERLAP = ("rouge", "meteor", "bleu")
MAX_POINTS, MAX_PLOT_POINTS = 200, 1600
"""points of one configuration in a plot at most, and of all together"""


def headlines_table(inputs: ReportInputs) -> Table:
    """Return Table S10: the task's headline metrics of every evaluation, formatted as the task does."""
    titles = {h.metric: h.title for _, e in inputs.named_evaluations for h in e.summary.headlines}
    rows = ([name, *_shown(e, e.summary.headlines, titles)] for name, e in inputs.named_evaluations)
    note = "Of the test split, greedy; the evaluation of a run is that of its last step."
    columns = ("Evaluation", *titles.values())
    return table("S10", "Headline metrics", columns, rows, note, better=_directions(inputs, titles))


def other_evaluations_table(inputs: ReportInputs) -> Table:
    """Return Table S10a, the headline metrics of evaluations of these runs that are not compared with others: of other
    data, of another split."""
    found = [(f"{run.name}/{one.folder.name}", one) for run in inputs.trained for one in run.others]
    titles = {h.metric: h.title for _, one in found for h in one.summary.headlines}
    rows = []
    for name, one in found:
        texts = {h.metric: h.text for h in one.summary.headlines}
        cells = (
            Cell(texts[key], one.summary.metrics.get(key), CellSource(one.folder / SUMMARY, f"metrics.{key}"))
            if key in texts
            else DASH
            for key in titles
        )
        rows.append([name, one.summary.step, ", ".join(one.differences), one.summary.n, *cells])
    columns = ("Evaluation", "Step", "Of", "n", *titles.values())
    note = "In no other table: the evaluation of the test split of its training represents a run."
    better = _directions(inputs, titles)
    return table("S10a", "Other evaluations of these runs", columns, rows, note, better=better)


def panels_tables(inputs: ReportInputs) -> Iterator[Table]:
    """Yield Tables S15: a table for each of the task's panels, with a row for every evaluation that has it."""
    shown = [(e.name, e) for e in inputs.baselines]
    shown += [(f"{run.name}, {e.name}", e) for run in inputs.trained for e in (*run.evaluations, *run.sampled)]
    panels: dict[str, dict[str, str]] = {}
    for _, evaluation in shown:
        for panel in evaluation.summary.panels:
            panels.setdefault(panel.title, {}).update({h.metric: h.title for h in panel.headlines})
    for place, (title, titles) in enumerate(panels.items()):
        rows = []
        for name, e in shown:
            if own := [h for panel in e.summary.panels if panel.title == title for h in panel.headlines]:
                rows.append([name, *_shown(e, own, titles, DASH)])
        heads, better = ("Evaluation", *titles.values()), _directions(inputs, titles)
        yield table(f"S15{letter(place)}", sentence(title), heads, rows, better=better)


def _shown(
    evaluation: EvaluationResult, own: Sequence[HeadlineText], metrics: Iterable[str], unknown: Cell | None = None
) -> Iterator[Cell]:
    """Metrics as the task formats them, a percentage with one decimal, as everywhere in a report. Of one that is not
    among an evaluation's own the cell is `unknown`, or else names the command for it."""
    texts = {h.metric: h.text for h in own}
    for metric in metrics:
        if metric in texts:
            value, text = evaluation.metric(metric), texts[metric]
            shown = text if value is None or not text.endswith("%") else percent(value)
            yield Cell(shown, value, evaluation.source(metric))
        elif metric.startswith(FACT_PREFIX) and unknown is None and not _has_facts(evaluation):
            yield Cell(NO_FACTS)
        else:
            yield unknown or empty(evaluation.command, "not known")


def _directions(inputs: ReportInputs, titles: Mapping[str, str]) -> dict[str, str]:
    """Which values are better, by the titles of metrics."""
    return {titles[metric.name]: metric.better for metric in inputs.rated_headlines if metric.name in titles}


def _has_facts(evaluation: EvaluationResult) -> bool:
    return any(key.startswith(FACT_PREFIX) for key in evaluation.summary.metrics)


def side_by_side(inputs: ReportInputs) -> Iterator[Item]:
    """Yield Table S12, the score of every evaluation with its interval, the best first; and S13, the same as a chart
    if at least two have an interval."""
    found = _intervals(inputs)
    rows = []
    for name, evaluation, one in found:
        cells = [empty(evaluation.command, "not known")] * 3
        if one is not None:
            mean = number(one.mean, plain(3), evaluation.source(inputs.score))
            cells = [Cell(str(one.n), one.n), mean, Cell(one.text)]
        rows.append([name, evaluation.model, *cells])
    note = f"{inputs.score}, mean over the test examples that have it; interval over examples: "
    note += "exact for shares (Clopper-Pearson, Korn-Graubard), else by Student's t."
    columns = ("Evaluation", "Model", "n", "Mean", "95 % interval")
    yield table("S12", "Side by side", columns, rows, note, better={"Mean": "higher"})
    drawn = [(name, one) for name, _, one in found if one is not None and math.isfinite(one.low)]
    if len(drawn) < 2:
        return
    title = f"{inputs.score} with 95 % intervals"
    alt = f"{title}: {', '.join(f'{name} {one.mean:.3f} {one.text}' for name, one in drawn)}"
    spans = [(one.mean, one.low, one.high) for _, one in drawn]
    svg = charts.spans([name for name, _ in drawn], spans, alt=alt, x_title=f"{inputs.score} ↑")
    yield Figure("S13", title, svg, alt)


def _intervals(inputs: ReportInputs) -> list[tuple[str, EvaluationResult, Interval | None]]:
    """The score of every evaluation, also before training; the best first, those without a score last."""
    evaluations = []
    for run in inputs.trained:
        evaluations += [(f"{run.name}, start", run.start)] if run.start is not None else []
        evaluations.append((run.name, run.last))
    evaluations += [(e.name, e) for e in inputs.baselines]
    found = [(name, one, interval_of(one, inputs.score)) for name, one in evaluations]
    return sorted(found, key=lambda row: -math.inf if row[2] is None else row[2].mean, reverse=True)


def errors_table(inputs: ReportInputs, results: Sequence[ConfigurationResult]) -> Table:
    """Return Table S6: the share of the examples with each error; an example may have several."""
    evaluations = [*(one.first for one in results), *inputs.evaluations]
    keys = dict.fromkeys(key for e in evaluations for key in e.summary.metrics if key.startswith(ERRORS))
    names = [key.removeprefix(ERRORS) for key in keys]
    baselines = filter(None, (baseline_of(inputs, model) for model in inputs.models))
    shown: list[ConfigurationResult | EvaluationResult] = [*baselines, *results, *inputs.baselines]
    rows = ([one.model, one.name, *(_share(inputs, one, error) for error in names)] for one in shown)
    meanings = {k: v for e in inputs.evaluations for k, v in e.summary.errors.items()}
    note = "; ".join(f"{name}: {meanings[name]}" for name in names if name in meanings)
    columns = ("Model", "Configuration", *map(sentence, names))
    better = dict.fromkeys(columns[2:], "lower")
    return table("S6", "Error taxonomy", columns, rows, f"{sentence(note)}." if note else "", better=better)


def _share(inputs: ReportInputs, one: ConfigurationResult | EvaluationResult, error: str) -> Cell:
    """The share of an error; if it is not known, the command that may find it, with a judge if there was none."""
    evaluation = one.first if isinstance(one, ConfigurationResult) else one
    if one.metric(ERRORS + error) is None and error == FACT_ERROR and not _has_facts(evaluation):
        return Cell(NO_FACTS)
    return one.cell(
        ERRORS + error, percent, evaluation.command if evaluation.judge else judge_command(inputs, evaluation)
    )


def samples_tables(inputs: ReportInputs, results: Sequence[ConfigurationResult]) -> Iterator[Table]:
    """Yield Tables S9: for each model, completions of the same examples side by side, spread evenly over the split."""
    for place, model in enumerate(inputs.models):
        label = f"S9{letter(place)}" if len(inputs.models) > 1 else "S9"
        own = [*filter(None, [baseline_of(inputs, model)]), *(one for one in results if one.model == model)]
        shown = [(one.name, one.first) for one in own]
        shown = shown or [(e.name, e) for e in inputs.baselines if e.model == model]
        ids = shown[0][1].scores.frame["id"].to_list() if shown else []
        picked = ids[:: max(1, math.ceil(len(ids) / MAX_SAMPLES))]
        rows = ([key, *(_completion(evaluation, key) for _, evaluation in shown)] for key in picked)
        columns, title = ("Example", *(name for name, _ in shown)), f"Completions side by side, {model}"
        yield table(label, title, columns, rows, folded=True, selected=MAX_PRINTED)


def _completion(evaluation: EvaluationResult, key: str) -> Cell:
    text = evaluation.scores.texts.get(key, "")
    return Cell(shortened(text, _MAX_LETTERS) or "(empty)", source=CellSource(evaluation.folder / SCORES, key))


def judged_scores_table(inputs: ReportInputs) -> Table:
    """Return Table S4a, what the judge gave to the runs, for a model card; reports compare configurations by it."""
    rows = []
    for run in inputs.trained:
        for one in run.evaluations:
            if one.judge and (interval := interval_of(one, COMPOSITE)):
                cells = [one.cell(name, plain(3)) for name in (*inputs.criteria, COMPOSITE)]
                rows.append([one.name, *cells, interval.text])
    columns = ("Evaluation", *map(str.title, inputs.criteria), "Composite", "95 % interval")
    better = dict.fromkeys(columns[1:-1], "higher")
    note = "Means over the test examples; the interval is that of the composite, over examples."
    return table("S4a", "Scores of the judge", columns, rows, note, better=better)


def noise_table(inputs: ReportInputs) -> Table:
    """Return Table S4: how far the judge agrees with itself from round to round."""
    rows = []
    parts = [(key, "round_sd") for key in (*inputs.criteria, COMPOSITE)] + [(COMPOSITE, "icc")]
    for evaluation in inputs.evaluations:
        name = evaluation.folder.parents[1].name if evaluation.step is not None else evaluation.name
        judging = evaluation.summary.judging or Judging()
        path, command = evaluation.folder / SUMMARY, judge_command(inputs, evaluation)
        cells = []
        for key, part in parts:
            value = judging.noise.get(key, {}).get(part)
            source = CellSource(path, f"judging.noise.{key}.{part}")
            cells.append(number(value, plain(3), source, command="" if evaluation.judge else command))
        failed = None if judging.missing is None else len(judging.missing)
        rows.append([name, *cells, number(failed, plain(0), CellSource(path, "judging.missing"), command=command)])
    columns = ("Evaluation", *map(str.title, inputs.criteria), "Composite", "Composite ICC", "Failed judgements")
    note = (
        "Standard deviation of a score between rounds of one example; ICC(1,1): share of variance between examples; "
        "one round has neither."
    )
    better = dict.fromkeys(columns[1:], "lower") | {"Composite ICC": "higher"}
    return table("S4", "Judge noise", columns, rows, note, better=better)


def corrected_table(inputs: ReportInputs) -> Table:
    """Return Table S4b, the share that passes next to the one that is corrected for the judge's errors, by each source
    of these errors; no row where nothing is known of them."""
    rows = []
    for evaluation in inputs.evaluations:
        name = evaluation.folder.parents[1].name if evaluation.step is not None else evaluation.name
        path = evaluation.folder / SUMMARY
        for place, one in enumerate((evaluation.summary.judging or Judging()).corrected):
            parts = ("raw", "sensitivity", "specificity", "share")
            cells = [number(one[p], percent, CellSource(path, f"judging.corrected.{place}.{p}")) for p in parts]
            known = one["share"] is not None
            interval = f"[{percent(one['low'])}, {percent(one['high'])}]" if known else "passes good and bad alike"
            rows.append([name, one["source"], Cell(str(one["n"]), one["n"]), *cells, interval])
    columns = ("Evaluation", "Errors by", "n", "Passed", "Sensitivity", "Specificity", "Corrected", "95 % interval")
    note = (
        "Corrected: (passed + specificity - 1) / (sensitivity + specificity - 1), with the interval of Lang and "
        "Reiczigel (arXiv 2511.21140). Errors by labels are of these completions; those on planted faults hold if the "
        "judge errs on completions as on references and on faults made by rule."
    )
    return table("S4b", "Passed, corrected for the judge's errors", columns, rows, note)


def reward_figures(results: Sequence[ConfigurationResult]) -> list[Figure]:
    """Return Figures S2: each overlap signal of an example against its score by the judge."""
    figures: list[Figure] = []
    for signal in OVERLAP:
        mine = [one for one in results if {signal, COMPOSITE} <= set(one.first.scores.metrics)]
        if not mine:
            continue
        (pair,) = correlate([one.first.scores.frame for one in mine], (signal, COMPOSITE))
        most = min(MAX_POINTS, max(1, MAX_PLOT_POINTS // len(mine)))
        series = []
        for one in mine:
            rows = one.first.scores.frame.select(signal, COMPOSITE).drop_nulls().rows()
            stride = max(1, math.ceil(len(rows) / most))
            series.append(charts.PlotSeries(f"{one.model} {one.name}", tuple(rows[::stride])))
        r = "no correlation, as one does not vary" if math.isnan(pair.r) else f"r = {pair.r:+z.2f}"
        alt = f"Composite against {signal} of {pair.n} summaries: {r}"
        svg = charts.scatter(series, alt=alt, x_title=f"{signal} ↑", y_title="composite ↑")
        label = f"S2{letter(len(figures))}"
        figures.append(Figure(label, f"Reward against judge, {signal}", svg, alt, (f"{r}, n = {pair.n}.",)))
    return figures
