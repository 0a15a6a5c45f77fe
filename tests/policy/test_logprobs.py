"""Log-probs of a group with its prompt shared: the same values and gradients as the plainest computation."""

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from support.models import EOS, assert_trees_close, build

from smolsum.policy import fast_math
from smolsum.policy.logprobs import CHUNK_LOGITS, can_share_prefix, group_hidden, group_logprobs, scored, token_logprobs

# isort: split
import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models import activations, base

FAMILIES = ["qwen2", "qwen3", "llama", "lfm2", "gemma2", "gemma3_text", "gemma3", "cohere", "granite", "falcon_h1"]
PROMPTS = {"one-token": [7], "two-tokens": [7, 9], "many-tokens": [5, 9, 33, 4, 60, 12, 8, 41, 3, 22, 17]}
COMPLETIONS = [[10, 11, 12, 13, 14, 15, EOS], [20], [30, 31, 32, EOS]]


def use(monkeypatch: pytest.MonkeyPatch, model: nn.Module, *, ours: bool) -> None:
    """The model's arithmetic: our kernels, or mlx-lm's own functions."""
    swiglu, attention = activations.swiglu, base.scaled_dot_product_attention
    if ours:
        swiglu, attention = fast_math.swiglu, fast_math.attention
    for module in {sys.modules[type(part).__module__] for part in model.modules()}:
        for name, function in (("swiglu", swiglu), ("scaled_dot_product_attention", attention)):
            if name in vars(module):
                monkeypatch.setattr(module, name, function)


def gradient(model: nn.Module, prompt: list[int], **settings: Any) -> Any:
    """Of a sum of the log-probs in which each has its own weight."""

    def total(model: nn.Module) -> mx.array:
        logp, _ = group_logprobs(model, prompt, COMPLETIONS, **settings)
        return (logp * (1.0 + mx.arange(logp.size).reshape(logp.shape) % 5)).sum()

    return nn.value_and_grad(model, total)(model)[1]


def plain(
    model: nn.Module, prompt: list[int], temperature: float = 1.0, completions: Sequence[list[int]] = COMPLETIONS
) -> list[list[float]]:
    """One sequence at a time through the whole model, softmax by the book."""
    rows = []
    for ids in completions:
        logits = model(mx.array([[*prompt, *ids]]))[0].astype(mx.float32) / temperature
        logp = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
        rows.append([logp[len(prompt) - 1 + t, token].item() for t, token in enumerate(ids)])
    return rows


def assert_rows(logp: mx.array, rows: list[list[float]]) -> None:
    """The log-probs of each completion, and zeros after its end."""
    for got, expected in zip(logp.tolist(), rows, strict=True):
        np.testing.assert_allclose(got[: len(expected)], expected, rtol=1e-5, atol=1e-6)
        assert got[len(expected) :] == [0.0] * (len(got) - len(expected))


@pytest.mark.parametrize("prompt", PROMPTS.values(), ids=PROMPTS)
@pytest.mark.parametrize("family", FAMILIES)
def test_equals_a_plain_forward(monkeypatch: pytest.MonkeyPatch, family: str, prompt: list[int]) -> None:
    """Shared prompt and our kernels give what mlx-lm's model gives for each sequence on its own, one token long or
    more; a prompt that cannot be shared, as the model has caches of another kind, is repeated."""
    model = build(family)
    assert can_share_prefix(model) == (family != "falcon_h1")
    use(monkeypatch, model, ours=True)
    logp, mask = group_logprobs(model, prompt, COMPLETIONS)
    short, _ = group_logprobs(model, prompt, [[EOS], [3]])
    assert mask.tolist() == [[1.0] * len(ids) + [0.0] * (7 - len(ids)) for ids in COMPLETIONS]
    assert (logp.dtype, mask.dtype) == (mx.float32, mx.float32)
    use(monkeypatch, model, ours=False)
    assert_rows(logp, plain(model, prompt))
    assert_rows(short, plain(model, prompt, completions=[[EOS], [3]]))


@pytest.mark.parametrize(("family", "tied"), [("qwen2", True), ("lfm2", True), ("qwen2", False), ("llama", False)])
def test_gradient_is_that_of_mlx_lm_s_own_arithmetic(monkeypatch: pytest.MonkeyPatch, family: str, tied: bool) -> None:
    """The kernels' hand-written gradients, through a whole model, and that of a head of its own."""
    model = build(family, tie_word_embeddings=tied)
    use(monkeypatch, model, ours=True)
    ours = gradient(model, PROMPTS["many-tokens"])
    use(monkeypatch, model, ours=False)
    assert_trees_close(ours, gradient(model, PROMPTS["many-tokens"], shared_prefix=False), relative=3e-5)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("temperature", [0.25, 2.5])
