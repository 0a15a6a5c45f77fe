"""Log-probs and gradients in C: those of MLX, whatever the sizes, the passes and the threads."""

import ctypes
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.models import (
    LAYERS_IN_C,
    NEEDS_C,
    VOCABULARY,
    assert_same_arrays,
    assert_trees_close,
    build_for_c,
    by_repetition,
    weighted,
)

from smolsum.policy.cpu import decode, gradient, native
from smolsum.policy.cpu.gradient import TokenGroup, can_differentiate
from smolsum.policy.group_gradient import WHOLE, Chunking, logprobs_of_groups, sum_over_groups
from smolsum.policy.logprobs import group_logprobs

# isort: split
import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten

pytestmark = NEEDS_C

TEMPERATURE = 0.7


def ids(count: int, seed: int) -> list[int]:
    return list(map(int, np.random.default_rng(seed).integers(0, VOCABULARY, count)))


def group(prompt: int, completions: list[int], seed: int = 0) -> TokenGroup:
    """A group of random tokens, of these lengths."""
    return TokenGroup(ids(prompt, seed), [ids(count, seed + 100 + n) for n, count in enumerate(completions)])


GROUPS = [group(11, [7, 1, 4, 2]), group(1, [3, 3], 1), group(2, [1], 2), group(150, [140, 9, 70], 3)]
"""prompts of one token, and prompts and completions longer than the block in which attention is computed"""


def in_c(model: nn.Module, groups: list[TokenGroup] = GROUPS) -> tuple[float, dict[str, float], Any]:
    assert can_differentiate(model)
    losses = [weighted(p) for p in range(len(groups))]
    (value, metrics), tree = sum_over_groups(model, groups, losses, temperature=TEMPERATURE)
    return value.item(), {name: metric.item() for name, metric in metrics.items()}, tree


@pytest.mark.parametrize("name", LAYERS_IN_C)
def test_it_is_mlx_s_gradient(name: str) -> None:
    """And the weights stay."""
    model = build_for_c(name)
    value, tree = by_repetition(model, GROUPS, TEMPERATURE)
    got, metrics, gradients = in_c(model)
    assert got == pytest.approx(value, rel=1e-5, abs=1e-5)
    assert metrics["tokens"] == sum(len(one) for group in GROUPS for one in group.completions_ids)
    assert_trees_close(gradients, tree, relative=5e-5)
    assert_same_arrays(model, build_for_c(name))


