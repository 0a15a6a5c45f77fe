"""Which end of a completion is learnt in hindsight, and under which length."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
import pytest

from smolsum.config.constraints import parse_constraints
from smolsum.config.resolve import resolve
from smolsum.config.sections import Config
from smolsum.grpo.batch import Batch
from smolsum.grpo.constraints import Bounded
from smolsum.grpo.credit import sentence_ends
from smolsum.grpo.hindsight import Relabelled
from smolsum.grpo.relabel import relabelled
from smolsum.grpo.setup.prepare import Setup, prepare
from smolsum.tasks import TASKS
from smolsum.types import Rollout, RolloutGroup

SENTENCES = ("My uncle raised my rent.", "I wrote him a letter and got no answer.", "I am 26.", "Should I go?")
ROLLOUTS = 400


@pytest.fixture(scope="module")
def setup() -> Setup:
    sets = ("task.targets=10-60", "task.held_out_targets=12-60/3")
    return prepare(resolved(*sets))


def resolved(*sets: str) -> Config:
    return resolve(TASKS, model="tiny", strategy="finetuned", sets=sets).config


def rollout(setup: Setup, *, truncated: bool = False, text: str = " ".join(SENTENCES)) -> Rollout:
    ids = setup.policy.tokenizer.encode(text, add_special_tokens=False)
    ids = tuple(ids) if truncated else (*ids, setup.policy.tokenizer.eos_token_id)
    return Rollout(ids, (-1.0,) * len(ids), "length" if truncated else "stop", 0, "local", 0, text)


def learnt(
    setup: Setup,
    one: Rollout,
    scores: dict[str, list[float]] | None = None,
    *,
    measured: tuple[Bounded, ...] = (),
    of: Literal["ends", "texts"] = "ends",
) -> list[Relabelled]:
    """What is learnt from many copies of a rollout, which differ in their seeds alone."""
    return relabelled_of(setup, [replace(one, seed=seed) for seed in range(ROLLOUTS)], scores, measured=measured, of=of)


def relabelled_of(
    setup: Setup,
    rollouts: Sequence[Rollout],
    scores: dict[str, list[float]] | None = None,
    *,
    measured: tuple[Bounded, ...] = (),
    of: Literal["ends", "texts"] = "ends",
) -> list[Relabelled]:
    group, values = RolloutGroup(setup.prompts["train"][0], tuple(rollouts)), (scores or {}).items()
    batch = Batch(
        [group], {name: [row] for name, row in values}, np.zeros((1, len(rollouts))), np.zeros(1, bool), measured
    )
    stage = replace(setup.config.stages["quality" if scores else "length"], hindsight_of=of)
    targets = setup.writer.targets if setup.writer else None
    return relabelled(batch, setup, stage, targets, sentence_ends(setup.policy.tokenizer))


def learnt_texts(setup: Setup, one: Rollout, measured: tuple[Bounded, ...] = ()) -> list[Relabelled]:
    return learnt(setup, one, measured=measured, of="texts")


def asked(setup: Setup, found: Relabelled) -> list[int]:
    """The targets that prompts ask for, read from their text."""
    texts = [setup.policy.tokenizer.decode(list(ids)) for ids in found.prompts_ids]
    return [int(text.rsplit(" tokens", 1)[0].rsplit("\n", 1)[-1].split()[-1]) for text in texts]


def test_the_drawn_targets_decide_which_end_is_right(setup: Setup) -> None:
    """Each as often as it is the nearest to the targets: lengths do not follow from those that the policy writes."""
    whole = rollout(setup)
    (found,) = learnt(setup, whole)
    for one in found.rollouts:
        assert one.token_ids[:-1] == whole.token_ids[: one.length]
        assert one.token_ids[-1] == setup.policy.tokenizer.eos_token_id
        assert one.text == " ".join(SENTENCES[: one.text.count(".") + one.text.count("?")])
    targets = setup.writer.targets  # type: ignore[union-attr]
    right = [
        (one.length, target)
        for one, target, good in zip(found.rollouts, asked(setup, found), found.right, strict=True)
        if good
    ]
    assert all(target == targets.nearest(length) for length, target in right)
    ends = sorted({one.length for one in found.rollouts})
    assert len(ends) == len(SENTENCES)
    chosen, near = Counter(length for length, _ in right), ends[-1] + ends[-1] / (2 * len(ends))
    nearest = Counter(min(ends, key=lambda end: abs(end - one)) for one in targets.trained if one <= near)
    for end in ends:
        assert chosen[end] / ROLLOUTS == pytest.approx(nearest[end] / len(targets.trained), abs=0.08)


def test_every_end_before_the_right_one_is_too_early(setup: Setup) -> None:
    """One of them for each completion, under the prompt that asks for the target; and where the completion is too short
    for it, its own end."""
    (found,) = learnt(setup, rollout(setup))
    targets = setup.writer.targets  # type: ignore[union-attr]
    ends = sorted({one.length for one in found.rollouts})
    early = [
        (one.length, target)
        for one, target, good in zip(found.rollouts, asked(setup, found), found.right, strict=True)
        if not good
    ]
    assert {length for length, _ in early} == {*ends}
    for length, target in early:
        assert target in targets.trained
        best = min(ends, key=lambda end: abs(end - target))
        assert length < best or (length == best == ends[-1] and target > length * (1 + 1 / (2 * len(ends))))


def test_what_was_cut_ends_after_its_sentences_alone(setup: Setup) -> None:
    """Where it was cut it could have gone on."""
    cut = rollout(setup, truncated=True, text=" ".join(SENTENCES) + " And then she")
    (found,) = learnt(setup, cut)
    whole = rollout(setup).length
    assert max(one.length for one in found.rollouts) == whole < cut.length
    assert all(right for one, right in zip(found.rollouts, found.right, strict=True) if one.length == whole)
    assert not learnt(setup, rollout(setup, truncated=True, text="And then she"))


def test_half_of_a_group_is_good_enough(setup: Setup) -> None:
    """By the signals that do not depend on the length."""
    quality = [float(seed % 2) for seed in range(ROLLOUTS)]
    (found,) = learnt(setup, rollout(setup), {"meteor": quality, "rouge": quality, "length": [0.0] * ROLLOUTS})
    assert len({one.seed for one in found.rollouts}) == ROLLOUTS / 2
    assert all(one.seed % 2 for one in found.rollouts)


def test_whole_texts_are_learnt_under_their_own_length(setup: Setup) -> None:
    """Those that ended after a sentence, with a length that training asks for."""
    whole = rollout(setup)
    trained = setup.writer.targets.trained  # type: ignore[union-attr]
    found = learnt_texts(setup, whole)
    assert whole.length in trained
    assert {*asked(setup, found[0])} == {whole.length}
    assert all(found[0].right)
    assert {one.token_ids for one in found[0].rollouts} == {whole.token_ids}
    longer = next(text for text in (" ".join((*SENTENCES, "So.")), " ".join((*SENTENCES, "So what now?")))
                  if rollout(setup, text=text).length not in trained)  # fmt: skip
    unfinished = rollout(setup, text=" ".join(SENTENCES[:2]) + " And then she")
    assert unfinished.length in trained
    for none in (rollout(setup, text=longer), rollout(setup, truncated=True), unfinished):
        assert not learnt_texts(setup, none)


def test_texts_have_to_obey_what_does_not_depend_on_the_length(setup: Setup) -> None:
    """Each for itself, also where a mean is bounded. A value that is missing bounds nothing."""
    rows = np.arange(ROLLOUTS)[None] % 4
    far = np.full((1, ROLLOUTS), 9.0)
    bounds = {
        "repeated_trigrams <= 0.01": np.where(rows == 0, 0.02, 0.0),
        "rouge >= 0.2": np.where(rows == 1, 0.1, np.nan),
        "off_target <= 1": far,
        "length within 5: 0.99": far,
        "tokens within 5: 0.9": far,
    }
    measured = tuple(Bounded(*parse_constraints(text), values, np.ones((1, 1))) for text, values in bounds.items())
    (found,) = learnt_texts(setup, rollout(setup), measured)
    assert {one.seed % 4 for one in found.rollouts} == {2, 3}
    assert len(found.rollouts) == ROLLOUTS / 2


def test_texts_of_each_part_of_the_targets_count_alike(setup: Setup) -> None:
    """However many there are of each, up to a limit; and on average 1."""
    short, long = rollout(setup, text=" ".join(SENTENCES[:2])), rollout(setup)
    few = [replace(short, seed=seed) for seed in range(30)] + [replace(long, seed=seed) for seed in range(10)]
    (found,) = relabelled_of(setup, few, of="texts")
    by_length = {one.length: weight for one, weight in zip(found.rollouts, found.weights, strict=True)}
    assert by_length == {short.length: pytest.approx(20 / 30), long.length: pytest.approx(20 / 10)}
    (found,) = relabelled_of(setup, few[:30] + few[:30] + few[30:32], of="texts")
    assert max(found.weights) == 4.0


def test_one_target_has_right_ends_within_its_tolerance(setup: Setup) -> None:
    """And all prompts stay as they are."""
    whole = rollout(setup)
    ends = sorted({one.length for one in learnt(setup, whole)[0].rollouts})
    for target, right in ((ends[2] + 1, {ends[2]}), (ends[1] + 3, set()), (ends[-1] + 20, set())):
        (found,) = learnt(one_target(setup, target), whole)
        assert {one.length for one, good in zip(found.rollouts, found.right, strict=True) if good} == right
        early = {one.length for one, good in zip(found.rollouts, found.right, strict=True) if not good}
        assert early
        assert max(early) < target
        assert {tuple(ids) for ids in found.prompts_ids} == {setup.prompts["train"][0].token_ids}


def test_no_end_within_the_tolerance_is_too_early(setup: Setup) -> None:
    """Of one target: both are right, and only the nearest is taught."""
    cut = rollout(setup, truncated=True, text=" ".join(SENTENCES) + " And then she")
    ends = sorted({one.length for one in learnt(setup, rollout(setup))[0].rollouts})
    (found,) = learnt(one_target(setup, ends[-1], tolerance=ends[-1] - ends[1]), cut)
    by_right = {good: {one.length for one, own in zip(found.rollouts, found.right, strict=True) if own is good}
                for good in (True, False)}  # fmt: skip
    assert by_right == {True: {ends[-1]}, False: {ends[0]}}


@pytest.mark.parametrize("off", [-2, 0, 2])
def test_one_target_teaches_nothing_of_what_kept_it(setup: Setup, off: int) -> None:
    """Also where a sentence before ends within the tolerance. What was cut did not keep it."""
    text = " ".join((*SENTENCES, "Yes?"))
    whole, cut = rollout(setup, text=text), rollout(setup, text=text + " And", truncated=True)
    one = one_target(setup, whole.length + off)
    assert not learnt(one, whole)
    (found,) = learnt(one, cut)
    assert any(found.right)


def one_target(setup: Setup, target: int, *, tolerance: int = 2) -> Setup:
    sets = (f"task.target_tokens={target}", f"task.tolerance_tokens={tolerance}", "grpo.hindsight=1")
    return replace(setup, writer=None, config=resolved(*sets))
