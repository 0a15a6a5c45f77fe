"""ROUGE-L: the longest common subsequence of words (Lin 2004), as `rouge_score` computes it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from smolsum.config import Config
    from smolsum.rollout.records import RolloutGroup


@cache
def _scorer() -> Any:
    from rouge_score.rouge_scorer import RougeScorer

    return RougeScorer(["rougeL"], use_stemmer=True)


def rouge_l(text: str, references: Sequence[str]) -> float:
    """ROUGE-L F1, Porter-stemmed, of `text` against its best reference, in [0, 1]; 0 for text without a word.

    Words are runs of a-z and 0-9 in the lower-cased text (`rouge_score`'s tokeniser). `references` holds at
    least one.
    """
    return float(_scorer().score_multi(references, text)["rougeL"].fmeasure)


def score_rouge(groups: Sequence[RolloutGroup], config: Config) -> list[list[float | None]]:
    """PxG ROUGE-L F1; None for every rollout of a prompt without references."""
    return [
        [rouge_l(rollout.text, refs) if (refs := group.prompt.references) else None for rollout in group.rollouts]
        for group in groups
    ]
