"""Estimates of the divergence from a reference, token by token (Schulman, http://joschu.net/blog/kl-approx.html)."""

from __future__ import annotations

import mlx.core as mx

MAX_LOG_RATIO = 20.0
"""log-ratios are held within this before they are exponentiated"""


def kl_estimate(logp: mx.array, ref_logp: mx.array, *, kind: str) -> mx.array:
    """An estimate of KL(policy || reference) for each sampled token, in nats, of the arguments' shape.

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
