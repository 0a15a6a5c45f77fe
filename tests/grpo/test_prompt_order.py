"""An order of prompts that follows what each kind teaches (`tests/grpo/test_batch.py` has the plain order)."""

import json
from collections import Counter
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support.refusals import refuses

from smolsum.config.resolve import resolve
from smolsum.grpo.prompt_order import LearningOrder, SkippingOrder
from smolsum.tasks import TASKS
from smolsum.types import Prompt

KINDS = ("easy", "medium", "hard") * 8
PROMPTS = tuple(Prompt(f"{kind}{n}", (), (1,), (), {}) for n, kind in enumerate(KINDS))
MIX = "stages.included.mix={easy=0.25, medium=0.25, hard=0.5}"
SETS = ("difficulty.by=length", "difficulty.adapt=0.5", "train.prompts_per_step=4", MIX)


def order(ahead: int = 0) -> LearningOrder:
    config = resolve(TASKS, strategy="included", sets=SETS).config
    return LearningOrder(PROMPTS, config, "included", KINDS, ahead=ahead)


def kinds(prompts: list[Prompt]) -> dict[str, int]:
    return Counter(prompt.id.rstrip("0123456789") for prompt in prompts)


def sampled(prompts: list[Prompt], *, teaching: str) -> Any:
    """A step in which the rewards of this kind alone differ; one is missing."""
    totals = [[0.0, 1.0, 1.0, np.nan] if prompt.id.startswith(teaching) else [0.5] * 4 for prompt in prompts]
    return SimpleNamespace(groups=[SimpleNamespace(prompt=prompt) for prompt in prompts], totals=np.array(totals))


def test_the_mix_follows_what_teaches() -> None:
    """It begins as the stage says, then nearly all prompts are of the kind that teaches; the others are not forgotten,
    and come back once they teach. No prompt of a kind comes again before all of them came."""
    taking = order()
    assert kinds(taking.take(0)) == {"easy": 1, "medium": 1, "hard": 2}
    seen = []
    for k in range(12):
        prompts = taking.take(k)
        seen += [prompt.id for prompt in prompts if prompt.id.startswith("easy")]
        metrics = taking.observe(sampled(prompts, teaching="easy"), {})
    assert metrics["mix/easy"] > 0.8
    assert sum(metrics.values()) == pytest.approx(1.0)
    assert 0.0 < metrics["mix/medium"] == metrics["mix/hard"] / 2
    assert len({*seen[:8]}) == len({*seen[8:16]}) == 8
    for k in range(12, 60):
        metrics = taking.observe(sampled(taking.take(k), teaching="hard"), {})
    assert metrics["mix/hard"] > 0.9


def test_equal_rewards_teach_nothing_however_they_round() -> None:
    """The deviation of six times 0.7 is not 0."""
    taking = order()
    for k in range(12):
        prompts = taking.take(k)
        totals = np.array([[0.7] * 6 if one.id.startswith("hard") else [0.0, 1.0] * 3 for one in prompts])
        metrics = taking.observe(
            SimpleNamespace(groups=[SimpleNamespace(prompt=p) for p in prompts], totals=totals), {}
        )
    assert metrics["mix/hard"] < 0.1


def test_a_small_share_is_drawn_too() -> None:
    """Of which an epoch has not one prompt."""
    mix = "stages.included.mix={easy=0.9, medium=0.09, hard=0.01}"
    config = resolve(TASKS, strategy="included", sets=[*SETS[:-1], mix]).config
    taking = LearningOrder(PROMPTS, config, "included", KINDS, ahead=0)
    drawn = Counter[str]()
    for k in range(60):
        prompts = taking.take(k)
        drawn += kinds(prompts)
        taking.observe(sampled(prompts, teaching="hard"), {})
    assert drawn["hard"]


@pytest.mark.parametrize("ahead", [0, 2])
def test_steps_ahead_are_fixed_and_survive_a_checkpoint(ahead: int) -> None:
    """What was requested ahead does not change by what is observed meanwhile, and a resumed order goes on the same."""
    whole, again = order(ahead), order(ahead)
    for k in range(6):
        promised = [whole.take(k + n) for n in range(ahead + 1)]
        whole.observe(sampled(promised[0], teaching="easy" if k % 2 else "hard"), {})
        assert [whole.take(k + n) for n in range(1, ahead + 1)] == promised[1:]
    again.load(json.loads(json.dumps(whole.state())))
    for k in range(6, 12):
        assert again.take(k) == whole.take(k)
        found = [one.observe(sampled(one.take(k), teaching="medium"), {}) for one in (whole, again)]
        assert found[0] == found[1]


def skipping(ahead: int = 0) -> SkippingOrder:
    config = resolve(TASKS, strategy="included", sets=("train.skip_untaught=0.5", "train.prompts_per_step=4")).config
    return SkippingOrder(PROMPTS, config, "included", (), ahead=ahead)


def taught(prompts: list[Prompt], *, teaching: str) -> Any:
    """A step in which all groups but those of this kind have equal rewards."""
    untaught = np.array([not prompt.id.startswith(teaching) for prompt in prompts])
    return SimpleNamespace(groups=[SimpleNamespace(prompt=prompt) for prompt in prompts], untaught=untaught)


def test_prompts_that_taught_nothing_are_skipped() -> None:
    """None before all prompts came once; then more and more, but none for ever, and those that teach come as often as
    before."""
    taking, seen = skipping(), list[str]()
    for k in range(6):
        prompts = taking.take(k)
        seen += [prompt.id for prompt in prompts]
        metrics = taking.observe(taught(prompts, teaching="easy"), {})
    assert len(set(seen)) == len(PROMPTS)
    for k in range(6, 200):
        prompts = taking.take(k)
        seen += [prompt.id for prompt in prompts]
        metrics = taking.observe(taught(prompts, teaching="easy"), {})
    count = Counter(seen[24:])
    easy, others = ([count[one.id] for one in PROMPTS if (one.id.startswith("easy")) is same] for same in (True, False))
    assert min(easy) > 4 * max(others)
    assert min(others) > 0
    assert max(easy) - min(easy) <= 1
    assert metrics["order/skipped_frac"] > 0.5


@pytest.mark.parametrize("ahead", [0, 2])
def test_what_is_skipped_survives_a_checkpoint(ahead: int) -> None:
    """What was requested ahead stays, and a resumed order goes on the same."""
    whole, again = skipping(ahead), skipping(ahead)
    for k in range(20):
        promised = [whole.take(k + n) for n in range(ahead + 1)]
        whole.observe(taught(promised[0], teaching="hard"), {})
        assert [whole.take(k + n) for n in range(1, ahead + 1)] == promised[1:]
    again.load(json.loads(json.dumps(whole.state())))
    for k in range(20, 30):
        assert again.take(k) == whole.take(k)
        found = [one.observe(taught(one.take(k), teaching="easy"), {}) for one in (whole, again)]
        assert found[0] == found[1]


def test_an_order_cannot_skip_and_move() -> None:
    """Both would decide what comes next."""
    sets = (*SETS, "train.skip_untaught=0.5")
    with refuses("train.skip_untaught", "included"):
        resolve(TASKS, strategy="included", sets=sets)
