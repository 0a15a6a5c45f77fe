"""Pairs of words that the data never have, such as "all this do that I cried": known words in no order.

A pair is two words that follow each other, in lower case. The end of a sentence is a word, as is any number. A pair is
unseen if neither the source nor the data's training split has it, so unlike `novel_bigrams` it does not count what is
usual in the data. How many are depends on the data, and a value means something only next to that of the model before
it was trained: of the pairs in TLDRs that people wrote of abstracts 22 % are unseen, with 1,975 others to compare with,
and 61 % once their words are shuffled.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from smolsum.tasks.text_metrics import SENTENCE_END, words

READ = 500_000
"""words of the training split whose pairs are known, the first ones: read within a second or two, and some ten MB"""
NUMBER, END = "0", "."


def pairs(text: str) -> list[tuple[str, str]]:
    """Return each two words of a text that follow each other; the last follows nothing, and the end of a sentence
    nothing but words."""
    found: list[str] = []
    ends = [match.start() for match in SENTENCE_END.finditer(text)]
    for start, end in words(text):
        if ends and ends[0] < start:
            found.append(END)
            ends = [one for one in ends if one >= start]
        word = text[start:end].lower().replace("\u2019", "'")
        found.append(NUMBER if word[0].isdigit() else word)
    return list(pairwise(found))


@dataclass(frozen=True)
class SeenPairs:
    """The pairs of a data set's texts: of each word those that follow it somewhere."""

    after: dict[str, set[str]]

    def unseen_share(self, text: str, source: str) -> float | None:
        """Return the share of the text's pairs that neither `source` nor these have, in [0, 1]; None for a text without
        a pair."""
        every = pairs(text)
        unseen = {pair for pair in every if pair[1] not in self.after.get(pair[0], ())}
        if unseen:  # a source is read only for these
            unseen.difference_update(_of_source(source))
        return sum(pair in unseen for pair in every) / len(every) if every else None


@lru_cache(maxsize=256)
def _of_source(source: str) -> frozenset[tuple[str, str]]:
    """The pairs of a source, which the rollouts of a group share."""
    return frozenset(pairs(source))


def seen_pairs(texts: Iterable[str]) -> SeenPairs:
    """Return the pairs of the texts up to `READ` words."""
    after: defaultdict[str, set[str]] = defaultdict(set)
    one: dict[str, str] = {}
    """each word once, so that its pairs share it"""
    read = 0
    for text in texts:
        for first, second in pairs(text):
            after[one.setdefault(first, first)].add(one.setdefault(second, second))
            read += 1
        if read >= READ:
            break
    return SeenPairs(dict(after))
