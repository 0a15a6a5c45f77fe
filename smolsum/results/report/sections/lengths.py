"""How long completions are, and what prompts asked for: histograms before and after training, lengths apart for valid
answers and others, lengths asked for and got, and what training did for prompts of each difficulty."""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import count

import numpy as np
from numpy.typing import NDArray

from smolsum.config.targets import GOT, TARGET, TOKENS, tolerance
from smolsum.results.report import charts
from smolsum.results.report.collect import EvaluationResult, ReportInputs
from smolsum.results.report.document import Cell, Figure, Item, Table, letter, number, percent, plain, shortened, table
from smolsum.results.report.outcomes import Outcome, StageOutcomes
from smolsum.results.report.results import mean_metric
from smolsum.results.report.sections.setup import MAX_UNFOLDED
from smolsum.tasks.strict_json.generator import LEVELS
from smolsum.tasks.text_metrics import length_table
from smolsum.types import PASSED

BEFORE, AFTER = "before training", "after training"
KINDS = ("satisfies the schema", "parses only", "does not parse")
"""answers of strict JSON by their validity: each answer is of one kind"""
VALIDITY = ("parses", "passed", TOKENS, "truncated")
"""the columns that say so"""
_SHOWN = ("mean", "p50", "p90", "max")
MIN_BINS, MAX_BINS = 6, 30
"""bins of a histogram, whose width is that of the tolerance if it gives so many"""
_NAME = 30
"""letters of a configuration's name that a panel has room for"""
DISTANCES = (
    ("off_target", "Mean error", "lower", plain(2)),
    ("within_1", "Within ±1", "higher", percent),
    ("within_2", "Within ±2", "higher", percent),
    ("within_tol", "On target", "higher", percent),
    ("correlation", "Correlation", "higher", plain(3)),
)
"""metrics of lengths asked for and got: key, title, which values are better, format"""
PARTS = (("", "all"), ("seen/", "seen"), ("unseen/", "unseen"))
"""of the targets: the keys' prefix, and the name"""


def histogram_figures(inputs: ReportInputs, configurations: Sequence[StageOutcomes]) -> list[Figure]:
    """Return Figures L1: for each model, the lengths of the test completions of each configuration before and after
    training, with the target and its tolerance where one holds for all. Nothing where no evaluation has lengths."""
    figures: list[Figure] = []
    known = [(one, ends) for one in configurations if (ends := _ends(one))]
    models = [model for model in inputs.models if any(one.model == model for one, _ in known)]
    for model in models:
        mine = [(one.name, ends) for one, ends in known if one.model == model]
        band = _band(inputs)
        width = _width([value for _, ends in mine for values in ends.values() for value in values], band)
        outlines = [
            tuple(charts.PlotSeries(when, _outline(values, width, band)) for when, values in ends.items())
            for _, ends in mine
        ]
        room = tuple(point for series in outlines for one in series for point in one.values)
        plots = [
            charts.Plot(f"{shortened(name, _NAME)}, share", series, TOKENS, True, band, room)
            for (name, _), series in zip(mine, outlines, strict=True)
        ]
        medians = (
            f"{name} {', '.join(f'{np.median(values):.4g} {when}' for when, values in ends.items())}"
            for name, ends in mine
        )
        alt = f"Lengths of the test completions of {model} in tokens, medians: {'; '.join(medians)}"
        names = [when for when in (BEFORE, AFTER) if any(when in ends for _, ends in mine)]
        label, title = ("L1", "Lengths") if len(models) == 1 else (f"L1{letter(len(figures))}", f"Lengths, {model}")
        drawing, parts = charts.curves(plots, names, alt=alt)
        figures.append(Figure(label, title, drawing, alt, (_note(inputs, width, band),), parts))
    return figures


def _ends(trained: StageOutcomes) -> dict[str, NDArray[np.float64]]:
    """The lengths in tokens before and after training, of all seeds; without what is not known."""
    before = trained.start.evaluations if trained.start else ()
    found = {BEFORE: _columns(before, [TOKENS]), AFTER: _columns(trained.end.evaluations, [TOKENS])}
    return {name: columns[0] for name, columns in found.items() if columns.size}


