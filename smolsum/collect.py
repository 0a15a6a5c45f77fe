"""A step's rollouts and what they are worth: sampled, scored and, where asked for, refilled."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from smolsum.config import Config, StageConfig
from smolsum.grpo.advantages import zero_spread
from smolsum.rewards import REWARDS
from smolsum.rewards.combine import combine, score_all
from smolsum.rewards.signal import Signal
from smolsum.rollout.records import Prompt, RolloutGroup
from smolsum.rollout.source import Asked, Source


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
    """The prompts of a stage: shuffled anew in every epoch by the run's seed; with `counts`, so many of each of the
    prompts' `kinds`, others in every epoch."""

    def __init__(
        self,
        prompts: tuple[Prompt, ...],
        config: Config,
        stage_number: int,
        kinds: Sequence[str] = (),
        counts: Mapping[str, int] | None = None,
    ) -> None:
        self.prompts, self.seed, self.stage = prompts, config.train.seed, stage_number
        self.size = config.train.prompts_per_step * config.train.accumulation_steps
        mixed = counts if counts and list(counts) != [""] else {}
        self._rows = {kind: [n for n, own in enumerate(kinds) if own == kind] for kind in mixed}
        self._counts, self._epoch = mixed, sum(mixed.values()) or len(prompts)

    def take(self, step: int) -> list[Prompt]:
        """The prompts of the stage's step (from 0)."""
        return [self._at(place) for place in range(step * self.size, (step + 1) * self.size)]

    def _at(self, place: int) -> Prompt:
        epoch, row = divmod(place, self._epoch)
        rng = np.random.default_rng([self.seed, self.stage, epoch])
        chosen = [n for kind, count in self._counts.items() for n in rng.permutation(self._rows[kind])[:count]]
        shuffled = rng.permutation(chosen or len(self.prompts))
        return self.prompts[int(shuffled[row])]


def ahead(source: Source, order: PromptOrder, k: int, stage: StageConfig, *, step: int, steps: int) -> None:
    """Ask for the rollouts of the stage's steps after `k`, of `steps`, that may be sampled while the update of `k`, the
    run's `step`, runs."""
    for later in range(k + 1, min(steps, k + 1 + source.depth)):
        source.ahead(Asked(step + later - k, order.take(later), 0, stage.temperature))


def collect(
    source: Source,
    order: PromptOrder,
    k: int,
    config: Config,
    stage: StageConfig,
    *,
    step: int,
    lap: Callable[[str], None],
    signals: Mapping[str, Signal] = REWARDS,
) -> tuple[Batch, list[int]]:
    """All that was sampled for the stage's step `k`, scored by the task's `signals`, and the places of the groups to
    learn from, as many as `k` has prompts.

    Groups whose rewards are all the same teach nothing. In up to `train.refill_rounds` rounds as many of the prompts
    that come next are sampled too, and take their places where their own rewards differ (dynamic sampling,
    arXiv:2503.14476, section 3.2, with a bound on the rounds). Those prompts are met again in their own step, so what a
    step samples still follows from the seed and the step alone.
    """

    def sampled(prompts: list[Prompt], first_place: int) -> Batch:
        groups = source.sample(Asked(step, prompts, first_place, stage.temperature))
        lap("rollout_s")
        scores = score_all(groups, stage.rewards, config, signals)
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
