"""Tests of one metric on paired examples, between two single runs; `seeds.py` has those between arms of several.
Every difference is b - a. A pair with None, NaN or infinity is left out (pairwise deletion) and counted.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, stats

from smolsum.errors import UsageError

Alternative = Literal["two-sided", "greater", "less"]
Note = Literal["", "identical", "constant", "too few"]
Values: TypeAlias = Sequence[float | None] | NDArray[np.float64]

CONFIDENCE = 0.95
ALPHA = 0.05
POWER = 0.8
RESAMPLES = 9999
"""with the data as they are, which count as one more permutation, 10,000"""
# a cap on memory: so many numbers at once in one resampling step
_MAX_BATCH_NUMBERS = 2_000_000
# differences that vary by no more than the rounding of their own values (in units of their size) do not vary
_ROUNDING = 64 * float(np.finfo(np.float64).eps)
MAX_SIZE = 1e70
"""the largest absolute value: the tests take fourth powers of differences"""
_MIN_DIFFERENCE = 1e-150
"""smaller differences count as none: their squares are too small for a float"""


@dataclass(frozen=True)
class PairedResult:
    """A paired t-test. Undefined values are NaN, and `note` says why."""

    n: int
    """complete pairs"""
    missing: int
    """pairs left out: a value is None, NaN or infinite"""
    mean_a: float
    mean_b: float
    delta: float
    """mean of b - a"""
    sd: float
    """standard deviation of b - a, divisor n - 1"""
    se: float
    """standard error of delta"""
    t: float
    df: float
    p: float
    ci_low: float
    """95 % interval of delta; one side is infinite for a one-sided test"""
    ci_high: float
    d_z: float
    """delta / sd"""
    alternative: Alternative
    note: Note
    """identical: a and b are equal in every pair (p is 1, t undefined); constant: all pairs differ by the same amount,
    so t and p are undefined; too few: fewer than two pairs"""


@dataclass(frozen=True)
class CrossChecks:
    """Tests of the same question with weaker assumptions; NaN where they are undefined."""

    wilcoxon_p: float
    """signed ranks, zero differences dropped; exact for small n without ties or zeros, else normal approximation"""
    sign_flip_p: float
    """permutation test of the mean: exact up to 13 pairs, else 9,999 random flips, so never under 0.0002 (two-sided)"""
    bootstrap_low: float
    """95 % interval of delta, bias-corrected and accelerated, 9,999 resamples"""
    bootstrap_high: float


@dataclass(frozen=True)
class McNemar:
    """The exact test of paired yes/no answers."""

    gained: int
    """pairs that are no in a and yes in b"""
    lost: int
    p: float


def paired_ttest(a: Values, b: Values, *, alternative: Alternative = "two-sided") -> PairedResult:
    """Return the t-test of the mean of b - a over pairs (`scipy.stats.ttest_rel`); n - 1 degrees of freedom.

    `greater` asks whether b is greater than a. Raises UsageError if a and b differ in length or are not flat, or if
    the alternative is unknown.
    """
    if alternative not in get_args(Alternative):
        raise UsageError(f"unknown alternative {alternative!r}", hint=f"choose from {', '.join(get_args(Alternative))}")
    x, y, missing = _complete_pairs(a, b)
    return ttest_of_complete(x, y, missing, alternative)


def ttest_of_complete(
    x: NDArray[np.float64], y: NDArray[np.float64], missing: int, alternative: Alternative
) -> PairedResult:
    """Return `paired_ttest` of pairs of finite values; `missing` is passed on to the result."""
    n, nan = len(x), math.nan
    mean_a, mean_b, delta = (float(v.mean()) if n else nan for v in (x, y, y - x))
    note = _note(x, y)
    p, sd = (1.0 if note == "identical" else nan), (nan if n < 2 else 0.0)
    undefined = PairedResult(n, missing, mean_a, mean_b, delta, sd, sd, nan, n - 1, p, nan, nan, nan, alternative, note)
    if note:
        return undefined
    test = stats.ttest_rel(y, x, alternative=alternative)
    low, high = map(float, test.confidence_interval(CONFIDENCE))
    sd, t, df, p = map(float, ((y - x).std(ddof=1), test.statistic, test.df, test.pvalue))
    return replace(undefined, sd=sd, se=sd / math.sqrt(n), t=t, df=df, p=p, ci_low=low, ci_high=high, d_z=delta / sd)


def cross_checks(a: Values, b: Values, *, alternative: Alternative, seed: int) -> CrossChecks:
    """Return Wilcoxon's test, the sign-flip permutation test and the bootstrap interval of the mean of b - a.

    The same seed gives the same numbers.
    """
    x, y, _ = _complete_pairs(a, b)
    note = _note(x, y)
    if note in ("too few", "identical"):
        p = 1.0 if note == "identical" else math.nan
        return CrossChecks(p, p, math.nan, math.nan)
    d = y - x
    batch = max(1, _MAX_BATCH_NUMBERS // len(d))
    # differences that are equal except for rounding must tie, or the ranks would order noise
    ranked = _tied(d, _rounding(x, y))
    wilcoxon = stats.wilcoxon(ranked, alternative=alternative).pvalue
    flips: Any = stats.permutation_test(
        (d,),
        np.mean,
        permutation_type="samples",
        vectorized=True,
        n_resamples=RESAMPLES,
        batch=batch,
        alternative=alternative,
        rng=seed,
    )
    low = high = math.nan
    if note != "constant":
        low, high = stats.bootstrap(
            (d,),
            np.mean,
            confidence_level=CONFIDENCE,
            n_resamples=RESAMPLES,
            batch=batch,
            alternative=alternative,
            rng=seed,
        ).confidence_interval
    return CrossChecks(float(wilcoxon), float(flips.pvalue), float(low), float(high))


def mcnemar(a: Values, b: Values, *, alternative: Alternative) -> McNemar | None:
    """Return McNemar's exact test, the binomial test of gained against lost; None unless all values are 0 or 1."""
    x, y, _ = _complete_pairs(a, b)
    if not len(x) or not np.isin(np.concatenate([x, y]), (0.0, 1.0)).all():
        return None
    gained, lost = int((y > x).sum()), int((y < x).sum())
    changed = gained + lost
    p = float(stats.binomtest(gained, changed, 0.5, alternative=alternative).pvalue) if changed else 1.0
    return McNemar(gained, lost, p)


