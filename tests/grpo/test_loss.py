"""The policy losses: by hand, against finite differences, and cut into parts. TRL's numbers are in test_golden."""

import math
from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smolsum.config.sections import GrpoConfig
from smolsum.grpo.loss import BatchTotals, kl_estimate, loss_and_tally, loss_metrics, merged, policy_loss

# isort: split
import mlx.core as mx

KINDS = ["grpo", "study", "dr_grpo", "dapo", "gspo", "cispo"]
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
    """Row means (1.2 + 1) / 2 and -1.6, so a loss of 0.25; two of three tokens are clipped. Entropy is only logged, and
    a reference that no beta pulls to is not looked at."""
    more = {"entropy_GT": mx.array([[1.0, 2.0], [6.0, 100.0]]), "ref_logp_GT": REF}
    loss, metrics = policy_loss(LOGP, OLD, ADVANTAGES, MASK, kind="grpo", **CLIP, **more)
    ratios = np.array([1.5, 1.0, 0.5])
    assert loss.item() == pytest.approx(0.25, rel=1e-6)
    assert values(metrics) == pytest.approx(
        {
            "clip_ratio/low_mean": 1 / 3, "clip_ratio/low_min": 0.0, "clip_ratio/high_mean": 1 / 3,
            "clip_ratio/high_max": 0.5, "clip_ratio/region_mean": 2 / 3, "sampling/importance_sampling_ratio/min": 0.5,
            "sampling/importance_sampling_ratio/mean": 1.0, "sampling/importance_sampling_ratio/max": 1.5,
            "sampling/sampling_logp_difference/mean": math.log(3) / 3, "sampling/sampling_logp_difference/max": LN2,
            "sampling/ess": 3.0**2 / (3 * 3.5), "sampling/mismatch_k3": (ratios - np.log(ratios) - 1).mean(),
            "entropy": 3.0,
        },
        rel=1e-5,
    )  # fmt: skip


def test_study_by_hand() -> None:
    """One ratio a sequence: sqrt(1.5), clipped to 1.2, and 0.5, so a loss of (-1.2 + 1.6) / 2; the KL of the means."""
    loss, metrics = policy_loss(LOGP, OLD, ADVANTAGES, MASK, kind="study", **CLIP, beta=0.1, ref_logp_GT=REF)
    kl = math.sqrt(2) - LN2 / 2 - 1
    assert loss.item() == pytest.approx(0.2 + 0.1 * kl / 2, rel=1e-6)
    expected = {
        "clip_ratio/low_mean": 0.5, "clip_ratio/low_min": 0.0, "clip_ratio/high_mean": 0.5, "clip_ratio/high_max": 1.0,
        "clip_ratio/region_mean": 1.0, "sampling/importance_sampling_ratio/mean": 1.0, "kl": kl / 2,
    }  # fmt: skip
    assert {name: values(metrics)[name] for name in expected} == pytest.approx(expected, rel=1e-6)


def test_a_correction_by_hand() -> None:
    """Weights prox / mu of 3, 1 and 1/4 on gains 1.2, 1 and -1.6: capped at 2, or left out beyond [0.5, 2]."""
    sampler = OLD - mx.array([[math.log(3), 0.0], [-2 * LN2, 9.0]])
    for correction, gains, ess in (
        ("token_truncate", (2 * 1.2 + 1) / 2 - 1.6 / 4, 3.25**2 / (3 * (4 + 1 + 1 / 16))),
        ("token_mask", 1 / 2, 1 / 3),
        ("sequence_truncate", 2 * (1.2 + 1) / 2 - 1.6 / 4, 2.25**2 / (2 * (4 + 1 / 16))),
        ("sequence_mask", 0.0, 0.0),
    ):
        loss, metrics = policy_loss(
            LOGP, OLD, ADVANTAGES, MASK, kind="grpo", **CLIP, correction=correction, sampler_logp_GT=sampler
        )
        assert loss.item() == pytest.approx(-gains / 2, rel=1e-5)
        assert metrics["sampling/ess"].item() == pytest.approx(ess, rel=1e-5)
        expected = (math.log(3) + math.log(4)) / 3
        assert metrics["sampling/sampling_logp_difference/mean"].item() == pytest.approx(expected, rel=1e-5)


