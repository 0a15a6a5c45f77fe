"""The optimizer's step in C: MLX's results, whatever layout, threads and vectors, and no array of others changed."""

import ctypes
import math
import platform
from collections.abc import Callable, Mapping
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx.utils import tree_flatten, tree_map
from support.models import NEEDS_C, adam_by_the_paper, adapted, build

from smolsum.config.sections import OptimizerConfig
from smolsum.grpo.optimizer import Optimizer
from smolsum.policy.cpu import adam, native
from smolsum.policy.load import snapshot

# isort: split
import mlx.core as mx
import mlx.nn as nn

pytestmark = NEEDS_C

SHAPES = [(3, 5), (1,), (7,), (17, 1031), (300, 40), (4097,), (5, 3, 1), (2, 3, 4), (33, 2, 16)]
"""smaller and larger than a block of values, than one of rows, than one of columns, and not multiples of any"""
TURNED = pytest.mark.parametrize("turned", [False, True], ids=["in order", "turned"])
Arrays = dict[str, np.ndarray[Any, Any]]


class Model(nn.Module):
    """A model that is some arrays."""

    def __init__(self, shapes: Any = SHAPES, dtype: mx.Dtype = mx.float32, seed: int = 0) -> None:
        super().__init__()
        draw = np.random.default_rng(seed)
        for n, shape in enumerate(shapes):
            setattr(self, f"w{n}", mx.array(draw.normal(0, 0.02, shape).astype(np.float32)).astype(dtype))


def gradient(model: nn.Module, seed: int, size: float = 1e-3, *, turned: bool = False) -> dict[str, Any]:
    """A gradient tree; `turned`: laid out as MLX computes those of linear layers, the last two axes swapped."""
    draw = np.random.default_rng(seed)

    def one(p: mx.array) -> mx.array:
        values = mx.array(draw.normal(0, size, p.shape).astype(np.float32)).astype(p.dtype)
        return mx.contiguous(values.swapaxes(0, 1)).swapaxes(0, 1) if turned and p.ndim > 1 else values

    return dict(tree_map(one, model.trainable_parameters()))


def values(arrays: Mapping[str, mx.array]) -> Arrays:
    return {name: np.array(array.astype(mx.float32)) for name, array in arrays.items()}


def state(model: nn.Module, optimizer: Optimizer) -> Arrays:
    parts = {"m": optimizer.m, "v": optimizer.v, "masters": optimizer.masters, "model": model.parameters()}
    return values(dict(tree_flatten(parts)))


def trained(
    config: OptimizerConfig, steps: int = 4, *, make: Callable[[], nn.Module] = Model, **named: Any
) -> tuple[Arrays, list[dict[str, float]]]:
    """State and metrics after some steps, each with its own gradient and rate."""
    model = make()
    optimizer = Optimizer(model, config)
    metrics = [optimizer.step(model, gradient(model, k, **named), 1e-3 / (k + 1)) for k in range(steps)]
    return state(model, optimizer), metrics


def by_mlx(monkeypatch: pytest.MonkeyPatch, *args: Any, **named: Any) -> Any:
    """What `trained` returns without the library."""
    with monkeypatch.context() as patch:
        patch.setattr(native, "_library", None)
        return trained(*args, **named)


def assert_close(ours: Any, theirs: Any, *, half: bool = False, rounding: float = 3e-7) -> None:
    """Arrays within `rounding` of their largest value, metrics within what MLX sums in float32; with `half` one served
    weight in a thousand may be its neighbour."""
    assert ours[0].keys() == theirs[0].keys()
    for name, expected in theirs[0].items():
        got, scale = ours[0][name], np.abs(expected).max(initial=0)
        if half and name.startswith("model"):
            assert np.mean(got != expected) <= 1e-3
            np.testing.assert_allclose(got, expected, atol=scale / 64, err_msg=name)
        else:
            np.testing.assert_allclose(got, expected, rtol=1e-6, atol=rounding * scale, err_msg=name)
    for mine, one in zip(ours[1], theirs[1], strict=True):
        assert mine == pytest.approx(one, rel=1e-4, abs=2e-4 if half else 1e-6)


def assert_same(ours: Any, theirs: Any) -> None:
    """To the bit."""
    assert ours[1] == theirs[1]
    for name, expected in theirs[0].items():
        np.testing.assert_array_equal(ours[0][name], expected, err_msg=name)


@pytest.fixture(autouse=True)
def _in_use() -> None:
    assert native.library() is not None


