"""Hindsight: a completion of n tokens that was asked for t is a perfect answer to the prompt that asks for n.

Relabelled copies join the update without sampling (hindsight experience replay, arXiv:1707.01495, section 3.3).
Imitating the copies would mostly teach what the policy writes anyway, and drown the small effect of the stated length.
So a copy is compared with itself: the same completion y under the prompt x_n that asks for its length, and under the
prompt x_t that it was sampled for. The objective that is added to that of GRPO, weighted by `grpo.hindsight`, is the
weighted log-likelihood of telling which of the two prompts the completion answers, over the N rollouts of a step:

    1 / N * sum over y of   (R(y, n) - R(y, t)) * log sigmoid(log pi(y | x_n) - log pi(y | x_t))

- R(y, n) - R(y, t), at least 0, is how much better the completion fits the one prompt than the other. What does not
  depend on the target cancels, and where completions are as long as was asked the term vanishes.
- Where the policy does not read the length, the sigmoid's slope is half, and the gradient is half the sum of two policy
  gradients: for the relabelled goal with the advantage R(y, n) - R(y, t) (hindsight policy gradients, arXiv:1711.06006,
  whose importance weight pi(y | x_n) / pi(y | x_t) is 1 there), and for the goal that was asked with its negative. What
  a completion's text contributes to both cancels, and what the length contributes is left.
- Elsewhere the sigmoid takes the place of a truncated importance weight: it falls from 1 to 0 as that ratio grows, so
  that a pair which the policy already distinguishes teaches no more. Both log-probs are those of the present policy,
  from the pass that computes the gradient. The sampler's are not needed, however stale they are.

Its bias, compared with the policy gradients of both goals: goals are chosen after the fact, each with its successes
alone; and a bounded loss of classification is not an expected reward. It maximises a lower bound of the information
that a completion has about its prompt's target, weighted by reward (noise contrast with one negative example, as in
arXiv:1807.03748). The main objective stays as it was, and alone decides once lengths are right.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_map

from smolsum.config.sections import GrpoConfig, StageConfig
from smolsum.grpo.loss import Tally, merged, over_ranks, tally_metrics, weighted
from smolsum.policy import distributed
from smolsum.policy.cpu.gradient import TokenGroup
from smolsum.policy.group_gradient import WHOLE, Chunking, GroupLoss, sum_over_groups
from smolsum.types import Rollout


@dataclass(frozen=True)
class Relabelled:
    """Rollouts of one group and what they are good answers to: for each the token ids of the prompt that asks for its
    length, and by how much its reward is higher there than under the prompt that was asked, above 0."""

    asked_ids: Sequence[int]
    rollouts: Sequence[Rollout]
    prompts_ids: Sequence[Sequence[int]]
    right: Sequence[bool]
    """whether the completion's end is right there, or too early"""


def hindsight_loss(
    logp_GT: mx.array, decides_GT: mx.array, last_GT: mx.array, right_G: mx.array, counted_G: mx.array, *, rollouts: int
) -> tuple[mx.array, Tally]:
    """Return a group's share of the loss (scalar, to be minimised), and the tally of its metrics.

    `logp_GT` are log-probs under the prompts that ask for each completion's length, and `decides_GT` is 1 for the
    tokens that decide whether it ends; a completion whose `counted_G` is 0 teaches nothing.
    """
    on_G, end_G = (logp_GT * (decides_GT - last_GT)).sum(axis=1), (logp_GT * last_GT).sum(axis=1)
    # log(1 - p): the end's own probability is kept a little below 1, where the gradient would not be finite
    early_G = mx.log1p(-mx.exp(mx.minimum(end_G, -1e-4)))
    objective_G = (on_G + mx.where(right_G > 0, end_G, early_G)) * counted_G
    tally: Tally = {
        "sum": {
            "hindsight/gain": weighted(mx.exp(end_G), counted_G * (1 - right_G)),
            "hindsight/margin": weighted(mx.exp(end_G), counted_G * right_G),
            "hindsight/accuracy": weighted(right_G, counted_G),
        },
        "min": {},
        "max": {},
    }
    return -objective_G.sum() / rollouts, tally


