"""Gradients of one optimizer step: the loss of every group, spread over the machine's streams and summed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_map

from smolsum.config import GrpoConfig, StageConfig
from smolsum.grpo.loss import BatchTotals, loss_and_tally
from smolsum.grpo.tally import Tally, means, merged
from smolsum.policy.logprobs import group_logprobs
from smolsum.policy.streams import spread
from smolsum.rollout.records import RolloutGroup


def gradients(
    model: nn.Module,
    groups: Sequence[RolloutGroup],
    advantages_PG: mx.array,
    config: GrpoConfig,
    stage: StageConfig,
    *,
    max_new_tokens: int,
    reference: Any = None,
) -> tuple[Any, dict[str, float]]:
    """The gradient tree of the step's loss over all groups, and the loss metrics over all trained tokens.

    `max_new_tokens` is the sampler's limit; `reference` the parameter tree of the frozen policy, needed where
    `stage.beta` > 0. Where no token is left to learn from, the gradient is zero and the loss the only metric.
    """
    objective = replace(config, beta=stage.beta)
    totals = batch_totals(groups, config, max_new_tokens)
    ref_logps = _logprobs(model, groups, stage, reference) if stage.beta > 0 else [None] * len(groups)
    sampled: list[Any] = [_sampled(group) for group in groups]
    old_logps, sampler_logps = sampled, [None] * len(groups)
    if config.old_logprobs == "recomputed":
        old_logps, sampler_logps = _logprobs(model, groups, stage, model.parameters()), sampled

    def loss(model: nn.Module, p: int) -> tuple[mx.array, Tally]:
        group = groups[p]
        logp_GT, mask_GT = _group_logprobs(model, group, stage)
        if config.mask_truncated:
            mask_GT = mask_GT * mx.array([[0.0] if rollout.truncated else [1.0] for rollout in group.rollouts])
        return loss_and_tally(
            logp_GT,
            old_logps[p],
            advantages_PG[p, : len(group.rollouts)],
            mask_GT,
            objective,
            totals,
            ref_logp_GT=ref_logps[p],
            sampler_logp_GT=sampler_logps[p],
        )

    step: Callable[..., Any] = nn.value_and_grad(model, loss)
    total, value, tally = None, 0.0, None
    for (loss_p, tally_p), grads in spread(lambda p: step(model, p), range(len(groups))):
        total = grads if total is None else tree_map(mx.add, total, grads)
        value, tally = value + loss_p.item(), tally_p if tally is None else merged(tally, tally_p)
        mx.eval(total, tally)  # free this group's gradient
    counted = means(tally) if tally is not None and totals.tokens else {}
    return total, {"loss": value, **{name: mean.item() for name, mean in counted.items()}}


def batch_totals(groups: Sequence[RolloutGroup], config: GrpoConfig, max_new_tokens: int) -> BatchTotals:
    """What the loss of a step divides by: a masked rollout is a sequence without tokens, as in TRL."""
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    trained = [rollout for rollout in rollouts if not (config.mask_truncated and rollout.truncated)]
    return BatchTotals(len(rollouts), sum(len(rollout.token_ids) for rollout in trained), max_new_tokens)


@contextmanager
def weights(model: nn.Module, parameters: Any) -> Iterator[None]:
    """The model with other parameters, for as long as the block lasts."""
    own = model.parameters()
    model.update(parameters)
    try:
        yield
    finally:
        model.update(own)


def _logprobs(model: nn.Module, groups: Sequence[RolloutGroup], stage: StageConfig, parameters: Any) -> list[mx.array]:
    with weights(model, parameters):
        return list(spread(lambda group: _group_logprobs(model, group, stage)[0], groups))


def _group_logprobs(model: nn.Module, group: RolloutGroup, stage: StageConfig) -> tuple[mx.array, mx.array]:
    completions = [rollout.token_ids for rollout in group.rollouts]
    return group_logprobs(model, group.prompt.token_ids, completions, temperature=stage.temperature)


def _sampled(group: RolloutGroup) -> mx.array:
    """The sampler's own log-probs (G, T), right-padded with 0."""
    longest = max(len(rollout.logprobs) for rollout in group.rollouts)
    return mx.array([[*rollout.logprobs, *[0.0] * (longest - len(rollout.logprobs))] for rollout in group.rollouts])
