"""Weights that correct for tokens drawn from another policy than the one the ratio compares with.

`mu` is the sampler's log-prob, `prox` the trainer's own of the same token just before the update. They differ by
staleness and by kernels. Axes: G rollouts of a prompt, T completion tokens.
"""

from __future__ import annotations

import mlx.core as mx

from smolsum.grpo.kl import MAX_LOG_RATIO


def importance_weights(
    prox_GT: mx.array, mu_GT: mx.array, mask_GT: mx.array, *, kind: str, cap: float, floor: float
) -> mx.array:
    """prox / mu without gradient: float32 (G, T) for a token kind, (G, 1), the product of a row, for a sequence kind.

    `token_truncate`, `sequence_truncate`: at most `cap` (truncated importance sampling,
    fengyao.notion.site/off-policy-rl); `token_mask`, `sequence_mask`: 0 outside [floor, cap], so that what lies there
    teaches nothing (IcePop, arXiv:2510.18855); `none`: as they are, a token each. Raises ValueError for another `kind`
    and for a floor that is not below the cap.
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

    Dropped is what is punished and has grown unlikely since it was drawn: a negative advantage, and mu - policy above
    `delta` in the mean over the tokens (DeepSeek-V3.2, arXiv:2512.02556, eq. 9).
    """
    drift_G = (mx.stop_gradient(mu_GT - logp_GT) * mask_GT).sum(axis=1) / mx.maximum(mask_GT.sum(axis=1), 1.0)
    return ((advantages_G >= 0) | (drift_G <= delta)).astype(mx.float32)[:, None]
