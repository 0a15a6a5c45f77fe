"""What a summary is rewarded for: the questions that it answers, or its rank among its group, and the words that it
takes."""

from __future__ import annotations

from collections.abc import Sequence

from smolsum.config import Config
from smolsum.rewards.signal import Values
from smolsum.rollout.records import RolloutGroup
from smolsum.tasks.doc_qa.questions import asked_of
from smolsum.tasks.doc_qa.reader import Compared, answered, ranked, reading, share
from smolsum.tasks.doc_qa.settings import settings
from smolsum.tasks.doc_qa.words import count_words, word_limit_reward


def score_answered(groups: Sequence[RolloutGroup], config: Config) -> Values:
    """PxG shares of the document's questions that the reader answers rightly from the summary alone, in [0, 1]; None
    where the reader failed."""
    readings = [reading(r.text, g.prompt.source, g.prompt.metadata) for g in groups for r in g.rollouts]
    shares = iter([share(verdicts) for verdicts in answered(readings, config)])
    return [[next(shares) for _ in group.rollouts] for group in groups]


def score_word_limit(groups: Sequence[RolloutGroup], config: Config) -> Values:
    """PxG rewards in [-1, 0], as of `word_limit_reward`."""
    limit = settings(config).max_words
    return [[word_limit_reward(count_words(r.text), limit) for r in group.rollouts] for group in groups]


def score_ranking(groups: Sequence[RolloutGroup], config: Config) -> Values:
    """PxG scores in [0, 1] from comparing the summaries of a group with each other, as ART's RULER does; None for a
    whole group that the reader did not rank. They compare within a group only, as an advantage does."""
    compared = [
        Compared(g.prompt.source, asked_of(g.prompt.metadata), tuple(r.text for r in g.rollouts)) for g in groups
    ]
    found = ranked(compared, config)
    return [list(f) if f is not None else [None] * len(g.rollouts) for f, g in zip(found, groups, strict=True)]
