"""A step's rollouts and what they are worth: sampled, scored and, where asked for, refilled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from smolsum.config import Config, StageConfig
from smolsum.grpo.advantages import zero_spread
from smolsum.policy import ranks
from smolsum.policy.load import Policy
from smolsum.rewards.combine import combine, score_all
from smolsum.rollout.local import sample_groups
from smolsum.rollout.records import Prompt, Rollout, RolloutGroup


@dataclass(frozen=True)
class Batch:
    """Groups with their PxG signals by name and PxG totals (float64, NaN where a rollout could not be scored)."""

    groups: list[RolloutGroup]
    scores: dict[str, list[list[float | None]]]
    totals: Any

    def __add__(self, other: Batch) -> Batch:
        scores = {name: rows + other.scores[name] for name, rows in self.scores.items()}
        return Batch(self.groups + other.groups, scores, np.concatenate([self.totals, other.totals]))

    def take(self, places: Sequence[int]) -> Batch:
        """The groups at these places."""
        scores = {name: [rows[p] for p in places] for name, rows in self.scores.items()}
        return Batch([self.groups[p] for p in places], scores, self.totals[list(places)])


class PromptOrder:
    """The prompts of a stage: shuffled anew in every epoch by the run's seed."""

    def __init__(self, prompts: tuple[Prompt, ...], config: Config, stage_number: int) -> None:
        self.prompts, self.seed, self.stage = prompts, config.train.seed, stage_number
        self.size = config.train.prompts_per_step * config.train.accumulation_steps

    def take(self, step: int) -> list[Prompt]:
        """The prompts of the stage's step (from 0)."""
        return [self._at(place) for place in range(step * self.size, (step + 1) * self.size)]

    def _at(self, place: int) -> Prompt:
        epoch, row = divmod(place, len(self.prompts))
        shuffled = np.random.default_rng([self.seed, self.stage, epoch]).permutation(len(self.prompts))
        return self.prompts[int(shuffled[row])]


def collect(
    policy: Policy,
    order: PromptOrder,
    k: int,
    config: Config,
    stage: StageConfig,
    *,
    step: int,
    lap: Callable[[str], None],
) -> tuple[Batch, list[int]]:
    """All that was sampled for the stage's step `k`, and the places of the groups to learn from, as many as `k` has
    prompts.

    Groups whose rewards are all the same teach nothing. In up to `train.refill_rounds` rounds as many of the prompts
    that come next are sampled too, and take their places where their own rewards differ (dynamic sampling,
    arXiv:2503.14476, section 3.2, with a bound on the rounds). Those prompts are met again in their own step, so what a
    step samples still follows from the seed and the step alone.
    """

    def sampled(prompts: list[Prompt], first_place: int) -> Batch:
        places = ranks.share(range(len(prompts)))
        mine = sample_groups(
            policy,
            [prompts[place] for place in places],
            [first_place + place for place in places],
            config.sampling,
            temperature=stage.temperature,
            run_seed=config.train.seed,
            step=step,
            version=step - 1,
        )
        groups = exchanged(mine, prompts)
        lap("rollout_s")
        scores = score_all(groups, stage.rewards, config)
        totals = np.array(combine(groups, scores, stage.rewards), dtype=np.float64)
        lap("score_s")
        return Batch(groups, scores, totals)

    batch = sampled(order.take(k), 0)
    used = list(range(order.size))
    for turn in range(1, config.train.refill_rounds + 1):
        flat = zero_spread(batch.totals)
        empty = [n for n, place in enumerate(used) if flat[place]]
        if not empty:
            break
        start = len(batch.groups)
        batch += sampled(order.take(k + turn)[: len(empty)], start)
        useful = [start + n for n, same in enumerate(zero_spread(batch.totals[start:])) if not same]
        for n, place in zip(empty, useful, strict=False):
            used[n] = place
    return batch, used


def exchanged(mine: Sequence[RolloutGroup], prompts: Sequence[Prompt]) -> list[RolloutGroup]:
    """The groups of all prompts, from what each rank sampled of its share."""
    if ranks.alone():
        return list(mine)
    shares = ranks.gathered([[asdict(rollout) for rollout in group.rollouts] for group in mine])
    n = len(shares)
    return [
        RolloutGroup(prompt, tuple(_rollout(fields) for fields in shares[place % n][place // n]))
        for place, prompt in enumerate(prompts)
    ]


def _rollout(fields: dict[str, Any]) -> Rollout:
    """What `asdict` took apart and JSON carried."""
    lists = {name: tuple(fields[name]) for name in ("token_ids", "logprobs")}
    return Rollout(**(fields | lists))
