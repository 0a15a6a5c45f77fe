"""Continuous batching: who joins later is sampled as if alone."""

import pytest
from support.models import EOS, build

from smolsum.policy.sampling import ActiveSequence, DecodeBatch


@pytest.mark.parametrize("family", ["qwen2", "lfm2", "gemma3_text"])
def test_joining_later_changes_nothing(family: str) -> None:
    """Rollouts that join a running batch, longer and shorter ones, at other temperatures, get the tokens that they get
    alone, and so do those that were there."""
    model = build(family)
    asked = [((5, 9, 33), 1, 1.0, 14), ((7,), 2, 0.0, 9), ((11, 12, 13, 14, 15, 16), 3, 0.7, 20), ((3, 4), 4, 1.0, 1)]
    alone = []
    for arguments in asked:
        batch, sequence = DecodeBatch(model, frozenset({EOS})), ActiveSequence(*arguments)
        batch.add([sequence])
        while batch.rows:
            batch.step()
        alone.append(sequence)
    batch, late = DecodeBatch(model, frozenset({EOS})), [ActiveSequence(*arguments) for arguments in asked]
    for sequence in late:
        assert batch.can_join()
        batch.add([sequence])
        for _ in range(3):
            if batch.rows:
                batch.step()
    while batch.rows:
        batch.step()
    for one, other in zip(alone, late, strict=True):
        assert one.ids == other.ids
        assert other.logprobs == pytest.approx(one.logprobs, abs=1e-4)


def test_the_abandoned_leave() -> None:
    """A rollout that is no longer needed is no longer sampled."""
    batch = DecodeBatch(build("qwen2"), frozenset())
    sequences = [ActiveSequence((5,), seed, 1.0, 10) for seed in range(2)]
    batch.add(sequences)
    batch.step()
    sequences[0].abandoned = True
    while batch.rows:
        batch.step()
    assert [len(sequence.ids) for sequence in sequences] == [1, 10]
