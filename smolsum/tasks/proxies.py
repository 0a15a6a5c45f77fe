"""What goes wrong with a text, measured on the text alone."""

from __future__ import annotations

import re

WORD = re.compile(r"\w+|[^\w\s]")


def repeated_trigrams(text: str) -> float:
    """Returns the share of the text's word trigrams that occurred before in it, in [0, 1].

    1 - distinct / (n - 2), over the n - 2 runs of three in a text of n words; 0 for fewer than 3 words. Case
    does not matter, and each punctuation mark is a word, since a text can be padded with those too: "do do do
    do" gives 1/2, and a text that never says anything twice gives 0.
    """
    words = WORD.findall(text.lower())
    trigrams = list(zip(words, words[1:], words[2:], strict=False))
    return 1 - len(set(trigrams)) / len(trigrams) if trigrams else 0.0
