"""How many words a text has, counted so that writing words together saves none where case, digits, hyphens or
apostrophes show it; 20 letters in a row end one.

What goes wrong with a text, measured on the text and its source alone.

How long completions are: the study's table of output lengths, with how far they are from the target.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from functools import lru_cache
from statistics import fmean, pstdev

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


PERCENTILES = (50, 90, 95, 99)


def length_table(tokens: Sequence[int]) -> dict[str, float]:
    """Returns mean, standard deviation (population), extremes and percentiles of lengths in tokens, at least one.

    A percentile is a length that occurs: the smallest that at least so many per cent of the completions do not exceed.
    """
    ordered = sorted(tokens)
    percentiles = {
        f"completions/p{percent}_length": float(ordered[-(-percent * len(ordered) // 100) - 1])
        for percent in PERCENTILES
    }
    return {
        "completions/mean_length": fmean(ordered),
        "completions/std_length": pstdev(ordered),
        "completions/min_length": float(ordered[0]),
        **percentiles,
        "completions/max_length": float(ordered[-1]),
    }


def length_row(tokens: int, target: int, tolerance: int) -> dict[str, float]:
    """Returns one completion's length in tokens; whether it is within `tolerance` of the target; whether it is over the
    budget, which is the target itself; and its distance from the target in tokens."""
    distance = abs(tokens - target)
    return {
        "tokens": tokens,
        "within_tol": float(distance <= tolerance),
        "over_budget": float(tokens > target),
        "off_target": float(distance),
    }


LONGEST = 20
"""letters of a word; a longer run counts as several"""
_UNPARTED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"  # Thai, Lao, Burmese, Khmer: letters, but no blanks
_SIGNS = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\U00020000-\U0003fffd"  # Chinese and Japanese, which have none either
_JAMO = "\u1100-\u11ff"  # what a Korean syllable is made of
_PART = re.compile(
    r"\d{1,2}\.\d{1,2}\.\d{4}(?!\d)"  # 31.12.2024
    r"|\d{1,2}:\d{2}(?!\d)(?::\d{2}(?!\d))?"  # 12:30
    r"|\d{1,3}(?:,\d{3}(?!\d))+(?:\.\d+)?"  # 1,500.50
    r"|\d+(?:\.\d+)?"  # 3.50
    r"|[\u1100-\u115f][\u1160-\u11a7][\u11a8-\u11ff]?"
    rf"|(?=\w)[{_SIGNS}{_JAMO}]"
    rf"|(?:(?=[{_UNPARTED}])[^\W\d_]){{1,5}}"
    rf"|(?P<letters>(?:(?![{_UNPARTED}{_SIGNS}{_JAMO}\u02bc])[^\W\d_])+)"
)
_APOSTROPHES = "'\u2019\u02bc"
_BEFORE = re.compile(r"[^\W\d_ai]|[^\W\d_]*qu", re.IGNORECASE)  # l'heure, qu'il, O'Brien
_AFTER = re.compile(r"s|t|d|m|n|re|ve|ll", re.IGNORECASE)  # don't, we'll


def words(text: str) -> list[tuple[int, int]]:
    """Start and end of each word: letters with their marks, a number with the separators that numbers have, one sign of
    Chinese, Japanese or Korean, or five letters of another script without blanks. A change from lower to upper case,
    hyphens, underscores, a digit beside a letter and apostrophes part words, but for the one of a contraction."""
    bare, places = _without_marks(text)
    found: list[tuple[int, int]] = []
    whole = True  # whether the last word takes no apostrophe
    for start, end, lettered in _parts(bare):
        if not whole and lettered and found[-1][1] + 1 == start and bare[start - 1] in _APOSTROPHES:
            before = found[-1][0]
            if whole := _contracted(bare[before : start - 1], bare[start:end]):
                found[-1] = (before, end)
                continue
        found.append((start, end))
        whole = not lettered
    return [(places[start], places[end]) for start, end in found]


def _without_marks(text: str) -> tuple[str, list[int]]:
    """The text decomposed and without its marks, so that each way to write a letter is the same one; the place of each
    of its signs in the text, and the text's end."""
    if text.isascii():
        return text, list(range(len(text) + 1))
    bare, places, joins = [], [], False
    for place, sign in enumerate(text):
        for part in _decomposed(sign):
            if unicodedata.category(part)[0] == "M":
                joins = joins or unicodedata.combining(part) == 9
            elif not (joins and part in "\u200c\u200d"):  # they shape what a virama joins, and part nothing there
                bare.append(part)
                places.append(place)
                joins = False
    return "".join(bare), [*places, len(text)]


@lru_cache(maxsize=4096)
def _decomposed(sign: str) -> str:
    return unicodedata.normalize("NFD", sign)


def _parts(bare: str) -> Iterator[tuple[int, int, bool]]:
    """Start and end of all that letters and digits make before contractions are one, and whether it is letters."""
    for match in _PART.finditer(bare):
        start, end = match.span()
        turns = [n for n in range(start + 1, end) if bare[n].isupper() and bare[n - 1].islower()]
        for first, last in zip((start, *turns), (*turns, end), strict=True):
            for n in range(first, last, LONGEST):
                yield n, min(n + LONGEST, last), match["letters"] is not None


def _contracted(one: str, two: str) -> bool:
    """Whether what stands on both sides of an apostrophe is one word; outside of Latin script it always is."""
    latin = max(one + two) < "\u0250"
    return not latin or bool(_BEFORE.fullmatch(one) or _AFTER.fullmatch(two))


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
