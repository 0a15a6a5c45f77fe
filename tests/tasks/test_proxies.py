"""Measures of a text alone."""

from __future__ import annotations

import pytest

from smolsum.tasks.proxies import repeated_trigrams


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
