"""Under which lengths a step's completions are learnt in hindsight (`grpo/hindsight.py`), and up to which end."""

from collections.abc import Sequence
from dataclasses import replace
from statistics import median
from typing import cast

import numpy as np

from smolsum.config.sections import StageConfig
from smolsum.config.targets import LengthSettings, lot, tolerance_of
from smolsum.grpo.batch import Batch
from smolsum.grpo.hindsight import Relabelled
from smolsum.grpo.setup.prepare import Setup
from smolsum.policy.load import Policy
from smolsum.types import Rollout


def relabelled(
    batch: Batch, setup: Setup, stage: StageConfig, step: int, steps: int, ends: frozenset[int]
) -> list[Relabelled]:
    """Return the completions of each group that are learnt.

    For each rollout of at least its group's median quality a target is drawn, evenly from those that training asks for
    at the stage's `step` (from 0, of `steps`). Of its possible ends, after each of the tokens `ends` and where it
    ended, the one whose length is nearest is right under the prompt that asks for this length or, where training does
    not, for the nearest that it asks for; and one of those before, drawn too, is too early under the prompt that asks
    for the target. So is the end of a whole rollout that is shorter by more than half of one of its sentences.

    Where all prompts have one target, the nearest end is right if it is within the tolerance, and those are too early
    that are shorter. Nothing is learnt of a rollout that ended within it: which of the lengths within is better, the
    rewards say.
    """
    writer, task, seed = setup.writer, cast(LengthSettings, setup.config.task), setup.config.train.seed
    targets = writer.targets_at(step, steps) if writer else None
    length, found = setup.task.targets.length(setup.config), []
    for p, group in enumerate(batch.groups):
        quality = _quality(batch, p, stage, setup.task.targets.signals)
        middle = median(quality)
        learnt: list[tuple[Rollout, int, bool]] = []
        for g, rollout in enumerate(group.rollouts):
            if quality[g] < middle or np.isnan(batch.totals[p][g]):
                continue
            if not (possible := _endings(rollout, ends, setup.policy)):
                continue
            target = targets.drawn("hindsight", seed, rollout.seed) if targets else task.target_tokens
            tolerance, got = tolerance_of(target, task), [length(one) for one in possible]
            if not targets and possible[-1] is rollout and abs(got[-1] - target) <= tolerance:
                continue
            best = min(range(len(possible)), key=lambda n: abs(got[n] - target))
            missing, half = target - got[best], got[-1] / (2 * len(possible))
            if possible[best] is rollout and missing > (half if targets else 0):
                learnt.append((rollout, target, False))
            elif targets:
                learnt.append((possible[best], targets.nearest(got[best]), True))
            elif abs(missing) <= tolerance:
                learnt.append((possible[best], target, True))
            early = best if targets else sum(target - n > tolerance for n in got[:best])
            if early:
                learnt.append((possible[lot("early", seed, rollout.seed) % early], target, False))
        if learnt:
            ids = [(writer.asking(group.prompt, t) if writer else group.prompt).token_ids for _, t, _ in learnt]
            found.append(Relabelled([one for one, *_ in learnt], ids, [right for *_, right in learnt]))
    return found


def _endings(rollout: Rollout, ends: frozenset[int], policy: Policy) -> list[Rollout]:
    """Return what a rollout would be if it had ended after one of its sentences, and at the end the rollout itself,
    unless it was cut."""
    ids, logps = rollout.token_ids, rollout.logprobs
    found = []
    for place in range(1, rollout.length):
        if ids[place - 1] in ends:
            text = str(policy.tokenizer.decode(list(ids[:place]), skip_special_tokens=True))
            # the end was not sampled here; hindsight reads no log-prob of the sampler
            kept, logp = (*ids[:place], policy.tokenizer.eos_token_id), (*logps[:place], 0.0)
            found.append(replace(rollout, token_ids=kept, logprobs=logp, text=text, finish_reason="stop"))
    return found if rollout.truncated else [*found, rollout]


def _quality(batch: Batch, p: int, stage: StageConfig, targeted: Sequence[str]) -> list[float]:
    """Return the weighted sum of the signals that do not depend on the target, for each rollout of a group; where a
    stage has none, all are alike."""
    names = [name for name, weight in stage.rewards.items() if weight and name not in targeted]
    if not names:
        return [0.0] * len(batch.groups[p].rollouts)
    # a signal that does not apply adds nothing, as in the total
    rows = [[stage.rewards[name] * (value or 0.0) for value in batch.scores[name][p]] for name in names]
    return [sum(values) for values in zip(*rows, strict=True)]
