"""A group's gradient a few rollouts at a time: that of the whole group, in less memory, of any model."""

import pytest
from support.models import EOS, assert_trees_close, build, by_repetition, weighted

from smolsum.policy.cpu import native
from smolsum.policy.cpu.gradient import TokenGroup
from smolsum.policy.group_gradient import (
    Chunking,
    _shares,
    can_checkpoint,
    checkpointed,
    group_value_and_grad,
    sum_over_groups,
)

# isort: split
import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten

FAMILIES = ["qwen2", "qwen3", "llama", "lfm2", "gemma2", "gemma3_text", "gemma3", "cohere", "granite", "falcon_h1"]
PROMPT = [5, 9, 33, 4, 60, 12, 8, 41, 3, 22, 17]
COMPLETIONS = [[10, 11, 12, 13, 14, 15, EOS], [20], [30, 31, 32, EOS], [4, 5], [6, EOS]]
TOKENS = 16
LOGITS = 3 * 64
WAYS = [Chunking(rows=rows, logits=LOGITS, checkpointing=twice) for rows in (1, 2, None) for twice in (False, True)]


@pytest.mark.parametrize("prompt", [PROMPT, PROMPT[:1], PROMPT[:2]], ids=["many-tokens", "one-token", "two-tokens"])
@pytest.mark.parametrize(("family", "tied"), [*((family, True) for family in FAMILIES), ("qwen2", False)])
def test_every_way_has_the_gradient_of_the_repeated_prompt(family: str, tied: bool, prompt: list[int]) -> None:
    """Value, metrics and gradient with one, two or all rollouts at a time, and with layers computed twice where they
    are called in the usual way, are those of all at once with the prompt repeated."""
    model = build(family, tie_word_embeddings=tied)
    value, tree = by_repetition(model, [(prompt, COMPLETIONS)], 0.8)
    assert can_checkpoint(model) == (family != "falcon_h1")
    for way in [*WAYS, Chunking(shared_prefix=False, checkpointing=True)]:
        if way.checkpointing and not can_checkpoint(model):
            continue
        (got, metrics), gradient = group_value_and_grad(
            model, prompt, COMPLETIONS, weighted(), temperature=0.8, chunking=way
        )
        assert got.item() == pytest.approx(value, rel=1e-5, abs=1e-6)
        assert metrics["tokens"].item() == TOKENS
        assert 0 < metrics["entropy"].item() < TOKENS * 4.2
        assert_trees_close(gradient, tree)


def test_groups_on_several_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several groups under way at once, with recomputed layers, add up to the gradient of all."""
    monkeypatch.setattr(native, "_library", None)
    model, groups = build("qwen2"), [TokenGroup(one, COMPLETIONS) for one in (PROMPT, PROMPT[:2], PROMPT[3:])]
    losses = [weighted(p) for p in range(3)]
    _, gradient = sum_over_groups(model, groups, losses, temperature=0.8, chunking=Chunking(checkpointing=True))
    assert_trees_close(gradient, by_repetition(model, groups, 0.8)[1])


def test_the_model_is_left_as_it_was() -> None:
    """After chunks and recomputed layers, and after an error among them, it has its own layers and its very arrays."""
    model = build("lfm2")
    kinds, before = [type(layer) for layer in model.layers], dict(tree_flatten(model.parameters()))
    with checkpointed(model):
        group_value_and_grad(model, PROMPT, COMPLETIONS, weighted(), chunking=Chunking(rows=2))
    with pytest.raises(ZeroDivisionError), checkpointed(model):
        group_value_and_grad(model, PROMPT, COMPLETIONS, lambda *_: 1 // 0, chunking=Chunking(rows=2))
    assert [type(layer) for layer in model.layers] == kinds
    assert all(p is before[name] for name, p in tree_flatten(model.parameters()))


@pytest.mark.parametrize("count", [1, 2, 3, 9])
@pytest.mark.parametrize("shared", [True, False])
def test_one_group_on_several_streams(count: int, shared: bool) -> None:
    """Its rollouts shared out, the prompt on the first stream: the same value, metrics and gradient."""
    model = build("lfm2")
    own = [mx.new_stream(mx.default_device()) for _ in range(count)]
    (value, metrics), gradient = group_value_and_grad(
        model, PROMPT, COMPLETIONS, weighted(), temperature=0.8, chunking=Chunking(shared_prefix=shared), streams=own
    )
    whole, tree = by_repetition(model, [(PROMPT, COMPLETIONS)], 0.8)
    assert value.item() == pytest.approx(whole, rel=1e-5, abs=1e-6)
    assert metrics["tokens"].item() == TOKENS
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
    _, tree = by_repetition(model, [(PROMPT, COMPLETIONS)], 0.8)
    way = Chunking(rows=2, logits=LOGITS, checkpointing=True)
    _, gradient = group_value_and_grad(model, PROMPT, COMPLETIONS, weighted(), temperature=0.8, chunking=way)
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
