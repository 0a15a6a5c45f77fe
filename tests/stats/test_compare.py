"""Many tests, several runs in an arm, and metrics against metrics."""

import math

import numpy as np
import polars as pl
import pytest
from numpy.typing import NDArray
from scipy import stats
from support.refusals import refuses

from smolsum.stats import paired_ttest
from smolsum.stats.paired import compare_runs
from smolsum.stats.several import benjamini_hochberg, correlate, count_tests, holm


def test_holm_by_hand() -> None:
    """Of 0.01, 0.04, 0.03, 0.005: 4 x 0.005, 3 x 0.01, 2 x 0.03, then 0.06 again, as 1 x 0.04 would be less."""
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.9]) == [1, 1]


def test_benjamini_hochberg_by_hand() -> None:
    """Of 0.01, 0.04, 0.03, 0.005: 4/4 x 0.04, 4/3 x 0.03, 4/2 x 0.01, 4/1 x 0.005."""
    assert benjamini_hochberg([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.02, 0.04, 0.04, 0.02])


def test_undefined_tests_do_not_count() -> None:
    """A p that is undefined stays so and makes the others no dearer."""
    found = holm([math.nan, 0.01, 0.02])
    assert math.isnan(found[0])
    assert found[1:] == pytest.approx([0.02, 0.02])
    assert count_tests([math.nan, 0.01, 0.02]) == 2
    assert math.isnan(benjamini_hochberg([math.nan])[0])
    assert holm([]) == []


def scores(
    rng: np.random.Generator, runs: int, n: int, *, run_sd: float, examples: NDArray[np.float64], shift: float = 0.0
) -> NDArray[np.float64]:
    """Runs x examples: what the example brings, what the run brings, and noise of sd 1."""
    return shift + examples + rng.normal(scale=run_sd, size=(runs, 1)) + rng.normal(size=(runs, n))


def test_one_run_a_side_is_the_plain_test() -> None:
    """With one run in each arm nothing is mixed."""
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(1, 30)), rng.normal(size=(1, 30))
    found = compare_runs(a, b, alternative="two-sided")
    assert found.result == found.these_runs == paired_ttest(a[0], b[0])
    assert math.isnan(found.run_sd_a)


def test_mixed_by_hand() -> None:
    """Two runs on three examples against two of zeros. Example means 2, 3, 7, so d = 4 and var 7; run means 2, 6:
    MS_run 24, rest +-1, -+1, 0: sum of squares 4 on 2 degrees of freedom, MS_rest 2. V = 7/3 + 24/6 - 2/6 = 6."""
    b = np.array([[1.0, 0.0, 5.0], [3.0, 6.0, 9.0]])
    found = compare_runs(np.zeros((2, 3)), b, alternative="two-sided")
    variance = 7 / 3 + 4 - 1 / 3
    df = 1  # two runs; 1.9 by Satterthwaite
    assert found.result.delta == 4
    assert found.result.se == pytest.approx(math.sqrt(variance))
    assert found.result.df == pytest.approx(df)
    assert found.result.t == pytest.approx(4 / math.sqrt(variance))
    assert found.result.p == pytest.approx(2 * stats.t.sf(4 / math.sqrt(variance), df))
    reach = stats.t.ppf(0.975, df) * math.sqrt(variance)
    assert (found.result.ci_low, found.result.ci_high) == pytest.approx((4 - reach, 4 + reach))
    assert found.run_sd_b == pytest.approx(math.sqrt(8))
    assert found.these_runs == paired_ttest([0, 0, 0], [2, 3, 7])


def test_a_single_run_varies_as_those_of_the_other_arm() -> None:
    """The same two runs against one of zeros: the runs' part counts for both arms, 11/3 for two runs and twice that for
    one."""
    b = np.array([[1.0, 0.0, 5.0], [3.0, 6.0, 9.0]])
    found = compare_runs(np.zeros((1, 3)), b, alternative="two-sided")
    assert found.result.se == pytest.approx(math.sqrt(7 / 3 + 3 * 11 / 3))
    assert found.result.df == 1


def test_six_pairs_have_the_degrees_of_freedom_of_satterthwaite() -> None:
    """Of runs that vary no more than by chance: those of the examples. With five pairs, those between the runs."""
    b = np.random.default_rng(4).normal(size=(6, 40))
    assert compare_runs(np.zeros((6, 40)), b, alternative="two-sided", matched=True).result.df == 39
    assert compare_runs(np.zeros((5, 40)), b[:5], alternative="two-sided", matched=True).result.df == 4


def test_mixed_one_sided() -> None:
    """One-sided p halve the two-sided one on the side of the difference, and the interval opens there."""
    b = np.array([[1.0, 0.0, 5.0], [3.0, 6.0, 9.0]])
    two, up, down = (
        compare_runs(np.zeros((1, 3)), b, alternative=side).result for side in ("two-sided", "greater", "less")
    )
    assert up.p == pytest.approx(two.p / 2)
    assert down.p == pytest.approx(1 - two.p / 2)
    assert up.ci_high == math.inf
    assert down.ci_low == -math.inf
    assert up.ci_low == pytest.approx(4 - stats.t.ppf(0.95, up.df) * up.se)


def test_runs_that_agree_change_nothing() -> None:
    """Runs with equal means add no variance: the test is that of the per-example means."""
    b = np.array([[1.0, 2.0, 6.0], [3.0, 1.0, 5.0]])
    found = compare_runs(np.zeros((2, 3)), b, alternative="two-sided")
    assert found.result == found.these_runs
    assert found.run_sd_a == found.run_sd_b == 0


