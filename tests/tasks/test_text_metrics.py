"""Measures of a text alone and of the lengths of many, its words, and what the limit says of them."""

import unicodedata

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smolsum.tasks.text_metrics import (
    PERCENTILES,
    copied_share,
    count_words,
    first_words,
    length_row,
    length_table,
    novel_ngrams,
    repeated_trigrams,
    word_limit_reward,
)


@pytest.mark.parametrize(
    ("text", "share"),
    [
        ("", 0.0), ("do do", 0.0), ("do do do", 0.0), ("do do do do", 1 / 2), (" ".join(["do"] * 102), 99 / 100),
        ("my sister lost my bike", 0.0),
        ("she left and she left and went", 1 / 5),  # of 5 trigrams, "she left and" is said twice
        ("My sister lost. My sister lost?", 1 / 6),  # a mark is a word, and case does not matter
        ("Why" + "!" * 9, 6 / 8),
        ("I am" + " " * 10 + "not", 6 / 10), ("Why?" + "\n" * 10, 6 / 9), ("I am\n" + " " * 40 + "not", 37 / 41),
        ("One line.\n\nAnother  line.", 0.0),
        ("{\n    is: 1,\n    no: 2\n}", 0.0),  # indented lines are not padded
        ("I am really" + "er" * 20 + " not", 17 / 22), ("Hahahaha", 1 / 2),
        ("ntanntannantanntannant", 4 / 9), ("counterrevolutionaries", 0.0),  # two letters each
        ("_" * 10, 7 / 8), ("0" * 20, 17 / 18),
        ("The banana cost 1000000 dollars, mmm", 0.0),  # words and numbers are written so
    ],
)  # fmt: skip
def test_repeated_trigrams_is_the_share_said_before(text: str, share: float) -> None:
    """1 - distinct / all, by hand."""
    assert repeated_trigrams(text) == pytest.approx(share)


SOURCE = "My flatmate sold my bike on Monday, and now she says it was hers."


@pytest.mark.parametrize(
    ("text", "share"),
    [
        (SOURCE, 1.0), ("my flatmate sold my bike", 1.0), ("She sold it, my flatmate sold my bike", 5 / 9),
        ("my flatmate sold my car", 0.0), ("", None),
    ],
)  # fmt: skip
def test_copied_share(text: str, share: float | None) -> None:
    """Only runs of five words of the source count, and each word once."""
    assert copied_share(text, SOURCE) == (None if share is None else pytest.approx(share))


@pytest.mark.parametrize(
    ("text", "n", "share"),
    [
        ("my flatmate sold", 2, 0), ("my flatmate left", 2, 0.5), ("Two new words", 3, 1), ("one", 2, None),
        ("", 1, None),
    ],
)  # fmt: skip
def test_novel_ngrams(text: str, n: int, share: float | None) -> None:
    """The share of n-grams that the source does not have, in any case."""
    assert novel_ngrams(text, SOURCE, n) == share


@given(st.lists(st.integers(0, 512), min_size=1, max_size=300))
def test_table_of_lengths_is_that_of_numpy(tokens: list[int]) -> None:
    """Mean, spread, extremes and percentiles are NumPy's, a percentile being a length that occurs."""
    table = length_table(tokens)
    assert table["completions/mean_length"] == pytest.approx(np.mean(tokens))
    assert table["completions/std_length"] == pytest.approx(np.std(tokens))
    assert (table["completions/min_length"], table["completions/max_length"]) == (min(tokens), max(tokens))
    for percent in PERCENTILES:
        expected = np.percentile(tokens, percent, method="inverted_cdf")
        assert table[f"completions/p{percent}_length"] == expected


@pytest.mark.parametrize(
    ("tokens", "within", "over", "off"), [(64, 1, 0, 0), (69, 1, 1, 5), (59, 1, 0, 5), (70, 0, 1, 6), (0, 0, 0, 64)]
)
def test_row_of_a_length(tokens: int, within: float, over: float, off: float) -> None:
    """The band is inclusive on both sides; the budget ends at the target."""
    row = length_row(tokens, 64, 5)
    assert (row["within_tol"], row["over_budget"], row["off_target"]) == (within, over, off)


