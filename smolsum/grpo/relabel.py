"""Under which lengths a step's completions are learnt in hindsight (`grpo/hindsight.py`), and up to which end."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from statistics import median
from typing import Any, NamedTuple, cast

import numpy as np

from smolsum.config.constraints import LENGTH
from smolsum.config.stage import StageConfig
from smolsum.config.targets import LengthSettings, Targets, lot, tolerance_of
from smolsum.grpo.batch import Batch
from smolsum.grpo.hindsight import Relabelled
from smolsum.grpo.setup.prepare import Setup
from smolsum.policy.load import Policy
from smolsum.tasks.base import TaskTargets
from smolsum.types import Rollout

PARTS = 8
"""parts of the targets whose texts count alike in a step"""
LARGEST_WEIGHT = 4.0
"""of a text in a part that has few"""


class Learnt(NamedTuple):
    """A completion, the target under whose prompt it or its end is learnt, and whether it is right there."""

    rollout: Rollout
    target: int
    right: bool = True


def relabelled(
    batch: Batch, setup: Setup, stage: StageConfig, targets: Targets | None, ends: frozenset[int]
) -> list[Relabelled]:
    """Return what each group's rollouts of at least median quality teach in hindsight.

    By `stage.hindsight_of` that is where to end, right and too early: each could have ended after any of the tokens
    `ends`, and a whole one where it did. Or it is the texts of whole ones that end with such a token and obey what
    does not depend on the target. `targets` are those that training asks for at this step; None where all have one.
    """
    writer, task, seed = setup.writer, cast(LengthSettings, setup.config.task), setup.config.train.seed
    length, obeys_PG = setup.task.targets.length(setup.config), _obeys(batch, setup.task.targets)
    found = list[list[Learnt]]()
    for p, group in enumerate(batch.groups):
        learnt: list[Learnt] = []
        for g in _good(batch, p, stage, setup.task.targets):
            rollout = group.rollouts[g]
            if targets and stage.hindsight_of == "texts":
                if obeys_PG[p, g] and _is_whole(rollout, ends) and targets.nearest(n := length(rollout)) == n:
                    learnt.append(Learnt(rollout, n))
                continue
            if not (possible := _endings(rollout, ends, setup.policy)):
                continue
            got, draw = [length(one) for one in possible], lot("early", seed, rollout.seed)
            if targets:
                target = targets.drawn("hindsight", seed, rollout.seed)
                learnt += _for_any_target(rollout, possible, got, target, targets, draw)
            else:
                tolerance = tolerance_of(task.target_tokens, task)
                learnt += _for_one_target(rollout, possible, got, task.target_tokens, tolerance, draw)
        found.append(learnt)
    weight = _even(found, targets) if targets and stage.hindsight_of == "texts" else dict[int, float]()
    return [
        Relabelled(
            [one.rollout for one in learnt],
            [(writer.asking(group.prompt, one.target) if writer else group.prompt).token_ids for one in learnt],
            [one.right for one in learnt],
            [weight.get(one.target, 1.0) for one in learnt],
        )
        for group, learnt in zip(batch.groups, found, strict=True)
        if learnt
    ]


def _even(found: Sequence[Sequence[Learnt]], targets: Targets) -> dict[int, float]:
    """Return what a text of each target counts, so that short texts, which obey more often, do not count for more than
    long ones: 1 on average, and in all the same for each of `PARTS` parts of the targets that has any; but no text
    counts for more than `LARGEST_WEIGHT`."""
    part = {target: place * PARTS // len(targets.trained) for place, target in enumerate(targets.trained)}
    counts = Counter(part[one.target] for learnt in found for one in learnt)
    weights = {own: min(LARGEST_WEIGHT, counts.total() / len(counts) / count) for own, count in counts.items()}
    return {target: weights[own] for target, own in part.items() if own in weights}


def _good(batch: Batch, p: int, stage: StageConfig, targeted: TaskTargets) -> list[int]:
    """Return the rollouts of a group that have a reward, and at least the median of the weighted sum of the signals
    that do not depend on the target; where a stage has none, all are alike."""
    names = [name for name, weight in stage.rewards.items() if weight and name not in targeted.signals]
    # a signal that does not apply adds nothing, as in the total
    rows = [[stage.rewards[name] * (value or 0.0) for value in batch.scores[name][p]] for name in names]
    quality = [sum(values) for values in zip(*rows, strict=True)] or [0.0] * len(batch.groups[p].rollouts)
    middle = median(quality)
    return [g for g, one in enumerate(quality) if one >= middle and not np.isnan(batch.totals[p][g])]


def _obeys(batch: Batch, targeted: TaskTargets) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Return which rollouts are, each for itself, where the stage's constraints have them be: boolean (P, G). What
    depends on the target does not count, nor does a value that is missing."""
    obeyed = np.ones(batch.totals.shape, dtype=bool)
    of_target = {LENGTH, *targeted.signals, *targeted.measures}
    for one in batch.measured:
        if not one.constraint.from_target and one.constraint.measured not in of_target:
            obeyed &= one.is_met != 0
    return obeyed


