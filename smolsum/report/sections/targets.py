"""What prompts asked for and what they got, where each asks for its own length."""

from collections.abc import Sequence

from smolsum.config.targets import GOT, TARGET
from smolsum.report import charts
from smolsum.report.collect import EvaluationResult, ReportInputs
from smolsum.report.document import DASH, Cell, Figure, Item, Table, letter, number, percent, plain, sentence, words

COLUMNS = (
    ("off_target", "mean error", "lower", 2),
    ("within_1", "within ±1", "higher", 0),
    ("within_2", "within ±2", "higher", 0),
    ("within_tol", "on target", "higher", 0),
    ("correlation", "correlation", "higher", 3),
)
"""metrics of lengths: key, title, which values are better, decimals (0: a share)"""
PARTS = (("", "all"), ("seen/", "seen"), ("unseen/", "unseen"))
"""of the targets: the keys' prefix, and the name"""


def targets_items(inputs: ReportInputs) -> list[Item]:
    """Return Table T1, the distances of completions from what their prompts asked for, also apart for the targets that
    training never asked for; and Figures T2, asked against got for each model. Nothing where one target holds for
    all."""
    found = [(name, one) for name, one in inputs.named_evaluations if {TARGET, GOT} <= set(one.scores.metrics)]
    if not found:
        return []
    rows = []
    for name, one in found:
        for prefix, part in PARTS:
            if one.metric(f"length/{prefix}off_target") is not None:
                cells = (_cell(one, f"length/{prefix}{key}", digits) for key, _, _, digits in COLUMNS)
                rows.append((words(name), words(part), *cells))
    titles = tuple(sentence(title) for _, title, _, _ in COLUMNS)
    better = {sentence(title): direction for _, title, direction, _ in COLUMNS}
    note = "Test split, greedy. Unseen: targets that training never asks for. Correlation: Pearson's, of asked and got."
    table = Table("T1", "Asked and got", ("Evaluation", "Targets", *titles), tuple(rows), (note,), better=better)
    return [table, *_figures(found)]


def _cell(one: EvaluationResult, key: str, digits: int) -> Cell:
    value = one.metric(key)
    if value is None:
        return DASH
    return number(value, plain(digits) if digits else percent, one.source(key))


def _figures(found: Sequence[tuple[str, EvaluationResult]]) -> list[Figure]:
    figures = []
    for place, model in enumerate(dict.fromkeys(one.model for _, one in found)):
        mine = [(name, one) for name, one in found if one.model == model]
        series = [charts.PlotSeries(name, _points(one)) for name, one in mine]
        said = ", ".join(f"{name} {_said(one)}" for name, one in mine)
        alt = f"Lengths asked for and got, {model}: {said}"
        svg = charts.scatter(series, alt=alt, x_title="asked", y_title="got")
        figures.append(Figure(f"T2{letter(place)}", f"Asked against got, {model}", svg, alt))
    return figures


def _points(one: EvaluationResult) -> tuple[tuple[float, float], ...]:
    frame = one.scores.frame.select(TARGET, GOT).drop_nulls()
    return tuple((float(asked), float(got)) for asked, got in frame.iter_rows())


def _said(one: EvaluationResult) -> str:
    error, r = one.metric("length/off_target"), one.metric("length/correlation")
    return f"mean error {error:.2f}" + (f", correlation {r:.3f}" if r is not None else "")
