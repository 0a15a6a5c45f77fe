"""Adam on master weights against a plain float64 computation, and state that survives a save."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.models import adam_by_the_paper, assert_same_arrays, build

from smolsum.config.sections import OptimizerConfig
from smolsum.grpo import optimizer as optimizer_module
from smolsum.grpo.optimizer import Optimizer, random_bits, round_stochastically
from smolsum.policy.cpu import native
from smolsum.policy.cpu.streams import streams

# isort: split
import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim
from mlx.utils import tree_map

START = np.array([[0.5, -1.0, 2.0], [0.1, 0.0, -0.3]])
GRADIENTS = [
    np.array([[0.1, -0.2, 0.3], [1e-3, 0.0, -0.4]]),
    np.array([[-0.3, -0.1, 0.2], [2e-3, 0.0, 0.1]]),
    np.array([[0.2, 0.5, 0.1], [-5e-3, 0.0, 0.3]]),
]
RATES = [1e-2, 5e-3, 2e-3]


LIBRARY = pytest.mark.parametrize("library", [True, False], ids=["in C", "by MLX"])


class Weights(nn.Module):
    """A model that is one matrix."""

    def __init__(self, start: Any, dtype: mx.Dtype = mx.float32) -> None:
        super().__init__()
        self.w = mx.array(start).astype(dtype)


def tree(gradient: Any, dtype: mx.Dtype = mx.float32) -> dict[str, mx.array]:
    return {"w": mx.array(gradient).astype(dtype)}


@pytest.mark.parametrize("corrected", [True, False])
@pytest.mark.parametrize("name", ["adam", "adamw"])
@pytest.mark.parametrize("steps", [1, 3])
def test_steps_follow_the_paper(name: str, steps: int, corrected: bool) -> None:
    """Weights after one step and after three, with its own rate for each."""
    config = OptimizerConfig(
        name=name, beta2=0.99, weight_decay=0.1, eps=1e-6, bias_correction=corrected, max_grad_norm=1e9
    )
    model = Weights(START)
    optimizer = Optimizer(model, config)
    for gradient, rate in zip(GRADIENTS[:steps], RATES, strict=False):
        metrics = optimizer.step(model, tree(gradient), rate)
        assert metrics["learning_rate"] == rate
        assert metrics["grad_norm"] == pytest.approx(np.linalg.norm(gradient), rel=1e-6)
    expected = adam_by_the_paper(START, GRADIENTS[:steps], RATES[:steps], config)
    np.testing.assert_allclose(np.array(model.w), expected, rtol=1e-5, atol=1e-7)


def test_a_large_gradient_is_clipped_and_told_as_it_was() -> None:
    """The update is that of the gradient scaled to the norm allowed; the metric is the norm before."""
    clipped, scaled = Weights(START), Weights(START)
    # without bias correction and with a large eps the size of a gradient shows in the update
    config = OptimizerConfig(max_grad_norm=0.05, bias_correction=False, eps=1.0)
    norm = float(np.linalg.norm(GRADIENTS[0]))
    metrics = Optimizer(clipped, config).step(clipped, tree(GRADIENTS[0]), 1.0)
    assert metrics["grad_norm"] == pytest.approx(norm, rel=1e-6)
    Optimizer(scaled, config).step(scaled, tree(GRADIENTS[0] * 0.05 / norm * 0.9999), 1.0)
    np.testing.assert_allclose(np.array(clipped.w), np.array(scaled.w), rtol=1e-5)
    assert np.abs(np.array(clipped.w) - START).max() > 1e-3


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 3e19])
@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
@pytest.mark.parametrize("place", [0, 4096])
@LIBRARY
def test_a_gradient_that_is_not_finite_changes_nothing(
    bad: float, dtype: mx.Dtype, place: int, library: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights and moments stay as they were, the step says so, and the next one goes on. In a whole vector or at
    its end, and also where only its square is too large for float32."""
    if not library:
        monkeypatch.setattr(native, "_library", None)
    start = np.linspace(-1, 1, 4097)
    runs = [(model, Optimizer(model, OptimizerConfig())) for model in (Weights(start, dtype), Weights(start, dtype))]
    (model, optimizer), (other, undisturbed) = runs
    for one, its in runs:
        its.step(one, tree(start, dtype), 1e-2)
    metrics = optimizer.step(model, tree(np.where(np.arange(4097) == place, bad, start), dtype), 1e-2)
    assert (metrics["update/skipped"], metrics["update/visible_frac"], metrics["update/lost_norm_frac"]) == (1.0, 0, 0)
    for _ in range(2):
        assert optimizer.steps == undisturbed.steps
        for kept, expected in ((optimizer.m, undisturbed.m), (optimizer.v, undisturbed.v), (model, other)):
            assert_same_arrays(kept, expected)
        for one, its in runs:
            assert its.step(one, tree(-start, dtype), 1e-2)["update/skipped"] == 0.0


