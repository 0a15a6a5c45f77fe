"""Rollouts that join and leave a batch between two tokens: each as it is alone, in C as MLX samples it."""

import pytest
from support.models import EOS, LAYERS_IN_C, NEEDS_C, build, build_for_c

from smolsum.policy.native_batch import NativeBatch, decode_batch
from smolsum.policy.sampling import ActiveSequence, Completion, DecodeBatch, SampledToken, generate, score_text

# isort: split
import mlx.core as mx
import mlx.nn as nn

ENDS = frozenset({EOS})


def finish(batch: DecodeBatch | NativeBatch, steps: int = 99) -> None:
    for _ in range(steps):
        if batch.rows:
            batch.step()


@NEEDS_C
def test_models_that_c_has_not_are_left_to_mlx() -> None:
    assert isinstance(decode_batch(build_for_c("qwen2"), ENDS), NativeBatch)
    assert isinstance(decode_batch(build("qwen2"), ENDS), DecodeBatch)


ASKED = [((5, 9, 33), 1, 1.0, 14), ((7,), 2, 0.0, 9), (tuple(range(3, 60)) * 2, 3, 0.7, 30), ((3, 4), 4, 1.0, 1)]
"""prompts and rollouts longer and shorter than those that are there, at other temperatures"""


def alone(model: nn.Module, prompt: tuple[int, ...], seed: int, temperature: float, tokens: int) -> Completion:
    [[found]] = generate(model, [prompt], [[seed]], eos_ids=ENDS, temperature=temperature, max_new_tokens=tokens)
    return found


def joined(batch: DecodeBatch | NativeBatch) -> list[Completion]:
    """What is asked for, each of which joins when the one before has three tokens."""
    sequences = [ActiveSequence(*one) for one in ASKED]
    for sequence in sequences:
        assert batch.can_join()
        batch.add([sequence])
        finish(batch, 3)
    finish(batch)
    return [sequence.completion for sequence in sequences]


@NEEDS_C
@pytest.mark.parametrize("kind", [NativeBatch, DecodeBatch])
def test_a_batch_reports_the_prompts_that_it_reads(kind: type[DecodeBatch] | type[NativeBatch]) -> None:
    """In tokens; one that several rollouts share counts once. What C has to read are all but a prompt's last token."""
    read: list[int] = []
    prompts = [(5, 9, 33), (5, 9, 33), tuple(range(3, 60))]
    kind(build_for_c("qwen2"), ENDS).add([ActiveSequence(ids, 1, 1.0, 4) for ids in prompts], read.append)
    assert read == sorted(read)
    assert read[-1] == 60 - (2 if kind is NativeBatch else 0)


@NEEDS_C
@pytest.mark.parametrize("name", LAYERS_IN_C)
def test_joining_later_changes_nothing(name: str) -> None:
    """To the bit in C."""
    model = build_for_c(name)
    assert joined(decode_batch(model, ENDS)) == [alone(model, *one) for one in ASKED]


@pytest.mark.parametrize("family", ["qwen2", "lfm2", "gemma3_text"])
def test_joining_later_changes_only_rounding_in_mlx(family: str) -> None:
    model = build(family)
    for late, one in zip(joined(DecodeBatch(model, ENDS)), ASKED, strict=True):
        expected = alone(model, *one)
        assert late.token_ids == expected.token_ids
        assert late.logprobs == pytest.approx(expected.logprobs, abs=1e-4)


@NEEDS_C
def test_more_rollouts_than_a_pass_has_room_for() -> None:
    """Two passes feed them all, and some twice."""
    model = build_for_c("qwen2")
    batch, sequences = decode_batch(model, ENDS), [ActiveSequence((5, 9), seed, 1.0, 9) for seed in range(71)]
    batch.add(sequences)
    finish(batch)
    (alone,) = generate(model, [(5, 9)], [range(71)], eos_ids=ENDS, temperature=1.0, max_new_tokens=9)
    assert [sequence.completion for sequence in sequences] == alone


@NEEDS_C
@pytest.mark.parametrize(
    ("temperature", "top_p", "wanted"), [(0.7, 0.5, 0), (1.0, 1.0, 3), (0.0, 1.0, 2), (1.2, 0.9, 4)]
)
def test_likeliest_tokens_are_those_of_mlx(temperature: float, top_p: float, wanted: int) -> None:
    """A rollout that samples only the likeliest tokens, or returns them, runs beside one that does neither."""
    model, found = build_for_c("qwen3"), list[list[ActiveSequence]]()
    for batch in (NativeBatch(model, ENDS), DecodeBatch(model, ENDS)):
        told: list[SampledToken] = []
        asked = ActiveSequence((5, 9, 33), 3, temperature, 12, told.append, top_p=top_p, wanted=wanted)
        found.append([asked, ActiveSequence((7,), 2, 1.0, 15)])
        batch.add(found[-1])
        finish(batch)
        assert told == asked.completion.tokens
    for ours, theirs in zip(*found, strict=True):
        assert ours.ids == theirs.ids
        assert ours.logprobs == pytest.approx(theirs.logprobs, abs=1e-5)
        assert [[token for token, _ in row] for row in ours.likeliest] == [
            [token for token, _ in row] for row in theirs.likeliest
        ]
        for row, other in zip(ours.likeliest, theirs.likeliest, strict=True):
            assert [logprob for _, logprob in row] == pytest.approx([logprob for _, logprob in other], abs=1e-5)


@pytest.mark.parametrize("kind", [DecodeBatch, pytest.param(NativeBatch, marks=NEEDS_C)])
def test_the_abandoned_leave(kind: type[DecodeBatch | NativeBatch]) -> None:
    """A rollout that is no longer needed is no longer sampled."""
    batch, sequences = kind(build_for_c("qwen2"), ENDS), [ActiveSequence((5,), n, 1.0, 10) for n in range(2)]
    batch.add(sequences)
    batch.step()
    sequences[0].abandoned = True
    finish(batch)
    assert [len(sequence.ids) for sequence in sequences] == [1, 10]


@NEEDS_C
def test_rollouts_under_way_go_on_with_new_weights() -> None:
    """From the next token on."""
    model = build_for_c("qwen2, own head")
    batch, sequence = NativeBatch(model, frozenset()), ActiveSequence((5, 9, 33), 3, 1.0, 12)
    batch.add([sequence])
    expected = []
    for steps in (4, 99):
        finish(batch, steps)
        scored = score_text(model, [*sequence.prompt_ids, *sequence.ids], 0)
        expected += [token.logprob for token in scored[len(sequence.prompt_ids) - 1 :]][len(expected) :]
        model.lm_head.weight = mx.roll(model.lm_head.weight, 100, axis=0)  # what the caches hold stays
        batch.weights_changed()
    assert sequence.logprobs == pytest.approx(expected, abs=1e-5)
