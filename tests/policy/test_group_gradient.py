"""A group's gradient a few rollouts at a time: that of the whole group, in less memory, of any model."""

from typing import Any

import pytest
from support.models import EOS, assert_trees_close, build

from smolsum.policy.cpu.streams import map_over_streams
from smolsum.policy.group_gradient import Chunking, _shares, can_checkpoint, checkpointed, group_value_and_grad
from smolsum.policy.logprobs import group_logprobs

# isort: split
import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten

FAMILIES = ["qwen2", "qwen3", "llama", "lfm2", "gemma2", "gemma3_text", "gemma3"]
PROMPT = [5, 9, 33, 4, 60, 12, 8, 41, 3, 22, 17]
COMPLETIONS = [[10, 11, 12, 13, 14, 15, EOS], [20], [30, 31, 32, EOS], [4, 5], [6, EOS]]
WEIGHTS = mx.array([[0.3 * g - 0.5 + 0.1 * t for t in range(7)] for g in range(5)])


def weighted(logp: mx.array, entropy: mx.array, mask: mx.array, rows: slice) -> tuple[mx.array, dict[str, mx.array]]:
    """A loss in which each token has its own weight and which is not linear in the log-probs."""
    value = (mx.exp(0.1 * logp) * mask * WEIGHTS[rows]).sum()
    return value, {"tokens": mask.sum(), "entropy": entropy.sum()}


def expected(model: nn.Module, prompt: list[int]) -> tuple[float, Any]:
    """Value and gradient with the prompt repeated for each completion, all at once."""

    def loss(model: nn.Module) -> mx.array:
        logp, mask = group_logprobs(model, prompt, COMPLETIONS, temperature=0.8, shared_prefix=False)
        return weighted(logp, logp, mask, slice(None))[0]

    value, tree = nn.value_and_grad(model, loss)(model)
    return value.item(), tree


@pytest.mark.parametrize("prompt", [PROMPT, PROMPT[:1], PROMPT[:2]], ids=["many-tokens", "one-token", "two-tokens"])
@pytest.mark.parametrize("family", [*FAMILIES, "falcon_h1"])
def test_chunks_of_rollouts_change_nothing(family: str, prompt: list[int]) -> None:
    """Value, metrics and gradient of one, two or all rollouts at a time are those of the repeated path."""
    model = build(family)
    value, tree = expected(model, prompt)
    for rows in (1, 2, None):
        (got, metrics), gradient = group_value_and_grad(
            model, prompt, COMPLETIONS, weighted, temperature=0.8, chunking=Chunking(rows=rows, logits=3 * 64)
        )
        assert got.item() == pytest.approx(value, rel=1e-5)
        assert metrics["tokens"].item() == sum(len(ids) for ids in COMPLETIONS)
        assert 0 < metrics["entropy"].item() < 16 * 4.2
        assert_trees_close(gradient, tree)


@pytest.mark.parametrize("family", FAMILIES)
def test_recomputed_layers_change_nothing(family: str) -> None:
    """With activation checkpointing, in chunks or not, with shared prompt or not: the same gradient."""
    model = build(family)
    _, tree = expected(model, PROMPT)
    assert can_checkpoint(model)
    with checkpointed(model):
        assert_trees_close(expected(model, PROMPT)[1], tree)
        for rows in (2, None):
            _, gradient = group_value_and_grad(
                model, PROMPT, COMPLETIONS, weighted, temperature=0.8, chunking=Chunking(rows=rows, logits=3 * 64)
            )
            assert_trees_close(gradient, tree)


