"""From judgements to the columns of a scores file: means, rounds, composite, passes, and what is missing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

from smolsum.evaluate.judgements import Judgement
from smolsum.tasks.criterion import COMPOSITE, Criterion

PASS_RATE, PASSED = "pass_rate", "passed"


def judged_columns(criteria: Sequence[Criterion], rounds: int, judgements: Iterable[Judgement]) -> dict[str, Any]:
    """Returns one example's columns: each metric's mean over its rounds, their sum as `composite`, the share of rounds
    in which all metrics reach their thresholds as `pass_rate`, whether that is most of them as `passed`; in `rounds`
    every score, None where it is missing.

    A mean is over the scores that there are, and None without any; a composite needs all metrics, a round that passes
    or not all of its scores.
    """
    found = {(j.metric, j.round): j.score for j in judgements}
    scores = {c.name: [found.get((c.name, number)) for number in range(1, rounds + 1)] for c in criteria}
    means = {name: _mean(row) for name, row in scores.items()}
    passes: list[float | None] = []
    sums: list[float | None] = []
    for number in range(rounds):
        row = [scores[c.name][number] for c in criteria]
        known = [score for score in row if score is not None]
        complete = len(known) == len(row)
        sums.append(sum(known) if complete else None)
        # half a billionth: a score is a tenth, which floats do not have
        reached = [s >= c.threshold - 5e-10 for s, c in zip(known, criteria, strict=False)]
        passes.append(float(all(reached)) if complete else None)
    values = [mean for mean in means.values() if mean is not None]
    pass_rate = _mean(passes)
    return {
        **means,
        COMPOSITE: sum(values) if len(values) == len(criteria) else None,
        PASS_RATE: pass_rate,
        PASSED: None if pass_rate is None else float(pass_rate > 0.5),
        "rounds": {**scores, COMPOSITE: sums, PASSED: passes},
    }


def judged_summary(criteria: Sequence[Criterion], rows: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    """Returns the mean over the examples of every judged column, and its standard error below `<column>/se`; None where
    nothing, or only one example, has a value."""
    summary: dict[str, float | None] = {}
    for name in (*(c.name for c in criteria), COMPOSITE, PASS_RATE):
        values = [row[name] for row in rows if row[name] is not None]
        summary[name] = fmean(values) if values else None
        summary[f"{name}/se"] = stdev(values) / len(values) ** 0.5 if len(values) > 1 else None
    return summary


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None
