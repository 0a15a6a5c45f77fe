"""Counting down: the lower half of the policy learns how much of the asked length is left before each token.

To write sentences that add up to a length, a policy must know where it stands, in a layer low enough for those above to
choose by it. Rewards teach that slowly, as does where to end: a policy that ends at the nearest sentence computes what
is left in its last layer alone, where nothing else can use it. So each token of a completion is also an example. With r
what is left of the asked length before it, negative where there is already more, and p the softmax over fixed codes of
the numbers, times the outputs of the lower half of the layers (`policy/lower_half.py`), the loss

    - 1 / tokens * sum over the tokens of log p(r)

is added to that of GRPO, weighted by `grpo.countdown`. It needs no reward and no text of the right length: where
prompts ask for lengths, each completion stands under one that asks for a length drawn evenly from all, so the policy
cannot tell from the text what is left, and has to read the request and count. A completion that is shorter than the
largest length is continued by others of its group, as what is never counted so far is not learnt.

An auxiliary loss on what a policy should know is from UNREAL (arXiv:1611.05397). Codes of what is left as sines and
cosines are from the length-difference positional encoding (arXiv:1904.07418), which adds them to the input of a decoder
instead of teaching them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from math import pi
from typing import Any, cast

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from smolsum.config.stage import StageConfig
from smolsum.config.targets import TOKENS, LengthSettings, Targets
from smolsum.grpo.batch import Batch
from smolsum.grpo.hindsight import shared_tokens
from smolsum.grpo.loss import Tally, merged, over_ranks, tally_metrics, weighted
from smolsum.grpo.setup.prepare import Setup
from smolsum.policy import distributed
from smolsum.policy.cpu.gradient import TokenGroup
from smolsum.policy.group_gradient import WHOLE, Chunking, GroupLoss, sum_over_groups
from smolsum.policy.lower_half import LowerHalf, added_to_whole, width_of
from smolsum.types import Rollout

LEAST = -8
"""what is left; less counts as this"""


@dataclass(frozen=True)
class Counted:
    """Texts of one prompt, for each its token ids, those of the prompt that it stands under, and the class of what is
    left before each of its tokens."""

    texts_ids: Sequence[Sequence[int]]
    prompts_ids: Sequence[Sequence[int]]
    classes: Sequence[Sequence[int]]
    most: int
    """the largest length that is asked for"""


def counted(batch: Batch, setup: Setup, targets: Targets | None, step: int) -> list[Counted]:
    """Return what a step's completions teach of counting, under prompts that ask for lengths drawn evenly from all that
    training asks for at this step, `targets`; without such prompts (None) under their own. As references have no seed,
    the draw depends on the prompt and the step too."""
    writer, task, seed = setup.writer, cast(LengthSettings, setup.config.task), setup.config.train.seed
    found = []
    most = max(writer.targets.trained) if writer else task.target_tokens
    for group in batch.groups:
        texts, prompts, classes = [], [], []
        for rollout, (ids, before) in zip(group.rollouts, _continued(group.rollouts, setup), strict=True):
            place = ("countdown", seed, rollout.seed, group.prompt.id, step)
            target = targets.drawn(*place) if targets else task.target_tokens
            prompts.append((writer.asking(group.prompt, target) if writer else group.prompt).token_ids)
            got = [*takewhile(lambda length: length <= most - LEAST, before)]
            texts.append(ids[: len(got)])
            classes.append([class_of(target - length) for length in got])
        found.append(Counted(texts, prompts, classes, most))
    return found


def _continued(rollouts: Sequence[Rollout], setup: Setup) -> Iterator[tuple[list[int], list[int]]]:
    """Yield the token ids of each completion, followed by the next ones of the group as long as there are fewer than a
    completion may have, and how long the text is before each of them."""
    most, lengths = setup.config.sampling.max_new_tokens, [_lengths(rollout, setup) for rollout in rollouts]
    for place, last in enumerate(rollouts):
        ids, got = list(last.token_ids), list(lengths[place])
        for n in (*range(place + 1, len(rollouts)), *range(place)):
            if len(ids) < most:
                ends = len(ids) - (not last.truncated)
                ids[ends:] = rollouts[n].token_ids[: most - ends]
                got[ends:] = [got[ends] + length for length in lengths[n]]
                last = rollouts[n]
        yield ids, got[: len(ids)]


def class_of(left: int) -> int:
    """Return the class of what is left: each number from `LEAST` has one."""
    return max(left, LEAST) - LEAST


def codes(most: int, width: int) -> mx.array:
    """Return the code of each class up to that of `most`: sines and cosines of its number, at frequencies from a third
    of a wave over all numbers to nearly half a wave each: float32 (classes, width)."""
    waves = np.geomspace(2 * pi / (3 * (most - LEAST)), 0.9 * pi, width // 2)
    angles = np.arange(LEAST, most + 1)[:, None] * waves
    both = np.concatenate([np.cos(angles), np.sin(angles), np.zeros((len(angles), width % 2))], axis=1)
    return mx.array(((2 / width) ** 0.5 * both).astype(np.float32))


def add_countdown(
    grads: Any, model: nn.Module, groups: Sequence[Counted], stage: StageConfig, *, chunking: Chunking = WHOLE
) -> tuple[Any, dict[str, float]]:
    """Return the gradient tree with that of the countdown's loss added, weighted by `stage.countdown`, and the metrics.

    Where several ranks train together, each computes its share of the groups, and all return the same sum.
    """
    tokens = sum(len(ids) for group in groups for ids in group.texts_ids)
    mine, counts = distributed.share_or_spare(groups)
    lower, rows = LowerHalf(model, codes(groups[0].most, width_of(model))), [_rows(group) for group in mine]
    losses = [_loss(group, one, tokens, counts=counts) for group, one in zip(mine, rows, strict=True)]
    (total, tally), more = sum_over_groups(lower, rows, losses, join=merged, chunking=chunking)
    more, total, tally = distributed.total(more), distributed.total(total).item(), over_ranks(tally)
    found = {"countdown/loss": total} | {name: mean.item() for name, mean in tally_metrics(tally).items()}
    return added_to_whole(grads, model, more, stage.countdown), found


def _lengths(rollout: Rollout, setup: Setup) -> Sequence[int]:
    """Return how long a completion is before each of its tokens and after all, in the unit of the targets."""
    places = range(len(rollout.token_ids) + 1)
    if getattr(setup.config.task, "unit", TOKENS) == TOKENS:
        return places
    length, decode = setup.task.targets.length(setup.config), setup.policy.tokenizer.decode

    def of_first(n: int) -> Rollout:
        ids = rollout.token_ids[:n]
        text = str(decode(list(ids), skip_special_tokens=True))
        return replace(rollout, token_ids=ids, logprobs=rollout.logprobs[:n], text=text, finish_reason="length")

    return [length(of_first(n)) if n else 0 for n in places]


def _rows(group: Counted) -> TokenGroup:
    """Return the texts behind what their prompts do not share; only their own tokens are predicted."""
    length = shared_tokens(group.prompts_ids)
    own = [ids[length:] for ids in group.prompts_ids]
    return TokenGroup(
        group.prompts_ids[0][:length],
        [(*ids, *text) for ids, text in zip(own, group.texts_ids, strict=True)],
        [(*[0] * len(ids), *classes) for ids, classes in zip(own, group.classes, strict=True)],
    )


def _loss(group: Counted, rows: TokenGroup, tokens: int, *, counts: bool) -> GroupLoss:
    width = max(map(len, rows.completions_ids))
    first = [len(row) - len(ids) for row, ids in zip(rows.completions_ids, group.texts_ids, strict=True)]
    own_RT = mx.array([[float(counts and n >= start) for n in range(width)] for start in first])

    def loss(logp: mx.array, entropy: mx.array, mask: mx.array, part: slice) -> tuple[mx.array, Tally]:
        of_tokens = own_RT[part] * mask
        tally: Tally = {"sum": {"countdown/prob": weighted(mx.exp(logp), of_tokens)}, "min": {}, "max": {}}
        return -(logp * of_tokens).sum() / tokens, tally

    return loss
