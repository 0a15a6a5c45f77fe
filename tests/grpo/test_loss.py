"""The policy losses: by hand, against finite differences, and cut into parts."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from smolsum.grpo.loss import k3_kl, policy_loss

# isort: split
import mlx.core as mx

CLIP = {"eps_low": 0.2, "eps_high": 0.2}
LN2 = math.log(2)
# ratios 1.5 and 1 with advantage 1; ratio 0.5 with advantage -2, its second token masked
OLD = mx.full((2, 2), -LN2)
LOGP = OLD + mx.array([[math.log(1.5), 0.0], [-LN2, 5.0]])
ADVANTAGES = mx.array([1.0, -2.0])
MASK = mx.array([[1.0, 1.0], [1.0, 0.0]])
REF = LOGP + mx.array([[LN2, 0.0], [0.0, 3.0]])


def values(metrics: dict[str, mx.array]) -> dict[str, float]:
    return {name: value.item() for name, value in metrics.items()}


def test_grpo_by_hand() -> None:
    """Row means (1.2 + 1) / 2 and -1.6, so a loss of 0.25; two of three tokens are clipped."""
    loss, metrics = policy_loss(LOGP, OLD, ADVANTAGES, MASK, kind="grpo", **CLIP)
    assert loss.item() == pytest.approx(0.25, rel=1e-6)
    assert values(metrics) == pytest.approx(
        {
            "clip_ratio/low_mean": 1 / 3,
            "clip_ratio/high_mean": 1 / 3,
            "clip_ratio/region_mean": 2 / 3,
            "sampling/importance_sampling_ratio/mean": 1.0,
            "sampling/sampling_logp_difference/mean": math.log(3) / 3,
        },
        rel=1e-6,
    )


def test_grpo_with_kl_by_hand() -> None:
    """A token twice as likely under the reference costs 2 - ln 2 - 1."""
    loss, metrics = policy_loss(LOGP, OLD, ADVANTAGES, MASK, kind="grpo", **CLIP, beta=0.1, ref_logp_GT=REF)
    assert loss.item() == pytest.approx(0.25 + 0.1 * (1 - LN2) / 4, rel=1e-6)
    assert metrics["kl"].item() == pytest.approx((1 - LN2) / 3, rel=1e-6)


def test_study_by_hand() -> None:
    """One ratio a sequence: sqrt(1.5), clipped to 1.2, and 0.5, so a loss of (-1.2 + 1.6) / 2; the KL of the means."""
    loss, metrics = policy_loss(LOGP, OLD, ADVANTAGES, MASK, kind="study", **CLIP, beta=0.1, ref_logp_GT=REF)
    kl = math.sqrt(2) - LN2 / 2 - 1
    assert loss.item() == pytest.approx(0.2 + 0.1 * kl / 2, rel=1e-6)
    assert values(metrics) == pytest.approx(
        {
            "clip_ratio/low_mean": 0.5,
            "clip_ratio/high_mean": 0.5,
            "clip_ratio/region_mean": 1.0,
            "sampling/importance_sampling_ratio/mean": (math.sqrt(1.5) + 0.5) / 2,
            "sampling/sampling_logp_difference/mean": (math.log(1.5) / 2 + LN2) / 2,
            "kl": kl / 2,
        },
        rel=1e-6,
    )


def test_the_clip_has_two_bounds() -> None:
    """`eps_high` holds what is rewarded, `eps_low` what is punished; neither holds what goes the wrong way."""
    losses = []
    for ratio, advantage in ((1.5, 1.0), (1.5, -1.0), (0.5, 1.0), (0.5, -1.0)):
        logp, old, mask = mx.array([[math.log(ratio)]]), mx.zeros((1, 1)), mx.ones((1, 1))
        losses.append(policy_loss(logp, old, mx.array([advantage]), mask, kind="grpo", eps_low=0.1, eps_high=0.3)[0])
    assert [loss.item() for loss in losses] == pytest.approx([-1.3, 1.5, -0.5, 0.9], rel=1e-6)


def case(*, spread: float, seed: int = 0) -> dict[str, np.ndarray]:
    """Random log-probs whose ratios leave the clip's bounds if `spread` is large, in float64."""
    rng = np.random.default_rng(seed)
    logp, lengths = rng.uniform(-4, -0.1, (4, 5)), [5, 3, 1, 4]
    return {
        "logp_GT": logp,
        "old_logp_GT": logp - rng.normal(0, spread, (4, 5)),
        "advantages_G": np.array([1.3, -0.7, 0.4, -2.0]),
        "mask_GT": (np.arange(5) < np.array(lengths)[:, None]).astype(float),
        "ref_logp_GT": logp + rng.normal(0, 0.5, (4, 5)),
    }


def loss_of(arrays: dict[str, np.ndarray], **settings: Any) -> mx.array:
    return policy_loss(**{name: mx.array(a, dtype=mx.float32) for name, a in arrays.items()}, **settings)[0]


def written_out(arrays: dict[str, np.ndarray], kind: str, eps_low: float, eps_high: float, beta: float) -> float:
    """The loss sequence by sequence, in float64."""
    objectives = []
    for logp, old, advantage, mask, ref in zip(*arrays.values(), strict=True):
        new, then, frozen = (values[mask > 0] for values in (logp, old, ref))
        if kind == "study":
            new, then, frozen = (values.mean(keepdims=True) for values in (new, then, frozen))
        ratio, d = np.exp(new - then), frozen - new
        gain = np.minimum(ratio * advantage, np.clip(ratio, 1 - eps_low, 1 + eps_high) * advantage)
        objectives.append(np.mean(gain - beta * (np.exp(d) - d - 1)))
    return -float(np.mean(objectives))


