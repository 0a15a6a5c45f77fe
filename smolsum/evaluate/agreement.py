"""How far a judge agrees with itself from round to round, and with another judge: numbers in, numbers out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray


def judge_noise(rounds: Sequence[Sequence[float | None]]) -> dict[str, float | int | None]:
    """Returns the spread of a metric between rounds, `rounds` holding one list of scores an example.

    `round_sd` is the standard deviation of a score within its example; `icc` is ICC(1,1), the share of all variance
    that is between examples, and `icc_mean` is ICC(1,k), that of the mean of the k rounds (Shrout and Fleiss, 1979;
    one-way, as the rounds of different examples have nothing in common). Examples with a missing round are left out;
    None with fewer than two rounds or examples, and for an ICC without variance.
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
    difference second - first and its standard deviation. Examples that one of them lacks are left out; None with too
    few examples, and for a correlation without variance."""
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