def test_the_model_is_left_as_it_was() -> None:
    """After chunks and recomputed layers, and after an error among them, it has its own layers and its very arrays."""
    model = build("lfm2")
    kinds, before = [type(layer) for layer in model.layers], dict(tree_flatten(model.parameters()))
    with checkpointed(model):
        group_value_and_grad(model, PROMPT, COMPLETIONS, weighted, chunking=Chunking(rows=2))
    with pytest.raises(ZeroDivisionError), checkpointed(model):
        group_value_and_grad(model, PROMPT, COMPLETIONS, lambda *_: 1 // 0, chunking=Chunking(rows=2))
    assert [type(layer) for layer in model.layers] == kinds
    assert all(p is before[name] for name, p in tree_flatten(model.parameters()))


def test_layers_called_in_another_way_cannot_be_recomputed() -> None:
    """A model whose layers take two masks."""
    assert not can_checkpoint(build("falcon_h1"))


def test_groups_on_several_streams() -> None:
    """Several groups under way at once, with recomputed layers: each has the gradient it has alone."""
    model, prompts = build("qwen2"), [PROMPT, PROMPT[:2], PROMPT[3:]]
    with checkpointed(model):
        together = list(
            map_over_streams(lambda p: group_value_and_grad(model, p, COMPLETIONS, weighted, temperature=0.8), prompts)
        )
    for prompt, (_, gradient) in zip(prompts, together, strict=True):
        assert_trees_close(gradient, expected(model, prompt)[1])


@pytest.mark.parametrize("count", [1, 2, 3, 9])
@pytest.mark.parametrize("shared", [True, False])
def test_one_group_on_several_streams(count: int, shared: bool) -> None:
    """Its rollouts shared out, the prompt on the first stream: the same value, metrics and gradient."""
    model = build("lfm2")
    own = [mx.new_stream(mx.default_device()) for _ in range(count)]
    (value, metrics), gradient = group_value_and_grad(
        model, PROMPT, COMPLETIONS, weighted, temperature=0.8, chunking=Chunking(shared_prefix=shared), streams=own
    )
    whole, tree = expected(model, PROMPT)
    assert value.item() == pytest.approx(whole, rel=1e-5)
    assert metrics["tokens"].item() == sum(len(ids) for ids in COMPLETIONS)
    assert_trees_close(gradient, tree)


@pytest.mark.parametrize(
    ("group", "ahead", "streams", "shares"),
    [(8, 0.0, 2, [4, 4]), (8, 5.0, 2, [2, 6]), (4, 9.0, 2, [0, 4]), (3, 0.0, 2, [2, 1]), (1, 0.0, 2, [0, 1])],
)
def test_rollouts_are_shared_out_by_work(group: int, ahead: float, streams: int, shares: list[int]) -> None:
    """The stream that has the prompt gets fewer; every rollout is somewhere, in order, once."""
    found = dict(_shares(group, ahead, range(streams)))
    assert [len(range(group)[found[n]]) if n in found else 0 for n in range(streams)] == shares
    assert [g for chunk in found.values() for g in range(group)[chunk]] == list(range(group))


def test_only_what_is_trainable_has_a_gradient() -> None:
    """A frozen 4-bit model with one trained norm, in chunks."""
    model = build("qwen2", intermediate_size=64)
    nn.quantize(model, group_size=32, bits=4)
    model.freeze()
    model.layers[0].input_layernorm.unfreeze()
    _, tree = expected(model, PROMPT)
    with checkpointed(model):
        _, gradient = group_value_and_grad(
            model, PROMPT, COMPLETIONS, weighted, temperature=0.8, chunking=Chunking(rows=2, logits=3 * 64)
        )
    assert [name for name, _ in tree_flatten(gradient)] == ["model.layers.0.input_layernorm.weight"]
    assert_trees_close(gradient, tree)


def test_chunks_and_recomputed_layers_take_less_memory() -> None:
    """The peak above what is held anyway falls with the rollouts at a time, and again with recomputed layers."""
    model = build("qwen2", hidden_size=128, num_hidden_layers=6, intermediate_size=512)
    prompt, completions = [3 + i % 50 for i in range(20)], [[(g + i) % 60 for i in range(64)] for g in range(8)]

    def loss(logp: mx.array, entropy: mx.array, mask: mx.array, rows: slice) -> tuple[mx.array, dict[str, mx.array]]:
        return logp.sum(), {}

    def peak(chunking: Chunking) -> int:
        held = mx.get_active_memory()
        mx.reset_peak_memory()
        mx.eval(group_value_and_grad(model, prompt, completions, loss, chunking=chunking))
        return mx.get_peak_memory() - held

    whole, chunked = peak(Chunking()), peak(Chunking(rows=2))
    recomputed, both = (peak(Chunking(rows=rows, checkpointing=True)) for rows in (8, 2))
    assert chunked < 0.6 * whole
    assert recomputed < 0.6 * whole
    assert both < 0.75 * chunked
