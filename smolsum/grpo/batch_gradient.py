"""The gradient of one optimizer step: the loss of every group, spread over the machine's streams and summed."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_map

from smolsum.config.sections import GrpoConfig
from smolsum.config.stage import StageConfig
from smolsum.grpo.credit import EndCredit
from smolsum.grpo.loss import BatchTotals, Tally, loss_and_tally, loss_metrics, merged, over_ranks
from smolsum.policy import distributed
from smolsum.policy.cpu.gradient import TokenGroup
from smolsum.policy.group_gradient import WHOLE, Chunking, GroupLoss, logprobs_of_groups, sum_over_groups
from smolsum.types import Rollout, RolloutGroup


def gradients(
    model: nn.Module,
    groups: Sequence[RolloutGroup],
    advantages_PG: mx.array,
    config: GrpoConfig,
    stage: StageConfig,
    *,
    max_new_tokens: int,
    chunking: Chunking = WHOLE,
    reference: Any = None,
    credit: EndCredit | None = None,
    report: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[Any, dict[str, float]]:
    """Return the gradient tree of the step's loss over all groups, like `model.trainable_parameters()`, and the loss
    metrics over all trained tokens. Truncated completions are left out where `stage.mask_truncated` says so.

    `advantages_PG` is float32 (P, G) in the order of the groups; `max_new_tokens` is the sampler's limit; `reference`,
    needed where `stage.beta` > 0, is a tree of the frozen policy's trainable parameters; `credit` has the part of the
    advantages that not all tokens have; `report` gets how many groups are done, and of how many. A group whose
    advantages are all 0 counts in the loss's denominators but never reaches the model: it is not held to the reference
    either. Where no token is left to learn from, the gradient is zero, and needs no memory. Where several ranks train
    together, each computes its share of the groups, and all return the sums over all groups.
    """
    objective = replace(config, beta=stage.beta)  # config.beta is only the default; the stage's own counts
    if stage.learn != "rewards":
        objective = replace(objective, loss="cispo")  # whose loss is the negative log-likelihood where the ratio is 1
    totals = batch_totals(groups, config, stage, max_new_tokens)
    kept = [p for p, group in enumerate(groups) if _teaches(group, advantages_PG[p].tolist(), config, stage)]
    skipped = {"batch/skipped_groups_frac": 1 - len(kept) / len(groups)}
    if not kept:
        # one number for all values of a tensor, which the optimizer need not read
        zeros = tree_map(lambda p: mx.broadcast_to(mx.zeros((), p.dtype), p.shape), model.trainable_parameters())
        return zeros, {"loss": 0.0, **skipped}
    kept, counts = distributed.share_or_spare(kept)
    groups, advantages_PG = [groups[p] for p in kept], advantages_PG[mx.array(kept)]
    credit = credit and credit.take(kept)
    ref_logps = _logprobs(model, groups, stage, chunking, reference) if stage.beta > 0 else [None] * len(groups)
    sampled: list[Any] = [_sampler_logprobs(group) for group in groups]
    old_logps, sampler_logps = sampled, [None] * len(groups)
    if config.old_logprobs == "recomputed":
        old_logps = _logprobs(model, groups, stage, chunking, model.trainable_parameters())
        sampler_logps = sampled

    def group_loss(p: int) -> GroupLoss:
        """Return the function for loss and tally of some rows of a group."""
        trained_GT = (1.0 if counts else 0.0) * _trained_mask(groups[p], config, stage)
        advantages = advantages_PG[p, : len(groups[p].rollouts)]
        if credit:
            advantages = credit.advantages(p, groups[p], advantages)

        def loss(logp: mx.array, entropy: mx.array, mask: mx.array, rows: slice) -> tuple[mx.array, Tally]:
            def of(arrays: Sequence[Any]) -> Any:
                return None if arrays[p] is None else arrays[p][rows]

            old = of(old_logps)  # a text that nobody sampled has a ratio of 1
            return loss_and_tally(
                logp,
                mx.stop_gradient(logp) if old is None else old,
                advantages[rows],
                mask * trained_GT[rows],
                objective,
                totals,
                ref_logp_GT=of(ref_logps),
                sampler_logp_GT=of(sampler_logps),
                entropy_GT=entropy,
            )

        return loss

    report(0, len(groups))
    (total, tally), gradient = sum_over_groups(
        model, [_token_ids(group) for group in groups], [group_loss(p) for p in range(len(groups))],
        temperature=stage.temperature, join=merged, chunking=chunking, report=lambda done: report(done, len(groups)),
    )  # fmt: skip
    gradient, total, tally = distributed.total(gradient), distributed.total(total).item(), over_ranks(tally)
    found = {name: mean.item() for name, mean in loss_metrics(tally).items()}
    if stage.learn != "rewards":
        del found["cispo_clip_ratio"]  # likelihood has no ratio that could be clipped
    if all(one is None for one in sampled):  # nothing to compare the policy with
        found = {name: mean for name, mean in found.items() if not name.startswith("sampling/")}
    return gradient, {"loss": total, **skipped, **found}


def batch_totals(
    groups: Sequence[RolloutGroup], config: GrpoConfig, stage: StageConfig, max_new_tokens: int
) -> BatchTotals:
    """Return the denominators of a step's loss: a masked rollout counts as a sequence without tokens, as in TRL."""
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    return BatchTotals(len(rollouts), sum(_trained_tokens(r, config, stage) for r in rollouts), max_new_tokens)


