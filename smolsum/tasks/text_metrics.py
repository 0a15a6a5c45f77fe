"""Measures of a text: its words, its length, what it repeats and what it copies from its source.

Words that are run together count separately where case, digits, hyphens or apostrophes mark the boundary, and after 20
letters.
"""

import re
import unicodedata
from collections.abc import Iterator, Sequence
from statistics import fmean, pstdev

import regex

WORD = re.compile(r"\w+|[^\w\s]")
WORD_OR_BLANK = re.compile(WORD.pattern + r"|(?<=\s)\s")
INDENTATION = re.compile(r"\n[^\S\n]{1,16}(?=\S)")
STRETCHED = re.compile(r"([^\W\d]{1,12}?)\1{3,}|(\d{1,3}?)\2{11,}")
"""letters four times in a row and digits twelve times, as in "hahahaha", which is one word of any number of tokens"""
LONGEST = 20
"""letters of a word; a longer run counts as several"""
COPIED_RUN = 5
"""words in a row that two writers hardly choose by chance"""


def repeated_trigrams(text: str) -> float:
    """Return the share of the text's word trigrams that occurred before in it, in [0, 1].

    1 - distinct / (n - 2), over the n - 2 runs of three in a text of n words; 0 for fewer than 3 words. Case
    does not matter. Each punctuation mark is a word, and so is each blank that follows a blank and indents no
    line, each of the same letters within a word ("hahahaha" has four), and each two letters of a word of more than
    `LONGEST`, since a text can be padded with those too: "do do do do" gives 1/2, and a text that never says
    anything twice gives 0.
    """
    every = trigrams(text)
    return 1 - len(set(every)) / len(every) if every else 0.0


def trigrams(text: str) -> list[tuple[str, ...]]:
    """Return each three words of the text that follow each other, in lower case, with words as in
    `repeated_trigrams`."""
    found = WORD_OR_BLANK.findall(INDENTATION.sub("\n", text.lower()))
    parts = [part for word in found for part in STRETCHED.sub(_each_apart, word).split() or [word]]
    words = [piece for part in parts for piece in _pieces(part)]
    return list(zip(words, words[1:], words[2:], strict=False))


