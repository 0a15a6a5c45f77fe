"""Runs as a sample: tests between arms of several runs, such as seeds of a configuration, on the same examples.

A test of the means over seeds says nothing about other seeds. Here examples and runs are both samples, in a crossed
design (every run answers every example; Clark 1973, "The language-as-fixed-effect fallacy"; Miller 2024,
arXiv:2411.00640). With d the differences of the per-example means, n examples, and S runs in an arm, the variance of
the mean difference is

    V = R + max(0, E - O)     R = sum over arms of var(means of the runs) / S
                              E = var(d) / n
                              O = sum over arms of MS_rest / (n S)

MS_rest is the mean square of the two-way table without replication: R and E both have its part in them, so one goes.
That is the quasi-F test of Clark, and of reader studies (Dorfman, Berbaum and Metz 1992). It is the part of the
examples that cannot be negative, as it has more degrees of freedom than that of the runs, so that 0 biases it least.

Degrees of freedom, after Satterthwaite (1946), of R alone k, of the whole

    1 / df = (R / V) ** (2 - 2 / k) / k + (1 - R / V) ** 2 / (n - 1)

His exponents are all 2, which is the limit for many runs. With few he promises too much: where three pairs of runs
happen to agree, R is small and df large, and the interval covers 92 %. With two pairs df is at most 1. 1 / k is the
mean of two: that of runs that vary equally in both arms, and that of Welch (1947), for runs that do not; 3 runs cannot
say which. `benchmarks/evidence.py` simulates all this.

A table of several questions a document becomes one of documents (`by_cluster`), whose errors are the clustered ones.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats

from smolsum.errors import UsageError
from smolsum.stats.paired import CONFIDENCE, Alternative, PairedResult, constant, ttest_of_complete

Array: TypeAlias = NDArray[np.float64]
RESAMPLES = 1999
"""of runs and examples, for bootstrap intervals"""
_MAX_BATCH_NUMBERS = 2_000_000
IQM_CUT = 0.25
"""share of the scores that the interquartile mean leaves out at each end"""


@dataclass(frozen=True)
class MixedResult:
    """A comparison of two arms of one run or more."""

    result: PairedResult
    """t, p and interval for runs like these; the plain t-test for single runs and for runs with equal means"""
    these_runs: PairedResult
    """the t-test of the per-example means: these runs, on other examples"""
    run_sd_a: float
    """standard deviation between the runs' means, divisor S - 1; NaN for one run"""
    run_sd_b: float
    run_sd_delta: float
    """matched runs only: standard deviation between the differences of the matched runs; else NaN"""


def compare_runs(
    a_SN: Array,
    b_SN: Array,
    *,
    alternative: Alternative,
    matched: bool = False,
    clusters_N: Sequence[object] | None = None,
) -> MixedResult:
    """Return the comparison of runs `b_SN` with runs `a_SN` (runs x examples, examples in the same order).

    An example without a finite value in each run is left out and counted. `matched`: the k-th runs of both arms belong
    together (same rewards, another strategy), and what they share cancels. `clusters_N` names what each example belongs
    to, such as its document: these are the sample then. A single run is taken to vary as the runs of the other arm do.
    The interval of a difference of shares ends at -1 and 1. Raises UsageError for matched arms of unequal length, and
    for fewer than two clusters.
    """
    a, b, missing = complete_tables(a_SN, b_SN, matched=matched)
    examples = a.shape[1]
    if (names := kept_clusters(clusters_N, np.isfinite(np.concatenate([a_SN, b_SN])).all(axis=0))) is not None:
        a, b = by_cluster(a, names), by_cluster(b, names)
    these = replace(ttest_of_complete(a.mean(axis=0), b.mean(axis=0), missing, alternative), n=examples)
    arms = [b - a] if matched else [a, b]
    several = [arm for arm in arms if len(arm) > 1]
    result = these
    if several and a.shape[1] > 1:
        # the part of a single run is S times that of a mean of S runs
        runs_A, overlap_A = run_parts(several, 1 + len(several[0]) * (len(several) < len(arms)))
        if runs_A.any():
            example_part, sizes = np.float64(these.sd**2 / a.shape[1]), [len(arm) for arm in several]
            variance, df = crossed_variance(example_part, runs_A, overlap_A, a.shape[1], sizes)
            result = _with_variance(these, float(variance), float(df))
    if np.isin(a, (0, 1)).all() and np.isin(b, (0, 1)).all():
        result = _of_shares(result)
    paired_sd = _run_sd(b - a) if matched else math.nan
    return MixedResult(result, these, _run_sd(a), _run_sd(b), paired_sd)


