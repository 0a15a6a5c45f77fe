"""Fast CPU kernels for the elementwise work that MLX's CPU backend does one element at a time.

On x86 and ARM Linux `exp`, and so softmax, logsumexp and SiLU, cost 25 to 35 ns for an element: more than the matrix
products around them. Here they are a range reduction and a polynomial, made of operations that MLX vectorises: the same
values (relative error under 4e-6, as MLX's own) at 4 ns where `mx.compile` finds a C++ compiler to fuse them, at 12 ns
elsewhere. `install` replaces a model's SwiGLU and attention with them; on a GPU nothing changes.

MLX multiplies by quantised weights without a BLAS too: from a few rows on it is 3 to 37 times faster to turn a matrix
back into float32 for each product. `install` makes quantised layers do that.
"""

import sys
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models import activations, base

LOG2_E = 1.4426950408889634
ROUND = 12582912.0
"""1.5 * 2**23: added to a float32 under 2**22 it leaves the nearest integer in the low mantissa bits"""
ROUND_BITS = 0x4B400000
MASKED = -1e9
"""far below any score, and small enough that the range reduction's remainder to the sixth power stays finite"""


def _exp(x: mx.array) -> mx.array:
    """e**x for finite float32 x; 0 where that is below 2**-126 and at most 2**128 (denormals cost 100 cycles each).

    exp2 on [-0.5, 0.5] by its Taylor polynomial, 2**n by way of the exponent bits.
    """
    t = x * LOG2_E
    shifted = t + ROUND
    r = t - (shifted - ROUND)
    p = r * 1.5403530e-4 + 1.3333558e-3
    p = p * r + 9.618129e-3
    p = p * r + 5.5504109e-2
    p = p * r + 2.4022651e-1
    p = p * r + 6.9314718e-1
    p = p * r + 1.0
    # integer clamps are vectorised
    n = mx.minimum(mx.maximum(shifted.view(mx.int32), ROUND_BITS - 127), ROUND_BITS + 127)
    return p * ((n << 23) + (127 << 23)).view(mx.float32)


exp = mx.compile(_exp)  # no broadcasting inside: a fused loop over unlike strides is three times slower


def _gate(gate: mx.array) -> mx.array:
    return 1.0 / (1.0 + _exp(-gate))


_swiglu_forward = mx.compile(lambda gate, x: gate * _gate(gate) * x)


def _swiglu_pullback(gate: mx.array, x: mx.array, g: mx.array) -> tuple[mx.array, mx.array]:
    s = _gate(gate)
    silu = gate * s
    return g * x * (s + silu * (1.0 - s)), g * silu


_swiglu_backward = mx.compile(_swiglu_pullback)


def _logsumexp_forward(x: mx.array) -> mx.array:
    top = mx.max(x, axis=-1, keepdims=True)
    return top + mx.log(mx.sum(exp(x - top), axis=-1, keepdims=True))


def _differentiable(forward: Any, backward: Any) -> Any:
    """`forward` with its own gradient: `backward` of the inputs, the cotangent and the output."""
    function = mx.custom_function(forward)
    function.vjp(backward)
    return function


_swiglu = _differentiable(lambda gate, x: _swiglu_forward(gate, x), lambda primals, g, _: _swiglu_backward(*primals, g))
logsumexp = _differentiable(_logsumexp_forward, lambda x, g, out: exp(x - out) * g)
"""log(sum(exp(x))) over the last axis, kept, float32"""


def logprob_and_entropy(logits_NV: mx.array, target_N: mx.array, *, entropy: bool = True) -> tuple[mx.array, mx.array]:
    """Return the log-probs (N,) of the targets under softmax of the logits, and its entropy (N,) in nats, which has no
    gradient (0 without `entropy`); float32.

    The gradient needs one array of the logits' size: softmax, taken from 1 at the target (in place).
    """
    row, target_N = mx.arange(len(target_N)), mx.stop_gradient(target_N)
    target = target_N[:, None]

    def forward(x: mx.array) -> tuple[mx.array, mx.array]:
        top = mx.max(x, axis=-1, keepdims=True)
        below = x - top
        e = exp(below)
        total = mx.sum(e, axis=-1, keepdims=True)
        log_total = mx.log(total)
        # a product of rows needs no third array of the logits' size
        spread = log_total - (e[:, None] @ below[..., None])[:, 0] / total if entropy else mx.zeros_like(total)
        return (mx.take_along_axis(below, target, -1) - log_total)[:, 0], spread[:, 0]

    def backward(x: mx.array, g: tuple[mx.array, ...], out: tuple[mx.array, ...]) -> mx.array:
        log_total = mx.take_along_axis(x, target, -1) - out[0][:, None]
        return (exp(x - log_total) * -g[0][:, None]).at[row, target_N].add(g[0])

    logp, spread = _differentiable(forward, backward)(logits_NV)
    return logp, spread


