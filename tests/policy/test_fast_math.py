"""The CPU kernels against MLX's own, forward and gradient, at ordinary and at extreme values."""

import sys
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from smolsum.policy import fast_math

# isort: split
import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models import activations, base

EXTREME = mx.array(
    [*([x] * 4 for x in (0, 1e4, -1e4)), [1e4, -1e4, 0, 3], [-1e4, 9999, 9998.5, -50], [88, -88, 87.3, -103.9]]
)
ORDINARY = mx.random.normal((6, 4), key=mx.random.key(1)) * 4
Pure = Callable[..., mx.array]


def vjp(function: Pure, inputs: list[mx.array], cotangent: mx.array) -> list[mx.array]:
    """The value and the gradients of all inputs."""
    values, gradients = mx.vjp(function, inputs, [cotangent])
    return [*values, *gradients]


def assert_same(got: list[mx.array], expected: list[mx.array], *, tolerance: float) -> None:
    """Equal to `tolerance` relative to each entry or to 1, and finite."""
    for g, e in zip(got, expected, strict=True):
        assert mx.isfinite(g).all().item()
        np.testing.assert_allclose(np.array(g), np.array(e), rtol=tolerance, atol=tolerance)


def test_exp_is_exact_to_a_few_units_in_the_last_place() -> None:
    """From -200 to 88 the relative error stays under 4e-6, and what is denormal is nearly 0; a probability of 1 has no
    rounding error. Very large arguments give something large and finite, very negative ones 0, NaN stays NaN."""
    x = np.linspace(-200.0, 88.0, 28801, dtype=np.float32)
    got, expected = np.array(fast_math.exp(mx.array(x))).astype(np.float64), np.exp(x.astype(np.float64))
    np.testing.assert_allclose(got, expected, rtol=4e-6, atol=1.2e-38)
    large, *rest = fast_math.exp(mx.array([1e4, -1e6, 0.0, -0.0, float("nan")])).tolist()
    assert 1e38 < large < 4e38
    np.testing.assert_array_equal(rest, [0.0, 1.0, 1.0, np.nan])


@pytest.mark.parametrize("gate", [ORDINARY, EXTREME], ids=["ordinary", "extreme"])
def test_swiglu_is_silu_times_x(gate: mx.array) -> None:
    """Value and both gradients as in MLX's sigmoid."""
    inputs = [gate, ORDINARY[::-1] + 1.0]
    got = vjp(fast_math.swiglu, inputs, ORDINARY)
    assert_same(got, vjp(lambda g, x: g * mx.sigmoid(g) * x, inputs, ORDINARY), tolerance=2e-5)


# float32 has three decimals at 1e4, and the gradient is made of the value
@pytest.mark.parametrize(("x", "tolerance"), [(ORDINARY, 1e-5), (EXTREME, 1e-3)], ids=["ordinary", "extreme"])
def test_logsumexp_is_mlx_s(x: mx.array, tolerance: float) -> None:
    """Value and gradient."""
    cotangent = ORDINARY[:, :1]
    got = vjp(fast_math.logsumexp, [x], cotangent)
    assert_same(got, vjp(lambda a: mx.logsumexp(a, axis=-1, keepdims=True), [x], cotangent), tolerance=tolerance)


def masks(length: int, total: int) -> dict[str, Any]:
    """What mlx-lm passes as a mask, in all its forms, for `length` queries on `total` keys."""
    causal = mx.arange(total - length, total)[:, None] >= mx.arange(total)[None]
    padded = mx.stack([causal, causal & (mx.arange(total) >= 2)])[:, None]
    return {"none": None, "causal": "causal", "bool": causal, "padded": padded, "added": mx.where(causal, 0.0, -1e9)}


@pytest.mark.parametrize("scale", [0.35, 300.0], ids=["ordinary", "large-scores"])
@pytest.mark.parametrize(("length", "total"), [(5, 5), (3, 7), (1, 6)])
@pytest.mark.parametrize("kind", ["none", "causal", "bool", "padded", "added"])
def test_attention_is_mlx_s(kind: str, length: int, total: int, scale: float) -> None:
    """Grouped heads, every kind of mask, with and without a prefix: value and all gradients."""
    keys = [mx.random.key(n) for n in range(4)]
    q, g = (mx.random.normal((2, 4, length, 8), key=key) for key in keys[:2])
    k, v = (mx.random.normal((2, 2, total, 8), key=key) for key in keys[2:])
    mask = masks(length, total)[kind]
    if kind == "padded" and length == total:
        q, k, v, g, mask = (a[:1] for a in (q, k, v, g, mask))  # the second would have rows that see nothing

    def plain(q: mx.array, k: mx.array, v: mx.array) -> mx.array:
        return mx.fast.scaled_dot_product_attention(q, k, v, scale=scale, mask=mask)

    got = vjp(lambda q, k, v: fast_math.attention(q, k, v, cache=None, scale=scale, mask=mask), [q, k, v], g)
    # differences of large scores lose digits
    assert_same(got, vjp(plain, [q, k, v], g), tolerance=1e-5 if scale < 1 else 2e-2)