def complete_tables(a_SN: Array, b_SN: Array, *, matched: bool = False) -> tuple[Array, Array, int]:
    """Return both tables without the examples that lack a finite value in some run, and how many these are. Raises
    UsageError if `matched` runs are not equally many."""
    if matched and len(a_SN) != len(b_SN):
        raise UsageError(
            f"matched runs come in pairs, not {len(a_SN)} against {len(b_SN)}",
            hint="give both arms the same number of runs, in the same order",
        )
    kept = np.isfinite(a_SN).all(axis=0) & np.isfinite(b_SN).all(axis=0)
    return a_SN[:, kept], b_SN[:, kept], int((~kept).sum())


def kept_clusters(clusters_N: Sequence[object] | None, kept_N: Any) -> list[object] | None:
    """Return the clusters of the examples that are kept (booleans)."""
    if clusters_N is None:
        return None
    return [name for name, keep in zip(clusters_N, kept_N.tolist(), strict=True) if keep]


def by_cluster(x_SN: Array, clusters_N: Sequence[object]) -> Array:
    """Return a value for each run and cluster (documents in the order of their first example), whose mean over
    clusters is that of the examples.

    It is the mean of all, plus the cluster's sum of deviations from it, by the mean size of a cluster: for clusters of
    equal size their means. The variance of the mean of such values is the clustered one (Liang and Zeger 1986; Miller
    2024, eq. 4) times C / (C - 1). Raises UsageError for fewer than two clusters.
    """
    names, places = np.unique(np.array([str(name) for name in clusters_N], dtype=np.str_), return_inverse=True)
    if len(names) < 2:
        raise UsageError(
            f"all examples belong to {len(names)} cluster: which has no spread",
            hint="name a field that at least two documents differ in",
        )
    sums = np.zeros((len(names), len(x_SN)))
    np.add.at(sums, places, (x_SN - x_SN.mean()).T)
    values: Array = x_SN.mean() + sums.T * (len(names) / x_SN.shape[1])
    return values


def crossed_difference(a: Array, b: Array, *, matched: bool = False) -> tuple[Array, Array, Array]:
    """Return the mean difference, its variance and its degrees of freedom (…) of studies (…, runs, examples) of at
    least two runs and two examples, each as `compare_runs` has them."""
    n, d = a.shape[-1], b.mean(axis=-2) - a.mean(axis=-2)
    arms = [b - a] if matched else [a, b]
    same = constant(d, np.maximum(np.abs(a).max(axis=(-2, -1)), np.abs(b).max(axis=(-2, -1))))
    examples = np.where(same, 0.0, d.var(axis=-1, ddof=1) / n)
    variance, df = crossed_variance(examples, *run_parts(arms), n, [arm.shape[-2] for arm in arms])
    return d.mean(axis=-1), variance, df


def run_parts(arms: Sequence[Array], times: float = 1.0) -> tuple[Array, Array]:
    """Return R and O of each arm (…, arms) in the module's formula, `times` over, of tables of at least two runs and
    two examples (…, runs, examples)."""
    runs, overlap = [], []
    for x in arms:
        count, n = x.shape[-2:]
        of_run, of_example = x.mean(axis=-1, keepdims=True), x.mean(axis=-2, keepdims=True)
        rest = x - of_run - of_example + x.mean(axis=(-2, -1), keepdims=True)
        overlap.append(times * (rest**2).sum(axis=(-2, -1)) / ((count - 1) * (n - 1) * n * count))
        part = times * of_run[..., 0].var(axis=-1, ddof=1) / count
        runs.append(np.where(constant(of_run[..., 0], np.abs(x).max(axis=(-2, -1))), 0.0, part))
    return np.stack(runs, axis=-1), np.stack(overlap, axis=-1)


def crossed_variance(
    examples: Array | np.float64, runs_A: Array, overlap_A: Array, n: int, sizes: Sequence[int]
) -> tuple[Array, Array]:
    """Return V and its degrees of freedom by the module's formula, from E (…), and R and O of each arm (…, arms), for
    `n` examples and arms of `sizes` runs, at least two each. Arms whose R is 0 are left out; without any, E counts
    whole, with n - 1 degrees."""
    each, varies = np.array(sizes, dtype=np.float64) - 1, runs_A > 0
    total, overlap = np.asarray(runs_A.sum(axis=-1)), (overlap_A * varies).sum(axis=-1)
    none = ~varies.any(axis=-1, keepdims=True)
    inverse_size = (varies | none) / (each + 1)
    equal = (inverse_size**2 / each).sum(axis=-1) / inverse_size.sum(axis=-1) ** 2
    safe = np.where(total > 0, total, 1.0)
    welch = np.where(total > 0, (runs_A**2 / each).sum(axis=-1) / safe**2, equal)
    inverse_k = (equal + welch) / 2
    variance = total + np.maximum(0.0, examples - overlap)
    share = np.divide(total, variance, out=np.zeros_like(variance), where=variance > 0)
    df = 1 / (share ** (2 - 2 * inverse_k) * inverse_k + (1 - share) ** 2 / (n - 1))
    return variance, np.where(total > 0, df, n - 1.0)