@pytest.mark.parametrize("b", [[[0.5, 0.5, 0.5]], [[1.0, 0.0, 1.0], [0.0, 1.0, 0.0]]])
def test_runs_that_differ_with_equal_means_have_no_test(b: list[list[float]]) -> None:
    """Where the runs vary no more than chance, and every example has the same difference, there is no variance."""
    a = np.array([[0.0, 1.0, 1.0], [1.0, 0.0, 0.0]])
    for one, other in ((a, np.array(b)), (np.array(b), a)):
        result = compare_runs(one, other, alternative="two-sided").result
        assert (result.delta, result.p, result.note) == (0.0, 1.0, "identical")
        shifted = compare_runs(one, other + 0.25, alternative="two-sided").result
        assert (shifted.delta, math.isnan(shifted.p), shifted.note) == (0.25, True, "constant")


def test_mixed_test_keeps_its_level() -> None:
    """Where seeds vary and nothing else differs, counting examples alone cries wolf; the mixed test does not."""
    rng = np.random.default_rng(1)
    mixed, plain = [], []
    for _ in range(400):
        examples = rng.normal(size=(1, 50))
        a, b = (scores(rng, 4, 50, run_sd=0.5, examples=examples) for _ in range(2))
        found = compare_runs(a, b, alternative="two-sided")
        mixed.append(found.result.p)
        plain.append(found.these_runs.p)
    assert np.mean(np.array(plain) < 0.05) > 0.3
    assert np.mean(np.array(mixed) < 0.05) < 0.08


@pytest.mark.parametrize(("a", "b", "matched"), [(2, 2, True), (3, 3, True), (1, 3, False), (1, 6, False)])
def test_few_runs_keep_the_level(a: int, b: int, matched: bool) -> None:
    """Without help two pairs found a difference in 13 % of such comparisons, and one run against three in 18 %."""
    rng = np.random.default_rng([a, b])
    found = []
    for _ in range(400):
        examples = rng.normal(size=(1, 50))
        arms = (scores(rng, runs, 50, run_sd=0.5, examples=examples) for runs in (a, b))
        found.append(compare_runs(*arms, alternative="two-sided", matched=matched).result.p)
    assert np.mean(np.array(found) < 0.05) < 0.08


def test_matched_runs_cancel_what_they_share() -> None:
    """Configurations that differ much, each better by the same: only the matched comparison sees it."""
    rng = np.random.default_rng(2)
    examples, settings = rng.normal(size=(1, 60)), rng.normal(scale=3, size=(6, 1))
    a, b = (settings + scores(rng, 6, 60, run_sd=0, examples=examples, shift=shift) for shift in (0.0, 0.5))
    apart = compare_runs(a, b, alternative="two-sided")
    matched = compare_runs(a, b, alternative="two-sided", matched=True)
    assert apart.result.p > 0.5
    assert matched.result.p < 0.001
    assert matched.these_runs == apart.these_runs
    assert matched.run_sd_delta == pytest.approx(float((b - a).mean(axis=1).std(ddof=1)))


def test_matched_runs_need_partners() -> None:
    """Matching needs as many runs in both arms."""
    with refuses("1 against 2"):
        compare_runs(np.zeros((1, 3)), np.ones((2, 3)), alternative="two-sided", matched=True)


def test_example_that_a_run_lacks_is_left_out() -> None:
    """An example counts only if every run has it."""
    b = np.array([[1.0, 0.0, 5.0, math.nan], [3.0, 6.0, 9.0, 1.0]])
    found = compare_runs(np.zeros((1, 4)), b, alternative="two-sided")
    assert (found.result.n, found.result.missing) == (3, 1)
    assert found.result.delta == 4
    nothing = compare_runs(np.full((1, 3), math.nan), np.zeros((2, 3)), alternative="two-sided")
    assert (nothing.result.n, nothing.result.missing, nothing.result.note) == (0, 3, "too few")


def test_correlation_pools_rows() -> None:
    """r is SciPy's over all rows of all files; within takes each file's mean off first, and may have another sign."""
    one = pl.DataFrame({"x": [0.0, 1.0, 2.0], "y": [2.0, 1.0, 0.5]})
    two = pl.DataFrame({"x": [10.0, 11.0, None], "y": [12.0, 11.0, 10.0]})
    (pair,) = correlate([one, two], ["x", "y"])
    x, y = [0.0, 1.0, 2.0, 10.0, 11.0], [2.0, 1.0, 0.5, 12.0, 11.0]
    assert (pair.x, pair.y, pair.n, pair.missing) == ("x", "y", 5, 1)
    assert pair.r == pytest.approx(stats.pearsonr(x, y).statistic)
    centred_x, centred_y = [-1.0, 0, 1, -0.5, 0.5], [5 / 6, -1 / 6, -2 / 3, 0.5, -0.5]
    assert pair.r_within == pytest.approx(stats.pearsonr(centred_x, centred_y).statistic)
    assert pair.r > 0 > pair.r_within


def test_metric_that_does_not_vary_has_no_correlation() -> None:
    """Constant, rare or absent values: r is undefined, and nothing warns."""
    frame = pl.DataFrame({"x": [0.1 + 0.2, 0.3, 0.3], "y": [1.0, 2.0, 3.0], "z": [None, None, 1.0]})
    pairs = correlate([frame], ["x", "y", "z"])
    assert [(pair.x, pair.y) for pair in pairs] == [("x", "y"), ("x", "z"), ("y", "z")]
    assert all(math.isnan(pair.r) and math.isnan(pair.r_within) for pair in pairs)
