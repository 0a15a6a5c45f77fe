"""Sampling in C: MLX's log-probs, the token of each uniform number, and nothing that depends on the batch."""

import ctypes
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx.utils import tree_map
from support.models import EOS, LAYERS_IN_C, NEEDS_C, VOCABULARY, WIDE, adapted, build, build_for_c

from smolsum.policy.cpu import decode, native
from smolsum.policy.cpu.decode import Draw, Drawn
from smolsum.policy.cpu.gradient import can_differentiate

# isort: split
import mlx.core as mx
import mlx.nn as nn

pytestmark = NEEDS_C

PROMPTS = [(5, 9, 33, 4, 60, 12, 8, 41), (7,), (3, 3), tuple(range(3, 50)) * 3]


def draw(prompt: tuple[int, ...], seed: int, *, tokens: int = 24, temperature: float = 1.0) -> Draw:
    return Draw(prompt, np.random.default_rng(seed).random(tokens, dtype=np.float32), temperature)


def exact(model: nn.Module, asked: Draw, drawn: Drawn) -> np.ndarray[Any, np.dtype[np.float64]]:
    """MLX's log-probs (tokens, vocabulary) in the place of each token, normalised in float64."""
    ids = [*asked.prompt_ids, *drawn.ids]
    logits = np.array(model(mx.array(ids)[None])[0, len(asked.prompt_ids) - 1 : -1], dtype=np.float64)
    logits /= asked.temperature or 1.0
    logits -= logits.max(axis=-1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))


@pytest.mark.parametrize("name", LAYERS_IN_C)
@pytest.mark.parametrize("temperature", [1.0, 0.6, 0.0])
def test_each_token_is_that_of_its_uniform_number(name: str, temperature: float) -> None:
    """The cumulative distribution before it is not above the number, that with it is, within rounding; its log-prob is
    that of MLX within 1e-5. Greedy: no token is likelier."""
    model = build_for_c(name)
    assert decode.can_decode(model)
    asked = [draw(prompt, seed, temperature=temperature) for prompt in PROMPTS for seed in range(3)]
    for one, drawn in zip(asked, decode.sample(model, asked, []), strict=True):
        logp = exact(model, one, drawn)
        assert len(drawn.ids) == 24
        chosen = logp[np.arange(24), drawn.ids]
        np.testing.assert_allclose(drawn.logprobs, chosen, rtol=1e-5, atol=1e-5)
        if temperature == 0:
            assert (chosen >= logp.max(axis=-1) - 1e-5).all()
            continue
        cumulative = np.cumsum(np.exp(logp), axis=-1)
        assert (cumulative[np.arange(24), drawn.ids] > one.uniforms - 1e-5).all()
        assert (cumulative[np.arange(24), drawn.ids] - np.exp(chosen) <= one.uniforms + 1e-5).all()


