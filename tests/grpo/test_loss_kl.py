"""The KL estimates, token by token."""

import numpy as np
import pytest

from smolsum.grpo.loss import kl_estimate

# isort: split
import mlx.core as mx


def test_by_hand() -> None:
    """The policy twice as likely as the reference, and half: d = -ln 2 and ln 2."""
    logp, ref = mx.log(mx.array([0.4, 0.2])), mx.log(mx.array([0.2, 0.4]))
    ln2 = np.log(2)
    for kind, expected in (("k1", [ln2, -ln2]), ("k2", [ln2**2 / 2, ln2**2 / 2]), ("k3", [0.5 + ln2 - 1, 2 - ln2 - 1])):
        np.testing.assert_allclose(np.array(kl_estimate(logp, ref, kind=kind)), expected, rtol=1e-5)


@pytest.mark.parametrize("kind", ["k1", "k3"])
def test_unbiased_estimates_average_to_the_divergence(kind: str) -> None:
    """Weighted with the policy's own probabilities over all tokens."""
    policy, reference = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.2, 0.6])
    estimates = kl_estimate(mx.array(np.log(policy)), mx.array(np.log(reference)), kind=kind)
    exact = (policy * np.log(policy / reference)).sum()
    assert (policy * np.array(estimates)).sum() == pytest.approx(exact, rel=1e-5)


def test_k3_is_never_negative_and_zero_at_equality() -> None:
    """exp(d) - d - 1, from the smallest differences to the largest."""
    d = np.concatenate([[0.0], np.geomspace(1e-9, 15, 400), -np.geomspace(1e-9, 15, 400)]).astype(np.float32)
    got = np.array(kl_estimate(mx.zeros(len(d)), mx.array(d), kind="k3"))
    assert got[0] == 0.0
    assert (got >= 0).all()
    exact = np.expm1(d.astype(np.float64)) - d
    np.testing.assert_allclose(got[np.abs(d) > 1e-2], exact[np.abs(d) > 1e-2], rtol=1e-3)
