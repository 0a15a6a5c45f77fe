"""The policy losses, as pure functions of arrays.

Where this departs from the papers:
1. The ratio's denominator is what `old_logp_GT` holds: by default the sampler's own log-probs, so that staleness and
   kernel differences are corrected, not assumed away.
2. Every denominator is that of the whole optimizer batch (`BatchTotals`), not of this call: neither the gradient nor a
   metric depends on how a batch was cut.
3. A masked truncated rollout still counts as a sequence but adds no tokens, as in TRL; metrics leave it out.
4. `study` is what the study's code computed: one ratio for a sequence, of mean log-probs, and the KL of those means.
   `gspo` has the same ratio, and the KL of each token.
5. `cispo` clips the ratio above only (as its paper's experiments did), at `eps_max` itself and not at 1 + eps.
6. `dr_grpo` divides by a number of tokens that does not depend on the rollouts; where a caller states no totals, the
   width of the arrays stands in for the token limit.
7. Log-ratios are held within 20 before they are exponentiated; beyond, they have no gradient.
8. A reward that is missing leaves its rollout in the batch with the advantage 0; it is still held to the reference.
9. A group whose advantages are all 0 counts in the denominators, but never reaches the model: it has no KL term
   (`smolsum/grpo/batch_gradient.py`).
10. With `grpo.train_eos` off, as in the study's code, the end-of-sequence token is outside of the mask.

Where this departs from TRL 1.16, beyond 2 and 7: KL estimates are not weighted with the ratio unless `kl_unbiased` is
set; truncated weights have no lower bound; clip metrics of sequence losses leave out masked rows.

A term on the entropy would need more than a line here: `entropy_GT` has no gradient (`smolsum/policy/logprobs.py`), and
groups whose advantages are all 0 are skipped.

Axes: G rollouts of a prompt, T completion tokens.
"""

from dataclasses import dataclass

import mlx.core as mx

from smolsum.config.fields import Correction, KlEstimate, LossKind
from smolsum.config.sections import GrpoConfig
from smolsum.policy import distributed

SEQUENCE_RATIO = ("gspo", "study")
"""losses with one ratio for each sequence, of its mean log-probs"""
MAX_LOG_RATIO = 20.0
"""log-ratios are held within this before they are exponentiated"""
Tally = dict[str, dict[str, mx.array]]
"""`sum`: by metric, an array of the weighted sum and the sum of weights; `min` and `max`: by metric, the extreme.
A plain tree of arrays, so that a differentiated function may return it."""

WEIGHT = "sampling/importance_sampling_ratio/mean"
SQUARE = "sampling/importance_sampling_ratio/square"
"""mean squared weight, kept only to compute the effective sample size"""


@dataclass(frozen=True)
class BatchTotals:
    """What the losses divide by: numbers of the whole optimizer batch, however it is cut into calls."""

    sequences: int
    """rollouts, masked ones included"""
    tokens: float | mx.array
    """completion tokens under the mask"""
    max_length: int
    """longest completion that could have been sampled, in tokens"""


def policy_loss(
    logp_GT: mx.array,
    old_logp_GT: mx.array,
    advantages_G: mx.array,
    mask_GT: mx.array,
    *,
    kind: LossKind,
    eps_low: float,
    eps_high: float,
    eps_max: float = 5.0,
    beta: float = 0.0,
    kl: KlEstimate = "k3",
    kl_unbiased: bool = False,
    correction: Correction = "none",
    correction_cap: float = 2.0,
    correction_floor: float = 0.5,
    off_policy_delta: float = 0.0,
    ref_logp_GT: mx.array | None = None,
    sampler_logp_GT: mx.array | None = None,
    entropy_GT: mx.array | None = None,
    totals: BatchTotals | None = None,
) -> tuple[mx.array, dict[str, mx.array]]:
    """Return the loss (scalar, to be minimised) and its metrics, plain means over this call.

    `GrpoConfig` documents the settings, `loss_and_tally` the arrays. Without `totals` this call is the
    whole batch. Raises ValueError for an unknown kind, KL estimate or correction, for beta > 0 without `ref_logp_GT`,
    and for a correction without `sampler_logp_GT`.
    """
    config = GrpoConfig(
        loss=kind,
        eps_low=eps_low,
        eps_high=eps_high,
        eps_max=eps_max,
        beta=beta,
        kl=kl,
        kl_unbiased=kl_unbiased,
        correction=correction,
        correction_cap=correction_cap,
        correction_floor=correction_floor,
        off_policy_delta=off_policy_delta,
    )
    if totals is None:
        totals = BatchTotals(len(mask_GT), mask_GT.sum(), mask_GT.shape[1])
    loss, tally = loss_and_tally(
        logp_GT,
        old_logp_GT,
        advantages_G,
        mask_GT,
        config,
        totals,
        ref_logp_GT=ref_logp_GT,
        sampler_logp_GT=sampler_logp_GT,
        entropy_GT=entropy_GT,
    )
    return loss, loss_metrics(tally)


