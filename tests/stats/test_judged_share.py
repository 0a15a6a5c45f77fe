"""The share behind an imperfect judge."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from smolsum.stats.judged_share import JudgeErrors, corrected_share, corrected_shares
from smolsum.tasks.success_rates import exact_interval


def test_by_hand() -> None:
    """(0.6 + 0.9 - 1) / (0.9 + 0.8 - 1); the interval is Lang and Reiczigel's, computed step by step."""
    found = corrected_share(0.6, 100, JudgeErrors(0.8, 50, 0.9, 40))
    assert found is not None
    assert found.share == pytest.approx(0.5 / 0.7)
    z = 1.959963984540054
    p, n = (60 + z * z / 2) / (100 + z * z), 100 + z * z
    q0, m0, q1, m1 = 37 / 42, 42, 41 / 52, 52
    near = (p + q0 - 1) / (q0 + q1 - 1)
    v0, v1 = q0 * (1 - q0) / m0, q1 * (1 - q1) / m1
    shift = 2 * z * z * (near * v1 - (1 - near) * v0)
    error = math.sqrt(p * (1 - p) / n + (1 - near) ** 2 * v0 + near**2 * v1) / (q0 + q1 - 1)
    assert (found.low, found.high) == pytest.approx((near + shift - z * error, near + shift + z * error))


@pytest.mark.parametrize("errors", [JudgeErrors(0.5, 50, 0.5, 50), JudgeErrors(0.2, 50, 0.7, 50)])
def test_a_judge_that_tells_nothing_apart(errors: JudgeErrors) -> None:
    """There is no share behind what it passes."""
    assert corrected_share(0.5, 100, errors) is None


COUNTS = st.integers(0, 40), st.integers(1, 40)


@given(st.integers(0, 50), st.integers(1, 500), *COUNTS, *COUNTS)
def test_ends_are_in_order(passed: int, n: int, right0: int, bad: int, right1: int, good: int) -> None:
    """Whatever is counted: the ends are within 0 and 1, the low one below the high one."""
    errors = JudgeErrors(min(right1, good) / good, good, min(right0, bad) / bad, bad)
    found = corrected_share(min(passed, n) / n, n, errors)
    assert (found is None) == (not errors.tells_apart)
    if found is not None:
        assert 0 <= found.low <= found.high <= 1
        assert 0 <= found.share <= 1


@pytest.mark.parametrize(("sensitivity", "specificity", "share"), [(0.9, 0.8, 0.2), (0.7, 0.7, 0.8), (0.95, 0.6, 0.05)])
def test_it_covers_where_the_raw_share_does_not(sensitivity: float, specificity: float, share: float) -> None:
    """Of 4000 studies with fixed draws, nearly all raw intervals miss the true share, and 95 % of the corrected have
    it."""
    rng, times, n, m = np.random.default_rng(0), 4000, 200, 50
    passed = rng.binomial(n, share * sensitivity + (1 - share) * (1 - specificity), times)
    q1, q0 = (rng.binomial(m, q, times) / m for q in (sensitivity, specificity))
    _, low, high = corrected_shares(
        passed / n, np.full(times, 200.0), q0, np.full(times, 50.0), q1, np.full(times, 50.0)
    )
    assert ((low <= share) & (share <= high)).mean() > 0.945
    raw = [exact_interval(int(k), n) for k in passed[:300]]
    assert np.mean([a <= share <= b for a, b in raw]) < 0.1