@pytest.mark.parametrize(
    ("dtype", "name", "corrected", "limit"),
    [
        *product([mx.float32], ["adam", "adamw"], [True, False], [1e9, 1e-3]),
        *product([mx.bfloat16], ["adam", "adamw"], [True], [1e9]),
    ],
)
@TURNED
def test_steps_are_those_of_mlx(
    dtype: mx.Dtype, name: str, corrected: bool, limit: float, turned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights, moments and metrics, with and without each option; bfloat16 weights are their masters rounded. On the
    processors where MLX's compiler fuses no products with sums, weights and moments are the same to the bit, unless
    gradients are clipped by a norm that MLX sums in float32."""
    config = OptimizerConfig(name=name, bias_correction=corrected, max_grad_norm=limit, weight_decay=0.1, eps=1e-6)
    made: Any = {"make": lambda: Model(dtype=dtype), "turned": turned}
    ours, theirs = trained(config, **made), by_mlx(monkeypatch, config, **made)
    assert_close(ours, theirs, half=dtype == mx.bfloat16, rounding=3e-7 if limit > 1 else 3e-6)
    if limit > 1 and platform.machine() == "x86_64":
        assert_same((ours[0], []), (theirs[0], []))
    for n in range(len(SHAPES)):
        rounded = np.array(mx.array(ours[0][f"masters.w{n}"]).astype(dtype).astype(mx.float32))
        np.testing.assert_array_equal(ours[0][f"model.w{n}"], rounded)


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
@TURNED
def test_the_number_of_threads_makes_no_difference(
    dtype: mx.Dtype, turned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the bit: weights, state, norm and all other metrics."""
    shapes = [(257, 301), (90_001,), (3, 4)]
    found = []
    for threads in (1, 2, 5):
        monkeypatch.setattr(native, "threads", lambda count=threads: count)
        found.append(trained(OptimizerConfig(), make=lambda: Model(shapes, dtype), turned=turned))
    for other in found[1:]:
        assert_same(other, found[0])


@pytest.mark.slow
def test_the_width_of_vectors_makes_no_difference(older_library: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the bit: ranks of unlike machines stay together."""
    config = OptimizerConfig(weight_decay=0.1)
    expected = [trained(config, turned=turned) for turned in (False, True)]
    monkeypatch.setattr(native, "_library", older_library)
    for turned, one in zip((False, True), expected, strict=True):
        assert_same(trained(config, turned=turned), one)


@given(
    st.lists(st.lists(st.integers(1, 40), min_size=0, max_size=3), min_size=1, max_size=4),
    st.booleans(),
    st.integers(0, 99),
)
@settings(max_examples=40, deadline=None)
def test_any_shapes(shapes: list[list[int]], turned: bool, seed: int) -> None:
    """Also a single number: two steps as in the papers, computed in float64."""
    model = Model(shapes, seed=seed)
    config = OptimizerConfig(weight_decay=0.1, max_grad_norm=1e9)
    optimizer, start, given = Optimizer(model, config), values(model.parameters()), []
    for t in (1, 2):
        tree = gradient(model, seed + t, turned=turned)
        given.append(values(tree))
        norm = math.sqrt(sum(float(np.sum(g.astype(np.float64) ** 2)) for g in given[-1].values()))
        assert optimizer.step(model, tree, 1e-2)["grad_norm"] == pytest.approx(norm, rel=1e-6)
    for name, array in values(model.parameters()).items():
        expected = adam_by_the_paper(start[name], [tree[name] for tree in given], [1e-2, 1e-2], config)
        assert array.shape == expected.shape
        np.testing.assert_allclose(array, expected, rtol=1e-5, atol=1e-6)


def test_the_norm_of_many_values() -> None:
    """Ten million equal ones, whose sum in float32 would stop growing."""
    model = Model([(10_000_000,)])
    tree = {"w0": mx.full((10_000_000,), 1e-3)}
    norm = Optimizer(model, OptimizerConfig()).step(model, tree, 1e-6)["grad_norm"]
    assert norm == pytest.approx(1e-3 * math.sqrt(10_000_000), rel=5e-6)


def test_arrays_of_others_stay_as_they_are() -> None:
    """A reference (`snapshot`), the model's earlier weights and views of them, and gradients that the caller keeps."""
    model = Model()
    optimizer = Optimizer(model, OptimizerConfig(weight_decay=0.1))
    reference, first = snapshot(model), values(model.parameters())
    for k in range(3):
        weights, tree = dict(model.parameters()), gradient(model, k)
        views = {name: array.reshape(-1)[::-1] for name, array in weights.items()}
        kept = [values(arrays) for arrays in (weights, tree, views)]
        held = dict(tree)
        optimizer.step(model, tree, 1e-2)
        for arrays, expected in zip((weights, held, views), kept, strict=True):
            for name, array in values(arrays).items():
                np.testing.assert_array_equal(array, expected[name])
    for name, array in values(reference).items():
        np.testing.assert_array_equal(array, first[name])
        assert not np.array_equal(array, values(model.parameters())[name])


def test_float32_weights_are_their_own_masters() -> None:
    """No second copy, also after a load."""
    model = Model()
    optimizer = Optimizer(model, OptimizerConfig())
    for _ in range(2):
        optimizer.step(model, gradient(model, 0), 1e-3)
        for name, array in model.parameters().items():
            assert np.asarray(array).ctypes.data == np.asarray(optimizer.masters[name]).ctypes.data


@pytest.mark.parametrize("family", ["qwen2", "lfm2"])
@pytest.mark.parametrize("with_adapters", [False, True], ids=["whole", "adapter"])
def test_models(family: str, with_adapters: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole ones, with weights that loading turned (LFM2's convolutions), and adapters over frozen weights."""

    def make() -> nn.Module:
        model = build(family)
        if with_adapters:
            return adapted(model, layers=2)
        turned = [(n, mx.contiguous(p.swapaxes(0, -1)).swapaxes(0, -1)) for n, p in tree_flatten(model.parameters())]
        model.load_weights(turned)
        return model

    config = OptimizerConfig()
    assert_close(trained(config, make=make, turned=True), by_mlx(monkeypatch, config, make=make, turned=True))


# A gradient of zero


def zeros(model: nn.Module) -> dict[str, Any]:
    """As `gradients` returns them where there is nothing to learn from."""
    return dict(tree_map(lambda p: mx.broadcast_to(mx.zeros((), p.dtype), p.shape), model.trainable_parameters()))


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_a_zero_gradient_is_a_step_of_adam(dtype: mx.Dtype, decay: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the first gradient and after it, given as broadcast zeros or as an array of them."""

    def run(zero: Callable[[nn.Module], dict[str, Any]]) -> Any:
        model = Model(dtype=dtype)
        optimizer = Optimizer(model, OptimizerConfig(weight_decay=decay))
        trees = [zero(model), zero(model), gradient(model, 0), zero(model), gradient(model, 1), zero(model)]
        metrics = [optimizer.step(model, tree, 1e-3) for tree in trees]
        assert optimizer.steps == len(trees)
        return state(model, optimizer), metrics

    ours = run(zeros)
    assert_same(ours, run(lambda model: dict(tree_map(mx.zeros_like, model.parameters()))))
    monkeypatch.setattr(native, "_library", None)
    assert_close(ours, run(zeros), half=dtype == mx.bfloat16)


def test_a_zero_gradient_before_the_first_other_one_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """No pass over the weights: they stay the same arrays. With weight decay, or after a gradient, there is one."""
    calls = []
    monkeypatch.setattr(adam, "step", lambda *args, own=adam.step: calls.append(1) or own(*args))
    model = Model()
    optimizer = Optimizer(model, OptimizerConfig())
    before = dict(model.parameters())
    metrics = optimizer.step(model, zeros(model), 1e-3)
    assert metrics == {
        "grad_norm": 0.0, "learning_rate": 1e-3,
        "update/skipped": 0.0, "update/visible_frac": 0.0, "update/lost_norm_frac": 0.0,
    }  # fmt: skip
    assert all(model.parameters()[name] is array for name, array in before.items())
    assert (calls, optimizer.steps) == ([], 1)
    Optimizer(model, OptimizerConfig(weight_decay=0.1)).step(model, zeros(model), 1e-3)
    assert len(calls) == 1
    optimizer = Optimizer(model, OptimizerConfig())
    for tree in (gradient(model, 0), zeros(model)):
        optimizer.step(model, tree, 1e-3)
    assert len(calls) == 3


def test_weights_that_were_changed_meanwhile_are_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Masters are what counts, in a step without a gradient too."""

    def run() -> Any:
        model = Model()
        optimizer = Optimizer(model, OptimizerConfig())
        model.update(tree_map(lambda p: p + 1.0, model.parameters()))
        return state(model, optimizer), [optimizer.step(model, zeros(model), 1e-3)]

    ours = run()
    monkeypatch.setattr(native, "_library", None)
    assert_same(ours, run())


# What is left to MLX


@pytest.mark.parametrize(
    ("precision", "dtype", "of_gradient"),
    [
        ("masters", mx.float16, mx.float16),
        ("masters", mx.bfloat16, mx.float32),
        ("stochastic", mx.bfloat16, mx.bfloat16),
        ("study", mx.float32, mx.float32),
        ("study", mx.bfloat16, mx.bfloat16),
    ],
)
def test_other_types_are_left_to_mlx(
    precision: Any, dtype: mx.Dtype, of_gradient: mx.Dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Model(dtype=dtype)
    monkeypatch.setattr(adam, "step", None)
    optimizer = Optimizer(model, OptimizerConfig(precision=precision))
    tree = tree_map(lambda g: g.astype(of_gradient), gradient(model, 0))
    assert optimizer.step(model, tree, 1e-2)["update/visible_frac"] > 0