def test_temperature_divides_the_logits(temperature: float, tied: bool) -> None:
    """Log-probs are those of the distribution that is sampled from, with a head of its own too."""
    model, prompt = build("qwen2", tie_word_embeddings=tied), PROMPTS["many-tokens"]
    logp, _ = group_logprobs(model, prompt, COMPLETIONS, temperature=temperature)
    assert_rows(logp, plain(model, prompt, temperature))


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("rows", [1, 5, 20, 21])
def test_chunks_change_nothing(rows: int, tied: bool) -> None:
    """Logits made a few rows at a time and again in backward: same values, same gradient, same model afterwards."""
    model, prompt = build("qwen2", tie_word_embeddings=tied), PROMPTS["many-tokens"]
    whole, whole_gradient = group_logprobs(model, prompt, COMPLETIONS)[0], gradient(model, prompt)
    mx.eval(whole, whole_gradient)
    chunked = group_logprobs(model, prompt, COMPLETIONS, chunk_logits=rows * 64)[0]
    np.testing.assert_allclose(np.array(chunked), np.array(whole), rtol=1e-5)
    assert_trees_close(gradient(model, prompt, chunk_logits=rows * 64), whole_gradient)
    np.testing.assert_array_equal(np.array(group_logprobs(model, prompt, COMPLETIONS)[0]), np.array(whole))


def test_chunks_hold_a_few_of_their_logits_at_a_time() -> None:
    """Forward and back, a chunk begins when the one before is done: 64 chunks hold less than half of all logits, which
    they held three times over while MLX worked on them side by side."""
    vocabulary, rows = 5000, 640
    model = build("qwen2", vocab_size=vocabulary)
    hidden, targets = mx.random.normal((rows, model.args.hidden_size)), mx.zeros((rows,), mx.int32)
    mx.eval(hidden, targets, model.parameters())

    def total(hidden: mx.array) -> mx.array:
        return token_logprobs(model, hidden, targets, 1.0, chunk_logits=10 * vocabulary).sum()

    held = mx.get_active_memory()
    mx.reset_peak_memory()
    mx.eval(mx.grad(total)(hidden))
    assert mx.get_peak_memory() - held < rows * vocabulary * 4 / 2


def test_padding_has_no_gradient() -> None:
    """What a completion is padded with takes no part: alone or next to a longer one, its gradient is the same."""
    model, prompt = build("lfm2"), PROMPTS["many-tokens"]

    def second(model: nn.Module, completions: list[list[int]]) -> mx.array:
        return group_logprobs(model, prompt, completions)[0][-1].sum()

    alone = nn.value_and_grad(model, second)(model, [[20, 21]])[1]
    padded = nn.value_and_grad(model, second)(model, [[10, 11, 12, 13, 14, EOS], [20, 21]])[1]
    assert_trees_close(padded, alone)


def with_entropy(
    model: nn.Module, prompt: list[int], temperature: float = 1.0, chunk_logits: int = CHUNK_LOGITS
) -> tuple[mx.array, mx.array, mx.array]:
    """Log-probs, entropies and mask of the completions."""
    hidden, tokens, mask = group_hidden(model, prompt, COMPLETIONS)
    return (*scored(model, hidden, tokens, mask, temperature, chunk_logits), mask)


def test_entropy_is_that_of_the_sampled_distribution() -> None:
    """Next to the same log-probs: minus the mean log-prob over the whole vocabulary, 0 where there is no token."""
    model, prompt = build("gemma2"), PROMPTS["many-tokens"]
    logp, entropy, mask = with_entropy(model, prompt, temperature=0.7)
    np.testing.assert_allclose(
        np.array(logp), np.array(group_logprobs(model, prompt, COMPLETIONS, temperature=0.7)[0]), rtol=1e-5
    )
    assert mask.sum().item() == sum(len(ids) for ids in COMPLETIONS)
    rows = []
    for ids in COMPLETIONS:
        logits = model(mx.array([[*prompt, *ids]]))[0, len(prompt) - 1 : -1] / 0.7
        p = mx.softmax(logits, axis=-1)
        rows.append((-(p * mx.log(p)).sum(axis=-1)).tolist())
    assert_rows(entropy, rows)


def test_entropy_has_no_gradient() -> None:
    """A loss of log-probs and entropies has the gradient of the log-probs alone, in chunks too."""
    model, prompt = build("qwen2"), PROMPTS["many-tokens"]

    def total(model: nn.Module, share: float) -> mx.array:
        logp, entropy, _ = with_entropy(model, prompt, chunk_logits=5 * 64)
        return logp.sum() + share * entropy.sum()

    pull = nn.value_and_grad(model, total)
    assert_trees_close(pull(model, 3.0)[1], pull(model, 0.0)[1])
