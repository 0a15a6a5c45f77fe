"""One metric on pairs: each number against SciPy or a value worked out by hand."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from support.refusals import refuses

from smolsum.stats import Alternative, paired_ttest
from smolsum.stats.paired import cross_checks, mcnemar, smallest_detectable

A = [0.2, 0.5, 0.4, 0.9, 0.7]
B = [0.4, 0.6, 0.7, 0.9, 0.6]
ALTERNATIVES: list[Alternative] = ["two-sided", "greater", "less"]


def test_by_hand() -> None:
    """Differences 1, 2, 3, 4, 10: mean 4, sd sqrt(12.5), t = 4 / sqrt(2.5) = 2.52982, and t(4) at 97.5 % is 2.77645."""
    result = paired_ttest([0, 0, 0, 0, 0], [1, 2, 3, 4, 10])
    assert (result.n, result.missing, result.df, result.note) == (5, 0, 4, "")
    assert (result.mean_a, result.mean_b, result.delta) == (0, 4, 4)
    assert result.sd == pytest.approx(math.sqrt(12.5))
    assert result.se == pytest.approx(math.sqrt(2.5))
    assert result.t == pytest.approx(2.52982, abs=1e-5)
    assert result.d_z == pytest.approx(4 / math.sqrt(12.5))
    assert result.ci_low == pytest.approx(4 - 2.77645 * math.sqrt(2.5), abs=1e-4)
    assert result.ci_high == pytest.approx(4 + 2.77645 * math.sqrt(2.5), abs=1e-4)
    assert 0.05 < result.p < 0.1


@pytest.mark.parametrize("alternative", ALTERNATIVES)
def test_direction(alternative: Alternative) -> None:
    """All is about b - a: `greater` asks whether b is greater, and the interval is open on that side."""
    result = paired_ttest(A, B, alternative=alternative)
    reference = stats.ttest_1samp(np.subtract(B, A), 0, alternative=alternative)
    assert result.delta > 0
    assert result.t == pytest.approx(reference.statistic)
    assert result.p == pytest.approx(reference.pvalue)
    interval = reference.confidence_interval(0.95)
    assert (result.ci_low, result.ci_high) == pytest.approx((interval.low, interval.high))
    assert result.alternative == alternative
    if alternative == "greater":
        assert result.ci_high == math.inf


def test_swapping_sides_swaps_signs() -> None:
    """a against b is b against a with the other sign and the same p."""
    there, back = paired_ttest(A, B), paired_ttest(B, A)
    assert (there.delta, there.t, there.d_z) == pytest.approx((-back.delta, -back.t, -back.d_z))
    assert there.p == pytest.approx(back.p)


def test_missing_values_leave_their_pair_out() -> None:
    """None, NaN and infinity on either side take the pair away, and are counted."""
    gaps = paired_ttest([*A, None, 1.0, 1.0], [*B, 1.0, math.nan, math.inf])
    whole = paired_ttest(A, B)
    assert (gaps.n, gaps.missing) == (5, 3)
    assert (gaps.delta, gaps.t, gaps.p) == (whole.delta, whole.t, whole.p)


def test_identical_sides_do_not_differ() -> None:
    """Without any difference p is 1, and what would be 0 / 0 is undefined."""
    result = paired_ttest(A, A)
    assert (result.note, result.delta, result.sd, result.p) == ("identical", 0, 0, 1)
    assert all(math.isnan(x) for x in (result.t, result.d_z, result.ci_low, result.ci_high))


@pytest.mark.parametrize("shift", [0.1, -0.3, 1.0, 1e-3])
def test_constant_difference_is_no_certainty(shift: float) -> None:
    """The same difference in every pair, except for rounding, leaves t and p undefined instead of infinite and 0."""
    result = paired_ttest(A, [a + shift for a in A])
    assert (result.note, result.sd) == ("constant", 0)
    assert result.delta == pytest.approx(shift)
    assert all(math.isnan(x) for x in (result.t, result.p, result.d_z, result.ci_low, result.ci_high))


def test_rounding_alone_is_no_difference() -> None:
    """0.1 + 0.2 and 0.3 are the same score."""
    result = paired_ttest([0.3] * 4, [0.3, 0.1 + 0.2, 0.3, 0.1 + 0.2])
    assert (result.note, result.p) == ("identical", 1)


@pytest.mark.parametrize("n", [0, 1])
def test_too_few_pairs(n: int) -> None:
    """One pair or none has no test, and says so."""
    result = paired_ttest(A[:n], B[:n])
    assert (result.n, result.note) == (n, "too few")
    assert all(math.isnan(x) for x in (result.t, result.p, result.sd))
    checks = cross_checks(A[:n], B[:n], alternative="two-sided", seed=0)
    assert math.isnan(checks.wilcoxon_p)


def test_what_is_no_pair_of_scores_is_refused() -> None:
    """Pairs need two of everything; a misspelt alternative is not taken for another; a number that cannot be squared is
    not turned into an infinite mean."""
    wrong: Any = "two_sided"
    for a, b, alternative, named in (
        (A, B[:-1], "two-sided", "equal lengths"),
        (A, B, wrong, "'two_sided'"),
        ([0.1, 1e308], [0.2, 0.3], "two-sided", "too large"),
        ([0.1, -1e308], [0.2, 0.3], "two-sided", "too large"),
    ):
        with refuses(named):
            paired_ttest(a, b, alternative=alternative)
    assert math.isfinite(paired_ttest([0.1, 1e69, 3.0], [0.2, 0.3, -1e69]).t)


@pytest.mark.parametrize("alternative", ALTERNATIVES)
def test_checks_are_scipys(alternative: Alternative) -> None:
    """Wilcoxon, sign flips and bootstrap are those of SciPy on b - a, with the seed."""
    rng = np.random.default_rng(3)
    a, b = rng.normal(size=60), rng.normal(0.3, size=60)
    found = cross_checks(a, b, alternative=alternative, seed=7)
    assert found.wilcoxon_p == pytest.approx(stats.wilcoxon(b - a, alternative=alternative).pvalue)
    settings: Any = {"permutation_type": "samples", "n_resamples": 4000, "alternative": alternative, "rng": 1}
    flips = stats.permutation_test((b, a), lambda x, y: np.mean(x - y), **settings)
    assert found.sign_flip_p == pytest.approx(flips.pvalue, abs=0.03)
    bootstrap = stats.bootstrap((b - a,), np.mean, n_resamples=9999, alternative=alternative, rng=7)
    low, high = bootstrap.confidence_interval
    assert (found.bootstrap_low, found.bootstrap_high) == (low, high)


def test_checks_repeat_with_their_seed() -> None:
    """The same seed gives the same numbers, another one others."""
    rng = np.random.default_rng(3)
    a, b = rng.normal(size=40), rng.normal(0.2, size=40)
    first, again, other = (cross_checks(a, b, alternative="two-sided", seed=seed) for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_sign_flips_are_exact_for_few_pairs() -> None:
    """Of the 2^5 sign patterns of five positive differences two are as extreme: p = 2/32, as in Wilcoxon's test."""
    checks = cross_checks([0.0] * 5, [1.0, 2, 3, 4, 5], alternative="two-sided", seed=0)
    assert checks.sign_flip_p == checks.wilcoxon_p == 2 / 32