def test_masters_keep_what_bfloat16_would_lose() -> None:
    """Steps of 1e-4 on 1.5 are under bfloat16's rounding: a hundred of them add up in the masters, and only there."""
    seen = {}
    for precision in ("masters", "study"):
        model = Weights(np.full((2, 3), 1.5), mx.bfloat16)
        optimizer = Optimizer(model, OptimizerConfig(precision=precision))
        steps = [optimizer.step(model, tree(np.ones((2, 3)), mx.bfloat16), 1e-4) for _ in range(100)]
        visible = [step["update/visible_frac"] for step in steps]
        assert visible[0] == 0.0
        assert model.w.dtype == mx.bfloat16
        seen[precision] = sum(visible), model.w[0, 0].item(), optimizer
    assert seen["study"][:2] == (0.0, 1.5)
    assert seen["masters"][0] >= 1.0
    assert seen["masters"][1] == pytest.approx(1.49, abs=0.004)
    assert seen["masters"][2].masters["w"][0, 0].item() == pytest.approx(1.49, abs=1e-5)


@pytest.mark.parametrize(
    ("precision", "types", "decays"),
    [
        ("masters", (mx.float32, mx.float32), True),
        ("stochastic", (mx.bfloat16, mx.float32), True),
        ("study", (mx.bfloat16, mx.bfloat16), False),
    ],
)
def test_each_precision_keeps_its_types(precision: str, types: tuple[mx.Dtype, mx.Dtype], decays: bool) -> None:
    """Moments as promised, and a float32 copy of the weights only with masters. After one gradient and five hundred of
    zero the second moment is 0.999^500 of what it was; in bfloat16 it never falls."""
    model = Weights(START, mx.bfloat16)
    optimizer = Optimizer(model, OptimizerConfig(precision=precision))
    optimizer.step(model, tree(np.ones((2, 3)), mx.bfloat16), 1e-6)
    assert (optimizer.m["w"].dtype, optimizer.v["w"].dtype, model.w.dtype) == (*types, mx.bfloat16)
    assert [a.dtype for a in optimizer.masters.values()] == [mx.float32] * (precision == "masters")
    before = optimizer.v["w"][0, 0].item()
    for _ in range(500):
        optimizer.step(model, tree(np.zeros((2, 3)), mx.bfloat16), 1e-6)
    assert optimizer.v["w"][0, 0].item() == pytest.approx(before * (0.999**500 if decays else 1.0), rel=1e-4)