def test_only_a_punished_sequence_is_dropped() -> None:
    """Both rows have drifted by ln 2 in the mean of what is not masked; the punished one goes, unless delta is above
    that, or it became likelier."""
    fall = mx.array([[-LN2, -LN2], [-LN2, -9.0]])
    for gap, delta, dropped, loss in (
        (fall, 0.6, 0.5, -0.5 / 2),
        (fall, 0.8, 0.0, (-0.5 + 2 * 0.8) / 2),
        (LN2, 0.6, 0.0, (-1.2 + 2 * 2) / 2),
    ):
        got, metrics = policy_loss(OLD + gap, OLD, ADVANTAGES, MASK, kind="grpo", **CLIP, off_policy_delta=delta)
        assert got.item() == pytest.approx(loss, rel=1e-5)
        assert metrics["off_policy/dropped"].item() == pytest.approx(dropped)


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


WIDTH = 9
"""a token limit above the longest row"""


def loss_of(arrays: dict[str, np.ndarray], **settings: Any) -> mx.array:
    return policy_loss(**{name: mx.array(a, dtype=mx.float32) for name, a in arrays.items()}, **settings)[0]


def written_out(
    arrays: dict[str, np.ndarray], kind: str, eps_low: float, eps_high: float, beta: float, *, kl: str = "k3",
    kl_unbiased: bool = False, held: dict[str, np.ndarray] | None = None,
) -> float:  # fmt: skip
    """The loss sequence by sequence, in float64; `held` has the log-probs of what is taken as constant."""
    objectives, lengths = [], []
    held_logp = (held or arrays)["logp_GT"]
    for (logp, old, advantage, mask, ref), fixed in zip(zip(*arrays.values(), strict=True), held_logp, strict=True):
        new, then, frozen, still = (values[mask > 0] for values in (logp, old, ref, fixed))
        lengths.append(len(new))
        log_ratio = (new - then).mean(keepdims=True) if kind in ("study", "gspo") else new - then
        if kind == "study":
            new, frozen = new.mean(keepdims=True), frozen.mean(keepdims=True)
        ratio, d = np.exp(log_ratio), frozen - new
        gain = np.minimum(ratio * advantage, np.clip(ratio, 1 - eps_low, 1 + eps_high) * advantage)
        if kind == "cispo":
            gain = np.minimum(np.exp(still - then), 1 + eps_high) * advantage * new
        penalty = {"k1": -d, "k2": d**2 / 2, "k3": np.exp(d) - d - 1}[kl] * (ratio if kl_unbiased else 1.0)
        objectives.append(np.broadcast_to(gain - beta * penalty, (max(len(gain), len(penalty)),)))
    if kind in ("dapo", "cispo"):
        return -float(np.concatenate(objectives).sum() / sum(lengths))
    if kind == "dr_grpo":
        return -float(np.concatenate(objectives).sum() / (len(objectives) * WIDTH))
    return -float(np.mean([objective.mean() for objective in objectives]))


def assert_gradient(arrays: dict[str, np.ndarray], **settings: Any) -> None:
    """The loss and its gradient are those of central differences of the loss written out."""
    totals = BatchTotals(len(arrays["mask_GT"]), float(arrays["mask_GT"].sum()), WIDTH)
    ours = {**settings, "eps_max": 1 + settings["eps_high"], "totals": totals}
    assert loss_of(arrays, **ours).item() == pytest.approx(written_out(arrays, **settings), rel=1e-5, abs=1e-6)
    expected = np.zeros((4, 5))
    for place in np.ndindex(4, 5):
        up, down = (arrays["logp_GT"].copy() for _ in range(2))
        up[place] += 1e-6
        down[place] -= 1e-6
        ends = [written_out(arrays | {"logp_GT": moved}, **settings, held=arrays) for moved in (up, down)]
        expected[place] = (ends[0] - ends[1]) / 2e-6
    fixed = {name: mx.array(a, dtype=mx.float32) for name, a in arrays.items()}
    logp = fixed.pop("logp_GT")
    gradient = np.array(mx.grad(lambda x: policy_loss(x, **fixed, **ours)[0])(logp))
    assert np.abs(expected).max() > 0.005
    np.testing.assert_allclose(gradient, expected, rtol=1e-4, atol=1e-6)
    assert not gradient[arrays["mask_GT"] == 0].any()