def _columns(evaluations: Sequence[EvaluationResult], names: Sequence[str]) -> NDArray[np.float64]:
    """Columns (names x examples) of all evaluations, one after the other, of the examples that have all of them; no
    examples if an evaluation lacks a column."""
    if not evaluations or not all(set(names) <= set(e.scores.metrics) for e in evaluations):
        return np.empty((len(names), 0))
    found = [e.scores.frame.select(names).drop_nulls().to_numpy() for e in evaluations]
    return np.asarray(np.concatenate(found).T, dtype=np.float64)


def _band(inputs: ReportInputs) -> charts.Band | None:
    """The target with its tolerance; None where the task has none, where each prompt asks for its own length, and where
    it is not counted in tokens."""
    task = inputs.trained[0].task
    target = task.get("target_tokens")
    if target is None or task.get("targets") or task.get("unit", TOKENS) != TOKENS:
        return None
    reach = tolerance(target, task.get("tolerance_tokens", 0), task.get("tolerance_share", 0.0))
    # lengths are whole: a band from half a token below the first to half a token above the last holds them
    return charts.Band(f"target {target} ±{reach} tokens", target - reach - 0.5, target, target + reach + 0.5)


def _width(lengths: Sequence[float], band: charts.Band | None) -> int:
    """The width of a bin in tokens: that of the band, so that the height of its bin is the share on target, or else a
    round number."""
    span = max(lengths) - min(lengths) + 1
    if band is not None and MIN_BINS <= span / (band.high - band.low) <= MAX_BINS:
        return round(band.high - band.low)
    round_ones = (base * int(10**power) for power in count() for base in (1, 2, 5))
    return next(width for width in round_ones if span / width <= MAX_BINS)


def _outline(lengths: NDArray[np.float64], width: int, band: charts.Band | None) -> tuple[tuple[float, float], ...]:
    """The outline of a histogram of shares, from the first bin that is not empty to the last; one bin is the band, if
    it is as wide."""
    origin = band.low if band is not None and width == round(band.high - band.low) else 0.0
    counts = Counter(math.floor((value - origin) / width) for value in lengths)

    def edge(place: int) -> float:
        return max(0.0, origin + width * place)

    points = [(edge(min(counts)), 0.0)]
    for place in range(min(counts), max(counts) + 1):
        share = counts[place] / len(lengths)
        if share == points[-1][1]:
            points.pop()
        else:
            points.append((edge(place), share))
        points.append((edge(place + 1), share))
    return (*points, (points[-1][0], 0.0))


def _note(inputs: ReportInputs, width: int, band: charts.Band | None) -> str:
    bins = f"bins of {width} tokens" if width > 1 else "bins of a token"
    text = f"Test split, greedy, without the end-of-sequence token; share of the completions, {bins}."
    if band is not None and width == round(band.high - band.low):
        text += " The bin of the target has those on target."
    own = any(run.task.get("targets") for run in inputs.trained)
    return f"{text} Each prompt asks for its own length." if own else text


def validity_table(configurations: Sequence[StageOutcomes]) -> Table:
    """Return Table L2: the lengths of answers that satisfy their schema, of those that only parse and of those that do
    not parse, of the untrained model and after training. No rows for tasks whose answers are not parsed."""
    rows = [
        [one.model, one.name, outcome.stage, *cells]
        for one in configurations
        for outcome in filter(None, [one.start, one.end])
        for cells in _by_validity(outcome)
    ]
    columns = ("Model", "Configuration", "After stage", "Answers", "n", "Share", "Mean", "P50", "P90", "Max", "Cut off")
    note = "Tokens of the test completions, without the end-of-sequence token; cut off: by the limit on new tokens."
    return table("L2", "Lengths by validity", columns, rows, note, folded=len(rows) > MAX_UNFOLDED)