@pytest.mark.parametrize(
    ("precision", "realised", "lost"),
    [("study", (0.0, 0.1), (0.9, 1.0)), ("stochastic", (0.97, 1.03), (-0.03, 0.03)), ("masters", (0.97, 1.03), None)],
)
def test_small_steps_on_small_weights(precision: str, realised: tuple[float, float], lost: Any) -> None:
    """Two hundred steps of 2e-6 on N(0, 0.02) bfloat16 weights: nearest rounding shows some 4 % of the way, masters and
    stochastic rounding all of it; `lost_norm_frac` says so."""
    mx.random.seed(3)
    model = Weights(mx.random.normal((200, 100)) * 0.02, mx.bfloat16)
    start = model.w.astype(mx.float32)
    # without decay of the moments and with a constant gradient every step is the rate
    optimizer = Optimizer(model, OptimizerConfig(precision=precision, max_grad_norm=1e9))
    steps = [optimizer.step(model, {"w": mx.ones((200, 100), mx.bfloat16)}, 2e-6) for _ in range(200)]
    drift = (start - model.w.astype(mx.float32)).mean().item() / (200 * 2e-6)
    assert realised[0] < drift < realised[1]
    mean = float(np.mean([step["update/lost_norm_frac"] for step in steps]))
    assert mean == pytest.approx(1 - drift, abs=0.02)
    if lost:
        assert lost[0] < mean < lost[1]


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
@pytest.mark.parametrize("corrected", [True, False])
def test_the_study_had_the_optimizer_of_mlx(dtype: mx.Dtype, corrected: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bit for bit, also where a tensor is updated in parts."""
    monkeypatch.setattr(optimizer_module, "PART", 2)
    config = OptimizerConfig(precision="study", weight_decay=0.1, bias_correction=corrected)
    ours, theirs = Weights(START, dtype), Weights(START, dtype)
    own = Optimizer(ours, config)
    mlx = optim.AdamW(1e-2, betas=[0.9, 0.999], weight_decay=0.1, bias_correction=corrected)
    for gradient in GRADIENTS:
        own.step(ours, tree(gradient, dtype), 1e-2)
        clipped, _ = optim.clip_grad_norm(tree(gradient, dtype), config.max_grad_norm)
        mlx.update(theirs, clipped)
        assert mx.array_equal(ours.w, theirs.w).item()


@pytest.mark.slow
def test_a_step_needs_the_memory_of_a_few_tensors() -> None:
    """Those that the streams are at, not of all the weights once more, as one graph over the whole model would."""
    model = nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(60)))
    gradients = tree_map(mx.ones_like, model.parameters())
    optimizer = Optimizer(model, OptimizerConfig())
    optimizer.step(model, tree_map(mx.ones_like, model.parameters()), 1e-6)
    mx.eval(gradients, model.parameters())
    mx.reset_peak_memory()
    before, tensor = mx.get_active_memory(), 4 * 1024 * 1024
    optimizer.step(model, gradients, 1e-6)
    assert gradients == {}
    assert mx.get_peak_memory() - before < 8 * tensor * len(streams())


@pytest.mark.parametrize("values", [[1.0, -3.0, 0.0, 2.0**-130], [1.0 + 2**-9, -1.0 - 2**-9, 1e-3, 3e-41]])
def test_stochastic_rounding_is_right_on_average(values: list[float]) -> None:
    """A value goes to one of its two neighbours, in the share that keeps the mean; one that fits stays."""
    exact = mx.broadcast_to(mx.array(values)[:, None], (4, 40_000))
    rounded = round_stochastically(exact, random_bits(exact.shape, 1, "here") >> 16).astype(mx.float32)
    for row, value in zip(np.array(rounded, np.float64), np.float32(values).astype(np.float64), strict=True):
        neighbours = np.unique(row)
        step = 2.0 ** (np.floor(np.log2(max(abs(value), 2.0**-126))) - 7)
        assert len(neighbours) <= 2
        assert np.abs(neighbours - value).max() < step
        assert row.mean() == pytest.approx(value, abs=step * 0.02)


def test_visible_frac_is_the_share_of_weights_that_changed() -> None:
    """A weight without gradient does not move."""
    model = Weights(START)
    assert Optimizer(model, OptimizerConfig()).step(model, tree(GRADIENTS[0]), 1e-2)["update/visible_frac"] == 5 / 6


@pytest.mark.parametrize(
    ("precision", "dtype"),
    [("masters", mx.float32), ("masters", mx.bfloat16), ("stochastic", mx.bfloat16), ("study", mx.bfloat16)],
)
def test_saved_state_goes_on_bit_for_bit(tmp_path: Path, precision: str, dtype: mx.Dtype) -> None:
    """Four steps, or two, a save, another process's load and two more: the same weights and the same moments. The file
    has the state of its step, whatever is changed in place afterwards."""
    config = OptimizerConfig(precision=precision, weight_decay=0.01)
    model, other = build("lfm2"), build("lfm2", seed=5)
    for m in (model, other):
        m.set_dtype(dtype)
    optimizer, resumed = Optimizer(model, config, seed=7), Optimizer(other, config, seed=7)

    def gradient(k: int) -> Any:
        return tree_map(lambda p: mx.sin(p * (k + 1)).astype(p.dtype), build("lfm2").parameters())

    for k in range(2):
        optimizer.step(model, gradient(k), 1e-2)
    optimizer.save(tmp_path / "optimizer.safetensors")
    if precision != "masters":
        other.update(model.parameters())  # the model's own checkpoint has the weights
    ours = [optimizer.step(model, gradient(k), 1e-3) for k in (2, 3)]
    resumed.load(tmp_path / "optimizer.safetensors", other)
    assert [resumed.step(other, gradient(k), 1e-3) for k in (2, 3)] == ours
    for got, expected in ((other, model), (resumed.m, optimizer.m), (resumed.v, optimizer.v)):
        assert_same_arrays(got, expected)