@pytest.mark.parametrize("beta", [0.0, 0.3])
@pytest.mark.parametrize(("spread", "eps"), [(0.02, 0.2), (0.6, 0.2), (0.6, 0.02)], ids=["inside", "clipped", "tight"])
@pytest.mark.parametrize("kind", ["grpo", "study"])
def test_gradient_is_that_of_finite_differences(kind: str, spread: float, eps: float, beta: float) -> None:
    """Central differences of the loss written out, with and without the clip at work, with and without KL."""
    arrays = case(spread=spread)
    settings = {"kind": kind, "eps_low": eps, "eps_high": eps, "beta": beta}
    assert loss_of(arrays, **settings).item() == pytest.approx(written_out(arrays, **settings), rel=1e-5)
    expected = np.zeros((4, 5))
    for place in np.ndindex(4, 5):
        up, down = (arrays["logp_GT"].copy() for _ in range(2))
        up[place] += 1e-6
        down[place] -= 1e-6
        ends = [written_out(arrays | {"logp_GT": moved}, **settings) for moved in (up, down)]
        expected[place] = (ends[0] - ends[1]) / 2e-6
    fixed = {name: mx.array(a, dtype=mx.float32) for name, a in arrays.items()}
    logp = fixed.pop("logp_GT")
    gradient = np.array(mx.grad(lambda x: policy_loss(x, **fixed, **settings)[0])(logp))
    assert np.abs(expected).max() > 0.01
    np.testing.assert_allclose(gradient, expected, rtol=1e-4, atol=1e-6)
    assert not gradient[arrays["mask_GT"] == 0].any()


@pytest.mark.parametrize("kind", ["grpo", "study"])
def test_the_cut_of_a_batch_does_not_matter(kind: str) -> None:
    """The losses of the parts, each told the number of sequences of the whole, sum to the loss of the whole."""
    arrays = case(spread=0.3)
    settings = {"kind": kind, **CLIP, "beta": 0.1}
    whole = loss_of(arrays, **settings).item()
    for cut in (1, 2, 3):
        parts = [{name: a[part] for name, a in arrays.items()} for part in (slice(0, cut), slice(cut, 4))]
        assert sum(loss_of(p, **settings, sequences=4).item() for p in parts) == pytest.approx(whole, rel=1e-5)


@pytest.mark.parametrize("kind", ["grpo", "study"])
def test_a_masked_row_counts_and_says_nothing(kind: str) -> None:
    """It keeps its place in the mean, has no gradient and makes no NaN, even if all rows are masked."""
    arrays = case(spread=0.3)
    settings = {"kind": kind, **CLIP, "beta": 0.1}
    masked = arrays | {"mask_GT": arrays["mask_GT"] * np.array([[1.0], [0.0], [1.0], [1.0]])}
    others = {name: a[[0, 2, 3]] for name, a in arrays.items()}
    expected = loss_of(others, **settings, sequences=4).item()
    assert loss_of(masked, **settings).item() == pytest.approx(expected, rel=1e-5)
    nothing = {name: mx.array(a).astype(mx.float32) for name, a in arrays.items()} | {"mask_GT": mx.zeros((4, 5))}
    logp = nothing.pop("logp_GT")
    loss, metrics = policy_loss(logp, **nothing, **settings)
    gradient = mx.grad(lambda x: policy_loss(x, **nothing, **settings)[0])(logp)
    assert loss.item() == 0.0
    assert set(values(metrics).values()) == {0.0}
    assert not np.array(gradient).any()


@pytest.mark.parametrize("kind", ["grpo", "study"])
@pytest.mark.parametrize("gap", [-900.0, 900.0])
def test_a_wild_ratio_is_finite(kind: str, gap: float) -> None:
    """Log-probs far apart overflow neither the loss nor its gradient."""
    fixed = {
        "old_logp_GT": OLD,
        "advantages_G": ADVANTAGES,
        "mask_GT": MASK,
        "ref_logp_GT": OLD,
        "kind": kind,
        "beta": 0.1,
        **CLIP,
    }
    loss, gradient = mx.value_and_grad(lambda x: policy_loss(x, **fixed)[0])(OLD + gap)
    assert mx.isfinite(loss).item()
    assert mx.isfinite(gradient).all().item()


def test_kl_needs_a_reference() -> None:
    """beta > 0 without one is the caller's error, as is an unknown loss."""
    with pytest.raises(ValueError, match="needs ref_logp_GT"):
        policy_loss(LOGP, OLD, ADVANTAGES, MASK, kind="grpo", **CLIP, beta=0.1)
    with pytest.raises(ValueError, match="unknown loss 'ppo'"):
        policy_loss(LOGP, OLD, ADVANTAGES, MASK, kind="ppo", **CLIP)


def test_a_reference_without_beta_changes_nothing() -> None:
    """No KL is computed that nothing asks for."""
    loss, metrics = policy_loss(LOGP, OLD, ADVANTAGES, MASK, kind="grpo", **CLIP, ref_logp_GT=REF)
    assert loss.item() == pytest.approx(0.25, rel=1e-6)
    assert "kl" not in metrics


def test_k3_is_never_negative_and_zero_at_equality() -> None:
    """exp(d) - d - 1, from the smallest differences to the largest."""
    d = np.concatenate([[0.0], np.geomspace(1e-9, 15, 400), -np.geomspace(1e-9, 15, 400)]).astype(np.float32)
    got = np.array(k3_kl(mx.zeros(len(d)), mx.array(d)))
    assert got[0] == 0.0
    assert (got >= 0).all()
    exact = np.expm1(d.astype(np.float64)) - d
    np.testing.assert_allclose(got[np.abs(d) > 1e-2], exact[np.abs(d) > 1e-2], rtol=1e-3)
