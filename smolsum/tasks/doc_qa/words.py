"""How many words a text has, counted so that writing them together saves none."""

from __future__ import annotations

import re

LONGEST = 20
"""letters of a word; a longer run counts as several"""
_WORD = re.compile(
    r"\d+(?:[.,:]\d+)*"  # 1,500 and 3.50 and 12:30
    r"|[぀-ヿ㐀-䶿一-鿿가-힯豈-﫿]"  # scripts that leave no blanks
    r"|[^\W\d_]+(?:['\u2019][^\W\d_]+)*"  # don't
)


def words(text: str) -> list[tuple[int, int]]:
    """Start and end of each word: letters with the apostrophes inside them, a number, or one sign of a script without
    blanks. Hyphens, underscores and a digit beside a letter part words, and 20 letters end one."""
    found = []
    for match in _WORD.finditer(text):
        found += [(start, min(start + LONGEST, match.end())) for start in range(match.start(), match.end(), LONGEST)]
    return found


def count_words(text: str) -> int:
    """Words in a text."""
    return len(words(text))


def first_words(text: str, limit: int) -> str:
    """The text up to the end of its `limit`-th word."""
    found = words(text)
    return text if len(found) <= limit else text[: found[limit - 1][1]]


def word_limit_reward(count: int, limit: int) -> float:
    """0 up to `limit` words, then -(count - limit) / limit, and -1 from twice the limit on: within [-1, 0]."""
    return max(-1.0, 0.0 - max(0, count - limit) / limit)
