"""Shares near 0 and 1: intervals of the share of an arm, and of the difference of two, over other runs and examples.

The spread of a share of 99 % in 50 examples is an accident, so intervals by means and standard deviations leave out too
many true shares. These here are made of beta distributions, and `benchmarks/evidence.py` counts what they cover.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from scipy import optimize, special

from smolsum.stats.paired import CONFIDENCE, Alternative
from smolsum.stats.seeds import Array, by_cluster, compare_runs, crossed_variance, kept_clusters, run_parts

LEAST_P = 1e-6


@dataclass(frozen=True)
class ShareInterval:
    """The share of an arm with its 95 % intervals over other runs and examples, which stay within 0 and 1."""

    share: float
    exact_low: float
    """covers the true share in at least about 95 % of cases, in more near 0 and 1"""
    exact_high: float
    bayes_low: float
    """covers it in about 95 % of cases on average"""
    bayes_high: float


def share_interval(x_SN: Array, clusters_N: Sequence[object] | None = None) -> ShareInterval | None:
    """Return the share of a table of 0 and 1 (runs x examples; columns with NaN are left out); None for other values.

    The intervals are Clopper and Pearson's, and Jeffreys' (Brown, Cai and DasGupta 2001), for as many independent
    examples as have the same variance, with a factor for its degrees of freedom (Korn and Graubard 1998). Near 0 and 1
    that variance is an accident, so it is averaged with a guess that counts as one example (as in `interval_of_means`
    of `smolsum/tasks/success_rates.py`): half-way between runs that agree on each example and independent runs.
    """
    kept = np.isfinite(x_SN).all(axis=0)
    x = x_SN[:, kept]
    if not x.size or not np.isin(x, (0.0, 1.0)).all():
        return None
    names = kept_clusters(clusters_N, kept)
    share = x.mean()
    size, _, df = _independent(x, x if names is None else by_cluster(x, names))
    size *= _narrowing(df, CONFIDENCE) if len(x) > 1 else 1.0
    passed, failed, tail = share * size, (1 - share) * size, (1 - CONFIDENCE) / 2
    low, high = _jeffreys(share, size, CONFIDENCE)
    return ShareInterval(
        float(share),
        float(special.betaincinv(passed, failed + 1, tail)) if share > 0 else 0.0,
        float(special.betaincinv(passed + 1, failed, 1 - tail)) if share < 1 else 1.0,
        float(low),
        float(high),
    )


def share_difference(
    a_SN: Array,
    b_SN: Array,
    *,
    matched: bool = False,
    clusters_N: Sequence[object] | None = None,
    level: float = CONFIDENCE,
) -> tuple[float, float] | None:
    """Return the ends of the interval of b - a for two tables of 0 and 1; None for other values.

    Near 0 and 1 the interval of the t-test leaves out too many true differences, as the spread of the higher share is
    an accident. This one adds the squares of the distances to the ends of both Jeffreys intervals, less what the arms
    share by their examples (Newcombe 1998, method 10; Zou and Donner 2008, "MOVER"), and is as much wider as the
    degrees of freedom of the crossed test ask for.
    """
    kept = np.isfinite(np.concatenate([a_SN, b_SN])).all(axis=0)
    arms, names = (a_SN[:, kept], b_SN[:, kept]), kept_clusters(clusters_N, kept)
    if not kept.sum() > 1 or not all(np.isin(x, (0.0, 1.0)).all() for x in arms):
        return None
    groups = arms if names is None else (by_cluster(arms[0], names), by_cluster(arms[1], names))
    whole = compare_runs(*arms, alternative="two-sided", matched=matched, clusters_N=names).result
    low, high = difference_ends(*arms, groups, whole.se**2, whole.df, level=level)
    return float(low), float(high)


def difference_ends(
    a: Array, b: Array, groups: tuple[Array, Array], variance: Array | float, df: Array | float, *, level: float
) -> tuple[Array, Array]:
    """Return the ends (…) of `share_difference` for studies (…, runs, examples) whose mean difference has a variance
    with so many degrees of freedom (…). `groups` are both tables by cluster, or the tables themselves."""
    shares = a.mean(axis=(-2, -1)), b.mean(axis=(-2, -1))
    (size_a, variance_a, _), (size_b, variance_b, _) = map(_independent, (a, b), groups)
    both = np.sqrt(variance_a * variance_b)
    correlation = np.where(both > 0, (variance_a + variance_b - variance) / 2 / np.where(both > 0, both, 1), 0.0)
    correlation = np.clip(correlation, -1, 1)
    widening = 1 / np.sqrt(_narrowing(df, level)) if max(a.shape[-2], b.shape[-2]) > 1 else 1.0
    (low_a, high_a), (low_b, high_b) = map(partial(_jeffreys, level=level), shares, (size_a, size_b))

    def reach(x: Array, y: Array) -> Array:
        distance: Array = widening * np.sqrt(np.maximum(0.0, x * x + y * y - 2 * correlation * x * y))
        return distance

    delta = shares[1] - shares[0]
    return (
        np.maximum(-1.0, delta - reach(shares[1] - low_b, high_a - shares[0])),
        np.minimum(1.0, delta + reach(high_b - shares[1], shares[0] - low_a)),
    )


def share_p(
    a_SN: Array,
    b_SN: Array,
    *,
    margin: float = 0.0,
    alternative: Alternative,
    matched: bool = False,
    clusters_N: Sequence[object] | None = None,
) -> float | None:
    """Return the p of a difference of two tables of 0 and 1, or `margin_p` for a margin above 0, by the intervals of
    `share_difference`: the smallest p, from `LEAST_P`, whose interval of level 1 - 2 p (one-sided) does not reach 0, or
    is within the margin. None for other values."""

    def ends(p: float) -> tuple[float, float] | None:
        return share_difference(a_SN, b_SN, matched=matched, clusters_N=clusters_N, level=1 - 2 * p)

    if ends(LEAST_P) is None:
        return None
    if margin == 0:
        above, below = _tail(ends, 0.0, above=True), _tail(ends, 0.0, above=False)
        return {"two-sided": min(1.0, 2 * min(above, below)), "greater": above, "less": below}[alternative]
    wanted = {"two-sided": (True, False), "greater": (True,), "less": (False,)}[alternative]
    return max(_tail(ends, -margin if above else margin, above=above) for above in wanted)


def _tail(ends: Callable[[float], tuple[float, float] | None], bound: float, *, above: bool) -> float:
    """The smallest p whose interval is above (or below) the bound; 1 where that of 0.5 is not."""

    def clear(p: float) -> float:
        found = ends(p)
        assert found is not None
        return found[0] - bound if above else bound - found[1]

    most = 0.4999
    if clear(most) <= 0:
        return 1.0
    return LEAST_P if clear(LEAST_P) >= 0 else float(optimize.brentq(clear, LEAST_P, most, xtol=1e-6))


def _independent(x: Array, groups: Array) -> tuple[Array, Array, Array]:
    """How many independent examples have the variance of the share of tables of 0 and 1 (…, runs, examples), which are
    `groups` by cluster; that variance, and its degrees of freedom (…)."""
    share, (runs, n) = x.mean(axis=(-2, -1)), groups.shape[-2:]
    guess = (1 + 1 / runs) / 2
    if n < 2:
        return np.full(share.shape, n / guess), np.zeros(share.shape), np.ones(share.shape)
    variance, df = groups.mean(axis=-2).var(axis=-1, ddof=1) / n, np.full(share.shape, n - 1.0)
    if runs > 1:
        variance, df = crossed_variance(variance, *run_parts([groups]), n, [runs])
    of_example = x.mean(axis=-2)
    telling = np.minimum((of_example > 0).sum(axis=-1), (of_example < 1).sum(axis=-1))
    mixed = (share > 0) & (share < 1)
    likeness = (telling * variance * n / np.where(mixed, share * (1 - share), 1) + guess) / (telling + 1)
    size = np.where(mixed, np.minimum(x.shape[-2] * x.shape[-1], n / likeness), n / guess)
    return size, np.where(mixed, variance, 0.0), np.where(mixed, df, n - 1.0)


def _narrowing(df: Array | float, level: float) -> Array:
    """By how much fewer examples an interval with these degrees of freedom counts."""
    ratio: Array = special.ndtri((1 + level) / 2) / special.stdtrit(df, (1 + level) / 2)
    return ratio**2


def _jeffreys(share: Array, size: Array, level: float) -> tuple[Array, Array]:
    """The ends of Jeffreys' interval for a share of `size` examples."""
    passed, failed, tail = share * size, (1 - share) * size, (1 - level) / 2
    low = np.where(share > 0, special.betaincinv(passed + 0.5, failed + 0.5, tail), 0.0)
    high = np.where(share < 1, special.betaincinv(passed + 0.5, failed + 0.5, 1 - tail), 1.0)
    return low, high
