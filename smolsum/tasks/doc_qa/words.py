"""How many words a text has, counted so that writing words together saves none where case, digits, hyphens or
apostrophes show it; 20 letters in a row end one."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from functools import lru_cache

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
