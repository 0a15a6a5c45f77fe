"""The policy losses, as pure functions of arrays.

Where this departs from the papers:
1. The ratio's denominator is what `old_logp_GT` holds: by default the sampler's own log-probs, so that staleness and
   kernel differences are corrected, not assumed away.
2. `grpo` averages the tokens of each sequence, then the sequences of the whole optimizer batch (`sequences`), not of
   this call: the gradient does not depend on how a batch was cut.
3. A truncated rollout that is masked keeps its place in that number, as in TRL.
4. `study` is what the study's code computed: one ratio for a sequence, of mean log-probs, and the KL of those means.

Axes: G rollouts of a prompt, T completion tokens.
"""

from __future__ import annotations

from typing import Literal

import mlx.core as mx

MAX_LOG_RATIO = 20.0
"""log-ratios are held within this before they are exponentiated"""


def policy_loss(
    logp_GT: mx.array,
    old_logp_GT: mx.array,
    advantages_G: mx.array,
    mask_GT: mx.array,
    *,
    kind: Literal["grpo", "study"],
    eps_low: float,
    eps_high: float,
    beta: float = 0.0,
    ref_logp_GT: mx.array | None = None,
    sequences: int | None = None,
) -> tuple[mx.array, dict[str, mx.array]]:
    """The loss (scalar, to be minimised) and its metrics (means over this call's unmasked tokens).

    The clipped surrogate of PPO with group advantages and a k3 KL penalty: GRPO, arXiv:2402.03300, eq. 3 and 4.
    `sequences` is the number of rollouts in the optimizer batch (default: those of this call). Raises ValueError for
    an unknown `kind` and for beta > 0 without
    `ref_logp_GT`.
    """
    if beta > 0 and ref_logp_GT is None:
        raise ValueError("beta > 0 needs ref_logp_GT: the reference's log-probs of the same tokens")
    length_G = mx.maximum(mask_GT.sum(axis=1), 1.0)
    if kind == "study":  # from here on one "token" a sequence
        seen_G = mx.minimum(mask_GT.sum(axis=1), 1.0)
        logp_GT, old_logp_GT = _mean(logp_GT, mask_GT, length_G), _mean(old_logp_GT, mask_GT, length_G)
        ref_logp_GT = None if ref_logp_GT is None else _mean(ref_logp_GT, mask_GT, length_G)
        mask_GT, length_G = seen_G[:, None], mx.ones_like(seen_G)
    elif kind != "grpo":
        raise ValueError(f"unknown loss {kind!r}: choose grpo or study")

    advantages_GT = advantages_G[:, None]
    ratio_GT = mx.exp(mx.clip(logp_GT - old_logp_GT, -MAX_LOG_RATIO, MAX_LOG_RATIO))
    clipped_GT = mx.clip(ratio_GT, 1 - eps_low, 1 + eps_high)
    objective_GT = mx.minimum(ratio_GT * advantages_GT, clipped_GT * advantages_GT)
    tokens = mx.maximum(mask_GT.sum(), 1.0)
    low_GT = (ratio_GT < 1 - eps_low) & (advantages_GT < 0)
    high_GT = (ratio_GT > 1 + eps_high) & (advantages_GT > 0)
    metrics = {
        "clip_ratio/low_mean": (low_GT * mask_GT).sum() / tokens,
        "clip_ratio/high_mean": (high_GT * mask_GT).sum() / tokens,
        "clip_ratio/region_mean": ((low_GT | high_GT) * mask_GT).sum() / tokens,
        "sampling/importance_sampling_ratio/mean": (ratio_GT * mask_GT).sum() / tokens,
        "sampling/sampling_logp_difference/mean": (mx.abs(logp_GT - old_logp_GT) * mask_GT).sum() / tokens,
    }
    if ref_logp_GT is not None and beta > 0:
        kl_GT = k3_kl(logp_GT, ref_logp_GT)
        objective_GT = objective_GT - beta * kl_GT
        metrics["kl"] = (kl_GT * mask_GT).sum() / tokens
    loss = -((objective_GT * mask_GT).sum(axis=1) / length_G).sum() / (sequences or len(mask_GT))
    return loss, metrics


def k3_kl(logp: mx.array, ref_logp: mx.array) -> mx.array:
    """The k3 estimate of KL(policy || reference) for each token, >= 0: exp(d) - d - 1 with d = ref - policy
    (arXiv:2402.03300, eq. 4)."""
    d = mx.clip(ref_logp - logp, -MAX_LOG_RATIO, MAX_LOG_RATIO)
    return mx.expm1(d) - d


def _mean(values_GT: mx.array, mask_GT: mx.array, length_G: mx.array) -> mx.array:
    return ((values_GT * mask_GT).sum(axis=1) / length_G)[:, None]
