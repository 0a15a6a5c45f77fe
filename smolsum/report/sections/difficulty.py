"""What each stage of training did for prompts of each difficulty."""

import math
from collections.abc import Sequence

from smolsum.report import charts
from smolsum.report.document import Figure, letter, percent
from smolsum.report.outcomes import Journey, Outcome
from smolsum.tasks.strict_json.generator import LEVELS
from smolsum.types import PASSED


def difficulty_figures(journeys: Sequence[Journey]) -> list[Figure]:
    """Return Figures D1: a heat map for each configuration, the share of the answers that satisfy their schema by the
    prompts' level and by the stage after which the model was evaluated. Nothing where evaluations have no levels."""
    figures: list[Figure] = []
    for one in journeys:
        levels = [level for level in LEVELS if any(not math.isnan(_share(after, level)) for after in one.path)]
        if not levels:
            continue
        values = [[_share(after, level) for after in one.path] for level in levels]
        stages = [after.stage for after in one.path]
        said = (
            f"{level} {', '.join(percent(value) for value in row if not math.isnan(value))}"
            for level, row in zip(levels, values, strict=True)
        )
        alt = f"Answers of {one.model}, {one.name}, that satisfy their schema, {', '.join(stages)}: {'; '.join(said)}"
        svg = charts.heat(levels, stages, values, alt=alt, show=percent, titles=("difficulty", "after stage"))
        note = "Share of the test prompts of each difficulty whose greedy answers satisfy their schema ↑."
        title = f"Satisfied schemas by difficulty and stage, {one.model}, {one.name}"
        figures.append(Figure(f"D1{letter(len(figures))}", title, svg, alt, (note,)))
    return figures


def _share(after: Outcome, level: str) -> float:
    """The share of a level, the mean over seeds; NaN if a seed lacks it."""
    values = [e.metric(f"{level}/{PASSED}") for e in after.evaluations]
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known and len(known) == len(values) else math.nan
