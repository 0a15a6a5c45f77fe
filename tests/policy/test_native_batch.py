"""Rollouts decoded in C that join and leave between two tokens: each as it is alone, and as MLX samples it."""

import pytest
from support.models import EOS, LAYERS_IN_C, NEEDS_C, build, build_for_c

from smolsum.policy.native_batch import NativeBatch, decode_batch
from smolsum.policy.sampling import ActiveSequence, DecodeBatch, SampledToken, generate, score_text

# isort: split
import mlx.core as mx

pytestmark = NEEDS_C

ENDS = frozenset({EOS})


def finish(batch: DecodeBatch | NativeBatch, steps: int = 99) -> None:
    for _ in range(steps):
        if batch.rows:
            batch.step()


def test_models_that_c_has_not_are_left_to_mlx() -> None:
    assert isinstance(decode_batch(build_for_c("qwen2"), ENDS), NativeBatch)
    assert isinstance(decode_batch(build("qwen2"), ENDS), DecodeBatch)


@pytest.mark.parametrize("name", LAYERS_IN_C)
def test_joining_later_changes_nothing(name: str) -> None:
    """To the bit, for prompts and rollouts longer and shorter than those that are there."""
    model = build_for_c(name)
    asked = [((5, 9, 33), 1, 1.0, 14), ((7,), 2, 0.0, 9), (tuple(range(3, 60)) * 2, 3, 0.7, 30), ((3, 4), 4, 1.0, 1)]
    sequences, batch = [ActiveSequence(*one) for one in asked], decode_batch(model, ENDS)
    for sequence in sequences:
        batch.add([sequence])
        finish(batch, 3)
    finish(batch)
    for (prompt, seed, temperature, tokens), sequence in zip(asked, sequences, strict=True):
        limits = {"temperature": temperature, "max_new_tokens": tokens}
        assert generate(model, [prompt], [[seed]], eos_ids=ENDS, **limits) == [[sequence.completion]]


def test_more_rollouts_than_a_pass_has_room_for() -> None:
    """Two passes feed them all, and some twice."""
    model = build_for_c("qwen2")
    batch, sequences = decode_batch(model, ENDS), [ActiveSequence((5, 9), seed, 1.0, 9) for seed in range(71)]
    batch.add(sequences)
    finish(batch)
    (alone,) = generate(model, [(5, 9)], [range(71)], eos_ids=ENDS, temperature=1.0, max_new_tokens=9)
    assert [sequence.completion for sequence in sequences] == alone


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


def test_the_abandoned_leave() -> None:
    batch, sequences = NativeBatch(build_for_c("qwen2"), ENDS), [ActiveSequence((5,), n, 1.0, 10) for n in range(2)]
    batch.add(sequences)
    batch.step()
    sequences[0].abandoned = True
    finish(batch)
    assert [len(sequence.ids) for sequence in sequences] == [1, 10]


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