@pytest.mark.slow
@pytest.mark.parametrize("name", LAYERS_IN_C)
def test_an_older_processor_differs_by_rounding_alone(
    name: str, older_library: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Log-probs within 1e-5, and the tokens of a uniform number within that of a token's share."""
    model = build_for_c(name)
    asked = [draw(PROMPTS[seed % 4], seed, tokens=9) for seed in range(19)]
    expected = decode.sample(model, asked, [EOS])
    monkeypatch.setattr(native, "_library", older_library)
    found = decode.sample(model, asked, [EOS])
    same = [(one, other) for one, other in zip(found, expected, strict=True) if one.ids == other.ids]
    assert len(same) >= len(asked) - 1
    for one, other in same:
        np.testing.assert_allclose(one.logprobs, other.logprobs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", LAYERS_IN_C)
def test_a_rollout_depends_on_nothing_else(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the bit: alone, among 70 others, with any number of threads, whether its prompt or a start of it is shared."""
    model = build_for_c(name)
    asked = [draw(PROMPTS[seed % 4], seed, tokens=8 + seed % 5, temperature=0.5 + seed % 3 / 2) for seed in range(71)]
    together = decode.sample(model, asked, [EOS])
    assert any(drawn.stopped for drawn in together)
    for threads, counts in ((1, (1, 3, 9, 17, 33)), (2, (17, 33)), (5, (33, 71))):
        monkeypatch.setattr(native, "threads", lambda count=threads: count)
        for count in counts:
            assert decode.sample(model, asked[:count], [EOS]) == together[:count], (threads, count)
    assert [decode.sample(model, [one], [EOS])[0] for one in asked[:12]] == together[:12]
    alike = [replace(one, prompt_ids=(9, 4) * 35 + one.prompt_ids) for one in asked[:9]]
    assert decode.sample(model, alike, [EOS]) == [decode.sample(model, [one], [EOS])[0] for one in alike]


@given(st.lists(st.tuples(st.integers(1, 140), st.integers(1, 70)), min_size=1, max_size=5), st.integers(0, 99))
@settings(max_examples=20, deadline=None)
def test_any_lengths(lengths: list[tuple[int, int]], seed: int) -> None:
    """Prompts and rollouts that end within, at and after a block of the cache."""
    model = build_for_c("lfm2")
    ids = np.random.default_rng(seed).integers(0, VOCABULARY, 140).tolist()
    asked = [draw(tuple(ids[:prompt]), seed, tokens=tokens) for prompt, tokens in lengths]
    for one, drawn in zip(asked, decode.sample(model, asked, []), strict=True):
        logp = exact(model, one, drawn)
        np.testing.assert_allclose(drawn.logprobs, logp[np.arange(len(drawn.ids)), drawn.ids], rtol=1e-5, atol=1e-5)


def test_it_stops_after_a_token_that_ends_the_text() -> None:
    """That token is the last one; a longer limit changes nothing, another set of ends does."""
    model = build_for_c("qwen2")
    asked = draw((7, 8), 3, tokens=40)
    (free,) = decode.sample(model, [asked], [])
    end = free.ids[11]
    first = free.ids.index(end) + 1
    assert not free.stopped
    for tokens in (40, first):
        (drawn,) = decode.sample(model, [replace(asked, uniforms=asked.uniforms[:tokens])], [VOCABULARY, end])
        assert drawn == Drawn(free.ids[:first], free.logprobs[:first], stopped=True)


def test_the_last_token_where_the_number_is_almost_one() -> None:
    """Never a token that is impossible."""
    model = build_for_c("qwen2, own head")
    model.lm_head.weight = model.lm_head.weight * mx.where(mx.arange(1001) < 900, 30.0, -30.0)[:, None]
    almost = Draw((5,), np.full(30, np.nextafter(np.float32(1), np.float32(0))), 1.0)
    (drawn,) = decode.sample(model, [almost], [])
    assert min(drawn.logprobs) > -20


def test_what_is_not_finite_is_seen() -> None:
    """Weights that are not finite give log-probs that are not, and activations of any size none."""
    model = build_for_c("qwen2")
    large = build_for_c("qwen2")
    large.update(tree_map(lambda weight: weight * 30, large.parameters()))
    (drawn,) = decode.sample(large, [draw((5, 6), 1)], [])
    assert np.isfinite(drawn.logprobs).all()
    model.model.norm.weight = model.model.norm.weight * mx.nan
    (drawn,) = decode.sample(model, [draw((5, 6), 1)], [])
    assert np.isnan(drawn.logprobs).all()


def quantised() -> nn.Module:
    model = build("qwen2", **WIDE | {"intermediate_size": 96})
    nn.quantize(model, group_size=32, bits=8)
    return model


def in_bfloat16() -> nn.Module:
    model = build("qwen2", **WIDE)
    model.set_dtype(mx.bfloat16)
    return model


def with_biased_head() -> nn.Module:
    model = build("qwen2", **WIDE, tie_word_embeddings=False)
    model.lm_head.bias = mx.zeros(VOCABULARY)
    return model


@pytest.mark.parametrize(
    "made",
    [
        quantised, in_bfloat16, with_biased_head,
        lambda: adapted(quantised()),
        lambda: build("qwen2", hidden_size=60, num_attention_heads=5, num_key_value_heads=2),  # heads left over
        lambda: build("qwen2", **WIDE, rope_traditional=True),
        lambda: build("llama", **WIDE, rope_scaling={"rope_type": "dynamic", "factor": 2.0}),  # angles of the length
        lambda: build("llama", **WIDE, mlp_bias=True),
        lambda: build("llama", **WIDE, layer_types=["sliding_attention", "full_attention"], sliding_window=8),
        lambda: build("gemma2"),
        lambda: build("gpt_bigcode"),
    ],
)  # fmt: skip
def test_other_models_are_left_to_mlx(made: Callable[[], nn.Module]) -> None:
    """Each of what the layers in C do not have, to sample and to train."""
    model = made()
    assert not decode.can_decode(model)
    assert not can_differentiate(model)


def test_sampling_and_training_may_differ() -> None:
    """Heads of 8 features are trained in C alone; a model with a layer that is not trained is sampled there alone."""
    narrow, frozen = build("qwen2"), build_for_c("qwen2")
    frozen.model.layers[0].freeze()
    assert [decode.can_decode(narrow), can_differentiate(narrow)] == [False, True]
    assert [decode.can_decode(frozen), can_differentiate(frozen)] == [True, False]


def test_without_the_library_all_is_left_to_mlx(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build_for_c("qwen2")
    assert decode.can_decode(model)
    monkeypatch.setattr(native, "_library", None)
    assert not decode.can_decode(model)
