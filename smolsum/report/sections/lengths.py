"""How long completions are: histograms before and after training, and apart for answers that are valid and those that
are not."""

import math
from collections import Counter
from collections.abc import Sequence
from itertools import count

import numpy as np
from numpy.typing import NDArray

from smolsum.config.targets import TOKENS, tolerance
from smolsum.report import charts
from smolsum.report.collect import EvaluationResult, ReportInputs
from smolsum.report.document import Cell, Figure, Item, Table, letter, number, percent, plain, shortened, words
from smolsum.report.outcomes import Journey, Outcome
from smolsum.report.sections.setup import MAX_UNFOLDED
from smolsum.tasks.text_metrics import length_table

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


def histogram_figures(inputs: ReportInputs, journeys: Sequence[Journey]) -> list[Figure]:
    """Return Figures L1: for each model, the lengths of the test completions of each configuration before and after
    training, with the target and its tolerance where one holds for all. Nothing where no evaluation has lengths."""
    figures: list[Figure] = []
    models = [model for model in inputs.models if any(_ends(one) for one in journeys if one.model == model)]
    for model in models:
        mine = [(one, ends) for one in journeys if one.model == model and (ends := _ends(one))]
        band = _band(inputs)
        width = _width([value for _, ends in mine for values in ends.values() for value in values], band)
        outlines = [
            tuple(charts.PlotSeries(name, _outline(values, width, band)) for name, values in ends.items())
            for _, ends in mine
        ]
        room = tuple(point for series in outlines for one in series for point in one.values)
        plots = [
            charts.Plot(f"{shortened(one.name, _NAME)}, share", series, TOKENS, True, band, room)
            for (one, _), series in zip(mine, outlines, strict=True)
        ]
        said = [
            f"{one.name} {', '.join(f'{np.median(values):.4g} {name}' for name, values in ends.items())}"
            for one, ends in mine
        ]
        names = [name for name in (BEFORE, AFTER) if any(name in ends for _, ends in mine)]
        alt = f"Lengths of the test completions of {model} in tokens, medians: {'; '.join(said)}"
        label, title = ("L1", "Lengths") if len(models) == 1 else (f"L1{letter(len(figures))}", f"Lengths, {model}")
        drawing = charts.lines(plots, names, alt=alt)
        note = _note(inputs, width, band)
        figures.append(Figure(label, title, drawing, alt, (note,), charts.panels(plots, names)))
    return figures


def _ends(journey: Journey) -> dict[str, NDArray[np.float64]]:
    """The lengths in tokens before and after training, of all seeds; without what is not known."""
    before = journey.start.evaluations if journey.start else ()
    found = {BEFORE: _columns(before, [TOKENS]), AFTER: _columns(journey.end.evaluations, [TOKENS])}
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
    task = inputs.trained[0].config["task"]
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
    own = any(run.config["task"].get("targets") for run in inputs.trained)
    return f"{text} Each prompt asks for its own length." if own else text


def validity_tables(journeys: Sequence[Journey]) -> list[Item]:
    """Return Table L2: the lengths of answers that satisfy their schema, of those that only parse and of those that do
    not parse, of the untrained model and after training. Nothing for tasks whose answers are not parsed."""
    rows: list[tuple[Cell, ...]] = []
    for one in journeys:
        for outcome in filter(None, [one.start, one.end]):
            head = (words(one.model), words(one.name), words(outcome.stage))
            rows += [(*head, *cells) for cells in _by_validity(outcome)]
    columns = ("Model", "Configuration", "After stage", "Answers", "n", "Share", "Mean", "P50", "P90", "Max", "Cut off")
    note = "Tokens of the test completions, without the end-of-sequence token; cut off: by the limit on new tokens."
    table = Table("L2", "Lengths by validity", columns, tuple(rows), (note,), folded=len(rows) > MAX_UNFOLDED)
    return [table] if rows else []


def _by_validity(outcome: Outcome) -> list[tuple[Cell, ...]]:
    """A row for each kind of answers that an outcome has."""
    parses, passed, tokens, cut = _columns(outcome.evaluations, VALIDITY)
    rows = []
    kinds = np.where(passed > 0, 0, np.where(parses > 0, 1, 2))
    for place, kind in enumerate(KINDS):
        mine = kinds == place
        if not mine.any():
            continue
        lengths = length_table(list(map(int, tokens[mine])))
        shown = [number(lengths[f"completions/{key}_length"], plain(1 if key == "mean" else 0)) for key in _SHOWN]
        stopped = number(float(cut[mine].mean()), percent)
        head = (words(kind), Cell(str(mine.sum()), float(mine.sum())), number(float(mine.mean()), percent))
        rows.append((*head, *shown, stopped))
    return rows