def _by_validity(outcome: Outcome) -> Iterator[list[object]]:
    """The cells of each kind of answers that an outcome has."""
    parses, passed, tokens, cut = _columns(outcome.evaluations, VALIDITY)
    kinds = np.where(passed > 0, 0, np.where(parses > 0, 1, 2))
    for place, kind in enumerate(KINDS):
        mine = kinds == place
        if not mine.any():
            continue
        lengths = length_table(list(map(int, tokens[mine])))
        shown = [number(lengths[f"completions/{key}_length"], plain(1 if key == "mean" else 0)) for key in _SHOWN]
        shares = [number(float(values.mean()), percent) for values in (mine, cut[mine])]
        yield [kind, Cell(str(mine.sum()), float(mine.sum())), shares[0], *shown, shares[1]]


def targets_items(inputs: ReportInputs) -> Iterator[Item]:
    """Yield Table T1, the distances of completions from what their prompts asked for, also apart for the targets that
    training never asked for; and Figures T2, asked against got for each model. Nothing where one target holds for
    all."""
    found = [(name, one) for name, one in inputs.named_evaluations if {TARGET, GOT} <= set(one.scores.metrics)]
    if not found:
        return
    yield table(
        "T1",
        "Asked and got",
        ("Evaluation", "Targets", *(title for _, title, _, _ in DISTANCES)),
        (
            [name, part, *(one.cell(f"length/{prefix}{key}", show) for key, _, _, show in DISTANCES)]
            for name, one in found
            for prefix, part in PARTS
            if one.metric(f"length/{prefix}off_target") is not None
        ),
        "Test split, greedy. Unseen: targets that training never asks for. Correlation: Pearson's, of asked and got.",
        better={title: better for _, title, better, _ in DISTANCES},
    )
    for place, model in enumerate(dict.fromkeys(one.model for _, one in found)):
        mine = [(name, one) for name, one in found if one.model == model]
        series = [
            charts.PlotSeries(name, tuple(one.scores.frame.select(TARGET, GOT).drop_nulls().rows()))
            for name, one in mine
        ]
        alt = f"Lengths asked for and got, {model}: {', '.join(f'{name} {_agreement(one)}' for name, one in mine)}"
        svg = charts.scatter(series, alt=alt, x_title="asked", y_title="got")
        yield Figure(f"T2{letter(place)}", f"Asked against got, {model}", svg, alt)


def _agreement(one: EvaluationResult) -> str:
    error, r = one.metric("length/off_target"), one.metric("length/correlation")
    return f"mean error {error:.2f}" + (f", correlation {r:.3f}" if r is not None else "")


def difficulty_figures(configurations: Sequence[StageOutcomes]) -> list[Figure]:
    """Return Figures D1: a heat map for each configuration, the share of the answers that satisfy their schema by the
    prompts' level and by the stage after which the model was evaluated. Nothing where evaluations have no levels."""
    figures: list[Figure] = []
    for one in configurations:
        shares = {level: [mean_metric(o.evaluations, f"{level}/{PASSED}") for o in one.path] for level in LEVELS}
        shares = {level: row for level, row in shares.items() if any(value is not None for value in row)}
        if not shares:
            continue
        stages = [after.stage for after in one.path]
        said = (f"{key} {', '.join(percent(v) for v in row if v is not None)}" for key, row in shares.items())
        alt = f"Answers of {one.model}, {one.name}, that satisfy their schema, {', '.join(stages)}: {'; '.join(said)}"
        values = [[math.nan if value is None else value for value in row] for row in shares.values()]
        svg = charts.heat(list(shares), stages, values, alt=alt, show=percent, titles=("difficulty", "after stage"))
        note = "Share of the test prompts of each difficulty whose greedy answers satisfy their schema ↑."
        title = f"Satisfied schemas by difficulty and stage, {one.model}, {one.name}"
        figures.append(Figure(f"D1{letter(len(figures))}", title, svg, alt, (note,)))
    return figures
