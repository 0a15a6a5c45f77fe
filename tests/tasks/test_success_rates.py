"""Shares with intervals, and success in several tries."""

from itertools import combinations

import numpy as np
import pytest
from scipy import stats

from smolsum.tasks.success_rates import exact_interval, interval_of_means, pass_at_k, passing


def test_exact_interval() -> None:
    """Known ends: 8 of 10 gives 0.444 to 0.975; none of 10 reaches up to 1 - 0.025^(1/10), all of them down to that."""
    assert exact_interval(8, 10) == pytest.approx((0.4439045, 0.9747893))
    assert exact_interval(0, 10) == pytest.approx((0.0, 1 - 0.025**0.1))
    assert exact_interval(10, 10) == pytest.approx((0.025**0.1, 1.0))


@pytest.mark.parametrize("samples", [None, 1, 4])
def test_samples_that_are_all_alike_are_one(samples: int | None) -> None:
    """Where each prompt always passes or always fails, its samples count once."""
    for passed in range(11):
        means = [1.0] * passed + [0.0] * (10 - passed)
        assert interval_of_means(means, samples) == pytest.approx(exact_interval(passed, 10))


def test_interval_of_means() -> None:
    """By hand: 6 prompts, variance 0.06875 of at most 0.234375; 5 ever pass, 6 ever fail, so the likeness is that of 5
    of 6 prompts and 1 for one more. At least as many samples count as there are prompts, at most all."""
    means = [0.0, 0.25, 0.5, 0.25, 0.75, 0.5]
    size = 6 / ((5 * 0.06875 / 0.234375 + 1) / 6)
    low, high = (
        stats.beta.ppf(0.025, 0.375 * size, 0.625 * size + 1),
        stats.beta.ppf(0.975, 0.375 * size + 1, 0.625 * size),
    )
    assert interval_of_means(means, 4) == pytest.approx((low, high))
    assert interval_of_means(means) == pytest.approx((low, high))
    assert interval_of_means([0.5] * 100, 4) == pytest.approx(exact_interval(200, 400))
    assert interval_of_means([0.5]) == pytest.approx(stats.beta.ppf([0.025, 0.975], [0.5, 1.5], [1.5, 0.5]))


@pytest.mark.parametrize("success", [0.03, 0.97])
def test_intervals_near_0_and_1_cover(success: float) -> None:
    """30 prompts with 16 samples that correlate by 1/2: Student's over prompts has the true share 80 times of 100."""
    rng = np.random.default_rng(0)
    means = rng.binomial(16, rng.beta(success, 1 - success, (400, 30))) / 16
    ends = np.array([interval_of_means(row.tolist(), 16) for row in means])
    assert ((ends[:, 0] <= success) & (success <= ends[:, 1])).mean() >= 0.95


@pytest.mark.parametrize(("n", "passed"), [(5, 0), (5, 1), (5, 3), (6, 5), (4, 4)])
def test_pass_at_k_is_the_mean_over_all_choices(n: int, passed: int) -> None:
    """The estimate equals the share of all k-subsets with a pass in them."""
    samples = [True] * passed + [False] * (n - passed)
    for k in range(1, n + 1):
        subsets = list(combinations(samples, k))
        assert pass_at_k(n, passed, k) == pytest.approx(sum(map(any, subsets)) / len(subsets))
    with pytest.raises(ValueError, match="takes"):
        pass_at_k(n, passed, n + 1)


def test_passing() -> None:
    """Powers of two up to the number of samples; k = 1 is the share that passes."""
    assert passing([(4, 1), (4, 4)]) == pytest.approx({"pass@1": 0.625, "pass@2": 0.75, "pass@4": 1.0})
