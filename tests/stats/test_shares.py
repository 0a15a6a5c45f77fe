"""Shares near 0 and 1: their intervals against SciPy's beta distribution and binomial test."""

import math

import numpy as np
import pytest
from scipy import stats

from smolsum.stats.seeds import compare_runs
from smolsum.stats.shares import share_difference, share_interval, share_p


def test_share_of_one_run_is_exact() -> None:
    """Each example once: Clopper and Pearson's interval of SciPy, nearly, as the variance has the divisor n - 1, and
    Jeffreys' beta distribution."""
    x = np.array([[1.0] * 18 + [0.0] * 2])
    found = share_interval(x)
    assert found is not None
    size = 20 / ((2 * 20 / 19 + 1) / 3)  # two examples show the variance, and one is guessed
    exact = stats.binomtest(18, 20).proportion_ci(method="exact")
    assert (found.exact_low, found.exact_high) == pytest.approx((exact.low, exact.high), abs=0.01)
    assert (found.exact_low, found.exact_high) == pytest.approx(
        (stats.beta.ppf(0.025, 0.9 * size, 0.1 * size + 1), stats.beta.ppf(0.975, 0.9 * size + 1, 0.1 * size))
    )
    assert (found.bayes_low, found.bayes_high) == pytest.approx(
        stats.beta.ppf([0.025, 0.975], 0.9 * size + 0.5, 0.1 * size + 0.5)
    )


def test_share_of_all_or_none() -> None:
    """One run that passes 20 of 20; three runs count as more, but not as three times as many."""
    one, three = (share_interval(np.ones((runs, 20))) for runs in (1, 3))
    none = share_interval(np.zeros((1, 20)))
    assert one is not None
    assert three is not None
    assert none is not None
    exact = stats.binomtest(20, 20).proportion_ci(method="exact")
    assert (one.exact_low, one.exact_high) == pytest.approx((exact.low, 1))
    assert (none.exact_low, none.bayes_low, none.exact_high) == pytest.approx((0, 0, 1 - exact.low))
    assert three.exact_high == three.bayes_high == 1
    assert one.exact_low < three.exact_low or three.bayes_low < 1
    assert share_interval(np.array([[0.5, 1.0]])) is None
    assert share_interval(np.full((1, 2), math.nan)) is None


def test_share_counts_documents() -> None:
    """Four copies of each answer are one: the interval is about that of the documents, not of four times as many."""
    x = np.array([[1.0] * 15 + [0.0] * 5])
    one, copies = share_interval(x), share_interval(np.repeat(x, 4, axis=1), [f"d{i // 4}" for i in range(80)])
    assert one is not None
    assert copies is not None
    assert copies.exact_low == pytest.approx(one.exact_low, abs=0.03)


def test_difference_of_independent_shares_is_newcombe_s() -> None:
    """Answers that have nothing in common: the hybrid interval (Newcombe 1998, method 10) from the ends of both
    Jeffreys intervals, worked out with SciPy's beta distribution; that of many is the interval of the t-test."""
    a, b = np.array([[1.0] * 10 + [0.0] * 10]), np.array([([1.0] * 4 + [0.0]) * 4])
    found = share_difference(a, b)
    assert found is not None
    assert np.corrcoef(a, b)[0, 1] == pytest.approx(0)

    def ends(share: float, telling: int) -> tuple[float, float]:
        size = 20 / ((telling * 20 / 19 + 1) / (telling + 1))
        low, high = stats.beta.ppf([0.025, 0.975], share * size + 0.5, (1 - share) * size + 0.5)
        return float(low), float(high)

    (low_a, high_a), (low_b, high_b) = ends(0.5, 10), ends(0.8, 4)
    low, high = 0.3 - math.hypot(0.8 - low_b, high_a - 0.5), 0.3 + math.hypot(high_b - 0.8, 0.5 - low_a)
    assert found == pytest.approx((low, high), abs=0.005)
    many = [np.tile(x, 100) for x in (a, b)]
    result = compare_runs(*many, alternative="two-sided").result
    assert share_difference(*many) == pytest.approx((result.ci_low, result.ci_high), abs=0.001)
    assert share_difference(a, b + 0.5) is None


def test_equal_shares_differ_within_limits() -> None:
    """Where all pass in both arms, the t-test has no interval; this one has, and equivalence follows from it."""
    ones = np.ones((3, 40))
    found = share_difference(ones, ones)
    assert found is not None
    assert -0.1 < found[0] < 0 < found[1] < 0.1
    p = share_p(ones, ones, margin=0.1, alternative="two-sided")
    assert p is not None
    assert p < 0.05
    ends = share_difference(ones, ones, level=1 - 2 * p)
    assert ends is not None
    assert max(-ends[0], ends[1]) == pytest.approx(0.1, abs=1e-3) or p == 1e-6
    assert share_p(ones, ones * np.arange(40).clip(0, 1), margin=0.001, alternative="two-sided") == 1
    assert share_p(ones, ones / 2, margin=0.1, alternative="less") is None


def test_p_of_shares_agrees_with_their_interval() -> None:
    """The interval of level 1 - p ends at 0; one-sided p are half of it; equal arms have p = 1."""
    rng = np.random.default_rng(3)
    a, b = (rng.random((3, 60)) < share for share in (0.85, 0.97))
    a, b = a.astype(float), b.astype(float)
    p = share_p(a, b, alternative="two-sided")
    assert p is not None
    ends = share_difference(a, b, level=1 - p)
    assert ends is not None
    assert min(ends, key=abs) == pytest.approx(0, abs=1e-4)
    assert share_p(a, b, alternative="greater") == pytest.approx(p / 2, abs=1e-5)
    assert share_p(a, b, alternative="less") == 1
    assert share_p(a, a, alternative="two-sided") == 1