def loss_and_tally(
    logp_GT: mx.array,
    old_logp_GT: mx.array,
    advantages_G: mx.array,
    mask_GT: mx.array,
    config: GrpoConfig,
    totals: BatchTotals,
    *,
    ref_logp_GT: mx.array | None = None,
    sampler_logp_GT: mx.array | None = None,
    entropy_GT: mx.array | None = None,
) -> tuple[mx.array, Tally]:
    """Return this call's share of the batch's loss (scalar), and of its metrics.

    `advantages_G` are those of whole completions, or (G, T) where a completion's tokens have different ones.
    `old_logp_GT` is the ratio's denominator. Where `sampler_logp_GT` is given, it is what the sampler reported, and
    `old_logp_GT` are the trainer's log-probs just before the update. `ref_logp_GT` are the reference's log-probs;
    `entropy_GT`, the entropies of the policy's next-token distributions, are only logged, and have no gradient. Errors:
    see `policy_loss`.
    """
    if config.beta > 0 and ref_logp_GT is None:
        raise ValueError("beta > 0 needs ref_logp_GT: the reference's log-probs of the same tokens")
    if config.correction != "none" and sampler_logp_GT is None:
        raise ValueError(f"the correction {config.correction} needs sampler_logp_GT: what the sampler reported")
    mask_GT = mask_GT.astype(mx.float32)
    advantages_GT = advantages_G[:, None] if advantages_G.ndim == 1 else advantages_G
    log_ratio_GT, unit_GT = logp_GT - old_logp_GT, mask_GT  # a unit has one ratio: a token, or a sequence (G, 1)
    if config.loss in SEQUENCE_RATIO:
        log_ratio_GT, unit_GT = _row_mean(log_ratio_GT, mask_GT), mx.minimum(mask_GT.sum(axis=1, keepdims=True), 1.0)
    ratio_GT = mx.exp(mx.clip(log_ratio_GT, -MAX_LOG_RATIO, MAX_LOG_RATIO))
    tally: Tally = {"sum": {}, "min": {}, "max": {}}
    if config.loss == "cispo":
        objective_GT = mx.stop_gradient(mx.minimum(ratio_GT, config.eps_max)) * advantages_GT * logp_GT
        is_clipped_GT = (ratio_GT > config.eps_max) & (advantages_GT > 0)
        tally["sum"]["cispo_clip_ratio"] = weighted(is_clipped_GT, unit_GT)
    else:
        clipped_GT = mx.clip(ratio_GT, 1 - config.eps_low, 1 + config.eps_high)
        objective_GT = mx.minimum(ratio_GT * advantages_GT, clipped_GT * advantages_GT)
        low_GT = (ratio_GT < 1 - config.eps_low) & (advantages_GT < 0)
        high_GT = (ratio_GT > 1 + config.eps_high) & (advantages_GT > 0)
        _tally_clips(tally, low_GT, high_GT, unit_GT)

    # the trainer's log-probs before the update, and the sampler's; with one update a batch, the policy is the former
    prox_GT, mu_GT = (logp_GT, old_logp_GT) if sampler_logp_GT is None else (old_logp_GT, sampler_logp_GT)
    weights_GT = importance_weights(
        prox_GT, mu_GT, mask_GT, kind=config.correction, cap=config.correction_cap, floor=config.correction_floor
    )
    _tally_sampling(tally, prox_GT, mu_GT, weights_GT, mask_GT)
    if config.correction != "none":
        objective_GT = objective_GT * weights_GT
    if config.off_policy_delta > 0:
        kept_G1 = kept_sequences(
            _row_mean(advantages_GT, mask_GT)[:, 0], logp_GT, mu_GT, mask_GT, delta=config.off_policy_delta
        )
        objective_GT = objective_GT * kept_G1
        tally["sum"]["off_policy/dropped"] = weighted(1 - kept_G1, mx.minimum(mask_GT.sum(axis=1, keepdims=True), 1.0))

    if ref_logp_GT is not None and config.beta > 0:
        if config.loss == "study":
            kl_GT = kl_estimate(_row_mean(logp_GT, mask_GT), _row_mean(ref_logp_GT, mask_GT), kind=config.kl)
        else:
            kl_GT = kl_estimate(logp_GT, ref_logp_GT, kind=config.kl)
        if config.kl_unbiased:
            kl_GT = kl_GT * ratio_GT
        objective_GT = objective_GT - config.beta * kl_GT
        tally["sum"]["kl"] = weighted(kl_GT, unit_GT if kl_GT.shape[1] == 1 else mask_GT)
    if entropy_GT is not None:
        tally["sum"]["entropy"] = weighted(entropy_GT, mask_GT)
    return -_reduced(objective_GT, mask_GT, config.loss, totals), tally


