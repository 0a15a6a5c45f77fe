"""Which rollouts of a step are relabelled in hindsight, as what, and what that is worth (`grpo/hindsight.py`)."""

from collections.abc import Sequence
from dataclasses import replace
from statistics import median

import numpy as np

from smolsum.config.sections import StageConfig
from smolsum.grpo.batch import Batch
from smolsum.grpo.hindsight import Relabelled
from smolsum.grpo.setup.prepare import Setup
from smolsum.policy.load import Policy
from smolsum.types import Rollout


def relabelled(
    batch: Batch, setup: Setup, stage: StageConfig, step: int, steps: int, ends: frozenset[int]
) -> list[Relabelled]:
    """Return the relabelled rollouts of each group that has some.

    `ends` are the tokens that end a sentence. Up to each of them a rollout is a completion too, which could have ended
    there. Of these and the whole rollout, unless it was cut, the one is taken whose length is nearest to a target that
    is drawn evenly from those that training asks for at the stage's `step` (from 0, of `steps`): so lengths are learnt
    that the policy seldom writes. It is relabelled with the trained target nearest to its length. It takes part if the
    rollout has at least its group's median quality, and if the reward is higher under the new prompt than under the one
    that was asked.
    """
    writer = setup.writer
    assert writer is not None
    targets = writer.targets_at(step, steps)
    length, found = setup.task.targets.length(setup.config), []
    for p, group in enumerate(batch.groups):
        quality = _quality(batch, p, stage, setup.task.targets.signals)
        middle = median(quality)
        kept, ids, right = [], [], []
        for g, rollout in enumerate(group.rollouts):
            if quality[g] < middle or np.isnan(batch.totals[p][g]):
                continue
            if not (endings := _endings(rollout, ends, setup.policy)):
                continue
            goal = targets.drawn("hindsight", setup.config.train.seed, rollout.seed)
            ended = min(endings, key=lambda one: abs(length(one) - goal))
            early = goal - length(ended) > length(rollout) / (2 * len(endings))  # by more than half a sentence
            if early and (rollout.truncated or ended is not rollout):
                continue
            kept.append(ended)
            right.append(not early)
            ids.append(writer.asking(group.prompt, goal if early else targets.nearest(length(ended))).token_ids)
        if kept:
            found.append(Relabelled(group.prompt.token_ids, kept, ids, right))
    return found


def _endings(rollout: Rollout, ends: frozenset[int], policy: Policy) -> list[Rollout]:
    """Return the completions that a rollout could have been: up to the end of each of its sentences, and all of it
    where it ended."""
    ids, logps = rollout.token_ids, rollout.logprobs
    found = [] if rollout.truncated else [rollout]
    eos = policy.tokenizer.eos_token_id
    for place in range(1, rollout.length):
        if ids[place - 1] in ends:
            # the log-prob of the end was not sampled, and hindsight does not read it
            kept = (*ids[:place], eos), (*logps[:place], 0.0)
            text = policy.tokenizer.decode(list(ids[:place]), skip_special_tokens=True)
            found.append(replace(rollout, token_ids=kept[0], logprobs=kept[1], finish_reason="stop", text=text))
    return found


def _quality(batch: Batch, p: int, stage: StageConfig, targeted: Sequence[str]) -> list[float]:
    """Return the weighted sum of the signals that do not depend on the target, for each rollout of a group; where a
    stage has none, all are alike."""
    names = [name for name, weight in stage.rewards.items() if weight and name not in targeted]
    if not names:
        return [0.0] * len(batch.groups[p].rollouts)
    # a signal that does not apply adds nothing, as in the total
    rows = [[stage.rewards[name] * (value or 0.0) for value in batch.scores[name][p]] for name in names]
    return [sum(values) for values in zip(*rows, strict=True)]