def test_checks_without_spread() -> None:
    """A constant difference has p by ranks and flips, where t has none, but no interval; no difference has p = 1."""
    constant = cross_checks(A, [a + 0.1 for a in A], alternative="two-sided", seed=0)
    assert (constant.wilcoxon_p, constant.sign_flip_p) == (2 / 32, 2 / 32)
    assert math.isnan(constant.bootstrap_low)
    identical = cross_checks(A, A, alternative="greater", seed=0)
    assert (identical.wilcoxon_p, identical.sign_flip_p) == (1, 1)


@pytest.mark.parametrize(
    ("alternative", "p"), [("two-sided", 2 * 11 / 1024), ("greater", 11 / 1024), ("less", 1023 / 1024)]
)
def test_mcnemar_by_hand(alternative: Alternative, p: float) -> None:
    """Nine gained and one lost of ten that changed: 11 of 2^10 patterns have nine or more on that side."""
    a = [0.0] * 9 + [1.0] + [1.0] * 5 + [0.0] * 5
    b = [1.0] * 9 + [0.0] + [1.0] * 5 + [0.0] * 5
    found = mcnemar(a, b, alternative=alternative)
    assert found is not None
    assert (found.gained, found.lost) == (9, 1)
    assert found.p == pytest.approx(p)


def test_mcnemar_is_for_yes_and_no_only() -> None:
    """Other numbers have no McNemar test; answers that never change have p = 1."""
    assert mcnemar([0.0, 0.5], [1.0, 1.0], alternative="two-sided") is None
    unchanged = mcnemar([0.0, 1.0, None], [0.0, 1.0, 1.0], alternative="two-sided")
    assert unchanged is not None
    assert (unchanged.gained, unchanged.lost, unchanged.p) == (0, 0, 1)