def _reduced(objective_GT: mx.array, mask_GT: mx.array, kind: str, totals: BatchTotals) -> mx.array:
    """Return this call's share of the batch's mean objective."""
    objective_GT = objective_GT * mask_GT
    match kind:
        case "grpo" | "gspo" | "study":  # each sequence counts the same: arXiv:2402.03300, eq. 3; 2507.18071, eq. 5
            length_G = mx.maximum(mask_GT.sum(axis=1), 1.0)
            return (objective_GT.sum(axis=1) / length_G).sum() / totals.sequences
        case "dr_grpo":  # each token counts the same, whatever the lengths: arXiv:2503.20783, section 3
            return objective_GT.sum() / (totals.sequences * totals.max_length)
        case "dapo" | "cispo":  # each token counts the same: arXiv:2503.14476, eq. 8; arXiv:2506.13585, eq. 4
            return objective_GT.sum() / mx.maximum(totals.tokens, 1.0)
        case _:
            raise ValueError(f"unknown loss {kind!r}: choose grpo, study, dr_grpo, dapo, gspo or cispo")


def _row_mean(values_GT: mx.array, mask_GT: mx.array) -> mx.array:
    length_G1 = mx.maximum(mask_GT.sum(axis=1, keepdims=True), 1.0)
    return (values_GT * mask_GT).sum(axis=1, keepdims=True) / length_G1


def _tally_clips(tally: Tally, low_GT: mx.array, high_GT: mx.array, unit_GT: mx.array) -> None:
    """Add the shares of clipped units over all units, and the extremes of such a share within a sequence."""
    seen_G1 = unit_GT.max(axis=1, keepdims=True)
    tally["sum"] |= {
        "clip_ratio/low_mean": weighted(low_GT, unit_GT),
        "clip_ratio/high_mean": weighted(high_GT, unit_GT),
        "clip_ratio/region_mean": weighted(low_GT | high_GT, unit_GT),
    }
    tally["min"]["clip_ratio/low_min"] = lowest(_row_mean(low_GT, unit_GT), seen_G1)
    tally["max"]["clip_ratio/high_max"] = highest(_row_mean(high_GT, unit_GT), seen_G1)


def _tally_sampling(tally: Tally, prox_GT: mx.array, mu_GT: mx.array, weights_GT: mx.array, mask_GT: mx.array) -> None:
    """Add how far the sampler's policy is from the trainer's, and the weights that correct for it."""
    gap_GT = mx.abs(prox_GT - mu_GT)
    unit_GT = mask_GT if weights_GT.shape == mask_GT.shape else mask_GT.max(axis=1, keepdims=True)
    tally["sum"] |= {
        "sampling/sampling_logp_difference/mean": weighted(gap_GT, mask_GT),
        # the tokens are the sampler's: an estimate of KL(sampler || trainer)
        "sampling/mismatch_k3": weighted(kl_estimate(mu_GT, prox_GT, kind="k3"), mask_GT),
        WEIGHT: weighted(weights_GT, unit_GT),
        SQUARE: weighted(weights_GT**2, unit_GT),
    }
    tally["min"]["sampling/importance_sampling_ratio/min"] = lowest(weights_GT, unit_GT)
    tally["max"] |= {
        "sampling/importance_sampling_ratio/max": highest(weights_GT, unit_GT),
        "sampling/sampling_logp_difference/max": highest(gap_GT, mask_GT),
    }


# Terms of the objective


def kl_estimate(logp: mx.array, ref_logp: mx.array, *, kind: str) -> mx.array:
    """Return an estimate of KL(policy || reference) for each sampled token, in nats, of the arguments' shape (Schulman,
    http://joschu.net/blog/kl-approx.html).

    With d = ref - policy: `k1` -d, unbiased, but its gradient is 0 on average; `k2` d^2 / 2, whose gradient is that of
    the KL; `k3` exp(d) - d - 1, unbiased, never negative and of low variance (arXiv:2402.03300, eq. 4), d held within
    20. Raises ValueError for another `kind`.
    """
    d = ref_logp - logp
    match kind:
        case "k1":
            return -d
        case "k2":
            return 0.5 * d * d
        case "k3":
            held = mx.clip(d, -MAX_LOG_RATIO, MAX_LOG_RATIO)
            return mx.expm1(held) - held
        case _:
            raise ValueError(f"unknown KL estimate {kind!r}: choose k1, k2 or k3")


