"""A step's batch: which prompts it takes, their rollouts with signals and totals, and the metrics of all that.

Metric names are those of TRL where it has one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, pstdev
from typing import Any

import numpy as np

from smolsum.config.constraints import parse_constraints
from smolsum.config.sections import Config, GrpoConfig
from smolsum.config.stage import StageConfig
from smolsum.config.stages import stage_at
from smolsum.config.targets import TARGET
from smolsum.console import current_hook
from smolsum.errors import PluginError, SmolsumError
from smolsum.grpo.advantages import likelihood_advantages, most_spread, step_advantages, teaches_nothing, zero_spread
from smolsum.grpo.constrained_values import columns_needed, signals_needed
from smolsum.grpo.constrained_values import measure as measure_constraints
from smolsum.grpo.constraints import Bounded
from smolsum.grpo.prompt_order import PromptOrder
from smolsum.grpo.stateful import Stateful
from smolsum.policy import distributed
from smolsum.rewards.combine import score_and_combine
from smolsum.rewards.signal import Background, RewardLog, Signal, TrainerState, Values
from smolsum.rollout.source import REFERENCE, WORKER, GroupRequest, Source
from smolsum.tasks.base import AskAhead, Measure, MetricRow
from smolsum.tasks.text_metrics import repeated_trigrams
from smolsum.types import Prompt, RolloutGroup

WITHOUT_REWARD = 10
"""steps at the start of a stage, or all of a shorter one, that may pass without any reward"""


@dataclass(frozen=True)
class Batch:
    """Groups with their PxG signals by name, PxG totals (float64, NaN where a rollout could not be scored), whether
    a group teaches nothing (boolean (P,)), what the stage's constraints bound, the task's measures of each rollout
    (empty where nothing needs them), and what users' rewards logged: columns of PxG values, and numbers."""

    groups: list[RolloutGroup]
    scores: dict[str, list[list[float | None]]]
    totals: Any
    untaught: Any
    measured: tuple[Bounded, ...] = ()
    measures: Sequence[Sequence[MetricRow]] = ()
    extra: Mapping[str, list[list[Any]]] = field(default_factory=dict)
    logged: Mapping[str, list[float]] = field(default_factory=dict)

    def __add__(self, other: Batch) -> Batch:
        scores = {name: rows + other.scores[name] for name, rows in self.scores.items()}
        measured = tuple(one + more for one, more in zip(self.measured, other.measured, strict=True))
        totals = np.concatenate((self.totals, other.totals))
        untaught = np.concatenate((self.untaught, other.untaught))
        extra = {
            name: [*(self.extra.get(name) or self._empty()), *(other.extra.get(name) or other._empty())]
            for name in {**self.extra, **other.extra}
        }
        logged = {
            name: [*self.logged.get(name, []), *other.logged.get(name, [])] for name in {**self.logged, **other.logged}
        }
        measures = [*self.measures, *other.measures]
        return Batch(self.groups + other.groups, scores, totals, untaught, measured, measures, extra, logged)

    def logged_means(self) -> dict[str, float]:
        """Return the mean of each number that users' rewards logged."""
        return {name: fmean(values) for name, values in self.logged.items()}

    def _empty(self) -> list[list[None]]:
        """Return a column that no reward logged."""
        return [[None] * len(group.rollouts) for group in self.groups]

    def take(self, places: Sequence[int]) -> Batch:
        """Return the groups at these places."""
        scores = {name: [rows[p] for p in places] for name, rows in self.scores.items()}
        measured = tuple(one.take(places) for one in self.measured)
        chosen = list(places)
        extra = {name: [rows[p] for p in places] for name, rows in self.extra.items()}
        groups = [self.groups[p] for p in places]
        measures = [self.measures[p] for p in places] if self.measures else ()
        totals, untaught = self.totals[chosen], self.untaught[chosen]
        return Batch(groups, scores, totals, untaught, measured, measures, extra, self.logged)

    def keep(self, places: Sequence[Sequence[int]]) -> Batch:
        """Return all groups with their rollouts at these places, as many of each group."""

        def kept(rows: Sequence[Sequence[Any]]) -> list[list[Any]]:
            return [[row[g] for g in own] for row, own in zip(rows, places, strict=True)]

        rollouts = kept([group.rollouts for group in self.groups])
        groups = [replace(group, rollouts=tuple(own)) for group, own in zip(self.groups, rollouts, strict=True)]
        totals = np.take_along_axis(self.totals, np.array(places), axis=1)
        measured = tuple(one.keep(places) for one in self.measured)
        scores, extra = ({name: kept(rows) for name, rows in one.items()} for one in (self.scores, self.extra))
        measures = kept(self.measures) if self.measures else ()
        return Batch(groups, scores, totals, self.untaught, measured, measures, extra, self.logged)

    def rows(self, advantages: Mapping[int, Mapping[int, float]]) -> list[dict[str, Any]]:
        """Return one row for each rollout, as the run directory keeps it.

        `advantages` are by the group's place and the rollout's in it, of those that the step learns from. The first row
        of a group also has its messages and references, so that a copied run can be read on its own.
        """
        return [
            {
                "prompt_id": group.prompt.id,
                "sample": g,
                "text": rollout.text,
                "token_ids": list(rollout.token_ids),
                "finish_reason": rollout.finish_reason,
                **({"target": group.prompt.metadata[TARGET]} if group.prompt.request else {}),
                "rewards": {name: rows[p][g] for name, rows in self.scores.items()},
                "reward": None if np.isnan(self.totals[p][g]) else float(self.totals[p][g]),
                "advantage": advantages.get(p, {}).get(g),
                **({"extra": {name: rows[p][g] for name, rows in self.extra.items()}} if self.extra else {}),
                "worker": rollout.worker,
                "policy_version": rollout.policy_version,
                "seed": rollout.seed,
                # what this process samples follows from the weights and the seed
                **({} if rollout.worker in (WORKER, REFERENCE) else {"logprobs": list(rollout.logprobs)}),
                **({} if g else {"messages": group.prompt.messages, "references": group.prompt.references}),
            }
            for p, group in enumerate(self.groups)
            for g, rollout in enumerate(group.rollouts)
        ]