def smallest_detectable(standard_error: float, df: float, *, alternative: Alternative) -> float:
    """Return the true difference that the t-test at 5 % would find with a probability of 80 % (noncentral t).

    `standard_error` is that of the mean difference, `df` its degrees of freedom. A distance, so never negative. NaN
    without spread.
    """
    if not (standard_error > 0 and df > 0):
        return math.nan
    two_sided = alternative == "two-sided"
    critical = float(stats.t.isf(ALPHA / 2 if two_sided else ALPHA, df))

    def lacking(shift: float) -> float:
        # the lower tail is the upper one of the mirrored distribution: SciPy's own is NaN far out
        found = stats.nct.sf(critical, df, shift) + (stats.nct.sf(critical, df, -shift) if two_sided else 0.0)
        return float(found) - POWER

    high = 1.0  # doubled until the two ends enclose the root, as `brentq` needs
    while lacking(high) < 0:
        high *= 2
    return float(optimize.brentq(lacking, 0.0, high)) * standard_error


def _complete_pairs(a: Values, b: Values) -> tuple[NDArray[np.float64], NDArray[np.float64], int]:
    """Return the pairs with two finite values, and the number of the others. Raises UsageError for unequal lengths and
    for numbers above `MAX_SIZE`."""
    x, y = (np.array(list(values), dtype=np.float64) for values in (a, b))
    if x.ndim != 1 or x.shape != y.shape:
        raise UsageError(
            f"paired values need equal lengths, not {x.shape} and {y.shape}", hint="give one number an example"
        )
    kept = np.isfinite(x) & np.isfinite(y)
    if (np.abs(x[kept]) > MAX_SIZE).any() or (np.abs(y[kept]) > MAX_SIZE).any():
        raise UsageError(
            f"a number above {MAX_SIZE:g} in size is too large to compute with",
            hint="None or NaN is a value that is missing",
        )
    return x[kept], y[kept], int((~kept).sum())


def constant(values: NDArray[np.float64], scale: NDArray[np.float64] | float) -> NDArray[np.bool_]:
    """Which rows of values (…, values) are equal up to the rounding of numbers as large as `scale` (…)."""
    return np.asarray(np.ptp(values, axis=-1) <= _ROUNDING * np.asarray(scale))


def _note(x: NDArray[np.float64], y: NDArray[np.float64]) -> Note:
    if len(x) < 2:
        return "too few"
    d, rounding = y - x, _rounding(x, y)
    if (np.abs(d) <= rounding).all():
        return "identical"
    surest = int(rounding.argmin())
    same = np.abs(d - d[surest]) <= rounding + rounding[surest]
    return "constant" if same.all() else ""


def _rounding(x: NDArray[np.float64], y: NDArray[np.float64]) -> NDArray[np.float64]:
    """The rounding error of each difference, from its own two values: one huge pair does not affect the others."""
    size = np.maximum(np.abs(x), np.abs(y))
    error: NDArray[np.float64] = np.maximum(_ROUNDING * size, _MIN_DIFFERENCE)
    return error


def _tied(d: NDArray[np.float64], rounding: NDArray[np.float64]) -> NDArray[np.float64]:
    """The differences, with sizes made equal that differ only by rounding, and 0 for rounding alone."""
    nothing = np.abs(d) <= rounding
    size, rounding = np.where(nothing, 0.0, np.abs(d)), np.where(nothing, 0.0, rounding)
    order = np.argsort(size, kind="stable")
    ordered, slack = size[order], rounding[order]
    apart = np.diff(ordered, prepend=-1.0) > np.maximum(slack, np.roll(slack, 1))
    tied = np.empty_like(d)
    tied[order] = ordered[np.maximum.accumulate(np.where(apart, np.arange(len(d)), 0))]
    signed: NDArray[np.float64] = np.sign(d) * tied
    return signed
