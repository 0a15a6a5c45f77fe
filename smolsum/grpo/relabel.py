"""Which rollouts of a step are relabelled in hindsight, as what, and what that is worth (`grpo/hindsight.py`)."""

from collections.abc import Sequence
from statistics import median

import numpy as np

from smolsum.config.sections import StageConfig
from smolsum.grpo.batch import Batch
from smolsum.grpo.hindsight import Relabelled
from smolsum.grpo.setup.prepare import Setup
from smolsum.rewards.combine import score_all
from smolsum.types import RolloutGroup


def relabelled(batch: Batch, setup: Setup, stage: StageConfig, step: int, steps: int) -> list[Relabelled]:
    """Return the relabelled rollouts of each group that has some.

    A rollout is relabelled with the target that its length reaches or, where training does not ask for that one at the
    stage's `step` (from 0, of `steps`), with the nearest target that it asks for. It takes part if it was not cut, if
    it is of at least the group's median quality, and if its reward is higher under the prompt that asks for that target
    than under its own.
    """
    writer = setup.writer
    assert writer is not None
    targets = writer.targets_at(step, steps)
    length, found = setup.task.targets.length(setup.config), []
    for p, group in enumerate(batch.groups):
        quality = _quality(batch, p, stage, setup.task.targets.signals)
        middle = median(quality)
        rollouts, prompts, places = [], [], []
        for g, rollout in enumerate(group.rollouts):
            if not rollout.truncated and quality[g] >= middle and not np.isnan(batch.totals[p][g]):
                rollouts.append(rollout)
                prompts.append(writer.asking(group.prompt, targets.nearest(length(rollout))))
                places.append(g)
        copies = [RolloutGroup(prompt, (rollout,)) for prompt, rollout in zip(prompts, rollouts, strict=True)]
        gains = _gains(copies, batch, p, places, setup, stage)
        kept = [n for n, gain in enumerate(gains) if gain > 0]
        if kept:
            ids = [prompts[n].token_ids for n in kept]
            better = [rollouts[n] for n in kept], ids, [gains[n] for n in kept]
            found.append(Relabelled(group.prompt.token_ids, *better))
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


def _gains(
    copies: list[RolloutGroup], batch: Batch, p: int, places: Sequence[int], setup: Setup, stage: StageConfig
) -> list[float]:
    """Return by how much the total rewards are higher under the relabelled prompts: only the signals that depend on the
    target change."""
    targeted = {name: w for name, w in stage.rewards.items() if w and name in setup.task.targets.signals}
    new = score_all(copies, targeted, setup.config, setup.task.rewards.signals) if copies else {}
    return [
        sum(
            weight * ((new[name][n][0] or 0.0) - (batch.scores[name][p][g] or 0.0)) for name, weight in targeted.items()
        )
        for n, g in enumerate(places)
    ]