@pytest.mark.parametrize(("tokens", "within"), [(24, (1, 1)), (25, (1, 1)), (22, (0, 1)), (27, (0, 0))])
def test_row_of_close_lengths(tokens: int, within: tuple[float, float]) -> None:
    """Within 5 of 24 is a fifth of the target: the shares within 1 and 2 do not depend on the tolerance."""
    row = length_row(tokens, 24, 5)
    assert row["within_tol"] == 1
    assert (row["within_1"], row["within_2"]) == within


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", 0), (" … — !", 0), ("one two  three\nfour", 4), ("3pm", 2), ("x " * 3001, 3001),
        ("well-known and/or made_up", 6), ("a" * 20, 1), ("a" * 21, 2),  # joining words saves none
        ("NoahBroughtHomeTheHamsterAndTheCat", 8), ("theCatSatOnTheMat", 6), ("EdithIsMySister", 4),
        ("It's Noah's, isn't it?", 4), ("it's'fine it'sFine", 4), ("Edith'is'my'sister", 4),
        ("Edith\u02bcis\u02bcmy\u02bcsister", 4), ("l'heure qu'il O'Brien we'll DON'T п'ять", 6),
        ("It\u2019s $1,500.50 at 12:30.", 4), ("12,34,56,78", 4), ("1990,1991 12:30:15 31.12.2024 1,234,567.89", 5),
        ("文書の要約", 5), ("a文書", 3), ("한국어 パーティー", 8),  # scripts without blanks
        ("ภาษาไทย", 2),  # another one: 5 letters are a word
        ("Größe naïve Ελλάδα", 3), ("cafe\u0301 nai\u0308ve Vie\u0323\u0302t", 3), ("हिन्दी भाषा", 2),
        ("क्\u200dष", 1), ("שָׁלוֹם עוֹלָם", 2), ("தமிழ் மொழி", 2), ("မြန်မာ ဘာသာ", 2),
    ],
)  # fmt: skip
def test_words_are_counted(text: str, words: int) -> None:
    assert count_words(text) == words


@pytest.mark.parametrize(
    ("count", "limit", "reward"),
    [
        (0, 350, 0.0), (350, 350, 0.0), (351, 350, -1 / 350), (525, 350, -0.5), (700, 350, -1.0), (9000, 350, -1.0),
        (3, 1, -1.0),
    ],
)  # fmt: skip
def test_the_limit_costs_nothing_and_then_what_is_over(count: int, limit: int, reward: float) -> None:
    """By hand: 0 up to the limit, linear to -1 at twice the limit, never below."""
    assert word_limit_reward(count, limit) == pytest.approx(reward)


def test_what_is_cut_ends_with_a_word() -> None:
    """Nothing is cut off a text within the limit."""
    assert first_words("one, two-three; four.", 3) == "one, two-three"
    assert first_words("one, two!", 2) == "one, two!"


@settings(max_examples=1_000)
@given(st.text(max_size=100))
def test_composed_or_not(text: str) -> None:
    """The same text has the same words, however its letters are written."""
    counts = {count_words(unicodedata.normalize(form, text)) for form in ("NFC", "NFD")}
    assert counts == {count_words(text)}


TEXTS = st.text(max_size=400) | st.text("abAB12é'\u0301.,: -文가ก", max_size=60)


@pytest.mark.slow
@settings(max_examples=10_000)
@given(TEXTS, st.integers(1, 60))
def test_any_text(text: str, limit: int) -> None:
    """The reward is within [-1, 0], 0 where the text is within the limit; what is left of a text has at most `limit`
    words, and they are its first."""
    count, kept = count_words(text), first_words(text, limit)
    assert -1.0 <= word_limit_reward(count, limit) <= 0.0
    assert (word_limit_reward(count, limit) == 0.0) == (count <= limit)
    assert text.startswith(kept)
    assert count_words(kept) == min(count, limit)