def test_smallest_detectable_difference() -> None:
    """A paired test of 34 pairs finds 0.5 sd with a probability of 0.80778 (G*Power's example), so a hair less is 80 %;
    and one-sided it takes 27 pairs for 0.8118 of that."""
    two_sided = smallest_detectable(1 / math.sqrt(34), 33, alternative="two-sided")
    assert two_sided == pytest.approx(0.495, abs=0.002)
    one_sided = smallest_detectable(1 / math.sqrt(27), 26, alternative="greater")
    assert one_sided == pytest.approx(0.494, abs=0.003)
    assert one_sided == smallest_detectable(1 / math.sqrt(27), 26, alternative="less")


def test_power_at_the_smallest_detectable_difference() -> None:
    """Simulated studies with that true difference find it in 80 % of cases."""
    n, sd = 12, 2.0
    shift = smallest_detectable(sd / math.sqrt(n), n - 1, alternative="two-sided")
    samples = np.random.default_rng(0).normal(shift, sd, size=(20000, n))
    assert np.mean(stats.ttest_1samp(samples, 0, axis=1).pvalue < 0.05) == pytest.approx(0.8, abs=0.01)


@pytest.mark.parametrize("df", [0.8, 1, 1.3, 2, 5, 199, 5000])
def test_power_is_that_of_the_noncentral_f(df: float) -> None:
    """The square of t has a noncentral F distribution, which must give 80 % too, for any degrees of freedom."""
    shift = smallest_detectable(1.0, df, alternative="two-sided")
    assert stats.ncf.sf(stats.t.isf(0.025, df) ** 2, 1, df, shift**2) == pytest.approx(0.8)


def test_nothing_is_detectable_without_spread() -> None:
    """Without spread, or with one pair, there is no such number."""
    assert math.isnan(smallest_detectable(0.0, 10, alternative="two-sided"))
    assert math.isnan(smallest_detectable(math.nan, 0, alternative="two-sided"))


@pytest.mark.parametrize("huge", [1e12, 1e15, 1e18])
def test_one_huge_pair_hides_no_other(huge: float) -> None:
    """A value that both sides share, far above the others, adds a difference of 0 and changes no other: SciPy's own
    numbers come out."""
    rng = np.random.default_rng(0)
    a = np.append(rng.random(30), huge)
    b = np.append(a[:-1] + 0.2 + 0.1 * rng.random(30), huge)
    result, checks = paired_ttest(a, b), cross_checks(a, b, alternative="two-sided", seed=0)
    assert result.note == ""
    assert result.p == pytest.approx(stats.ttest_rel(b, a).pvalue)
    assert result.p < 1e-9
    assert checks.wilcoxon_p == pytest.approx(stats.wilcoxon(b - a).pvalue)
    assert checks.sign_flip_p < 0.001


def test_rounding_makes_ties_at_any_size() -> None:
    """Differences that are equal except for rounding share one rank, also with a huge pair."""
    a = np.array([0.1, 0.2, 0.7, 0.3, 1e15])
    b = a + np.array([0.1, 0.1, 0.1, -0.2, 0.0])
    exact = np.array([1, 1, 1, -2, 0]) / 10
    checks = cross_checks(a, b, alternative="two-sided", seed=0)
    assert checks.wilcoxon_p == pytest.approx(stats.wilcoxon(exact).pvalue)


def test_differences_too_small_to_be_squared_are_none() -> None:
    """Their standard deviation would be 0."""
    assert paired_ttest([0.0, 0.0], [0.0, 2e-313]).note == "identical"
    assert math.isfinite(paired_ttest([0.0, 0.0, 0.0], [1e-149, 2e-149, 0.0]).d_z)


SCORE = st.one_of(st.none(), st.sampled_from([0.0, 0.1, 0.2, 0.3, 1.0]), st.floats(-1e6, 1e6), st.just(math.nan))


@settings(max_examples=40)
@given(st.lists(st.tuples(SCORE, SCORE), max_size=12), st.sampled_from(ALTERNATIVES))
def test_no_scores_make_nonsense(pairs: list[tuple[float | None, float | None]], alternative: Alternative) -> None:
    """Whatever the scores: no warning (they are errors here), p in 0-1 or undefined, t finite or undefined."""
    a, b = [x for x, _ in pairs], [y for _, y in pairs]
    result = paired_ttest(a, b, alternative=alternative)
    checks = cross_checks(a, b, alternative=alternative, seed=0)
    assert result.n + result.missing == len(pairs)
    assert not math.isinf(result.t)
    for p in (result.p, checks.wilcoxon_p, checks.sign_flip_p):
        assert math.isnan(p) or 0 <= p <= 1
    if result.note == "":
        assert result.p > 0
        assert smallest_detectable(result.se, result.df, alternative=alternative) > 0