@pytest.mark.parametrize("beta", [0.0, 0.3])
@pytest.mark.parametrize(("spread", "eps"), [(0.02, 0.2), (0.6, 0.2), (0.6, 0.02)], ids=["inside", "clipped", "tight"])
@pytest.mark.parametrize("kind", KINDS)
def test_gradient_is_that_of_finite_differences(kind: str, spread: float, eps: float, beta: float) -> None:
    """Of every loss, with and without the clip at work, with and without KL: by each estimate, as it is or weighted
    with the ratio."""
    settings = {"kind": kind, "eps_low": eps, "eps_high": 1.5 * eps, "beta": beta}
    for kl, unbiased in product(["k1", "k2", "k3"], [False, True]) if beta else [("k3", False)]:
        assert_gradient(case(spread=spread), **settings, kl=kl, kl_unbiased=unbiased)


def test_k3_is_never_negative_and_zero_at_equality() -> None:
    """exp(d) - d - 1, from the smallest differences to the largest."""
    d = np.concatenate([[0.0], np.geomspace(1e-9, 15, 400), -np.geomspace(1e-9, 15, 400)]).astype(np.float32)
    got = np.array(kl_estimate(mx.zeros(len(d)), mx.array(d), kind="k3"))
    assert got[0] == 0.0
    assert (got >= 0).all()
    exact = np.expm1(d.astype(np.float64)) - d
    np.testing.assert_allclose(got[np.abs(d) > 1e-2], exact[np.abs(d) > 1e-2], rtol=1e-3)


