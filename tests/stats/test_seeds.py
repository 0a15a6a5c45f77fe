"""Arms of several runs: each number against SciPy, a closed form or a value worked out by hand."""

import math
from itertools import product

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats
from support.refusals import refuses

from smolsum.stats import paired_ttest
from smolsum.stats.seeds import by_cluster, compare_runs, crossed_variance, margin_p, resample, variance_components


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
    variance 8; rest +-1, -+1, 0: sum of squares 4 on 2 degrees of freedom, MS_rest 2. V = 8/2 + (7/3 - 2/6) = 6,
    of which the runs have 2/3 with one degree of freedom, the examples 1/3 with two."""
    b = np.array([[1.0, 0.0, 5.0], [3.0, 6.0, 9.0]])
    found = compare_runs(np.zeros((2, 3)), b, alternative="two-sided")
    variance = 4 + (7 / 3 - 1 / 3)
    df = 1 / ((2 / 3) ** 0 + (1 / 3) ** 2 / 2)
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
    """The same two runs against one of zeros: the runs' part counts for both arms, 4 for two runs and twice that for
    one; so does what the examples' part shares with it, three times 1/3."""
    b = np.array([[1.0, 0.0, 5.0], [3.0, 6.0, 9.0]])
    found = compare_runs(np.zeros((1, 3)), b, alternative="two-sided")
    assert found.result.se == pytest.approx(math.sqrt(3 * 4 + (7 / 3 - 3 / 3)))


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
def test_runs_that_vary_have_an_error_where_examples_have_none(b: list[list[float]]) -> None:
    """Every example has the same difference, by the means of runs that vary: the error is that of the runs."""
    a = np.array([[0.0, 1.0, 1.0], [1.0, 0.0, 0.0]])
    for one, other in ((a, np.array(b)), (np.array(b), a)):
        result = compare_runs(one, other, alternative="two-sided").result
        assert (result.delta, result.p, result.note) == (0.0, 1.0, "")
        assert result.se > 0.1
        assert compare_runs(one, other + 0.25, alternative="two-sided").result.t == pytest.approx(0.25 / result.se)


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


def test_the_interval_of_a_difference_of_shares_ends_where_that_does() -> None:
    """Nearly all kept, then lost by all runs but one: Student's interval would begin at -2.1."""
    kept, lost = np.ones((3, 40)), np.zeros((3, 40))
    kept[0, 0], lost[0] = 0.0, 1.0
    found = compare_runs(kept, lost, alternative="two-sided", matched=True).result
    assert (found.ci_low, found.ci_high) == (-1.0, pytest.approx(found.delta + stats.t.ppf(0.975, 2) * found.se))
    assert compare_runs(kept, lost, alternative="less").result.ci_low == -math.inf
    scaled = compare_runs(2 * kept, 2 * lost, alternative="two-sided", matched=True).result  # no shares
    assert (scaled.p, scaled.ci_low) == (pytest.approx(found.p), pytest.approx(2 * (found.delta * 2 - found.ci_high)))


def test_example_that_a_run_lacks_is_left_out() -> None:
    """An example counts only if every run has it."""
    b = np.array([[1.0, 0.0, 5.0, math.nan], [3.0, 6.0, 9.0, 1.0]])
    found = compare_runs(np.zeros((1, 4)), b, alternative="two-sided")
    assert (found.result.n, found.result.missing) == (3, 1)
    assert found.result.delta == 4
    nothing = compare_runs(np.full((1, 3), math.nan), np.zeros((2, 3)), alternative="two-sided")
    assert (nothing.result.n, nothing.result.missing, nothing.result.note) == (0, 3, "too few")


def test_runs_alone_are_welch_and_student() -> None:
    """Where examples add nothing (each run has one value), arms are two samples of runs: the degrees of freedom are
    between Welch's and Student's of equal variances, the statistic is theirs."""
    a, b = np.array([[1.0], [2.0], [4.0]]), np.array([[3.0], [9.0], [6.0]])
    found = compare_runs(np.repeat(a, 5, axis=1), np.repeat(b, 5, axis=1), alternative="two-sided").result
    welch = stats.ttest_ind(b[:, 0], a[:, 0], equal_var=False)
    assert found.t == pytest.approx(welch.statistic)
    assert 1 / found.df == pytest.approx((1 / welch.df + 1 / 4) / 2)
    matched = compare_runs(np.repeat(a, 5, axis=1), np.repeat(b, 5, axis=1), alternative="two-sided", matched=True)
    assert matched.result.p == pytest.approx(stats.ttest_rel(b[:, 0], a[:, 0]).pvalue)