def swiglu(gate: mx.array, x: mx.array) -> mx.array:
    """SiLU(gate) * x, elementwise; mlx-lm's own where the type is not float32."""
    out: mx.array = _swiglu(gate, x) if gate.dtype == x.dtype == mx.float32 else activations.swiglu(gate, x)
    return out


def attention(
    queries: mx.array, keys: mx.array, values: mx.array, cache: Any, scale: float, mask: Any, **extras: Any
) -> mx.array:
    """Scaled dot-product attention with mlx-lm's calling convention: (B, H, L, D) queries, (B, H / n, S, D) keys and
    values.

    mlx-lm's own where the type is not float32, where one token is decoded (few scores, another shape at every token),
    and for extras (attention sinks).
    """
    batch, heads, length, width = queries.shape
    if length == 1 or queries.dtype != mx.float32 or extras:
        out: mx.array = base.scaled_dot_product_attention(queries, keys, values, cache, scale, mask, **extras)
        return out
    kv_heads, total = keys.shape[1], keys.shape[2]
    q = (queries * scale).reshape(batch, kv_heads, heads // kv_heads * length, width)
    if isinstance(mask, str):
        mask = mx.arange(total - length, total)[:, None] >= mx.arange(total)[None]
    if mask is not None and mask.dtype == mx.bool_:
        mask = mx.where(mask, 0.0, MASKED)

    def weights(q: mx.array, k: mx.array) -> mx.array:
        scores = q @ k.swapaxes(-1, -2)
        if mask is not None:
            scores = (scores.reshape(batch, heads, length, total) + mask).reshape(scores.shape)
        e = exp(scores - mx.max(scores, axis=-1, keepdims=True))
        return e / mx.sum(e, axis=-1, keepdims=True)

    def pull(primals: tuple[mx.array, mx.array], g: mx.array, out: mx.array) -> tuple[mx.array, mx.array]:
        by_score = out * (g - mx.sum(out * g, axis=-1, keepdims=True))  # the scores themselves are not kept
        return by_score @ primals[1], by_score.swapaxes(-1, -2) @ primals[0]

    return (_differentiable(weights, pull)(q, keys) @ values).reshape(batch, heads, length, width)


FEW_ROWS = 8
"""rows of a product with quantised weights below which MLX's own is as fast"""


class _FastQuantizedLinear(nn.QuantizedLinear):  # type: ignore[misc]  # MLX has no types
    def __call__(self, x: mx.array) -> mx.array:
        if _is_small(x):
            return super().__call__(x)
        y = _quantised_product(self, x)
        return y + self["bias"] if "bias" in self else y


class _FastQuantizedEmbedding(nn.QuantizedEmbedding):  # type: ignore[misc]  # MLX has no types
    def as_linear(self, x: mx.array) -> mx.array:
        return super().as_linear(x) if _is_small(x) else _quantised_product(self, x)


def _is_small(x: mx.array) -> bool:
    return bool(x.dtype != mx.float32 or x.size < FEW_ROWS * x.shape[-1])


def _quantised_product(layer: nn.Module, x: mx.array) -> mx.array:
    """Return x @ W.T for the layer's quantised W, which has no gradient. Backward makes W again and keeps only x."""

    def weight() -> mx.array:
        whole = mx.dequantize(layer.weight, layer.scales, layer.get("biases"), layer.group_size, layer.bits, layer.mode)
        return mx.stop_gradient(whole).astype(mx.float32)

    product = _differentiable(lambda x: x @ weight().T, lambda x, g, _: g @ weight())
    out: mx.array = product(x)
    return out


FAST_LAYERS = {nn.QuantizedLinear: _FastQuantizedLinear, nn.QuantizedEmbedding: _FastQuantizedEmbedding}


def install(model: nn.Module) -> None:
    """Replace mlx-lm's kernels by these in the modules that define the model and its parts, and the model's quantised
    layers by fast ones. On a GPU nothing changes."""
    if mx.default_device().type != mx.DeviceType.cpu:
        return
    for module in {sys.modules[type(part).__module__] for part in model.modules()}:
        for own, kernel in ((activations.swiglu, swiglu), (base.scaled_dot_product_attention, attention)):
            for name in [name for name, value in vars(module).items() if value is own]:
                setattr(module, name, kernel)
    for part in model.modules():
        part.__class__ = FAST_LAYERS.get(type(part), type(part))