class BatchSampler:
    """Samples and scores the batches of one stage."""

    def __init__(
        self,
        source: Source,
        order: PromptOrder,
        config: Config,
        stage: StageConfig,
        signals: Mapping[str, Signal],
        measure: Measure,
        *,
        ask_ahead: AskAhead = lambda completions, config: None,
        watches: bool = False,
        first_step: int,
        steps: int,
        run_steps: int,
        parts: Sequence[Stateful] = (),
        mark: Callable[[str], None] = lambda name: None,
    ) -> None:
        """`signals` are the task's; `measure` is how it measures a completion, about which `ask_ahead` asks a server
        where it has to: each one if it `watches`, else only where a constraint needs it; `first_step` is the number in
        the run of the stage's first step, `steps` how many the stage has and `run_steps` the run; `parts` adapt its
        weights; `mark` is called with the name of each timed part as it ends."""
        self.source, self.order, self.config, self.stage, self.signals = source, order, config, stage, signals
        self._constraints, self._measure, self._ask_ahead = parse_constraints(stage.constraints), measure, ask_ahead
        self._measures_all = watches or columns_needed(self._constraints, signals)
        # what constraints bound is computed even where it is not rewarded
        self._unrewarded_weights = dict.fromkeys(signals_needed(self._constraints, signals), 0.0)
        self._first_step, self._steps, self._run_steps = first_step, steps, run_steps
        self._mark, self._parts = mark, parts
        self._rewarded, self._unrewarded = False, 0

    def stage_at_step(self, k: int) -> StageConfig:
        """Return the stage as it is at its step `k` (from 0): as scheduled, with the weights that the parts make of
        that."""
        now = stage_at(self.stage, k, self._steps)
        rewards: Mapping[str, float] = now.rewards
        for part in self._parts:
            rewards = part.weights(rewards)
        return replace(now, rewards=dict(rewards))

    def collect(self, k: int) -> tuple[Batch, list[int]]:
        """Return all that is sampled for the stage's step `k` (from 0), and the places of the groups to learn from, as
        many as the step has prompts.

        Groups whose advantages are all 0 teach nothing. Each such group may be replaced: in at most
        `train.refill_rounds` rounds the next prompts are sampled too, and take the places of such groups if they teach
        something (dynamic sampling, arXiv:2503.14476, section 3.2, with a bound on the rounds). Those prompts come
        again in their own step, so what a step samples still follows from the seed and the step alone. Raises
        SmolsumError where the stage's first steps (`WITHOUT_REWARD`) have no reward at all.
        """
        batch = self._sample(k, self.order.take(k), 0)
        chosen = list(range(self.order.size))
        for turn in range(1, self.config.train.refill_rounds + 1):
            empty = [n for n, place in enumerate(chosen) if batch.untaught[place]]
            if not empty:
                break
            start = len(batch.groups)
            batch += self._sample(k, self.order.take(k + turn)[: len(empty)], start)
            useful = [start + n for n, same in enumerate(batch.untaught[start:]) if not same]
            for n, place in zip(empty, useful, strict=False):  # not every prompt that was sampled has to be useful
                chosen[n] = place
        self._check_rewarded(batch)
        return batch, chosen

    def _check_rewarded(self, batch: Batch) -> None:
        """Say so where no step of the stage has had a reward yet. Raises SmolsumError where that lasts."""
        self._rewarded = self._rewarded or not np.isnan(batch.totals).all()
        if self._rewarded:
            return
        self._unrewarded += 1
        weighted = [name for name, weight in self.stage.trained_rewards.items() if weight]
        lacking = [name for name in weighted if all(value is None for row in batch.scores[name] for value in row)]
        names = " and ".join(lacking or weighted)
        if self._unrewarded == min(WITHOUT_REWARD, self._steps):
            custom = any(isinstance(self.signals[name], Background) for name in self.stage.trained_rewards)
            raise (PluginError if custom else SmolsumError)(
                f"no completion of {self._unrewarded} steps has a reward: {names} had no value for any",
                hint="warnings above name what fails; None from a function means that it does not apply: return a "
                "number, perhaps 0, for some completions",
            )
        if self._unrewarded == 1:
            message = f"no completion of the step has a reward, so that it teaches nothing: {names} had no value"
            current_hook().notify("no_reward", message)

    def request_ahead(self, k: int) -> None:
        """Request the rollouts of the steps after `k` that may be sampled while the update of `k` runs."""
        for later in range(k + 1, min(self._steps, k + 1 + self.source.depth)):
            self.source.ahead(self._request(later, self.order.take(later), 0))

    def _sample(self, k: int, prompts: list[Prompt], first_place: int) -> Batch:
        groups = self.source.sample(self._request(k, prompts, first_place))
        self._mark("rollout_s")
        rewards = self.stage_at_step(k).rewards
        weights = {**self._unrewarded_weights, **rewards}
        state = TrainerState(self._first_step + k - 1, self._run_steps)  # updates done, without that of this step
        log = RewardLog([len(group.rollouts) for group in groups], state)

        def score() -> tuple[dict[str, Values], Values, list[list[MetricRow]]]:
            found = score_and_combine(groups, weights, self.config, self.signals, log)
            every = groups if self._measures_all else []
            self._ask_ahead([(group.prompt, rollout) for group in every for rollout in group.rollouts], self.config)
            return *found, [[self._measure(group.prompt, rollout) for rollout in group.rollouts] for group in every]

        scores, totals, measures = distributed.together(score)
        bounded = self._constraints
        measured = measure_constraints(bounded, groups, scores, measures, self.config) if bounded else ()
        self._mark("score_s")
        totals_PG = np.array(totals, dtype=np.float64)
        alike = teaches_nothing(totals_PG, scores, rewards, scale=self.config.grpo.advantage_scale)
        lacking = np.isnan(totals_PG)  # such a rollout teaches nothing, whatever a constraint has it be
        bounds = [zero_spread(np.where(lacking, np.nan, one.progress)) for one in measured]
        untaught = np.all([alike, *bounds], axis=0)
        if self.stage.learn == "references":
            untaught = np.zeros_like(untaught)  # a single text teaches without anything to compare it with
        return Batch(groups, scores, totals_PG, untaught, measured, measures, log.columns(), log.metrics())

    def _request(self, k: int, prompts: list[Prompt], first_place: int) -> GroupRequest:
        # the temperature of the step that learns from the rollouts, also where they are sampled ahead
        return GroupRequest(self._first_step + k, prompts, first_place, self.stage_at_step(k).temperature)