def _each_apart(stretched: re.Match[str]) -> str:
    part = stretched[1] or stretched[2]
    return f" {part}" * (len(stretched[0]) // len(part)) + " "


def _pieces(word: str) -> list[str]:
    return [word[i : i + 2] for i in range(0, len(word), 2)] if len(word) > LONGEST else [word]


def novel_ngrams(text: str, source: str, n: int) -> float | None:
    """Return the share of the text's distinct word n-grams that the source does not have (See et al., 2017), in
    [0, 1]; None for a text of fewer than n words."""
    own = _ngrams(WORD.findall(text.lower()), n)
    return len(own - _ngrams(WORD.findall(source.lower()), n)) / len(own) if own else None


def copied_share(text: str, source: str) -> float | None:
    """Return the share of the text's words that stand in a run of `COPIED_RUN` or more words which the source has in
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
    """Return mean, standard deviation (population), extremes and percentiles of lengths in tokens, at least one.

    A percentile is a length that occurs: the smallest that at least so many per cent of the completions do not exceed.
    """
    ordered = sorted(tokens)
    places = {percent: -(-percent * len(ordered) // 100) - 1 for percent in PERCENTILES}
    return {
        "completions/mean_length": fmean(ordered),
        "completions/std_length": pstdev(ordered),
        "completions/min_length": float(ordered[0]),
        **{f"completions/p{percent}_length": float(ordered[place]) for percent, place in places.items()},
        "completions/max_length": float(ordered[-1]),
    }


CLOSE = (1, 2)
"""tokens from a target that are close to it, however long it is"""


def length_row(tokens: int, target: int, tolerance: int) -> dict[str, float]:
    """Return one completion's length in tokens (or in what the target counts); whether it is within `tolerance`, within
    1 and within 2 of the target; whether it is over the budget, which is the target itself; and its distance from the
    target."""
    distance = abs(tokens - target)
    return {
        "tokens": tokens,
        "within_tol": float(distance <= tolerance),
        **{f"within_{n}": float(distance <= n) for n in CLOSE},
        "over_budget": float(tokens > target),
        "off_target": float(distance),
    }


_LETTER = r"(?:[\p{L}\p{Nl}\p{No}](?:\p{M}|(?<=\p{ccc=9})[\u200c\u200d])*+)"  # with its marks; joiners after a virama
_NO_BLANKS = r"\p{Thai}\p{Lao}\p{Myanmar}\p{Khmer}"  # scripts of letters that write no blanks
_PART = regex.compile(
    r"\d{1,2}\.\d{1,2}\.\d{4}(?!\d)"  # 31.12.2024
    r"|\d{1,2}:\d{2}(?!\d)(?::\d{2}(?!\d))?"  # 12:30
    r"|\d{1,3}(?:,\d{3}(?!\d))+(?:\.\d+)?"  # 1,500.50
    r"|\d+(?:\.\d+)?"  # 3.50
    # a sign of Korean, composed or not, or of Chinese or Japanese
    r"|(?:\p{hst=LV}|\p{hst=L}\p{hst=V})\p{hst=T}?+\p{M}*+|[\p{Hangul}\p{Han}\p{Hiragana}\p{Katakana}\u30fc]\p{M}*+"
    rf"|(?:(?=[{_NO_BLANKS}]){_LETTER}){{1,5}}"
    rf"|(?P<letters>(?:(?![{_NO_BLANKS}\p{{Hangul}}\p{{Han}}\p{{Hiragana}}\p{{Katakana}}\u30fc\u02bc]){_LETTER})+)"
)
_UNIT = regex.compile(_LETTER)
_APOSTROPHES = "'\u2019\u02bc"
_BEFORE = regex.compile(r"[^\W\d_ai]|[^\W\d_]*qu", regex.IGNORECASE)  # l'heure, qu'il, O'Brien
_AFTER = regex.compile(r"s|t|d|m|n|re|ve|ll", regex.IGNORECASE)  # don't, we'll


def words(text: str) -> list[tuple[int, int]]:
    """Return start and end of each word: letters with their marks; a number with its separators; one sign of Chinese,
    Japanese or Korean; or five letters of another script without blanks. A change from lower to upper case, a hyphen,
    an underscore, a digit next to a letter and an apostrophe end a word, except for the apostrophe of a contraction."""
    found: list[tuple[int, int]] = []
    whole = True  # whether the last word takes no apostrophe
    for start, end, lettered in _parts(text):
        if not whole and lettered and found[-1][1] + 1 == start and text[start - 1] in _APOSTROPHES:
            before = found[-1][0]
            if whole := _contracted(text[before : start - 1], text[start:end]):
                found[-1] = (before, end)
                continue
        found.append((start, end))
        whole = not lettered
    return found


def _parts(text: str) -> Iterator[tuple[int, int, bool]]:
    """Yield start and end of each run of letters or digits, contractions apart, and whether it is letters."""
    for match in _PART.finditer(text):
        start, end = match.span()
        if match["letters"] is None:
            yield start, end, False
            continue
        run = text[start:end]
        if run.isascii() and len(run) <= LONGEST and (len(run) == 1 or run[1:].islower()):  # nothing to divide
            yield start, end, True
            continue
        units = [unit.start() for unit in _UNIT.finditer(text, start, end)]
        since = 0
        for n, place in enumerate(units):
            turns = n > 0 and text[place].isupper() and text[units[n - 1]].islower()
            if turns or n - since == LONGEST:
                yield start, place, True
                start, since = place, n
        yield start, end, True


def _contracted(one: str, two: str) -> bool:
    """Return whether the texts on both sides of an apostrophe are one word; outside of Latin script they always are."""
    one, two = (regex.sub(r"\p{M}", "", unicodedata.normalize("NFD", part)) for part in (one, two))
    latin = max(one + two) < "\u0250"
    return not latin or bool(_BEFORE.fullmatch(one) or _AFTER.fullmatch(two))


def count_words(text: str) -> int:
    """Return the number of words in a text."""
    return len(words(text))


SENTENCE_END = regex.compile(r"[.!?\u2026]+[\"'\u2019\u201d)\]]*(?=\s|$)|[\u3002\uff01\uff1f]+")


def sentences(text: str) -> list[str]:
    """Return the sentences of a text: what ends with `.`, `!`, `?` or `…` before a blank or the end (or with such a
    sign of Chinese or Japanese), and what follows the last such mark. An abbreviation before a blank counts as an
    end."""
    ends = [match.end() for match in SENTENCE_END.finditer(text)]
    parts = (text[start:end].strip() for start, end in zip([0, *ends], [*ends, len(text)], strict=True))
    return [part for part in parts if regex.search(r"[\p{L}\p{N}]", part)]


def count_sentences(text: str) -> int:
    """Return the number of sentences in a text."""
    return len(sentences(text))


def first_words(text: str, limit: int) -> str:
    """Return the text up to the end of its `limit`-th word."""
    found = words(text)
    return text if len(found) <= limit else text[: found[limit - 1][1]]


def word_limit_reward(count: int, limit: int) -> float:
    """Return 0 up to `limit` words, then -(count - limit) / limit, and -1 from twice the limit on: within [-1, 0]."""
    return max(-1.0, 0.0 - max(0, count - limit) / limit)
