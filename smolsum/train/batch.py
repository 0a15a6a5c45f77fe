"""What a step's rollouts look like, under TRL's metric names, and the rows that keep every one of them.

A step's rollouts and what they are worth: sampled, scored and, where asked for, refilled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev
from typing import Any

import numpy as np

from smolsum.config.sections import Config, StageConfig
from smolsum.grpo.advantages import zero_spread
from smolsum.rewards.combine import Signal, combine, score_all
from smolsum.rollout.sampler import SampleRequest, Source
from smolsum.tasks.text_metrics import repeated_trigrams
from smolsum.types import Prompt, RolloutGroup


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
        source.ahead(SampleRequest(step + later - k, order.take(later), 0, stage.temperature))


def collect(
    source: Source,
    order: PromptOrder,
    k: int,
    config: Config,
    stage: StageConfig,
    *,
    step: int,
    lap: Callable[[str], None],
    signals: Mapping[str, Signal],
) -> tuple[Batch, list[int]]:
    """All that was sampled for the stage's step `k`, scored by the task's `signals`, and the places of the groups to
    learn from, as many as `k` has prompts.

    Groups whose rewards are all the same teach nothing. In up to `train.refill_rounds` rounds as many of the prompts
    that come next are sampled too, and take their places where their own rewards differ (dynamic sampling,
    arXiv:2503.14476, section 3.2, with a bound on the rounds). Those prompts are met again in their own step, so what a
    step samples still follows from the seed and the step alone.
    """

    def sampled(prompts: list[Prompt], first_place: int) -> Batch:
        groups = source.sample(SampleRequest(step, prompts, first_place, stage.temperature))
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


def rollout_metrics(batch: Batch) -> dict[str, float]:
    """Rewards, lengths and degeneration of all that one step sampled.

    `reward_std` is the mean over groups of the standard deviation within a group; `frac_reward_zero_std` the share of
    groups without any; a signal that is missing everywhere has no mean.
    """
    totals_PG = batch.totals
    rollouts = [rollout for group in batch.groups for rollout in group.rollouts]
    lengths = [rollout.length for rollout in rollouts]
    ended = [rollout.length for rollout in rollouts if not rollout.truncated]
    metrics = {
        "frac_reward_zero_std": float(np.mean(zero_spread(totals_PG))),
        "completions/mean_length": fmean(lengths),
        "completions/min_length": float(min(lengths)),
        "completions/max_length": float(max(lengths)),
        "completions/clipped_ratio": 1.0 - len(ended) / len(lengths),
        "completions/repeated_trigrams": fmean(repeated_trigrams(rollout.text) for rollout in rollouts),
        "num_tokens": float(sum(len(rollout.token_ids) for rollout in rollouts)),
    }
    if ended:
        metrics["completions/mean_terminated_length"] = fmean(ended)
    present = totals_PG[~np.isnan(totals_PG)]
    if present.size:
        rows = [row[~np.isnan(row)] for row in totals_PG]
        metrics["reward"] = float(present.mean())
        metrics["reward_std"] = fmean(float(row.std(ddof=1)) if row.size > 1 else 0.0 for row in rows)
    for name, rows_PG in batch.scores.items():
        values = [value for row in rows_PG for value in row if value is not None]
        if values:
            metrics[f"rewards/{name}/mean"] = fmean(values)
            metrics[f"rewards/{name}/std"] = pstdev(values)
    return metrics


def advantage_metrics(advantages_PG: Any) -> dict[str, float]:
    """Mean and standard deviation (population) of the advantages that a step learns from."""
    values = np.asarray(advantages_PG, dtype=np.float64)
    return {"advantages/mean": float(values.mean()), "advantages/std": float(values.std())}


def rollout_rows(batch: Batch, advantages: Mapping[int, Sequence[float]]) -> list[dict[str, Any]]:
    """One row for each rollout: prompt, text, token ids, every signal, total, advantage, and where it came from.

    The first row of a group also has what was asked and its references, so that a copied run can be read alone.
    `advantages` by the group's place; a group that is not learnt from has none.
    """
    return [
        {
            "prompt_id": group.prompt.id,
            "sample": g,
            "text": rollout.text,
            "token_ids": list(rollout.token_ids),
            "finish_reason": rollout.finish_reason,
            "rewards": {name: rows[p][g] for name, rows in batch.scores.items()},
            "reward": None if np.isnan(batch.totals[p][g]) else float(batch.totals[p][g]),
            "advantage": advantages[p][g] if p in advantages else None,
            "worker": rollout.worker,
            "policy_version": rollout.policy_version,
            "seed": rollout.seed,
            **({} if g else {"messages": group.prompt.messages, "references": group.prompt.references}),
        }
        for p, group in enumerate(batch.groups)
        for g, rollout in enumerate(group.rollouts)
    ]
