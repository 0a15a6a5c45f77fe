"""Gradients of one optimizer step: the loss of every group, spread over the machine's streams and summed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_map

from smolsum.config import GrpoConfig, StageConfig
from smolsum.grpo.loss import policy_loss
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
    reference: Any = None,
) -> tuple[Any, dict[str, float]]:
    """The gradient tree of the step's loss over all groups, and the loss metrics as means over trained tokens.

    `reference` is the parameter tree of the frozen policy, needed where `stage.beta` > 0. Where no token is left to
    learn from, the gradient is zero and the metrics are empty.
    """
    sequences = sum(len(group.rollouts) for group in groups)
    ref_logps = _logprobs(model, groups, stage, reference) if stage.beta > 0 else [None] * len(groups)
    recomputed = config.old_logprobs == "recomputed"
    old_logps = _logprobs(model, groups, stage, model.parameters()) if recomputed else [_sampled(g) for g in groups]

    def loss(model: nn.Module, p: int) -> tuple[mx.array, dict[str, mx.array], mx.array]:
        group = groups[p]
        logp_GT, mask_GT = _group_logprobs(model, group, stage)
        if config.mask_truncated:
            mask_GT = mask_GT * mx.array([[0.0] if rollout.truncated else [1.0] for rollout in group.rollouts])
        value, metrics = policy_loss(
            logp_GT,
            old_logps[p],
            advantages_PG[p, : len(group.rollouts)],
            mask_GT,
            kind=config.loss,
            eps_low=config.eps_low,
            eps_high=config.eps_high,
            beta=stage.beta,
            ref_logp_GT=ref_logps[p],
            sequences=sequences,
        )
        return value, metrics, mask_GT.sum()

    step: Callable[..., Any] = nn.value_and_grad(model, loss)
    total, value, tokens, sums = None, 0.0, 0.0, dict[str, float]()
    for (loss_p, metrics, tokens_p), grads in spread(lambda p: step(model, p), range(len(groups))):
        total = grads if total is None else tree_map(mx.add, total, grads)
        value, tokens = value + loss_p.item(), tokens + tokens_p.item()
        for name, mean in metrics.items():
            sums[name] = sums.get(name, 0.0) + mean.item() * tokens_p.item()
        mx.eval(total)  # free this group's gradient
    means = {name: total_ / tokens for name, total_ in sums.items()} if tokens else {}
    return total, {"loss": value, **means}


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