def _is_whole(rollout: Rollout, ends: frozenset[int]) -> bool:
    """Return whether a completion ended by itself, after a sentence."""
    return not rollout.truncated and rollout.length > 1 and rollout.token_ids[rollout.length - 1] in ends


def _for_any_target(
    rollout: Rollout, possible: Sequence[Rollout], got: Sequence[int], target: int, targets: Targets, draw: int
) -> list[Learnt]:
    """Return what is learnt where prompts have targets: of the ends, with the lengths `got`, the one that is nearest to
    a target drawn evenly from all is right under the prompt that asks for its length or, where training does not, for
    the nearest that it asks for; and one of those before is too early under the prompt that asks for the target. So is
    the end of a whole rollout that is shorter by more than half of one of its sentences."""
    best = _nearest(got, target)
    if possible[best] is rollout and target - got[best] > got[-1] / (2 * len(possible)):
        found = [Learnt(rollout, target, False)]
    else:
        found = [Learnt(possible[best], targets.nearest(got[best]))]
    return found + ([Learnt(possible[draw % best], target, False)] if best else [])


def _for_one_target(
    rollout: Rollout, possible: Sequence[Rollout], got: Sequence[int], target: int, tolerance: int, draw: int
) -> list[Learnt]:
    """Return what is learnt where all prompts have one target: the nearest end is right if it is within the tolerance,
    and one of those that are shorter is too early. Nothing is learnt of a rollout that ended within it: which of the
    lengths within is better, the rewards say."""
    best = _nearest(got, target)
    if possible[-1] is rollout and abs(got[-1] - target) <= tolerance:
        return []
    found = []
    if abs(got[best] - target) <= tolerance:
        found = [Learnt(possible[best], target)]
    elif possible[best] is rollout and got[best] < target:
        found = [Learnt(rollout, target, False)]
    early = sum(target - n > tolerance for n in got[:best])
    return found + ([Learnt(possible[draw % early], target, False)] if early else [])


def _nearest(lengths: Sequence[int], target: int) -> int:
    return min(range(len(lengths)), key=lambda n: abs(lengths[n] - target))


def _endings(rollout: Rollout, ends: frozenset[int], policy: Policy) -> list[Rollout]:
    """Return what a rollout would be if it had ended after one of its sentences, and at the end the rollout itself,
    unless it was cut."""
    ids, logps = rollout.token_ids, rollout.logprobs
    found = []
    for place in range(1, rollout.length):
        if ids[place - 1] in ends:
            text = str(policy.tokenizer.decode(list(ids[:place]), skip_special_tokens=True))
            # the end was not sampled here; hindsight reads no log-prob of the sampler
            kept, logp = (*ids[:place], policy.end_id), (*logps[:place], 0.0)
            found.append(replace(rollout, token_ids=kept, logprobs=logp, text=text, finish_reason="stop"))
    return found if rollout.truncated else [*found, rollout]