def add_hindsight(
    grads: Any,
    model: nn.Module,
    groups: Sequence[Relabelled],
    config: GrpoConfig,
    stage: StageConfig,
    *,
    rollouts: int,
    ends: frozenset[int],
    chunking: Chunking = WHOLE,
) -> tuple[Any, dict[str, float]]:
    """Return the gradient tree with that of the hindsight loss added, weighted by `config.hindsight`, and the metrics.

    `rollouts` is the number that the step learns from. Where several ranks train together, each computes its share of
    the groups, and all return the same sum. Without groups the gradient stays as it is.
    """
    number = sum(len(group.rollouts) for group in groups)
    counted = {"hindsight/copies": float(number), "hindsight/copies_frac": number / rollouts}
    if not number:
        return grads, counted
    mine, counts = distributed.share_or_spare(groups)
    losses = [_loss(group, ends, rollouts, counts=counts) for group in mine]
    (total, tally), more = sum_over_groups(
        model, [_tokens(group) for group in mine], losses,
        temperature=stage.temperature, join=merged, chunking=chunking,
    )  # fmt: skip
    more, total, tally = distributed.total(more), distributed.total(total).item(), over_ranks(tally)
    found = {"hindsight/loss": total} | {name: mean.item() for name, mean in tally_metrics(tally).items()}
    weight = config.hindsight
    return tree_map(lambda a, b: a + (weight * b).astype(a.dtype), grads, more), counted | found


def _loss(group: Relabelled, ends: frozenset[int], rollouts: int, *, counts: bool) -> GroupLoss:
    decides_RT, last_RT = _decides(group, ends)
    right_R = mx.array([float(one) for one in group.right])
    counted_R = mx.full(right_R.shape, 1.0 if counts else 0.0)

    def loss(logp: mx.array, entropy: mx.array, mask: mx.array, rows: slice) -> tuple[mx.array, Tally]:
        return hindsight_loss(logp, decides_RT[rows], last_RT[rows], right_R[rows], counted_R[rows], rollouts=rollouts)

    return loss


def _shared(group: Relabelled) -> Sequence[int]:
    """Return what the prompts have in common, without their last tokens: every row keeps a token that is not shared."""
    every, length = (group.asked_ids, *group.prompts_ids), 0
    while length < min(map(len, every)) - 1 and len({ids[length] for ids in every}) == 1:
        length += 1
    return group.asked_ids[:length]


def _tokens(group: Relabelled) -> TokenGroup:
    """Return the rows as a group of the shared prompt, whose completions begin with the rest of their prompts."""
    shared = _shared(group)
    rows = zip(group.prompts_ids, group.rollouts, strict=True)
    return TokenGroup(shared, [(*ids[len(shared) :], *rollout.token_ids) for ids, rollout in rows])


def _decides(group: Relabelled, ends: frozenset[int]) -> tuple[mx.array, mx.array]:
    """Return 1 for each token that decides whether its completion ends, and 1 for the last of them, behind the rest of
    each prompt: float32 (G, T) each."""
    before = len(_shared(group))
    decides, last = [], []
    for ids, rollout in zip(group.prompts_ids, group.rollouts, strict=True):
        prompt = [0.0] * (len(ids) - before)
        decides.append([*prompt, *[float(token in ends) for token in (-1, *rollout.token_ids[:-2])], 1.0])
        last.append([*prompt, *[0.0] * (len(rollout.token_ids) - 1), 1.0])
    longest = max(map(len, last))
    padded = ([[*row, *[0.0] * (longest - len(row))] for row in rows] for rows in (decides, last))
    first, second = map(mx.array, padded)
    return first, second