def test_many_runs_have_the_degrees_of_freedom_of_satterthwaite() -> None:
    """The exponents approach 2."""
    variance, df = crossed_variance(np.float64(2.0), np.array([1.0, 1.0]), np.array([0.25, 0.25]), 100, [4000, 4000])
    assert variance == 3.5
    assert df == pytest.approx(3.5**2 / (2**2 / 7998 + 1.5**2 / 99), rel=1e-3)


def test_clusters_of_equal_size_are_their_means() -> None:
    """Three questions a document: the test is the paired test of the documents' means, also with several runs."""
    rng = np.random.default_rng(5)
    a, b = rng.normal(size=(1, 24)), rng.normal(size=(1, 24)) + np.repeat(rng.normal(size=8), 3)
    documents = [f"d{i // 3}" for i in range(24)]
    found = compare_runs(a, b, alternative="two-sided", clusters_N=documents).result
    means = [x.reshape(8, 3).mean(axis=1) for x in (a, b)]
    assert (found.n, found.df) == (24, 7)
    assert found.p == pytest.approx(stats.ttest_rel(means[1], means[0]).pvalue)
    assert found.p > compare_runs(a, b, alternative="two-sided").result.p


def test_clusters_of_any_size_have_miller_s_error() -> None:
    """Equation 4 of arXiv:2411.00640: the sum over clusters of all products of two deviations in it, by n squared;
    times C / (C - 1)."""
    rng = np.random.default_rng(6)
    d, documents = rng.normal(size=9), [0, 0, 0, 0, 1, 1, 2, 3, 3]
    centred = d - d.mean()
    total = sum(x * y for (x, c), (y, e) in product(zip(centred, documents, strict=True), repeat=2) if c == e)
    found = compare_runs(np.zeros((1, 9)), d[None], alternative="two-sided", clusters_N=documents).result
    assert found.delta == pytest.approx(d.mean())
    assert found.se == pytest.approx(math.sqrt(total / 81 * 4 / 3))
    assert by_cluster(d[None], range(9)) == pytest.approx(d[None])


def test_one_cluster_is_refused() -> None:
    with refuses("1 cluster"):
        compare_runs(np.zeros((1, 3)), np.ones((1, 3)), alternative="two-sided", clusters_N=["d", "d", "d"])


def test_equivalence_is_two_one_sided_tests() -> None:
    """SciPy's one-sided tests against -margin and margin; the larger p counts. One-sided it is non-inferiority."""
    rng = np.random.default_rng(7)
    a = rng.normal(size=40)
    b = a + rng.normal(0.05, 0.3, size=40)
    above = stats.ttest_1samp(b - a, -0.2, alternative="greater").pvalue
    below = stats.ttest_1samp(b - a, 0.2, alternative="less").pvalue
    assert margin_p(paired_ttest(a, b), 0.2) == pytest.approx(max(above, below))
    assert margin_p(paired_ttest(a, b, alternative="greater"), 0.2) == pytest.approx(above)
    assert margin_p(paired_ttest(a, b, alternative="less"), 0.2) == pytest.approx(below)
    assert math.isnan(margin_p(paired_ttest(a, a), 0.2))


@pytest.mark.parametrize("margin", [0.0, -0.1, math.nan, math.inf])
def test_a_margin_is_positive(margin: float) -> None:
    with refuses("margin", "--margin 0.02"):
        margin_p(paired_ttest([0, 1, 2], [1, 3, 2]), margin)


def test_interquartile_mean_is_scipy_s() -> None:
    """Of a number of scores that four divides it is `trim_mean`; the probability of improvement is Mann and Whitney's U
    on each example, ties a half."""
    rng = np.random.default_rng(8)
    a, b = rng.integers(0, 5, size=(3, 8)).astype(float), rng.integers(1, 6, size=(4, 8)).astype(float)
    found = resample(a, b, seed=0)
    assert found.iqm_a == pytest.approx(stats.trim_mean(a, 0.25, axis=None))
    assert found.iqm_b == pytest.approx(stats.trim_mean(b, 0.25, axis=None))
    u = stats.mannwhitneyu(b, a, axis=0).statistic
    assert found.improved == pytest.approx((u / 12).mean())
    assert found.improved_low < found.improved < found.improved_high
    matched = resample(a, b[:3], matched=True, seed=0)
    assert matched.improved == pytest.approx(((b[:3] > a) + 0.5 * (b[:3] == a)).mean())


