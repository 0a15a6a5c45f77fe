"""Adapters and quantised bases: what mlx-lm loads is what was trained, and the base never moves."""

import gc
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.models import EOS, assert_same_arrays, group, stage, write
from support.refusals import refuses

from smolsum.config.sections import GrpoConfig, LoraConfig, OptimizerConfig
from smolsum.grpo.batch_gradient import gradients
from smolsum.grpo.optimizer import Optimizer
from smolsum.policy import logprobs
from smolsum.policy.load import Policy, load_policy, snapshot
from smolsum.policy.logprobs import group_logprobs
from smolsum.policy.weights import load_trained, save_trained

# isort: split
import mlx.core as mx
import mlx_lm
from mlx.utils import tree_flatten, tree_map

LORA = LoraConfig(rank=4, scale=2.0)
TOKENS = mx.array([[5, 9, 33, 4, 10, 11, 12]])
GROUPS = [group([5, 9, 33, 4], [[10, 11, 12, EOS], [20, 21], [30, EOS]])]
ADVANTAGES = mx.array([[1.0, -0.5, 0.3]])
FAMILIES = ["qwen2", "lfm2"]


def wide(folder: Path, family: str = "qwen2", **changes: Any) -> str:
    """A model whose widths can be quantised."""
    conv = {"conv_dim": 64, "conv_dim_out": 64, "block_dim": 64, "block_ff_dim": 64} if family == "lfm2" else {}
    return str(write(folder, family, hidden_size=64, intermediate_size=64, **conv, **changes))


def train(policy: Policy, steps: int = 2) -> None:
    optimizer = Optimizer(policy.model, OptimizerConfig())
    for _ in range(steps):
        tree, _ = gradients(policy.model, GROUPS, ADVANTAGES, GrpoConfig(eps_high=100.0), stage(), max_new_tokens=8)
        optimizer.step(policy.model, tree, 1e-2)


def frozen(policy: Policy) -> dict[str, mx.array]:
    trained = dict(tree_flatten(policy.model.trainable_parameters()))
    return {k: mx.array(v) for k, v in tree_flatten(policy.model.parameters()) if k not in trained}


@pytest.mark.parametrize("family", FAMILIES)
def test_the_adapted_policy_begins_as_its_base(tmp_path: Path, family: str) -> None:
    """And trains its adapters alone: on attention, MLP and LFM2's convolution blocks."""
    path = wide(tmp_path, family)
    base, policy = load_policy(path), load_policy(path, lora=LORA)
    assert mx.array_equal(base.model(TOKENS), policy.model(TOKENS)).item()
    names = [name for name, _ in tree_flatten(policy.model.trainable_parameters())]
    assert {name.rsplit(".", 1)[1] for name in names} == {"lora_a", "lora_b"}
    adapted = {name.split(".", 3)[3].rsplit(".", 1)[0] for name in names}
    assert {"self_attn.q_proj", "self_attn.k_proj"} <= adapted
    assert ("conv.in_proj" in adapted) == (family == "lfm2")


@pytest.mark.parametrize("quantize", [0, 4, 8])
@pytest.mark.parametrize("family", FAMILIES)
def test_only_adapters_move(tmp_path: Path, family: str, quantize: int) -> None:
    """Two steps change every adapter's second matrix and leave each bit of the base."""
    policy = load_policy(wide(tmp_path, family), lora=LORA, quantize=quantize)
    before, start = frozen(policy), policy.model(TOKENS)
    train(policy)
    assert_same_arrays(frozen(policy), before)
    assert policy.quantised == bool(quantize)
    assert all(mx.any(v != 0).item() for k, v in tree_flatten(policy.model.trainable_parameters()))
    assert mx.abs(policy.model(TOKENS) - start).max().item() > 1e-3


@pytest.mark.parametrize("family", FAMILIES)
def test_mlx_lm_loads_the_adapter(tmp_path: Path, family: str) -> None:
    """`mlx_lm.load` of the base with our folder as adapter path gives the same logits."""
    path = wide(tmp_path / "base", family)
    policy = load_policy(path, lora=replace(LORA, layers=1, keys="feed_forward.w1" if family == "lfm2" else ""))
    train(policy)
    save_trained(policy, tmp_path)
    model, _ = mlx_lm.load(path, adapter_path=str(tmp_path))
    assert mx.array_equal(model(TOKENS), policy.model(TOKENS)).item()
    assert not (tmp_path / "fused").exists()


@pytest.mark.parametrize("quantize", [0, 4])
@pytest.mark.parametrize("family", FAMILIES)
def test_fused_equals_unfused(tmp_path: Path, family: str, quantize: int) -> None:
    """The folder `fused` is a whole model, and the one in memory keeps its adapters."""
    policy = load_policy(wide(tmp_path / "base", family), lora=replace(LORA, fuse=True), quantize=quantize)
    train(policy)
    save_trained(policy, tmp_path)
    fused = load_policy(str(tmp_path / "fused"))
    assert not fused.quantised
    assert mx.allclose(fused.model(TOKENS), policy.model(TOKENS), rtol=1e-4, atol=1e-4).item()
    assert all("lora" in name for name, _ in tree_flatten(policy.model.trainable_parameters()))


