"""From judgements to numbers: an example's columns, the means of a split, the noise between rounds, and the agreement
of two judges."""

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

import numpy as np
from numpy.typing import NDArray

from smolsum.runs.evaluation_records import Judgement
from smolsum.types import COMPOSITE, PASS_RATE, PASSED, Criterion


def judged_columns(criteria: Sequence[Criterion], rounds: int, judgements: Iterable[Judgement]) -> dict[str, Any]:
    """Return one example's columns: each criterion's mean over its rounds, their sum as `composite`, the share of
    rounds in which all criteria reach their thresholds as `pass_rate`, whether that is most of them as `passed`, and
    every score in `rounds`.

    Missing scores are in no mean, and None in `rounds`; without any score a mean is None. A composite needs all
    criteria; a round counts for `pass_rate` only if it has all its scores.
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
        # a margin, as scores are tenths, which floats do not represent exactly
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
    """Return the mean over the examples of every judged column, and its standard error as `<column>/se`; None with no
    value, or for a standard error with only one."""
    summary: dict[str, float | None] = {}
    for name in (*(c.name for c in criteria), COMPOSITE, PASS_RATE):
        values = [row[name] for row in rows if row[name] is not None]
        summary[name] = fmean(values) if values else None
        summary[f"{name}/se"] = stdev(values) / len(values) ** 0.5 if len(values) > 1 else None
    return summary


def judge_noise(rounds: Sequence[Sequence[float | None]]) -> dict[str, float | int | None]:
    """Return the spread of a metric between rounds, `rounds` holding one list of scores an example.

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
    """Return how two judges' scores of the same examples, by id, agree: Pearson's and Spearman's correlation, the mean
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


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None