def test_bootstrap_of_single_runs_is_that_of_examples() -> None:
    """One run in each arm: the interval is SciPy's percentile interval of the differences, within its own noise; the
    same seed gives the same numbers; without a second example nothing is known."""
    rng = np.random.default_rng(9)
    a, b = rng.normal(size=(1, 50)), rng.normal(size=(1, 50))
    found = resample(a, b, seed=1)
    expected = stats.bootstrap(((b - a)[0],), np.mean, method="percentile", rng=2).confidence_interval
    assert (found.boot_low, found.boot_high) == pytest.approx((expected.low, expected.high), abs=0.04)
    assert found == resample(a, b, seed=1)
    assert math.isnan(resample(a[:, :1], b[:, :1], seed=0).boot_low)


def test_bootstrap_draws_documents() -> None:
    """Four copies of each answer are drawn together: the interval is that of the answers, and not half as wide."""
    a, b = (np.random.default_rng(i).normal(size=(3, 30)) for i in (0, 1))
    one = resample(a, b, seed=0)
    copies = [np.repeat(x, 4, axis=1) for x in (a, b)]
    clustered = resample(*copies, clusters_N=[i // 4 for i in range(120)], seed=0)
    assert clustered.boot_high - clustered.boot_low == pytest.approx(one.boot_high - one.boot_low, rel=0.1)
    assert clustered.improved == pytest.approx(one.improved)


def test_bootstrap_counts_runs_as_a_sample() -> None:
    """Runs of one value each, ten an arm: the variance of their drawn means is that of runs, (S - 1) / S of it."""
    a, b = (np.repeat(np.random.default_rng(i).normal(size=(10, 1)), 30, axis=1) for i in (0, 1))
    found = resample(a, b, seed=0)
    sd = math.sqrt(sum(x[:, 0].var() / 10 for x in (a, b)))
    assert found.boot_high - found.boot_low == pytest.approx(2 * 1.96 * sd, rel=0.06)


def test_variances_by_hand() -> None:
    """Two seeds, two examples, two completions, two rounds: mean squares worked out by hand."""
    x = np.array([[[[1, 3], [2, 2]], [[5, 5], [4, 6]]], [[[4, 4], [6, 2]], [[7, 9], [8, 8]]]], dtype=float)
    judge, decoding, mixed, example, seed = (x.var(axis=3, ddof=1).mean(), 0.0, 0.0, 0.0, 0.0)
    cells = x.mean(axis=(2, 3))  # 2, 5; 4, 8: rest is +-0.25
    assert cells.tolist() == [[2, 5], [4, 8]]
    decoding_ms = 2 * x.mean(axis=3).var(axis=2, ddof=1).mean()
    mixed_ms, seed_ms, example_ms = 4 * 4 * 0.25**2, 2 * 4 * 3.125, 2 * 4 * 6.125
    decoding = max(0.0, (decoding_ms - judge) / 2)
    mixed = max(0.0, (mixed_ms - decoding_ms) / 4)
    seed, example = (seed_ms - mixed_ms) / 8, (example_ms - mixed_ms) / 8
    found = {one.source: one for one in variance_components(x)}
    expected = {"training seed": seed, "example": example, "seed x example": mixed, "decoding": decoding}
    assert {k: v.variance for k, v in found.items()} == pytest.approx({**expected, "judge": judge})
    of_mean = [seed / 2, example / 2, mixed / 4, decoding / 8, judge / 16]
    assert [one.of_mean for one in found.values()] == pytest.approx(of_mean)
    assert [one.share for one in found.values()] == pytest.approx([v / sum(of_mean) for v in of_mean])


def test_variances_are_found_again() -> None:
    """Simulated scores have the components that they were made from."""
    rng, sizes = np.random.default_rng(10), (40, 60, 3, 3)
    true = {"training seed": 0.5, "example": 2.0, "seed x example": 0.3, "decoding": 1.0, "judge": 0.2}
    shapes = [(40, 1, 1, 1), (1, 60, 1, 1), (40, 60, 1, 1), (40, 60, 3, 1), sizes]
    x = sum(rng.normal(scale=math.sqrt(v), size=shape) for v, shape in zip(true.values(), shapes, strict=True))
    for one in variance_components(np.asarray(x)):
        assert one.variance == pytest.approx(true[one.source], rel=0.35), one.source


def test_what_was_drawn_once_is_not_told_apart() -> None:
    """One round and one completion: no variance of judge and decoding, and not 0; one seed: none of seeds."""
    x = np.random.default_rng(11).normal(size=(3, 20, 1, 1))
    found = {one.source: one.variance for one in variance_components(x)}
    assert [source for source, value in found.items() if math.isnan(value)] == ["decoding", "judge"]
    found = {one.source: one.variance for one in variance_components(x[:1])}
    assert math.isnan(found["training seed"])
    assert found["example"] == pytest.approx(x[0].var(ddof=1))
    with refuses("two examples"):
        variance_components(x[:, :1])
