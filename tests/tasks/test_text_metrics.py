"""Measures of a text alone."""

from __future__ import annotations

import pytest

from smolsum.tasks.text_metrics import copied_share, novel_ngrams, repeated_trigrams


@pytest.mark.parametrize(
    ("text", "share"),
    [
        ("", 0.0),
        ("do do", 0.0),
        ("do do do", 0.0),
        ("do do do do", 1 / 2),
        (" ".join(["do"] * 102), 99 / 100),
        ("my sister lost my bike", 0.0),
        ("she left and she left and went", 1 / 5),  # of 5 trigrams, "she left and" is said twice
        ("My sister lost. My sister lost?", 1 / 6),  # a mark is a word, and case does not matter
        ("Why" + "!" * 9, 6 / 8),
    ],
)
def test_repeated_trigrams_is_the_share_said_before(text: str, share: float) -> None:
    """1 - distinct / all, by hand."""
    assert repeated_trigrams(text) == pytest.approx(share)


SOURCE = "My flatmate sold my bike on Monday, and now she says it was hers."


@pytest.mark.parametrize(
    ("text", "share"),
    [
        (SOURCE, 1.0),
        ("my flatmate sold my bike", 1.0),
        ("She sold it, my flatmate sold my bike", 5 / 9),
        ("my flatmate sold my car", 0.0),
        ("", None),
    ],
)
def test_copied_share(text: str, share: float | None) -> None:
    """Only runs of five words of the source count, and each word once."""
    assert copied_share(text, SOURCE) == (None if share is None else pytest.approx(share))


@pytest.mark.parametrize(
    ("text", "n", "share"),
    [
        ("my flatmate sold", 2, 0.0),
        ("my flatmate left", 2, 0.5),
        ("Two new words", 3, 1.0),
        ("one", 2, None),
        ("", 1, None),
    ],
)
def test_novel_ngrams(text: str, n: int, share: float | None) -> None:
    """The share of n-grams that the source does not have, in any case."""
    assert novel_ngrams(text, SOURCE, n) == share
