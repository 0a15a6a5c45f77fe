"""Hindsight: a text that ends after n tokens is a perfect answer to the prompt that asks for n, whatever was asked.

Relabelled completions join the update without sampling (hindsight experience replay, arXiv:1707.01495, section 3.3). A
completion is imitated under the prompt that asks for the length that it has (goal-conditioned supervised learning,
arXiv:1912.06088), by default only in the decision that the length depends on, that to end. To a policy that does not
read the length yet, imitating every token mostly teaches what it writes anyway, and drowns the small effect of the
stated length; imitating but the first token of each sentence makes its habits stronger, so that long texts repeat
themselves.

Two things keep the lengths that are learnt from following those that the policy happens to write:

- A completion is a completion of each of its sentences too: of all these ends, `grpo/relabel.py` takes the one that is
  nearest to a target drawn evenly from all.
- An end before that one is an example of where not to end, and so is that of a completion that is too short for the
  target. It stands under the prompt that asks for the target, and counts with log(1 - p) instead of log p. Without such
  examples everything would teach to end, and nothing to go on.

Where all prompts have one target, nothing is relabelled. An end is right that is within the tolerance of it: the credit
for a length goes to the decision that it depends on, whatever the completion did later. A completion that ended there
teaches nothing, so hindsight fades as the length is learnt, and leaves to the rewards which of the lengths within the
tolerance is best. (Taught as long as a stage lasts, it held a policy to lengths that no constraint asked for.)

With p the policy's probability of the end-of-sequence token there, the objective that is added to that of GRPO,
weighted by `grpo.hindsight`, is over the N rollouts of a step

    1 / N * (sum over right ends of log p + sum over ends that are too early of log(1 - p))

With `grpo.hindsight_of = texts` completions are imitated as a whole, as in the second paper, and N rollouts add

    1 / N * sum over right texts of weight * log p(text | the prompt that asks for its length)

This teaches to write texts of a length, which ends alone do not. It teaches all else that the policy writes, too: so
only whole texts of exactly a trained length count that obey the constraints of the stage, apart from those on the
length, and are, in what else is rewarded than the length, at least the median of their group. Short texts do so more
often, and `grpo/relabel.py` weighs them less.

The bias of the ends, compared with a policy gradient: goals are chosen after the fact; and it maximises the likelihood
of ending at the end of the sentence that is nearest to the target, not a reward. So the main objective alone teaches to
write sentences that add up to the target, and what the text says. No importance weight is needed, however stale the
sampler: which end is right does not depend on how likely it was.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_map

from smolsum.config.stage import StageConfig
from smolsum.grpo.loss import Tally, merged, over_ranks, tally_metrics, weighted
from smolsum.policy import distributed
from smolsum.policy.cpu.gradient import TokenGroup
from smolsum.policy.group_gradient import WHOLE, Chunking, GroupLoss, sum_over_groups
from smolsum.types import Rollout

LARGEST_P = 1 - 1e-4
"""of an end that comes too early: from there on the loss is linear in it, which keeps both finite and moving"""


@dataclass(frozen=True)
class Relabelled:
    """Completions of one prompt, for each the token ids of the prompt under which it or its end is learnt, and whether
    that is right there or comes too early."""

    rollouts: Sequence[Rollout]
    prompts_ids: Sequence[Sequence[int]]
    right: Sequence[bool]
    weights: Sequence[float] = ()
    """how much each whole text counts; empty: 1"""


def end_loss(logp_G: mx.array, right_G: mx.array, counted_G: mx.array, *, rollouts: int) -> tuple[mx.array, Tally]:
    """Return a group's share of the loss (scalar, to be minimised), and the tally of its metrics.

    `logp_G` are the log-probs of the ends under the prompts that they are learnt under. `right_G` is 1 where the end is
    right, and 0 where it comes too early. What has a `counted_G` of 0 teaches nothing.
    """
    p_G = mx.exp(logp_G)
    early_G = mx.log1p(-mx.minimum(p_G, LARGEST_P)) - mx.maximum(p_G - LARGEST_P, 0.0) / (1 - LARGEST_P)
    objective_G = mx.where(right_G > 0, logp_G, early_G)
    tally: Tally = {
        "sum": {
            "hindsight/early_frac": weighted(1 - right_G, counted_G),
            "hindsight/end_prob": weighted(p_G, counted_G * right_G),
            "hindsight/early_prob": weighted(p_G, counted_G * (1 - right_G)),
        },
        "min": {},
        "max": {},
    }
    return -(objective_G * counted_G).sum() / rollouts, tally


def text_loss(logp_GT: mx.array, tokens_GT: mx.array, *, rollouts: int) -> tuple[mx.array, Tally]:
    """Return the same for whole texts: `logp_GT` are the log-probs of their tokens under the prompts that they are
    learnt under, and `tokens_GT` is how much each counts."""
    tally: Tally = {"sum": {"hindsight/token_logp": weighted(logp_GT, tokens_GT)}, "min": {}, "max": {}}
    return -(logp_GT * tokens_GT).sum() / rollouts, tally


def add_hindsight(
    grads: Any,
    model: nn.Module,
    groups: Sequence[Relabelled],
    stage: StageConfig,
    *,
    rollouts: int,
    chunking: Chunking = WHOLE,
) -> tuple[Any, dict[str, float]]:
    """Return the gradient tree with that of the hindsight loss added, weighted by `stage.hindsight`, and the metrics.

    `rollouts` is the number that the step learns from. Where several ranks train together, each computes its share of
    the groups, and all return the same sum. Without groups the gradient stays as it is.
    """
    number = sum(len(group.rollouts) for group in groups)
    counted = {"hindsight/copies": float(number), "hindsight/copies_frac": number / rollouts}
    if not number:
        return grads, counted
    mine, counts = distributed.share_or_spare(groups)
    loss_of = _text_loss if stage.hindsight_of == "texts" else _end_loss
    rows = [_rows(group) for group in mine]
    losses = [loss_of(group, places, rollouts, counts=counts) for group, (_, places) in zip(mine, rows, strict=True)]
    (total, tally), more = sum_over_groups(
        model, [tokens for tokens, _ in rows], losses,
        temperature=stage.temperature, join=merged, chunking=chunking,
    )  # fmt: skip
    more, total, tally = distributed.total(more), distributed.total(total).item(), over_ranks(tally)
    found = {"hindsight/loss": total} | {name: mean.item() for name, mean in tally_metrics(tally).items()}
    if (early := found.get("hindsight/early_frac")) in (0.0, 1.0):  # ends of one kind alone
        del found["hindsight/end_prob" if early else "hindsight/early_prob"]
    weight = stage.hindsight
    return tree_map(lambda a, b: a + (weight * b).astype(a.dtype), grads, more), counted | found


class Place(NamedTuple):
    """Where a completion stands in its row: its first token, and its end-of-sequence token."""

    first: int
    end: int


def _rows(group: Relabelled) -> tuple[TokenGroup, list[Place]]:
    """Return the rows as a group of what the prompts begin with, whose completions begin with the rest of their
    prompts; and the place of each completion there."""
    length, pairs = shared_tokens(group.prompts_ids), [*zip(group.prompts_ids, group.rollouts, strict=True)]
    rows = [(*ids[length:], *rollout.token_ids) for ids, rollout in pairs]
    tokens = TokenGroup(group.prompts_ids[0][:length], rows)
    return tokens, [Place(len(ids) - length, len(ids) - length + rollout.length) for ids, rollout in pairs]


def shared_tokens(prompts_ids: Sequence[Sequence[int]]) -> int:
    """Return how many tokens all prompts begin with; each keeps at least one for itself."""
    longest = min(map(len, prompts_ids)) - 1
    return next((n for n in range(longest) if len({ids[n] for ids in prompts_ids}) > 1), longest)


def _end_loss(group: Relabelled, places: Sequence[Place], rollouts: int, *, counts: bool) -> GroupLoss:
    """Return the loss of the ends of a group's rows."""
    width = range(max(place.end for place in places) + 1)
    ends_RT = mx.array([[float(n == place.end) for n in width] for place in places])
    right_R = mx.array([float(right) for right in group.right])
    counted_R = mx.full(right_R.shape, 1.0 if counts else 0.0)

    def loss(logp: mx.array, entropy: mx.array, mask: mx.array, rows: slice) -> tuple[mx.array, Tally]:
        return end_loss((logp * ends_RT[rows]).sum(axis=1), right_R[rows], counted_R[rows], rollouts=rollouts)

    return loss


def _text_loss(group: Relabelled, places: Sequence[Place], rollouts: int, *, counts: bool) -> GroupLoss:
    """Return the loss of all tokens of a group's completions."""
    width, weights = range(max(place.end for place in places) + 1), group.weights or [1.0] * len(places)
    rows_and_weights = zip(places, weights, strict=True)
    tokens_RT = mx.array([[w * (place.first <= n <= place.end) for n in width] for place, w in rows_and_weights])
    return lambda logp, entropy, mask, rows: text_loss(logp, tokens_RT[rows] * float(counts), rollouts=rollouts)
