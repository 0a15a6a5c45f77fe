"""Texts of the wanted length that sentences of a prompt's rollouts make, to be learnt from as if they were references.

Few of a prompt's rollouts have the length that it asks for, but many of the texts do that begin as one of them and end
with whole sentences of any. Those with the highest reward are learnt from, as RAFT does with the best of what was
sampled (arXiv:2304.06767): every step has texts of the right length, however far the policy is from it.

All of a stage's rollouts are sampled with the weights that it begins with. Sentences that are joined do not know of
each other: a policy that learns this, samples, and learns again comes to repeat itself.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import permutations
from typing import Any, NamedTuple, cast

import mlx.core as mx
import numpy as np

from smolsum.config.stage import StageConfig
from smolsum.config.targets import TARGET, LengthSettings, tolerance_of
from smolsum.grpo.batch import Batch, Learned
from smolsum.grpo.batch_gradient import with_parameters
from smolsum.grpo.setup.prepare import Setup
from smolsum.policy import distributed
from smolsum.policy.load import Policy
from smolsum.rewards.combine import score_and_combine
from smolsum.rollout.source import GroupRequest, Source
from smolsum.tasks.text_metrics import trigrams
from smolsum.types import Rollout, RolloutGroup

RECOMBINED = "recombined"
MOST_ADDED = 3
"""sentences that may follow those of the rollout that a text begins with"""
MOST_OFFERED = 40
"""sentences of a prompt's rollouts of which one may be added: the likeliest; of half as many two, of a third three"""
LEAST_TOKENS = 5
"""of a sentence; what is shorter is rather an abbreviation"""
SCORED = 16
"""texts that are scored, for each rollout"""
ALIKE = 0.6
"""share of a text's trigrams from which it is too much like one that is learnt from already"""


class StartSource(Source):
    """Samples with the weights that a stage begins with, whatever it has learnt since."""

    def __init__(self, source: Source, policy: Policy, start: Any, version: int) -> None:
        """`start` is a tree of trainable parameters, of the policy's version `version`."""
        self._source, self._policy, self._start, self._version = source, policy, start, version

    def sample(self, request: GroupRequest) -> list[RolloutGroup]:
        with with_parameters(self._policy.model, self._start):
            groups = self._source.sample(request)
        return [
            replace(group, rollouts=tuple(replace(one, policy_version=self._version) for one in group.rollouts))
            for group in groups
        ]


class Sentence(NamedTuple):
    """A whole sentence of a rollout."""

    token_ids: tuple[int, ...]
    logp: float
    """the sum of its tokens' log-probs"""
    text: str
    length: int
    """in the unit of the targets"""
    trigrams: frozenset[tuple[str, ...]]


def learn_from_recombined(batch: Batch, setup: Setup, stage: StageConfig, ends: frozenset[int]) -> Learned:
    """Return for each group up to as many texts as it has rollouts, with the advantage 1, so that the gradient is that
    of their likelihood. A group none of whose texts is within the tolerance of its target teaches nothing."""
    config, task = setup.config, cast("LengthSettings", setup.config.task)
    length, offered = setup.task.targets.length(config), list[RolloutGroup]()
    for group in batch.groups:
        target = int(group.prompt.metadata[TARGET] if group.prompt.request else task.target_tokens)
        rollouts = [sentences(one, ends, setup.policy.tokenizer, length) for one in group.rollouts]
        found = nearest_texts(rollouts, target, tolerance_of(target, task), SCORED * len(rollouts))
        version = group.rollouts[0].policy_version
        texts = [_as_rollout(one, version, setup.policy) for one in found]
        offered.append(RolloutGroup(group.prompt, tuple(texts)))
    signals = setup.task.rewards.signals
    _, totals = distributed.together(lambda: score_and_combine(offered, stage.rewards, config, signals))
    groups = [
        RolloutGroup(group.prompt, tuple(_best(group.rollouts, own, len(sampled.rollouts))))
        for group, own, sampled in zip(offered, totals, batch.groups, strict=True)
    ]
    most = max(len(group.rollouts) for group in batch.groups)
    advantages_PG = mx.array([[1.0] * len(one.rollouts) + [0.0] * (most - len(one.rollouts)) for one in groups])
    kept = [length(rollout) for group in groups for rollout in group.rollouts]
    metrics = {"recombined/texts": len(kept) / len(groups)}
    if kept:
        metrics |= {"recombined/mean_length": float(np.mean(kept)), "recombined/std_length": float(np.std(kept))}
    return Learned(groups, advantages_PG, 0.0 * advantages_PG, [{} for _ in groups], metrics)