@pytest.mark.slow
@pytest.mark.parametrize("name", LAYERS_IN_C)
def test_an_older_processor_differs_by_rounding_alone(
    name: str, older_library: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = build_for_c(name)
    value, _, expected = in_c(model)
    monkeypatch.setattr(native, "_library", older_library)
    found, _, tree = in_c(model)
    assert found == pytest.approx(value, rel=1e-5, abs=1e-5)
    assert_trees_close(tree, expected, relative=5e-5)


@pytest.mark.parametrize("name", LAYERS_IN_C)
def test_log_probs_are_mlx_s(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within 1e-5, with few or all logits in memory."""
    model = build_for_c(name)
    expected = [group_logprobs(model, *one[:2], temperature=TEMPERATURE)[0] for one in GROUPS]
    for chunk in (5 * VOCABULARY, 1 << 25):
        monkeypatch.setattr(gradient, "CHUNK_LOGITS", chunk)
        found = logprobs_of_groups(model, GROUPS, temperature=TEMPERATURE)
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(np.array(one), np.array(other), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["qwen3", "lfm2"])
def test_passes_chunks_and_threads_change_only_rounding(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A group at a time, few logits at a time, computed twice; each way the same to the bit when repeated."""
    model = build_for_c(name)
    value, _, whole = in_c(model)
    for passes, kept, threads in ((1, 1 << 27, 2), (1 << 27, 0, 2), (20_000, 0, 1), (1 << 27, 1 << 27, 5)):
        monkeypatch.setattr(gradient, "PASS_VALUES", passes)
        monkeypatch.setattr(gradient, "KEPT_LOGITS", kept)
        monkeypatch.setattr(gradient, "CHUNK_LOGITS", 7 * VOCABULARY)
        monkeypatch.setattr(native, "threads", lambda count=threads: count)
        one, _, tree = in_c(model)
        again, _, twice = in_c(model)
        assert one == pytest.approx(value, rel=1e-6, abs=1e-5)
        assert_trees_close(tree, whole, relative=1e-5)
        assert again == one
        assert_same_arrays(tree, twice)


@pytest.mark.skipif(bool(gradient.why_no_bfloat16()), reason=gradient.why_no_bfloat16())
@pytest.mark.parametrize("name", ["qwen3", "lfm2"])
def test_factors_in_bfloat16_differ_by_their_rounding_alone(name: str) -> None:
    """Log-probs within a few hundredths on average, a gradient of nearly the same direction and length, both the same
    to the bit when repeated; products in float32 are as before afterwards."""
    model, groups = build_for_c(name), [group(150, [140, 90, 120], 3), group(90, [100, 140], 4)]
    whole = Chunking(bfloat16=True)
    exact, near, again = (
        logprobs_of_groups(model, groups, temperature=TEMPERATURE, chunking=one) for one in (WHOLE, whole, whole)
    )
    for one, rounded, twice in zip(exact, near, again, strict=True):
        differences = np.abs(np.array(one) - np.array(rounded))
        assert 0 < differences.mean() < 0.05
        assert differences.max() < 0.5
        assert (np.array(rounded) == np.array(twice)).all()
    trees = [
        sum_over_groups(model, groups, [weighted(p) for p in (0, 1)], temperature=TEMPERATURE, chunking=one)[1]
        for one in (WHOLE, whole, WHOLE)
    ]
    flat = [np.concatenate([np.array(array).ravel() for _, array in tree_flatten(tree)]) for tree in trees]
    assert np.linalg.norm(flat[1] - flat[0]) < 0.03 * np.linalg.norm(flat[0])
    assert (flat[2] == flat[0]).all()
    assert not (flat[1] == flat[0]).all()


@given(
    st.lists(
        st.tuples(st.integers(1, 140), st.lists(st.integers(1, 140), min_size=1, max_size=4)), min_size=1, max_size=3
    )
)
@settings(max_examples=15, deadline=None)
def test_any_sizes(sizes: list[tuple[int, list[int]]]) -> None:
    """Prompts and completions that end within, at and after a block; entropy of the distribution at the temperature."""
    model, groups = build_for_c("lfm2"), [group(prompt, counts, n) for n, (prompt, counts) in enumerate(sizes)]
    value, tree = by_repetition(model, groups, TEMPERATURE)
    got, metrics, gradients = in_c(model, groups)
    assert got == pytest.approx(value, rel=1e-5, abs=1e-5)
    assert 0 < metrics["entropy"] < metrics["tokens"] * np.log(VOCABULARY)
    assert_trees_close(gradients, tree, relative=1e-4)


def test_entropy() -> None:
    """In nats, of the distribution at the temperature."""
    model = build_for_c("qwen2, own head")
    prompt, completions, _ = GROUPS[0]
    (scored,) = gradient.score_groups(model, GROUPS[:1], TEMPERATURE)
    logits = np.array(model(mx.array([[*prompt, *completions[0]]]))[0, len(prompt) - 1 : -1], np.float64) / TEMPERATURE
    p = np.exp(logits - logits.max(axis=-1, keepdims=True))
    p /= p.sum(axis=-1, keepdims=True)
    np.testing.assert_allclose(np.array(scored.entropy_GT)[0], -(p * np.log(p)).sum(axis=-1), rtol=1e-5)


def test_what_is_not_finite_reaches_the_gradient() -> None:
    """So that the optimizer can skip the step."""
    model = build_for_c("qwen2")
    model.model.layers[0].mlp.up_proj.weight = model.model.layers[0].mlp.up_proj.weight * mx.nan
    _, _, tree = in_c(model)
    assert not any(mx.isfinite(array).all() for _, array in tree_flatten(tree))


@pytest.mark.parametrize("place", [0, 1])
def test_a_logit_that_is_not_a_number_is_seen(place: int) -> None:
    """Also where it is that of another token than the target."""
    model, (prompt, completions, *_) = build_for_c("qwen2, own head"), GROUPS[0]
    other = next(n for n in range(1001) if (n in completions[0]) == bool(place))
    head = np.array(model.lm_head.weight)
    head[other] = np.nan
    model.lm_head.weight = mx.array(head)
    (scored,) = gradient.score_groups(model, GROUPS[:1], TEMPERATURE)
    assert np.isnan(np.array(scored.logp_GT)[0]).all()
    (drawn,) = decode.sample(model, [decode.Draw(tuple(prompt), np.full(3, 0.5, np.float32), 1.0)], [])
    assert np.isnan(drawn.logprobs).all()


def test_empty_completions_have_no_tokens() -> None:
    model = build_for_c("qwen2")
    groups = [TokenGroup([5, 9, 3], [[], [5, 6, 7], [8, 9]]), TokenGroup([4, 4], [[1, 2], [3]])]
    found = logprobs_of_groups(model, groups, temperature=TEMPERATURE)
    for one, (prompt, completions, *_) in zip(found, groups, strict=True):
        for row, completion in zip(np.array(one), completions, strict=True):
            if completion:
                alone = group_logprobs(model, prompt, [completion], temperature=TEMPERATURE)[0]
                np.testing.assert_allclose(row[: len(completion)], np.array(alone)[0], rtol=1e-5, atol=1e-5)
            assert not row[len(completion) :].any()


def test_passes_of_an_update_share_their_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Large memory stays from pass to pass and is returned after the last one, also where that is never asked for."""
    monkeypatch.setattr(gradient, "PASS_VALUES", 1)
    monkeypatch.setattr(gradient, "SPARE_VALUES", 1)
    model, taken = build_for_c("qwen2"), list[int]()
    own = gradient._taken

    def noted(values: int) -> gradient.Floats:
        space = own(values)
        taken.append(space.ctypes.data)
        return space

    monkeypatch.setattr(gradient, "_taken", noted)
    same = [group(20, [10, 10], 1)] * 3
    in_c(model, same)
    assert len(taken) == 3
    assert len(set(taken)) == 1
    assert gradient._spare == []
    first = gradient.score_groups(model, same, TEMPERATURE)
    next(first)
    first.close()  # type: ignore[attr-defined]  # a generator
    assert gradient._spare == []


@pytest.mark.parametrize("wrong", [[5, VOCABULARY], [-1, 5], []])
def test_ids_that_the_model_does_not_have(wrong: list[int]) -> None:
    model, named = build_for_c("qwen2"), f"has the token ids 0 to {VOCABULARY - 1}" if wrong else "no ids"
    with pytest.raises(ValueError, match=named):
        decode.sample(model, [decode.Draw(tuple(wrong), np.zeros(3, np.float32), 1.0)], [])
    for one in (TokenGroup([*wrong, 5], [[3]]), TokenGroup([5], [[3], wrong])) if wrong else ():
        with pytest.raises(ValueError, match=named):
            logprobs_of_groups(model, [one])


def test_its_memory_is_counted() -> None:
    model = build_for_c("qwen2")
    in_c(model, [group(100, [100] * 8)])
    values = 900 * (2 * 128 + 3 * 2 * 100) * 2  # some of what two layers keep
    assert gradient.most_mapped() > 4 * values