def _run_sd(x_SN: Array) -> float:
    return float(x_SN.mean(axis=1).std(ddof=1)) if x_SN.shape[0] > 1 and x_SN.shape[1] else math.nan


def _with_variance(these: PairedResult, variance: float, df: float) -> PairedResult:
    """The test of `these` with another variance of the mean difference."""
    error = math.sqrt(variance)
    t = these.delta / error
    tails = {"two-sided": (1 + CONFIDENCE) / 2}.get(these.alternative, CONFIDENCE)
    reach = float(special.stdtrit(df, tails)) * error
    p = {"two-sided": 2 * stats.t.sf(abs(t), df), "greater": stats.t.sf(t, df), "less": stats.t.cdf(t, df)}[
        these.alternative
    ]
    low = -math.inf if these.alternative == "less" else these.delta - reach
    high = math.inf if these.alternative == "greater" else these.delta + reach
    return replace(these, se=error, t=t, df=df, p=float(p), ci_low=low, ci_high=high, note="")


def _of_shares(result: PairedResult) -> PairedResult:
    """The result with an interval that ends where the difference of two shares does; open ends stay open."""
    low, high = (end if math.isinf(end) else float(np.clip(end, -1, 1)) for end in (result.ci_low, result.ci_high))
    return replace(result, ci_low=low, ci_high=high)


def margin_p(result: PairedResult, margin: float) -> float:
    """Return the p of a difference no larger than `margin`, in the metric's units; NaN where the result has no error.

    Two-sided: equivalence, -margin < b - a < margin, by two one-sided tests (Schuirmann 1987, TOST). `greater`:
    non-inferiority, b - a > -margin; `less`: b - a < margin. Raises UsageError unless the margin is positive.
    """
    if not (margin > 0 and math.isfinite(margin)):
        raise UsageError(
            f"a margin of {margin:g} is no margin",
            hint="state the largest difference that does not matter, such as --margin 0.02",
        )
    if not result.se > 0:
        return math.nan
    above = float(stats.t.sf((result.delta + margin) / result.se, result.df))
    below = float(stats.t.cdf((result.delta - margin) / result.se, result.df))
    return {"two-sided": max(above, below), "greater": above, "less": below}[result.alternative]


@dataclass(frozen=True)
class Resampled:
    """Estimates of b - a from runs and examples drawn anew, with percentile intervals of 95 %; NaN if undefined."""

    boot_low: float
    """of the mean difference"""
    boot_high: float
    iqm_a: float
    """interquartile mean over all runs and examples: of the middle half of the scores"""
    iqm_b: float
    iqm_low: float
    """of the difference of the interquartile means"""
    iqm_high: float
    improved: float
    """probability of improvement: a run of b has a higher score than a run of a on the same example, ties a half"""
    improved_low: float
    improved_high: float


