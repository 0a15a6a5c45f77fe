"""A step's rollouts: which prompts it takes, and what takes the place of groups that teach nothing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from smolsum.config.sections import Config, ModelConfig, SamplingConfig, StageConfig, TrainConfig
from smolsum.policy.load import Policy, load_policy
from smolsum.rewards import REWARDS
from smolsum.rollout.sampler import LocalSource, SampleRequest
from smolsum.tasks.tldr import TldrConfig
from smolsum.train.batch import PromptOrder, ahead, collect
from smolsum.types import Prompt, RolloutGroup

CONFIG = Config(
    model=ModelConfig(path="builtin:tiny"),
    task=TldrConfig(),
    sampling=SamplingConfig(rollouts=2, max_new_tokens=12),
    train=TrainConfig(prompts_per_step=3, seed=5),
)
# whether a completion of at most 12 tokens ends is what the reward is about: most groups are all cut
STAGE = StageConfig(
    rewards={"length": 1.0}, steps=4, epochs=1.0, temperature=1.0, learning_rate=1e-4, schedule="constant",
    warmup_steps=0, beta=0.0,
)  # fmt: skip


@pytest.fixture(scope="module")
def policy() -> Policy:
    return load_policy("builtin:tiny")


@pytest.fixture(scope="module")
def prompts(policy: Policy) -> tuple[Prompt, ...]:
    texts = [f"My friend number {n} lost a dog." for n in range(7)]
    return tuple(Prompt(f"p{n}", (), tuple(policy.tokenizer.encode(t)), ("",), {}) for n, t in enumerate(texts))


def test_every_epoch_has_each_prompt_once(prompts: tuple[Prompt, ...]) -> None:
    """In an order of its own, whatever the step size."""
    order = PromptOrder(prompts, CONFIG, 0)
    ids = [prompt.id for step in range(14) for prompt in order.take(step)]
    epochs = [ids[i : i + 7] for i in range(0, 42, 7)]
    assert all(sorted(epoch) == sorted(p.id for p in prompts) for epoch in epochs)
    assert epochs[0] != epochs[1]


@pytest.mark.parametrize("rounds", [0, 1, 3])
def test_groups_without_spread_are_replaced(policy: Policy, prompts: tuple[Prompt, ...], rounds: int) -> None:
    """As many groups as the step has prompts are learnt from; one whose rewards are equal only after the last round.
    What was sampled first is what is sampled without refilling, and twice the same."""
    order = PromptOrder(prompts, CONFIG, 0)
    config = replace(CONFIG, train=replace(CONFIG.train, refill_rounds=rounds))
    plain, kept = collect(
        LocalSource(policy, CONFIG), order, 1, CONFIG, STAGE, step=2, lap=lambda _: None, signals=REWARDS
    )
    assert kept == [0, 1, 2]
    batch, used = collect(
        LocalSource(policy, CONFIG), order, 1, config, STAGE, step=2, lap=lambda _: None, signals=REWARDS
    )
    again, same = collect(
        LocalSource(policy, CONFIG), order, 1, config, STAGE, step=2, lap=lambda _: None, signals=REWARDS
    )
    assert (batch.groups, used) == (again.groups, same)
    assert batch.groups[:3] == plain.groups
    spread = [len(set(row)) > 1 for row in batch.totals.tolist()]
    empty = [not s for s in spread[:3]]
    assert any(empty)  # or there is nothing to see
    assert len(used) == 3
    assert [used[n] for n in range(3) if not empty[n]] == [n for n in range(3) if not empty[n]]
    replaced = [place for place in used if place > 2]
    assert all(spread[place] for place in replaced)
    assert len(replaced) == min(sum(empty), sum(spread[3:]))
    if rounds:
        extra = [group.prompt.id for group in batch.groups[3 : 3 + sum(empty)]]
        assert extra == [prompt.id for prompt in order.take(2)[: sum(empty)]]


class EagerSource(LocalSource):
    """Samples what is asked for ahead at once, and keeps it."""

    depth = 2

    def __init__(self, policy: Policy, config: Config) -> None:
        super().__init__(policy, config)
        self.kept: list[RolloutGroup] = []

    def ahead(self, asked: SampleRequest) -> None:
        self.kept += self.sample(asked)


@pytest.mark.parametrize("cold", [True, False])
def test_a_stage_samples_at_its_temperature(policy: Policy, prompts: tuple[Prompt, ...], cold: bool) -> None:
    """Near 0 all completions of a prompt are the same: those of the step, those that refill it, those asked for
    ahead. At 1 they differ."""
    order = PromptOrder(prompts, CONFIG, 0)
    stage = replace(STAGE, temperature=0.001 if cold else 1.0)
    config = replace(CONFIG, train=replace(CONFIG.train, refill_rounds=1))
    source = EagerSource(policy, config)
    batch, _ = collect(source, order, 0, config, stage, step=1, lap=lambda _: None, signals=REWARDS)
    ahead(source, order, 0, stage, step=1, steps=3)
    assert len(batch.groups) > 3
    assert len(source.kept) == 6
    for groups in (batch.groups[:3], batch.groups[3:], source.kept):
        assert all(len({r.token_ids for r in group.rollouts}) == (1 if cold else 2) for group in groups)


def test_rollouts_of_a_prompt_met_again_differ(policy: Policy, prompts: tuple[Prompt, ...]) -> None:
    """A prompt that filled a place and comes up in its own step has other seeds there."""
    order = PromptOrder(prompts, CONFIG, 0)
    config = replace(CONFIG, train=replace(CONFIG.train, refill_rounds=2))
    batch, _ = collect(
        LocalSource(policy, CONFIG), order, 1, config, STAGE, step=2, lap=lambda _: None, signals=REWARDS
    )
    later, _ = collect(
        LocalSource(policy, CONFIG), order, 2, CONFIG, STAGE, step=3, lap=lambda _: None, signals=REWARDS
    )
    seeds = [rollout.seed for b in (batch, later) for group in b.groups for rollout in group.rollouts]
    assert len(set(seeds)) == len(seeds)


def test_parts_of_a_batch(policy: Policy, prompts: tuple[Prompt, ...]) -> None:
    """Groups, signals and totals stay together."""
    order = PromptOrder(prompts, CONFIG, 0)
    batch, _ = collect(
        LocalSource(policy, CONFIG), order, 0, CONFIG, STAGE, step=1, lap=lambda _: None, signals=REWARDS
    )
    part = (batch + batch).take([4, 0])
    assert part.groups == [batch.groups[1], batch.groups[0]]
    assert part.scores == {"length": [batch.scores["length"][1], batch.scores["length"][0]]}
    np.testing.assert_array_equal(part.totals, batch.totals[[1, 0]])
