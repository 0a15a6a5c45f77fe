"""How far a judge agrees with itself from round to round, and with another judge."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from smolsum.evaluate.judging import Judged
from smolsum.evaluate.tables import judged_columns
from smolsum.types import COMPOSITE, Criterion


def judge_noise(rounds: Sequence[Sequence[float | None]]) -> dict[str, float | int | None]:
    """Returns the spread of a metric between rounds, `rounds` holding one list of scores an example.

    `round_sd` is the standard deviation of a score within its example; `icc` is ICC(1,1), the share of all variance
    that lies between examples, and `icc_mean` ICC(1,k), that of the mean of the k rounds (Shrout and Fleiss, 1979; one
    way, as round 1 has nothing to do with another example's round 1). Examples with a missing round are left out; None
    where there are fewer than two rounds or examples, and for an ICC without variance.
    """
    whole = [[score for score in row if score is not None] for row in rounds]
    k = max((len(row) for row in rounds), default=0)
    scores = np.array([row for row in whole if len(row) == k and k > 1], dtype=np.float64)
    n = len(scores)
    if n < 2:
        return {"n": n, "round_sd": None, "icc": None, "icc_mean": None}
    between = k * float(scores.mean(axis=1).var(ddof=1))
    within = float(scores.var(axis=1, ddof=1).mean())
    total = between + (k - 1) * within
    return {
        "n": n,
        "round_sd": math.sqrt(within),
        "icc": (between - within) / total if total > 0 else None,
        "icc_mean": (between - within) / between if between > 0 else None,
    }


def agreement(first: Mapping[str, float | None], second: Mapping[str, float | None]) -> dict[str, float | int | None]:
    """Returns how two judges' scores of the same examples, by id, agree: Pearson's and Spearman's correlation, the mean
    difference second - first and its standard deviation. Examples that one of them lacks are left out; None where it
    takes more examples, or a correlation more variance."""
    pairs = [
        (score, other) for key, score in first.items() if score is not None and (other := second.get(key)) is not None
    ]
    values: NDArray[np.float64] = np.array(pairs, dtype=np.float64).reshape(-1, 2)
    a, b = values.T
    n = len(pairs)
    found: dict[str, float | int | None] = {
        "n": n,
        "pearson": None,
        "spearman": None,
        "difference": float((b - a).mean()) if n else None,
        "difference_sd": float((b - a).std(ddof=1)) if n > 1 else None,
    }
    if n > 2 and np.ptp(a) > 0 and np.ptp(b) > 0:
        from scipy import stats

        found["pearson"] = float(stats.pearsonr(a, b).statistic)
        found["spearman"] = float(stats.spearmanr(a, b).statistic)
    return found


def judge_facts(criteria: Sequence[Criterion], judged: Judged) -> dict[str, Any]:
    """Returns what a summary says of a judge: how it was asked, what failed, what it took, how much it wavers."""
    bench, columns = judged.bench, _columns(criteria, judged)
    return {
        "model": bench.model,
        "endpoint": bench.endpoint,
        "rounds": bench.rounds,
        "prompts": dict(bench.prompts),
        "thresholds": {c.name: c.threshold for c in criteria},
        "usage": dict(judged.usage),
        "missing": [
            {"id": j.id, "round": j.round, "metric": j.metric, "error": j.error, "attempts": j.attempts}
            for j in judged.missing
        ],
        "noise": {
            name: judge_noise([row["rounds"][name] for row in columns.values()])
            for name in (*(c.name for c in criteria), COMPOSITE)
        },
    }


def judges_agreement(
    criteria: Sequence[Criterion], first: Judged, second: Judged
) -> dict[str, dict[str, float | int | None]]:
    """Returns `agreement` for each metric and the composite, over the examples' means."""
    a, b = _columns(criteria, first), _columns(criteria, second)
    names = (*(c.name for c in criteria), COMPOSITE)
    return {n: agreement({k: row[n] for k, row in a.items()}, {k: row[n] for k, row in b.items()}) for n in names}


def _columns(criteria: Sequence[Criterion], judged: Judged) -> dict[str, dict[str, Any]]:
    rounds = judged.bench.rounds
    return {key: judged_columns(criteria, rounds, found) for key, found in judged.judgements.items()}