def test_attention_never_looks_at_what_is_masked() -> None:
    """However large a masked key's score is, it changes nothing."""
    q, k, v = (mx.random.normal((1, 1, 4, 8), key=mx.random.key(n)) for n in range(3))
    loud = mx.concatenate([k[..., :3, :], q[..., 2:3, :] * 1e5], axis=2)  # the last key, seen by the last query only
    got, expected = (
        fast_math.attention(q, key, v, cache=None, scale=1.0, mask="causal")[..., :3, :] for key in (loud, k)
    )
    np.testing.assert_allclose(np.array(got), np.array(expected), rtol=1e-6)


def test_attention_of_a_row_that_sees_nothing_is_finite() -> None:
    """Padding in front of a prompt gives no NaN, forward or backward."""
    q, k, v, g = (mx.random.normal((1, 2, 3, 8), key=mx.random.key(n)) for n in range(4))
    mask = mx.array([[False, False, False], [False, True, False], [False, True, True]])
    for array in vjp(lambda q, k, v: fast_math.attention(q, k, v, cache=None, scale=1.0, mask=mask), [q, k, v], g):
        assert mx.isfinite(array).all().item()


@pytest.mark.parametrize("dtype", [mx.bfloat16, mx.float16])
def test_half_precision_is_left_to_mlx(dtype: mx.Dtype) -> None:
    """The kernels are for float32: another type has the values and the type of mlx-lm's own functions."""
    x = ORDINARY.astype(dtype)
    q = mx.random.normal((1, 2, 3, 8), key=mx.random.key(5)).astype(dtype)
    pairs = [
        (fast_math.swiglu(x, x), activations.swiglu(x, x)),
        (fast_math.attention(q, q, q, cache=None, scale=1.0, mask="causal"),
         mx.fast.scaled_dot_product_attention(q, q, q, scale=1.0, mask="causal")),
    ]  # fmt: skip
    for got, expected in pairs:
        assert got.dtype == dtype
        assert mx.array_equal(got, expected).item()


def test_attention_sinks_are_not_forgotten() -> None:
    """A model with sinks (gpt-oss) keeps them."""
    q = mx.random.normal((1, 2, 3, 8), key=mx.random.key(6))
    sinks = mx.array([3.0, -1.0])
    got = fast_math.attention(q, q, q, cache=None, scale=1.0, mask="causal", sinks=sinks)
    expected = mx.fast.scaled_dot_product_attention(q, q, q, scale=1.0, mask="causal", sinks=sinks)
    np.testing.assert_allclose(np.array(got), np.array(expected), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("x", [ORDINARY, ORDINARY * 10], ids=["ordinary", "peaked"])
def test_log_prob_of_a_token_and_entropy(x: mx.array) -> None:
    """Both values by the book; the gradient is that of the log-prob alone, with or without the entropy."""
    target = mx.array([0, 3, 2, 2, 1, 0])

    def book(x: mx.array) -> tuple[mx.array, mx.array]:
        logp = x - mx.logsumexp(x, axis=-1, keepdims=True)
        entropy = -mx.sum(mx.exp(logp) * logp, axis=-1)
        return mx.take_along_axis(logp, target[:, None], -1)[:, 0], mx.stop_gradient(entropy)

    def own(x: mx.array) -> tuple[mx.array, mx.array]:
        return fast_math.logprob_and_entropy(x, target)

    cotangents = [ORDINARY[:, 0], ORDINARY[:, 1]]
    for got, expected in zip(mx.vjp(own, [x], cotangents), mx.vjp(book, [x], cotangents), strict=True):
        assert_same(got, expected, tolerance=1e-5)
    logp, nothing = fast_math.logprob_and_entropy(x, target, entropy=False)
    assert_same([logp, nothing], [book(x)[0], mx.zeros(6)], tolerance=1e-5)


def test_install_replaces_mlx_lm_s_functions_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model's module that defines a function of the same name keeps its own."""

    def swiglu(a: mx.array, b: mx.array) -> mx.array:
        return a + b

    module = types.ModuleType("family")
    module.swiglu, module.scaled_dot_product_attention = swiglu, base.scaled_dot_product_attention
    monkeypatch.setitem(sys.modules, "family", module)
    fast_math.install(type("Model", (nn.Module,), {"__module__": "family"})())
    assert module.swiglu is swiglu
    assert module.scaled_dot_product_attention is fast_math.attention


@pytest.mark.parametrize("bits", [4, 8])
def test_quantised_layers_multiply_as_mlx_does(bits: int) -> None:
    """Products and gradients of a linear layer with a bias and of a tied head, for few and for many rows."""
    linear, embedding = nn.Linear(128, 96), nn.Embedding(80, 128)
    model = nn.Sequential(linear, embedding)
    nn.quantize(model, 64, bits)
    linear, embedding = model.layers

    def both(x: mx.array) -> mx.array:
        return mx.concatenate([linear(x), embedding.as_linear(x)], axis=-1)

    for rows in (1, 3, 40):
        x = mx.random.normal((2, rows, 128))
        slow = mx.value_and_grad(lambda x: (both(x) ** 2).sum())(x), both(x)
        mx.eval(slow)
        fast_math.install(model)
        assert type(linear) is not nn.QuantizedLinear
        fast = mx.value_and_grad(lambda x: (both(x) ** 2).sum())(x), both(x)
        np.testing.assert_allclose(np.array(fast[1]), np.array(slow[1]), rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(np.array(fast[0][1]), np.array(slow[0][1]), rtol=1e-3, atol=1e-2)
        linear.__class__, embedding.__class__ = nn.QuantizedLinear, nn.QuantizedEmbedding