def resample(
    a_SN: Array, b_SN: Array, *, matched: bool = False, clusters_N: Sequence[object] | None = None, seed: int
) -> Resampled:
    """Return the hierarchical bootstrap (runs and examples, or their clusters, both drawn with replacement; Owen 2007,
    "The pigeonhole bootstrap") of the mean difference, and the interquartile mean and the probability of improvement
    (Agarwal et al. 2021, arXiv:2108.13264, with examples for tasks). The same seed gives the same numbers.

    With fewer than six runs the intervals are too narrow: S runs drawn from S vary by (S - 1) / S of what they should.
    """
    a, b, _ = complete_tables(a_SN, b_SN, matched=matched)
    if a.shape[1] < 2:
        return Resampled(*[math.nan] * 9)
    rng, n = np.random.default_rng(seed), a.shape[1]
    names = kept_clusters(clusters_N, np.isfinite(np.concatenate([a_SN, b_SN])).all(axis=0))
    places = np.arange(n) if names is None else np.unique([str(name) for name in names], return_inverse=True)[1]
    clusters = int(places.max()) + 1
    wins = _wins(b, a)[:, None, :] if matched else _wins(b[:, None, :], a[None])
    batch, found = max(1, _MAX_BATCH_NUMBERS // (n * max(len(a), len(b)))), []
    for start in range(0, RESAMPLES, batch):
        size = min(batch, RESAMPLES - start)
        of_a, of_b = (rng.multinomial(len(x), np.full(len(x), 1 / len(x)), size) / len(x) for x in (a, b))
        if matched:
            of_b = of_a
        examples = rng.multinomial(clusters, np.full(clusters, 1 / clusters), size)[:, places].astype(np.float64)
        examples /= examples.sum(axis=1, keepdims=True)
        of_pairs = of_a if matched else (of_b[:, :, None] * of_a[:, None, :]).reshape(size, -1)
        mean = (((of_b @ b) - (of_a @ a)) * examples).sum(axis=1)
        iqm = _iqm(b, of_b, examples) - _iqm(a, of_a, examples)
        better = ((of_pairs @ wins.reshape(-1, n)) * examples).sum(axis=1)
        found.append(np.stack([mean, iqm, better]))
    tail = 100 * (1 - CONFIDENCE) / 2
    low, high = np.percentile(np.concatenate(found, axis=1), [tail, 100 - tail], axis=1)
    iqms = (float(_iqm(x, np.ones((1, len(x))) / len(x), np.ones((1, n)) / n)[0]) for x in (a, b))
    estimates = (low[0], high[0], *iqms, low[1], high[1], wins.mean(), low[2], high[2])
    return Resampled(*map(float, estimates))


def _wins(x: Array, y: Array) -> Array:
    wins: Array = (x > y) + 0.5 * (x == y)
    return wins


def _iqm(x_SN: Array, of_runs: Array, of_examples: Array) -> Array:
    """The mean of the middle half of the scores for each row of weights of runs and of examples, which sum to 1."""
    order = np.argsort(x_SN, axis=None)
    weights = (of_runs[:, :, None] * of_examples[:, None, :]).reshape(len(of_runs), -1)[:, order]
    below = np.clip(np.cumsum(weights, axis=1), IQM_CUT, 1 - IQM_CUT)
    inside = np.diff(below, axis=1, prepend=IQM_CUT)
    means: Array = inside @ x_SN.ravel()[order] / (1 - 2 * IQM_CUT)
    return means


@dataclass(frozen=True)
class Component:
    """A source of variance in the scores of a configuration."""

    source: str
    variance: float
    """of one draw of it, in squared units of the metric; NaN if it is contained in the component before it"""
    of_mean: float
    """its part in the variance of the mean of the whole table"""
    share: float
    """`of_mean` as a share of that of all components"""


SOURCES = ("training seed", "example", "seed x example", "decoding", "judge")


def variance_components(x_SNKR: Array) -> list[Component]:
    """Return the variance of each of `SOURCES` in the scores of training seeds x examples (crossed), completions of an
    example, and rounds of the judge on a completion (nested), by equating mean squares with their expectations (Searle,
    Casella and McCulloch 1992); negative estimates are 0.

    What was drawn only once cannot be separated: the variance of the judge is then part of that of decoding, and so
    on, and of a single seed that of seeds is not known. Examples with a missing value are left out. Raises UsageError
    for fewer than two examples.
    """
    x = x_SNKR[:, np.isfinite(x_SNKR).all(axis=(0, 2, 3))]
    seeds, n, samples, rounds = x.shape
    if n < 2:
        raise UsageError(
            f"variances need at least two examples with all their values, not {n}",
            hint="give evaluations of the same examples, with as many rounds of the judge",
        )
    cells = x.mean(axis=(2, 3))
    ms = dict.fromkeys(SOURCES, math.nan)
    if rounds > 1:
        ms["judge"] = float(x.var(axis=3, ddof=1).mean())
    if samples > 1:
        ms["decoding"] = rounds * float(x.mean(axis=3).var(axis=2, ddof=1).mean())
    in_cell = samples * rounds
    ms["example"] = seeds * in_cell * float(cells.mean(axis=0).var(ddof=1))
    if seeds > 1:
        rest = cells - cells.mean(axis=0) - cells.mean(axis=1, keepdims=True) + cells.mean()
        ms["seed x example"] = in_cell * float((rest**2).sum()) / ((seeds - 1) * (n - 1))
        ms["training seed"] = n * in_cell * float(cells.mean(axis=1).var(ddof=1))
    inner = {"judge": 0.0}
    inner["decoding"] = ms["judge"] if rounds > 1 else 0.0
    inner["seed x example"] = ms["decoding"] if samples > 1 else inner["decoding"]
    inner["example"] = inner["training seed"] = ms["seed x example"] if seeds > 1 else inner["seed x example"]
    in_mean = {"judge": 1, "decoding": rounds, "seed x example": in_cell, "example": seeds * in_cell}
    in_mean["training seed"] = n * in_cell
    variances = {source: max(0.0, (ms[source] - inner[source]) / in_mean[source]) for source in SOURCES}
    variances = {source: math.nan if math.isnan(ms[source]) else variances[source] for source in SOURCES}
    of_mean = {source: variances[source] * in_mean[source] / x.size for source in SOURCES}
    total = math.fsum(value for value in of_mean.values() if not math.isnan(value))
    return [
        Component(source, variances[source], of_mean[source], of_mean[source] / total if total > 0 else math.nan)
        for source in SOURCES
    ]