def sentences(
    rollout: Rollout, ends: frozenset[int], tokenizer: Any, length: Callable[[Rollout], int]
) -> list[Sentence]:
    """Return the whole sentences with which a rollout begins, up to its first line break."""
    ids = rollout.token_ids[: rollout.length]
    found, start, before = [], 0, 0
    for place in range(LEAST_TOKENS, len(ids) + 1):
        if ids[place - 1] not in ends or place - start < LEAST_TOKENS:
            continue
        read = str(tokenizer.decode(list(ids[:place]), skip_special_tokens=True))
        if "\n" in read:
            break
        if place < len(ids):
            more = str(tokenizer.decode(list(ids[: place + 1]), skip_special_tokens=True))[len(read) :]
            if not more[:1].isspace():  # as in "3.5" or "e.g.,"
                continue
        elif rollout.truncated:
            continue
        text, part = read[before:], slice(start, place)
        own = Rollout(ids[part], (), "length", rollout.policy_version, RECOMBINED, 0, text)
        logp = float(sum(rollout.logprobs[part]))
        found.append(Sentence(ids[part], logp, text, length(own), frozenset(trigrams(text))))
        start, before = place, len(read)
    return found


def nearest_texts(
    rollouts: Sequence[Sequence[Sentence]], target: int, tolerance: int, most: int
) -> list[tuple[Sentence, ...]]:
    """Return up to `most` texts whose lengths are within the tolerance of the target, the nearest first and, of equal
    distance, the likeliest; a sentence that is added counts as one more of distance, and none is added where fewer
    make enough texts. None says a trigram of words twice."""
    found: dict[tuple[tuple[int, ...], ...], tuple[float, float, tuple[Sentence, ...]]] = {}
    for added in range(MOST_ADDED + 1):
        for text in _texts(rollouts, added, target + tolerance):
            off = abs(sum(one.length for one in text) - target)
            if off <= tolerance and _says_nothing_twice(text):
                likely = sum(one.logp for one in text) / sum(len(one.token_ids) for one in text)
                found.setdefault(tuple(one.token_ids for one in text), (off + added, -likely, text))
        if len(found) >= most:
            break
    return [text for _, _, text in sorted(found.values(), key=lambda one: one[:2])[:most]]


def _texts(rollouts: Sequence[Sequence[Sentence]], added: int, longest: int) -> Iterator[tuple[Sentence, ...]]:
    """The texts that begin as a rollout does and go on with so many sentences of any, from their second on, or where
    all have one only, with that."""
    later = {one.text: one for own in rollouts for one in own[1:]} or {one.text: one for own in rollouts for one in own}
    likeliest = sorted(later.values(), key=lambda one: one.logp / len(one.token_ids), reverse=True)
    for own in rollouts:
        for count in range(1, len(own) + 1):
            opening = tuple(own[:count])
            room = longest - sum(one.length for one in opening)
            if room < 0:
                break
            fitting = [one for one in likeliest[: MOST_OFFERED // max(added, 1)] if one.length <= room]
            yield from ((*opening, *more) for more in permutations(fitting, added))


def _says_nothing_twice(text: Sequence[Sentence]) -> bool:
    said = frozenset[tuple[str, ...]]()
    for one in text:
        if said & one.trigrams:
            return False
        said |= one.trigrams
    return True


def _as_rollout(text: Sequence[Sentence], version: int, policy: Policy) -> Rollout:
    """A text as a completion that ended; no policy sampled it whole."""
    ids = tuple(token for one in text for token in one.token_ids)
    read = str(policy.tokenizer.decode(list(ids), skip_special_tokens=True))
    return Rollout((*ids, policy.end_id), (), "stop", version, RECOMBINED, 0, read)


def _best(texts: Sequence[Rollout], totals: Sequence[float | None], most: int) -> list[Rollout]:
    """The texts with the highest totals, without those that are much like a better one."""
    scored = [(total, text) for text, total in zip(texts, totals, strict=True) if total is not None]
    kept: list[Rollout] = []
    said: list[set[tuple[str, ...]]] = []
    for _, text in sorted(scored, key=lambda one: one[0], reverse=True):
        own = set(trigrams(text.text))
        if len(kept) < most and all(len(own & other) <= ALIKE * len(own) for other in said):
            kept.append(text)
            said.append(own)
    return kept