def importance_weights(
    prox_GT: mx.array, mu_GT: mx.array, mask_GT: mx.array, *, kind: str, cap: float, floor: float
) -> mx.array:
    """Return weights that correct for tokens drawn from another policy than the one the ratio compares with: prox / mu
    without gradient, float32 (G, T) for a token kind, (G, 1), the product of a row, for a sequence kind.

    `mu_GT` are the sampler's log-probs, `prox_GT` the trainer's of the same tokens just before the update: staleness
    and kernels make them differ.
    `token_truncate`, `sequence_truncate`: at most `cap` (truncated importance sampling,
    fengyao.notion.site/off-policy-rl); `token_mask`, `sequence_mask`: 0 outside [floor, cap], so that such tokens or
    sequences teach nothing (IcePop, arXiv:2510.18855); `none`: unchanged, one for each token. Raises ValueError for
    another `kind` and for a floor that is not below the cap.
    """
    level, _, bound = kind.partition("_")
    if kind != "none" and (level not in ("token", "sequence") or bound not in ("truncate", "mask")):
        raise ValueError(
            f"unknown correction {kind!r}: choose none, token_truncate, sequence_truncate, token_mask or sequence_mask"
        )
    if bound == "mask" and not floor < cap:
        raise ValueError(f"the floor {floor} of a mask must be below its cap {cap}")
    gap = mx.stop_gradient(prox_GT - mu_GT) * mask_GT
    if level == "sequence":
        gap = gap.sum(axis=1, keepdims=True)
    weights = mx.exp(mx.clip(gap, -MAX_LOG_RATIO, MAX_LOG_RATIO))
    if bound == "truncate":
        return mx.minimum(weights, cap)
    if bound == "mask":
        return mx.where((weights < floor) | (weights > cap), 0.0, weights)
    return weights


def kept_sequences(
    advantages_G: mx.array, logp_GT: mx.array, mu_GT: mx.array, mask_GT: mx.array, *, delta: float
) -> mx.array:
    """1 for each sequence to learn from, 0 for one to drop: float32 (G, 1).

    Dropped are punished sequences that have grown unlikely since they were drawn: their advantage is negative, and the
    mean of mu - policy over their tokens is above `delta` (DeepSeek-V3.2, arXiv:2512.02556, eq. 9).
    """
    drift_G = (mx.stop_gradient(mu_GT - logp_GT) * mask_GT).sum(axis=1) / mx.maximum(mask_GT.sum(axis=1), 1.0)
    return ((advantages_G >= 0) | (drift_G <= delta)).astype(mx.float32)[:, None]


# Metrics: sums, lows and highs of a batch's parts, which add up to the same metrics however the batch was cut


def weighted(values: mx.array, mask: mx.array) -> mx.array:
    """Return the entry of a mean: (2,) sum of the values under the mask and sum of the mask, values broadcast to it."""
    return mx.stack([(values * mask).sum(), mask.sum()])


def lowest(values: mx.array, mask: mx.array) -> mx.array:
    """Return the minimum under the mask, infinity if the mask is empty."""
    return mx.where(mask > 0, values, mx.inf).min()


def highest(values: mx.array, mask: mx.array) -> mx.array:
    """Return the maximum under the mask, minus infinity if the mask is empty."""
    return mx.where(mask > 0, values, -mx.inf).max()


def merged(a: Tally, b: Tally) -> Tally:
    """Return the tally of two parts, which must have the same metrics."""
    join = {"sum": mx.add, "min": mx.minimum, "max": mx.maximum}
    return {kind: {name: join[kind](value, b[kind][name]) for name, value in a[kind].items()} for kind in a}


def over_ranks(tally: Tally) -> Tally:
    """Return the tally of all ranks' parts together."""
    join = {"sum": distributed.total, "min": distributed.lowest, "max": distributed.highest}
    return {kind: join[kind](entries) for kind, entries in tally.items()}


def tally_metrics(tally: Tally) -> dict[str, mx.array]:
    """Return every metric of a tally as a scalar, 0 where nothing was counted."""
    found = {name: entry[0] / mx.maximum(entry[1], 1.0) for name, entry in tally["sum"].items()}
    extremes = tally["min"] | tally["max"]
    return found | {name: mx.where(mx.isinf(value), 0.0, value) for name, value in extremes.items()}


def loss_metrics(tally: Tally) -> dict[str, mx.array]:
    """Return every metric as a scalar, 0 where nothing was counted, and `sampling/ess`.

    The effective sample size of weights w, as a share of their number: mean(w)^2 / mean(w^2), 1 for equal weights
    (Kish, Survey Sampling, 1965).
    """
    found = tally_metrics(tally)
    square = found.pop(SQUARE)
    found["sampling/ess"] = mx.where(square > 0, found[WEIGHT] ** 2 / mx.where(square > 0, square, 1.0), 0.0)
    return found