def test_saved_adapters_come_back_bit_for_bit(tmp_path: Path) -> None:
    """Into a policy that was drawn from another seed, where the same seed draws the same: a run that is resumed before
    its first checkpoint begins as it did."""
    path = wide(tmp_path)
    policy, same, other = (load_policy(path, lora=LORA, seed=seed) for seed in (1, 1, 2))
    assert_same_arrays(policy.model, same.model)
    with pytest.raises(AssertionError):
        assert_same_arrays(policy.model, other.model)
    train(policy)
    save_trained(policy, tmp_path)
    load_trained(other, tmp_path)
    assert_same_arrays(policy.model, other.model)


def test_the_reference_is_the_adapter_of_the_stage_start(tmp_path: Path) -> None:
    """Swapped in over the same base: its log-probs are those of the model before training, and no base is copied."""
    path = wide(tmp_path)
    policy = load_policy(path, lora=LORA)
    train(policy)
    reference = snapshot(policy.model)
    assert all("lora" in name for name, _ in tree_flatten(reference))
    asked: tuple[Any, ...] = (policy.model, GROUPS, ADVANTAGES, GrpoConfig(), stage(beta=0.5))
    tree, at_start = gradients(*asked, reference=reference, max_new_tokens=8)
    assert at_start["kl"] == pytest.approx(0.0, abs=1e-9)
    Optimizer(policy.model, OptimizerConfig()).step(policy.model, tree, 1e-2)
    _, later = gradients(*asked, reference=reference, max_new_tokens=8)
    assert later["kl"] > 1e-6


@pytest.mark.parametrize("chunked", [True, False])
@pytest.mark.parametrize("quantize", [0, 4])
@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_agree_with_finite_differences(
    tmp_path: Path, family: str, quantize: int, chunked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through adapters, quantised layers, the fast kernels, the shared prompt, and logits made in parts."""
    if chunked:
        monkeypatch.setattr(logprobs, "CHUNK_LOGITS", 3 * 64)
    policy = load_policy(wide(tmp_path, family), lora=LORA, quantize=quantize)
    train(policy)
    ids = [r.token_ids for r in GROUPS[0].rollouts]

    def total(tree: Any) -> mx.array:
        policy.model.update(tree)
        return group_logprobs(policy.model, GROUPS[0].prompt.token_ids, ids)[0].sum()

    start, h = snapshot(policy.model), 1e-3
    got = mx.grad(total)(start)
    mx.random.seed(1)
    direction = tree_map(lambda v: mx.random.normal(v.shape), got)
    ends = [total(tree_map(lambda v, d, s=sign: v + s * h * d, start, direction)).item() for sign in (1, -1)]
    expected = sum(product.sum().item() for _, product in tree_flatten(tree_map(mx.multiply, got, direction)))
    assert (ends[0] - ends[1]) / (2 * h) == pytest.approx(expected, rel=0.02, abs=0.05)


@pytest.mark.parametrize(
    ("lora", "named", "remedy"),
    [
        (LoraConfig(rank=0), "1 to 32", "lora.rank=8"),
        (LoraConfig(rank=33), "1 to 32", "lora.rank=8"),
        (LoraConfig(layers=3), "2 layers", "lora.layers=2"),
        (LoraConfig(keys="self_attn.q_prj"), "'self_attn.q_prj'", "self_attn.q_proj"),
    ],
)
def test_what_does_not_fit_is_told(tmp_path: Path, lora: LoraConfig, named: str, remedy: str) -> None:
    """Rank, layers and keys that the model has no place for."""
    with refuses(named, remedy):
        load_policy(wide(tmp_path), lora=lora)


def test_other_bits_than_the_model_has_are_refused(tmp_path: Path) -> None:
    """A checkpoint that is quantised already keeps its bits; widths that no group fits cannot be quantised."""
    path = tmp_path / "base"
    made = load_policy(wide(path), quantize=4)
    mx.save_safetensors(str(path / "model.safetensors"), dict(tree_flatten(made.model.parameters())))
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | {"quantization": {"group_size": 64, "bits": 4}}))
    again = load_policy(str(path), quantize=4, lora=LORA)
    assert mx.array_equal(again.model(TOKENS), made.model(TOKENS)).item()
    with refuses("4 bits"):
        load_policy(str(path), quantize=8)
    with refuses("multiple of 64"):
        load_policy(str(write(tmp_path / "narrow", "qwen2")), quantize=4)


def test_adapters_take_the_type_of_the_base(tmp_path: Path) -> None:
    """bfloat16 next to bfloat16, with float32 masters in the optimizer."""
    policy = load_policy(wide(tmp_path), dtype="bfloat16", lora=LORA, quantize=8)
    assert policy.dtype == "bfloat16"
    assert {v.dtype for _, v in tree_flatten(policy.model.trainable_parameters())} == {mx.bfloat16}
    optimizer = Optimizer(policy.model, OptimizerConfig())
    assert {name.rsplit(".", 1)[1] for name in optimizer.masters} == {"lora_a", "lora_b"}


def test_shapes_alone_read_no_weight() -> None:
    """For a forecast, with an adapter too: the arrays know their shapes, and the base takes no memory."""
    gc.collect()
    held = mx.get_active_memory()
    policy = load_policy("builtin:tiny", lora=LoraConfig(rank=1), shapes_only=True)
    assert sum(p.size for _, p in tree_flatten(policy.model.parameters())) > 900_000
    assert mx.get_active_memory() - held < 300_000  # a float32 base alone has 3.9 MB
