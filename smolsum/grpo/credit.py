"""Which tokens the length of a completion is credited to: all, or those that could have ended it.

The advantage of a whole completion weighs every one of its tokens, though most have no part in how long it gets: what
they get of the length's advantage is noise. With `grpo.length_credit=ends` that part goes to the tokens at which the
text could have ended, its last one and those after the end of a sentence; the rest of the advantage stays with all.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from smolsum.types import RolloutGroup

SENTENCE_END = re.compile(r"[.!?…。！？][\"'”’»)\]]*\s*$|\n\s*$")  # noqa: RUF001  full stops of Chinese and Japanese too


@dataclass(frozen=True)
class EndCredit:
    """The part of a step's advantages that only the tokens have at which a completion could have ended."""

    part_PG: mx.array
    """float32 (P, G)"""
    ends: frozenset[int]
    """the tokens that end a sentence"""

    def take(self, places: Sequence[int]) -> "EndCredit":
        """Return the same of the groups at these places."""
        return EndCredit(self.part_PG[mx.array(list(places))], self.ends)

    def advantages(self, p: int, group: RolloutGroup, advantages_G: mx.array) -> mx.array:
        """Return the advantages of each token of group `p`, of those of its rollouts: float32 (G, T)."""
        part_G1 = self.part_PG[p, : len(group.rollouts)][:, None]
        return advantages_G[:, None] - part_G1 * (1.0 - could_end(group, self.ends))


def could_end(group: RolloutGroup, ends: frozenset[int]) -> mx.array:
    """Return 1 for each token at which its completion could have ended: the last, and those after one of `ends`; else
    0: float32 (G, T)."""
    longest = max(len(rollout.token_ids) for rollout in group.rollouts)
    rows = []
    for rollout in group.rollouts:
        after = [0.0, *(float(token in ends) for token in rollout.token_ids[:-1])][: len(rollout.token_ids)]
        if after and not rollout.truncated:
            after[-1] = 1.0
        rows.append([*after, *[0.0] * (longest - len(after))])
    return mx.array(rows)


def sentence_ends(tokenizer: Any) -> frozenset[int]:
    """Return the ids of the tokens whose text ends a sentence or a line."""
    ids = sorted(tokenizer.get_vocab().values())
    return frozenset(token for token in ids if SENTENCE_END.search(tokenizer.decode([token])))
