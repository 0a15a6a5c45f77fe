"""Under which lengths a step's completions are learnt in hindsight (`grpo/hindsight.py`), and up to which end."""

from collections.abc import Sequence
from dataclasses import replace
from statistics import median

import numpy as np

from smolsum.config.sections import StageConfig
from smolsum.config.targets import lot
from smolsum.grpo.batch import Batch
from smolsum.grpo.hindsight import Relabelled
from smolsum.grpo.setup.prepare import Setup
from smolsum.policy.load import Policy
from smolsum.types import Rollout


def relabelled(
    batch: Batch, setup: Setup, stage: StageConfig, step: int, steps: int, ends: frozenset[int]
) -> list[Relabelled]:
    """Return the relabelled completions of each group that has some.

    For each rollout of at least its group's median quality a target is drawn, evenly from those that training asks for
    at the stage's `step` (from 0, of `steps`). Of its possible ends, after each of the tokens `ends` and where it
    ended, the one whose length is nearest is right under the prompt that asks for this length or, where training does
    not, for the nearest that it asks for; and one of those before, drawn too, is too early under the prompt that asks
    for the target. So is the end of a whole rollout that is shorter by more than half of one of its sentences.
    """
    writer = setup.writer
    assert writer is not None
    targets = writer.targets_at(step, steps)
    length, seed, found = setup.task.targets.length(setup.config), setup.config.train.seed, []
    for p, group in enumerate(batch.groups):
        quality = _quality(batch, p, stage, setup.task.targets.signals)
        middle = median(quality)
        learnt: list[tuple[Rollout, int, bool]] = []
        for g, rollout in enumerate(group.rollouts):
            possible = _endings(rollout, ends, setup.policy)
            if quality[g] < middle or np.isnan(batch.totals[p][g]) or not possible:
                continue
            target = targets.drawn("hindsight", seed, rollout.seed)
            best = min(range(len(possible)), key=lambda n: abs(length(possible[n]) - target))
            ended = possible[best]
            if ended is rollout and target - length(rollout) > length(rollout) / (2 * len(possible)):
                learnt.append((ended, target, False))
            else:
                learnt.append((ended, targets.nearest(length(ended)), True))
            if best:
                learnt.append((possible[lot("early", seed, rollout.seed) % best], target, False))
        if learnt:
            ids = [writer.asking(group.prompt, target).token_ids for _, target, _ in learnt]
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
