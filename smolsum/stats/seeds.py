"""Tests between arms of several runs, such as seeds of one configuration.

A test of the means over seeds says nothing about other seeds. Here examples and runs are both samples, in a crossed
design (every run answers every example), and the variance of the difference has a part from each:

    V = var(d) / n + sum over arms of max(0, MS_run - MS_rest) / (n S)

with d the differences of the per-example means, n examples, S runs in an arm, and the mean squares of the two-way
table runs x examples without replication. With one arm of several runs that is the quasi-F test of Clark (1973, "The
language-as-fixed-effect fallacy"), and of reader studies (Dorfman, Berbaum and Metz 1992). Degrees of freedom:
Satterthwaite (1946). A negative part counts as 0.

With few runs a small part is often an accident, and the test would find too much (`benchmarks/seeds.py`). So a single
run is taken to vary as the runs of the other arm do, and where there are fewer than MIN_RUN_DF degrees of freedom
between runs, the test has no more than these.
"""

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from smolsum.errors import UsageError
from smolsum.stats.paired import CONFIDENCE, Alternative, PairedResult, constant, ttest_of

MIN_RUN_DF = 5
"""degrees of freedom between runs from which on the test needs no help: six pairs"""


@dataclass(frozen=True)
class MixedResult:
    """A comparison of two arms of one run or more."""

    result: PairedResult
    """t, p and interval for runs like these; the plain t-test for single runs and for runs that do not differ"""
    these_runs: PairedResult
    """the t-test of the per-example means: these runs, on other examples"""
    run_sd_a: float
    """standard deviation between the runs' means, divisor S - 1; NaN for one run"""
    run_sd_b: float
    run_sd_delta: float
    """matched runs only: standard deviation between the differences of the matched runs; else NaN"""


def compare_runs(
    a_SN: NDArray[np.float64], b_SN: NDArray[np.float64], *, alternative: Alternative, matched: bool = False
) -> MixedResult:
    """Return the comparison of runs `b_SN` with runs `a_SN` (runs x examples, examples in the same order).

    An example without a finite value in each run is left out and counted. `matched`: the k-th runs of both arms belong
    together (same rewards, another strategy), and what they share cancels. Raises UsageError unless both
    have the same number of runs.
    """
    if matched and len(a_SN) != len(b_SN):
        raise UsageError(
            f"matched runs come in pairs, not {len(a_SN)} against {len(b_SN)}",
            hint="give both arms the same number of runs, in the same order",
        )
    kept = np.isfinite(a_SN).all(axis=0) & np.isfinite(b_SN).all(axis=0)
    a, b = a_SN[:, kept], b_SN[:, kept]
    these = ttest_of(a.mean(axis=0), b.mean(axis=0), int((~kept).sum()), alternative)
    arms = [b - a] if matched else [a, b]
    borrows = min(map(len, arms)) == 1 < max(map(len, arms))
    varying = [arm for arm in arms if _varies(arm)]
    parts = [part for arm in varying for part in _run_variance(arm, 1 + len(arm) * borrows)]
    run_df = sum(len(arm) - 1 for arm in varying)
    tested = bool(parts) or (run_df > 0 and these.se > 0)  # else there is no variance to divide by
    result = _with_variance(these, parts, run_df if run_df < MIN_RUN_DF else math.inf) if tested else these
    paired_sd = _run_sd(b - a) if matched else math.nan
    return MixedResult(result, these, _run_sd(a), _run_sd(b), paired_sd)


def _run_sd(x_SN: NDArray[np.float64]) -> float:
    return float(x_SN.mean(axis=1).std(ddof=1)) if x_SN.shape[0] > 1 and x_SN.shape[1] else math.nan


def _varies(x_SN: NDArray[np.float64]) -> bool:
    """Return whether there are several runs, and their means differ."""
    enough = x_SN.shape[0] > 1 and x_SN.shape[1] > 1
    return enough and not constant(x_SN.mean(axis=1, keepdims=True), float(np.abs(x_SN).max()))


def _run_variance(x_SN: NDArray[np.float64], times: float) -> list[tuple[float, float]]:
    """What the choice of runs adds to the variance of an arm's mean, `times` over: (variance, degrees of freedom) of
    each term."""
    runs, n = x_SN.shape
    of_run, of_example = x_SN.mean(axis=1, keepdims=True), x_SN.mean(axis=0, keepdims=True)
    rest_df = (runs - 1) * (n - 1)
    ms_run = n * float(of_run.var(ddof=1))
    ms_rest = float(((x_SN - of_run - of_example + x_SN.mean()) ** 2).sum()) / rest_df
    if ms_run <= ms_rest:
        return []
    return [(times * ms_run / (n * runs), runs - 1), (-times * ms_rest / (n * runs), rest_df)]


def _with_variance(these: PairedResult, parts: list[tuple[float, float]], most_df: float) -> PairedResult:
    """The test of `these` with the variance of the runs added to that of the examples, with at most `most_df`."""
    parts = [(these.se**2, these.n - 1), *parts]
    variance = sum(value for value, _ in parts)
    df = min(variance**2 / sum(value**2 / of for value, of in parts), most_df)
    error = math.sqrt(variance)
    t = these.delta / error
    tails = {"two-sided": (1 + CONFIDENCE) / 2}.get(these.alternative, CONFIDENCE)
    reach = float(stats.t.ppf(tails, df)) * error
    p = {"two-sided": 2 * stats.t.sf(abs(t), df), "greater": stats.t.sf(t, df), "less": stats.t.cdf(t, df)}[
        these.alternative
    ]
    low = -math.inf if these.alternative == "less" else these.delta - reach
    high = math.inf if these.alternative == "greater" else these.delta + reach
    return replace(these, se=error, t=t, df=df, p=float(p), ci_low=low, ci_high=high, note="")
