"""How far the judge can be trusted: whether it agrees with itself, and with the overlap with the references."""

import math
from collections.abc import Sequence

from smolsum.report import charts
from smolsum.report.collect import ReportInputs
from smolsum.report.document import DASH, Cell, CellSource, Figure, Table, letter, number, plain, words
from smolsum.report.results import ConfigurationResult
from smolsum.report.sections.scores import mean_interval
from smolsum.report.shell_commands import judge_command
from smolsum.runs.evaluation_records import SUMMARY, Judging
from smolsum.stats.correlation import correlate
from smolsum.types import COMPOSITE

OVERLAP = ("rouge", "meteor", "bleu")
MAX_POINTS, MAX_PLOT_POINTS = 200, 1600
"""points of one configuration at most, and of all in a plot together"""


def scores_table(inputs: ReportInputs) -> Table:
    """Return Table S4a, what the judge gave to the runs, for a model card; reports compare configurations by it."""
    rows = []
    for run in inputs.trained:
        for one in run.evaluations:
            if one.judge:
                cells = [one.cell(name, plain(3)) for name in (*inputs.criteria, COMPOSITE)]
                interval = mean_interval(one.scores.frame[COMPOSITE].cast(float).to_numpy()).text
                rows.append((words(one.folder.name), *cells, words(interval)))
    columns = ("Evaluation", *map(str.title, inputs.criteria), "Composite", "95 % interval")
    better = dict.fromkeys(columns[1:-1], "higher")
    note = "Means over the test examples; the interval is that of the composite, over examples."
    return Table("S4a", "Scores of the judge", columns, tuple(rows), (note,), better=better)


def noise_table(inputs: ReportInputs) -> Table:
    """Return Table S4: how far the judge agrees with itself from round to round."""
    rows: list[tuple[Cell, ...]] = []
    for evaluation in inputs.evaluations:
        name = evaluation.folder.parents[1].name if evaluation.step is not None else evaluation.folder.name
        judging = evaluation.summary.judging or Judging()
        path, command = evaluation.folder / SUMMARY, judge_command(inputs, evaluation)
        cells = [words(name)]
        for key in (*inputs.criteria, COMPOSITE):
            for part in ("round_sd", "icc") if key == COMPOSITE else ("round_sd",):
                value = judging.noise.get(key, {}).get(part)
                source = CellSource(path, f"judging.noise.{key}.{part}")
                known = value is not None or not evaluation.judge
                cells.append(number(value, plain(3), source, command=command) if known else DASH)
        failed = None if judging.missing is None else len(judging.missing)
        cells.append(number(failed, plain(0), CellSource(path, "judging.missing"), command=command))
        rows.append(tuple(cells))
    columns = ("Evaluation", *map(str.title, inputs.criteria), "Composite", "Composite ICC", "Failed judgements")
    note = (
        "Standard deviation of a score between rounds of one example; ICC(1,1): share of variance between examples; "
        "one round has neither."
    )
    better = dict.fromkeys(columns[1:], "lower") | {"Composite ICC": "higher"}
    return Table("S4", "Judge noise", columns, tuple(rows), (note,), better=better)


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
            series.append(charts.PlotSeries(f"{one.model} {one.name}", tuple((x, y) for x, y in rows[::stride])))
        r = "no correlation, as one does not vary" if math.isnan(pair.r) else f"r = {pair.r:+.2f}"
        alt = f"Composite against {signal} of {pair.n} summaries: {r}"
        svg = charts.scatter(series, alt=alt, x_title=f"{signal} ↑", y_title="composite ↑")
        label = f"S2{letter(len(figures))}"
        figures.append(Figure(label, f"Reward against judge, {signal}", svg, alt, (f"{r}, n = {pair.n}.",)))
    return figures
