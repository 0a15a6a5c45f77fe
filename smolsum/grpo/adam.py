"""One step of Adam for one array, with what it did to the weights: pure array functions."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import mlx.core as mx

from smolsum.grpo.rounding import round_stochastically
from smolsum.objective import OptimizerConfig

CLIP_FLOOR = 1e-6
"""added to a gradient's norm before it divides, as MLX does"""


class Scalars(NamedTuple):
    """What all arrays of a step share, each a 0-dimensional array."""

    clip: mx.array
    """what gradients are multiplied by, so that their global norm stays within its limit"""
    rate: mx.array
    first: mx.array
    """rate / (1 - beta1**t), the step size with the first moment's bias corrected; the rate without correction"""
    second: mx.array
    """1 / sqrt(1 - beta2**t), what the root of the second moment is multiplied by"""


def scalars(config: OptimizerConfig, norm: mx.array, rate: float, count: int, kind: mx.Dtype) -> Scalars:
    """The scalars of step `count` (from 1), from the global norm of its gradient; `kind` is the moments' type.

    Of their own, not in the fused pass, which would compute each power anew for every element.
    """
    clip = mx.minimum(config.max_grad_norm / (norm + CLIP_FLOOR), 1.0)
    exact = mx.array(rate, mx.float32)
    first, second = exact.astype(kind), mx.array(1.0, kind)
    if config.bias_correction:
        t = mx.array(count, mx.uint64)
        first = (first / (1 - config.beta1**t)).astype(kind)
        second = mx.rsqrt(1 - config.beta2**t).astype(kind)
    return Scalars(clip, exact, first, second)


class Stepped(NamedTuple):
    """An array after the step."""

    new: mx.array
    """the model's weights, in their type"""
    weights: mx.array
    """the masters, in float32 where there are any"""
    m: mx.array
    v: mx.array
    changed: mx.array
    """how many of the model's weights are another value now"""
    shown: mx.array
    """<u, d>: u the update before any rounding, d the change of the model's weights"""
    intended: mx.array
    """<u, u>"""


def compiled_step(config: OptimizerConfig) -> Callable[..., Stepped]:
    """`step` under these settings, fused into one pass over the arrays where MLX can compile."""
    run = mx.compile(partial(_step, config))
    return lambda *arrays: Stepped(*run(*arrays))


def _step(
    config: OptimizerConfig,
    old: mx.array,
    weights: mx.array,
    m: mx.array,
    v: mx.array,
    gradient: mx.array,
    scalars: Scalars,
    *noise: mx.array,
) -> tuple[mx.array, ...]:
    """Adam (arXiv:1412.6980, algorithm 1) or AdamW (arXiv:1711.05101, algorithm 2).

    `old` are the model's weights, `weights` the masters: the same array where there are none. All is computed in
    `gradient`'s type. With `noise` (uint32, uniform) weights and first moment are rounded to bfloat16 at random.
    """
    kind = gradient.dtype
    rate = scalars.rate.astype(kind)
    gradient = (gradient * scalars.clip).astype(kind)
    m = config.beta1 * m.astype(kind) + (1 - config.beta1) * gradient
    v = config.beta2 * v + (1 - config.beta2) * mx.square(gradient)
    move = scalars.first * m / (mx.sqrt(v) * scalars.second + config.eps)
    decay = config.weight_decay if config.name == "adamw" else 0.0
    own = weights.astype(kind)
    meant = -(move.astype(mx.float32) + (scalars.rate * decay) * own.astype(mx.float32))
    own = own * (1 - rate * decay) - move
    new = own
    if noise:
        (bits,) = noise
        m, new = round_stochastically(m, bits >> 16), round_stochastically(own, bits & 0xFFFF)
    new = new.astype(old.dtype)
    seen = new.astype(mx.float32) - old.astype(mx.float32)
    return new, own, m, v, mx.sum(new != old), _sum(meant * seen), _sum(meant * meant)


def _sum(array: mx.array) -> mx.array:
    """Row by row first, which MLX's CPU backend does three times as fast."""
    return mx.sum(mx.sum(array, axis=0))