@contextmanager
def with_parameters(model: nn.Module, parameters: Any) -> Iterator[None]:
    """The model with other parameters inside the block."""
    own = model.parameters()
    model.update(parameters)
    try:
        yield
    finally:
        model.update(own)


def _teaches(group: RolloutGroup, advantages_G: Sequence[float], config: GrpoConfig, stage: StageConfig) -> bool:
    """Return whether any rollout of the group has an advantage and is trained on."""
    pairs = zip(group.rollouts, advantages_G, strict=False)  # as many advantages as the widest group has
    return any(advantage != 0 and _trained_tokens(rollout, config, stage) > 0 for rollout, advantage in pairs)


def _trained_tokens(rollout: Rollout, config: GrpoConfig, stage: StageConfig) -> int:
    """Return how many of a rollout's tokens are trained, from its first on."""
    if stage.mask_truncated and rollout.truncated:
        return 0
    return len(rollout.token_ids) if config.train_eos else rollout.length


def _trained_mask(group: RolloutGroup, config: GrpoConfig, stage: StageConfig) -> mx.array:
    """Return 1 for each token that is trained, else 0: float32 (G, T)."""
    longest = max(len(rollout.token_ids) for rollout in group.rollouts)
    counts_G1 = mx.array([[_trained_tokens(rollout, config, stage)] for rollout in group.rollouts])
    return (mx.arange(longest) < counts_G1).astype(mx.float32)


def _logprobs(
    model: nn.Module, groups: Sequence[RolloutGroup], stage: StageConfig, chunking: Chunking, parameters: Any
) -> list[mx.array]:
    """Return the log-probs (G, T) of each group's tokens under other parameters, without gradient."""
    with with_parameters(model, parameters):
        return logprobs_of_groups(
            model, [_token_ids(group) for group in groups], temperature=stage.temperature, chunking=chunking
        )


def _token_ids(group: RolloutGroup) -> TokenGroup:
    return TokenGroup(group.prompt.token_ids, [rollout.token_ids for rollout in group.rollouts])


def _sampler_logprobs(group: RolloutGroup) -> mx.array | None:
    """Return the sampler's own log-probs (G, T), right-padded with 0; None for references, which it did not sample."""
    if not any(rollout.logprobs for rollout in group.rollouts):
        return None
    longest = max(len(rollout.logprobs) for rollout in group.rollouts)
    return mx.array([[*rollout.logprobs, *[0.0] * (longest - len(rollout.logprobs))] for rollout in group.rollouts])
