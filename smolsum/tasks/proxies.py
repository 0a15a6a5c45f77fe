"""What goes wrong with a text, measured on the text and its source alone."""

from __future__ import annotations

import re
from collections.abc import Sequence

WORD = re.compile(r"\w+|[^\w\s]")
COPIED_RUN = 5
"""words in a row that nobody chooses alike by chance"""


def repeated_trigrams(text: str) -> float:
    """Returns the share of the text's word trigrams that occurred before in it, in [0, 1].

    1 - distinct / (n - 2), over the n - 2 runs of three in a text of n words; 0 for fewer than 3 words. Case
    does not matter, and each punctuation mark is a word, since a text can be padded with those too: "do do do
    do" gives 1/2, and a text that never says anything twice gives 0.
    """
    words = WORD.findall(text.lower())
    trigrams = list(zip(words, words[1:], words[2:], strict=False))
    return 1 - len(set(trigrams)) / len(trigrams) if trigrams else 0.0


def novel_ngrams(text: str, source: str, n: int) -> float | None:
    """Returns the share of the text's distinct word n-grams that the source does not have (See et al., 2017), in
    [0, 1]; None for a text of fewer than n words."""
    own = _ngrams(WORD.findall(text.lower()), n)
    return len(own - _ngrams(WORD.findall(source.lower()), n)) / len(own) if own else None


def copied_share(text: str, source: str) -> float | None:
    """Returns the share of the text's words that stand in a run of `COPIED_RUN` or more words which the source has in
    the same order, in [0, 1]; None for a text without words."""
    words, runs = WORD.findall(text.lower()), _ngrams(WORD.findall(source.lower()), COPIED_RUN)
    copied = {
        start + i
        for start in range(len(words) - COPIED_RUN + 1)
        if tuple(words[start : start + COPIED_RUN]) in runs
        for i in range(COPIED_RUN)
    }
    return len(copied) / len(words) if words else None


def _ngrams(words: Sequence[str], n: int) -> set[tuple[str, ...]]:
    return {tuple(words[i : i + n]) for i in range(len(words) - n + 1)}
