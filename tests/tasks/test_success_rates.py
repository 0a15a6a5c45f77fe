"""Shares with intervals, and success in several tries."""

from __future__ import annotations

from itertools import combinations

import pytest
from scipy import stats

from smolsum.tasks.success_rates import interval_of_means, pass_at_k, passing, wilson


def test_wilson() -> None:
    """Known ends: 8 of 10 gives 0.490 to 0.943; none of 10 reaches up to 0.278, and all of them down to 0.722."""
    assert wilson(8, 10) == pytest.approx((0.4901625, 0.9433178))
    assert wilson(0, 10) == pytest.approx((0.0, 0.2775328), abs=1e-7)
    assert wilson(10, 10) == pytest.approx((0.7224672, 1.0))


def test_interval_of_means() -> None:
    """Student's over prompts as SciPy has it, never beyond a share's ends; without a spread Wilson's, not certainty."""
    means = [0.0, 0.25, 0.5, 0.25, 0.75, 0.5]
    expected = stats.t.interval(0.95, 5, loc=0.375, scale=stats.sem(means))
    assert interval_of_means(means) == pytest.approx(expected)
    assert interval_of_means([0.0, 0.5, 1.0]) == (0.0, 1.0)
    assert interval_of_means([1.0] * 10) == wilson(10, 10)
    assert interval_of_means([0.5]) == wilson(0, 1)


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
