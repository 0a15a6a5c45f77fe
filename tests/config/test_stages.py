"""What changes within a stage: temperature and weights, as functions of the step, and how it mixes kinds of prompts."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.refusals import refuses

from smolsum.config.resolve import resolve
from smolsum.config.sections import Config, TrainConfig
from smolsum.config.stage import StageConfig
from smolsum.config.stages import (
    apportion,
    described,
    epoch_counts,
    kinds_by_place,
    progress,
    schedule_metrics,
    stage_at,
)
from smolsum.grpo.prompt_order import PromptOrder
from smolsum.tasks import TASKS
from smolsum.types import Prompt

STAGE = StageConfig(
    rewards={"length": 1.0, "meteor": 0.5}, steps=0, epochs=1.0, temperature=1.2, learning_rate=1e-4,
    schedule="constant", warmup_steps=0, beta=0.0,
)  # fmt: skip


@pytest.mark.parametrize(("course", "middle", "quarter"), [("linear", 0.5, 0.25), ("cosine", 0.5, 0.1464466)])
def test_courses(course: str, middle: float, quarter: float) -> None:
    """From exactly 0 at the first step to exactly 1 at the last, where refilled groups of later steps stay too."""
    found = [progress(course, k, 5) for k in range(7)]  # type: ignore[arg-type]
    assert found[0] == 0.0
    assert found[4:] == [1.0, 1.0, 1.0]
    assert found[2] == pytest.approx(middle)
    assert found[1] == pytest.approx(quarter)
    assert progress(course, 0, 1) == 0.0  # type: ignore[arg-type]


def test_a_stage_without_schedule_stays() -> None:
    """The same record at every step, and nothing to log."""
    assert all(stage_at(STAGE, k, 9) is STAGE for k in range(9))
    assert schedule_metrics(STAGE, STAGE) == {}
    assert described(STAGE) == ""


def test_temperature_and_weights_of_a_step() -> None:
    """A signal that the end leaves out keeps its weight; one that only the end has starts at 0."""
    stage = replace(STAGE, temperature_end=0.6, rewards_end={"length": 0.1, "rouge": 2.0}, rewards_schedule="cosine")
    first, middle, last = (stage_at(stage, k, 11) for k in (0, 5, 10))
    assert first.temperature == 1.2
    assert last.temperature == 0.6
    assert middle.temperature == pytest.approx(0.9)
    assert first.rewards == {"length": 1.0, "meteor": 0.5, "rouge": 0.0}
    assert last.rewards == {"length": 0.1, "meteor": 0.5, "rouge": 2.0}
    assert middle.rewards == pytest.approx({"length": 0.55, "meteor": 0.5, "rouge": 1.0})
    weights = {"rewards/length/weight": 0.1, "rewards/meteor/weight": 0.5, "rewards/rouge/weight": 2.0}
    assert schedule_metrics(stage, last) == weights | {"sampling/temperature": 0.6}
    assert stage.trained_rewards == {"length": 1.0, "meteor": 0.5, "rouge": 2.0}
    assert described(stage) == (
        "temperature 1.2 to 0.6 (linear); weights length 1, meteor 0.5 to length 0.1, meteor 0.5, rouge 2 (cosine)"
    )


def test_signals_of_the_end_decide_about_truncated_completions() -> None:
    """A stage that ends with a reward of length learns from completions that were cut."""
    sets = ["stages.included.rewards={meteor=1.0}", "stages.included.rewards_end={length=1.0}"]
    flags = {"grpo.mask_truncated": "auto"}
    moved = resolve(TASKS, strategy="included", sets=sets, flags=flags).config.stages["included"]
    assert moved.mask_truncated is False
    assert moved.rewards_end == {"length": 1.0}
    same = resolve(TASKS, strategy="included", sets=sets[:1], flags=flags).config.stages["included"]
    assert same.mask_truncated is True


@pytest.mark.parametrize(
    ("text", "named", "hint"),
    [
        ("temperature_schedule=cosine", "temperature_end is not", "temperature_end=0.7"),
        ("temperature_end=1.0", "what the stage begins with", "another value"),
        ("temperature_end=-1", "0 or more", "default"),
        ("temperature_schedule=step", "linear, cosine", "default"),
        ("rewards_schedule=cosine", "rewards_end is not", "rewards_end="),
        ("rewards_end={length=1.0}", "what the stage begins with", "another value"),
        ("rewards_end={length=0, meteor=0}", "no reward", "rewards_end.length=1.0"),
        ("rewards_end.lenght=1.0", "'lenght'", "length"),
    ],
)
def test_settings_that_mean_nothing_are_refused(text: str, named: str, hint: str) -> None:
    with refuses("stages.included", named) as refused:
        resolve(TASKS, strategy="included", sets=[f"stages.included.{text}"])
    assert hint in str(refused.value.hint)


KINDS = ["simple"] * 30 + ["medium"] * 45 + ["hard"] * 75
PROMPTS = tuple(Prompt(str(n), (), (1,), (), {"level": kind}) for n, kind in enumerate(KINDS))


def test_epochs_keep_the_mix() -> None:
    """As many prompts as the scarcest kind allows: 30 / 0.35 = 85.7, of which 30, 47 and 9 would need 2 medium ones
    more."""
    counts = epoch_counts("s", {"simple": 0.35, "medium": 0.55, "hard": 0.1}, KINDS)
    assert counts == {"simple": 29, "medium": 45, "hard": 8}
    assert epoch_counts("s", {"hard": 1.0, "simple": 0.0}, KINDS) == {"hard": 75}
    assert epoch_counts("s", {}, KINDS) == {"": 150}


@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=60), st.lists(st.integers(0, 9), min_size=3, max_size=3))
def test_counts_never_exceed_what_there_is(kinds: list[str], parts: list[int]) -> None:
    """Whatever the mix: no more than there are, and the largest epoch for which that holds."""
    there = Counter(kinds)
    mix = {kind: part / sum(parts) for kind, part in zip("abc", parts, strict=True) if sum(parts) and there[kind]}
    if not mix or not sum(mix.values()):
        return
    mix = {kind: share / sum(mix.values()) for kind, share in mix.items()}
    counts = epoch_counts("s", mix, kinds)
    assert all(counts[kind] <= there[kind] for kind in counts)
    larger = apportion(sum(counts.values()) + 1, {kind: share for kind, share in mix.items() if share})
    assert any(count > there[kind] for kind, count in larger.items())


@pytest.mark.parametrize(
    ("mix", "named"),
    [({"simple": 0.5}, "0.5, not 1"), ({"hrad": 1.0}, "'hrad'"), ({"hard": 1.0, "hardd": 0.0}, "'hardd'")],
)
def test_an_impossible_mix(mix: dict[str, float], named: str) -> None:
    with refuses("basics", named):
        epoch_counts("basics", mix, KINDS)


def test_every_epoch_has_the_mix() -> None:
    """Each epoch has its share of each kind, no prompt twice, and other prompts than the epoch before."""
    prompts = PROMPTS
    counts = epoch_counts("s", {"simple": 0.2, "hard": 0.8}, KINDS)
    size = sum(counts.values())
    stage = replace(STAGE, mix={"simple": 0.2, "hard": 0.8})
    config = Config(train=TrainConfig(prompts_per_step=size), stages={"s": stage})
    order = PromptOrder(prompts, config, "s", KINDS)
    epochs = [order.take(n) for n in range(3)]
    for epoch in epochs:
        assert Counter(p.metadata["level"] for p in epoch) == counts
        assert len({p.id for p in epoch}) == size
    assert {p.id for p in epochs[0]} != {p.id for p in epochs[1]}
    assert [p.id for p in PromptOrder(prompts, config, "s", KINDS).take(1)] == [p.id for p in epochs[1]]
    shares = np.array([counts["simple"], counts["hard"]]) / size
    assert shares == pytest.approx([0.2, 0.8], abs=0.01)


@given(st.lists(st.integers(0, 9), min_size=6, max_size=6), st.integers(1, 9), st.integers(1, 5))
def test_a_changing_mix_keeps_its_shares(parts: list[int], steps: int, size: int) -> None:
    """After any place, each kind has had what the steps so far promised it, within one prompt for each other kind; a
    kind without a share in a step has no place in it."""
    starts, ends = parts[:3], parts[3:]
    if not sum(starts) or not sum(ends):
        return
    mixes = [{kind: part / sum(own) for kind, part in zip("abc", own, strict=True)} for own in (starts, ends)]
    stage = replace(STAGE, mix=mixes[0], mix_end=mixes[1])
    places = kinds_by_place(stage, size, steps, 2)
    assert len(places) == size * (steps + 2)
    promised, given_to = Counter[str](), Counter[str]()
    for place, (kind, before) in enumerate(places):
        mix = stage_at(stage, place // size, steps).mix
        assert mix[kind] > 0
        assert before == given_to[kind]
        promised.update(mix)
        given_to[kind] += 1
        assert all(abs(given_to[name] - promised[name]) < 2 for name in mix)


def test_a_changing_mix_takes_every_prompt_of_a_kind_before_any_twice() -> None:
    """Each kind has epochs of its own; the same step gives the same prompts, and another seed others."""
    prompts = PROMPTS
    stage = replace(STAGE, mix={"simple": 1.0}, mix_end={"hard": 1.0})
    config = Config(train=TrainConfig(prompts_per_step=4), stages={"s": stage})
    order = PromptOrder(prompts, config, "s", KINDS, steps=40)
    steps = [[p.id for p in order.take(k)] for k in range(40)]
    kinds = [Counter(KINDS[int(name)] for name in step) for step in steps]
    assert kinds[0] == {"simple": 4}
    assert kinds[-1] == {"hard": 4}
    assert 70 < sum(kind["hard"] for kind in kinds) < 90
    simple = [name for step in steps for name in step if KINDS[int(name)] == "simple"]
    assert len(set(simple[:30])) == 30
    assert [p.id for p in PromptOrder(prompts, config, "s", KINDS, steps=40).take(17)] == steps[17]
    other = replace(config, train=replace(config.train, seed=7))
    assert [p.id for p in PromptOrder(prompts, other, "s", KINDS, steps=40).take(17)] != steps[17]