@dataclass(frozen=True)
class Learned:
    """What an update learns from."""

    groups: list[RolloutGroup]
    advantages_PG: Any
    """float32 (P, G)"""
    ends_PG: Any
    """the part of the advantages that is credited to the ends of completions: float32 (P, G)"""
    by_place: list[dict[int, float]]
    """the advantages by a rollout's place among all of its group"""
    metrics: Mapping[str, float] = field(default_factory=dict)


def learn_from(
    batch: Batch, stage: StageConfig, multipliers: Sequence[float], grpo: GrpoConfig, at_ends: Collection[str] = ()
) -> Learned:
    """Return the groups with all their rollouts or those that `grpo.update_rollouts` keeps, and their advantages, with
    the part of the signals `at_ends`. Where a stage learns from references or the best rollouts alone, each has the
    advantage 1: the gradient is that of their likelihood."""

    def advantages(of: Batch) -> tuple[Any, Any]:
        return step_advantages(of.totals, of.scores, stage.rewards, of.measured, multipliers, grpo, at_ends)

    advantages_PG, ends_PG = advantages(batch)
    places = [list(range(len(group.rollouts))) for group in batch.groups]
    if stage.learn != "rewards":
        places = [[int(np.argmax(row))] for row in np.array(advantages_PG)]
        batch = batch.keep(places)
        advantages_PG = likelihood_advantages(batch.untaught)
        ends_PG = 0.0 * advantages_PG
    elif 0 < grpo.update_rollouts < len(places[0]):
        places = most_spread(advantages_PG, grpo.update_rollouts)
        batch = batch.keep(places)
        advantages_PG, ends_PG = advantages(batch)  # relative to those that are kept
    by_place = [dict(zip(own, row, strict=True)) for own, row in zip(places, advantages_PG.tolist(), strict=True)]
    return Learned(batch.groups, advantages_PG, ends_PG, by_place)


def step_metrics(batch: Batch, advantages_PG: Any) -> dict[str, float]:
    """Return rewards, lengths and degeneration of all that one step sampled, and the advantages that it learns from.

    `reward_std` is the mean over groups of the standard deviation within a group; `frac_reward_zero_std` the share of
    groups that teach nothing, as what they are trained on is the same for all rollouts; a signal that is missing
    everywhere has no mean. The deviation of advantages is that of the population. A number that a user's reward logs
    under a name of ours does not replace ours.
    """
    totals_PG = batch.totals
    rollouts = [rollout for group in batch.groups for rollout in group.rollouts]
    lengths = [rollout.length for rollout in rollouts]
    ended = [rollout.length for rollout in rollouts if not rollout.truncated]
    metrics = {
        "frac_reward_zero_std": float(np.mean(batch.untaught)),
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
    learned_PG = np.asarray(advantages_PG, dtype=np.float64)
    return metrics | {"advantages/mean": float(learned_PG.mean()), "advantages/std": float(learned_PG.std())}