@settings(max_examples=25)
@given(
    seed=st.integers(0, 1000),
    kind=st.sampled_from(KINDS),
    cuts=st.lists(st.booleans(), min_size=7, max_size=7),
    correction=st.sampled_from(["none", "token_truncate", "sequence_truncate", "token_mask", "sequence_mask"]),
    delta=st.sampled_from([0.0, 0.1]),
)
def test_the_cut_of_a_batch_does_not_matter(
    seed: int, kind: str, cuts: list[bool], correction: str, delta: float
) -> None:
    """Loss, gradient and every metric of the parts add up to those of the whole, rows without tokens among them."""
    rng = np.random.default_rng(seed)
    logp = rng.uniform(-4, -0.1, (8, 6))
    noisy = {name: logp + rng.normal(0, 0.3, logp.shape) for name in ("old_logp_GT", "ref_logp_GT", "sampler_logp_GT")}
    arrays = {
        "logp_GT": logp,
        "advantages_G": rng.normal(0, 1, 8),
        "mask_GT": np.arange(6) < rng.integers(0, 7, 8)[:, None],
        "entropy_GT": rng.uniform(0, 3, logp.shape),
        **noisy,
    }
    whole = {name: mx.array(a.astype(np.float32)) for name, a in arrays.items()}
    config = GrpoConfig(
        loss=kind, eps_low=0.2, eps_high=0.2, eps_max=1.2, beta=0.1, correction=correction, off_policy_delta=delta
    )
    totals = BatchTotals(8, float(arrays["mask_GT"].sum()), 6)

    def value_and_gradient(part: dict[str, mx.array]) -> Any:
        others = {name: a for name, a in part.items() if name != "logp_GT"}
        return mx.value_and_grad(lambda x: loss_and_tally(x, config=config, totals=totals, **others))(part["logp_GT"])

    (expected, tally), gradient = value_and_gradient(whole)
    bounds = [0, *(place for place, cut in enumerate(cuts, start=1) if cut), 8]
    loss, joined, gradients = 0.0, None, []
    for start, end in pairwise(bounds):
        (part_loss, part_tally), part_gradient = value_and_gradient({k: a[start:end] for k, a in whole.items()})
        loss += part_loss.item()
        joined = part_tally if joined is None else merged(joined, part_tally)
        gradients.append(part_gradient)
    assert loss == pytest.approx(expected.item(), rel=1e-5, abs=1e-6)
    np.testing.assert_allclose(np.array(mx.concatenate(gradients)), np.array(gradient), rtol=1e-5, atol=1e-8)
    assert values(loss_metrics(joined)) == pytest.approx(values(loss_metrics(tally)), rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_a_masked_row_counts_and_says_nothing(kind: str) -> None:
    """It keeps its place among the sequences, has no gradient and makes no NaN, even if all rows are masked."""
    arrays = case(spread=0.3)
    settings = {"kind": kind, **CLIP, "beta": 0.1}
    masked = arrays | {"mask_GT": arrays["mask_GT"] * np.array([[1.0], [0.0], [1.0], [1.0]])}
    others = {name: a[[0, 2, 3]] for name, a in arrays.items()}
    totals = BatchTotals(sequences=4, tokens=10, max_length=5)
    expected = loss_of(others, **settings, totals=totals).item()
    assert loss_of(masked, **settings).item() == pytest.approx(expected, rel=1e-5)
    nothing = {name: mx.array(a).astype(mx.float32) for name, a in arrays.items()} | {"mask_GT": mx.zeros((4, 5))}
    logp = nothing.pop("logp_GT")
    (loss, metrics), gradient = mx.value_and_grad(lambda x: policy_loss(x, **nothing, **settings))(logp)
    assert {loss.item(), *values(metrics).values()} == {0.0}
    assert not np.array(gradient).any()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("gap", [-900.0, 900.0])
def test_a_wild_ratio_is_finite(kind: str, gap: float) -> None:
    """Log-probs far apart overflow neither the loss, nor its gradient, nor a metric."""
    fixed = {"old_logp_GT": OLD, "advantages_G": ADVANTAGES, "mask_GT": MASK, "kind": kind, **CLIP}
    fixed |= {"beta": 0.1, "ref_logp_GT": OLD, "correction": "sequence_truncate", "sampler_logp_GT": OLD - gap}
    (loss, metrics), gradient = mx.value_and_grad(lambda x: policy_loss(x, **fixed))(OLD + gap)
    assert mx.isfinite(gradient).all().item()
    assert all(math.isfinite(value) for value in (loss.item(), *values(metrics).values()))


def test_a_correction_has_no_gradient() -> None:
    """Weights are constants, though the log-probs that they compare may be the very ones that are differentiated."""

    def loss(logp: mx.array) -> mx.array:
        fixed = {"correction": "token_truncate", "correction_cap": 100.0, "sampler_logp_GT": OLD}
        return policy_loss(logp, logp, ADVANTAGES, mx.ones((2, 2)), kind="dapo", **CLIP, **fixed)[0]

    # the ratio is exactly 1, so the weights are all there is, and the gradient of the ratio cancels
    np.testing.assert_allclose(np.array(mx.grad(loss)(LOGP)), 0.0, atol=1e-7)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"beta": 0.1}, "ref_logp_GT"),
        ({"kind": "ppo"}, "'ppo'"),
        ({"beta": 0.1, "ref_logp_GT": REF, "kl": "k4"}, "'k4'"),
        ({"correction": "token_truncate"}, "sampler_logp_GT"),
        ({"correction": "token_clip", "sampler_logp_GT": OLD}, "'token_clip'"),
        ({"correction": "token_mask", "sampler_logp_GT": OLD, "correction_floor": 2.0}, "floor 2.0 .* cap 2.0"),
    ],
)
def test_bad_calls_are_refused(changes: dict[str, Any], named: str) -> None:
    """With what is wrong."""
    with pytest.raises(ValueError, match=named):
        policy_loss(LOGP, OLD, ADVANTAGES, MASK, **({"kind": "grpo", **CLIP} | changes))
