"""Measures of a text alone, and of the lengths of many."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from smolsum.tasks.text_metrics import (
    PERCENTILES,
    copied_share,
    length_row,
    length_table,
    novel_ngrams,
    repeated_trigrams,
)


@pytest.mark.parametrize(
    ("text", "share"),
    [
        ("", 0.0), ("do do", 0.0), ("do do do", 0.0), ("do do do do", 1 / 2), (" ".join(["do"] * 102), 99 / 100),
        ("my sister lost my bike", 0.0),
        ("she left and she left and went", 1 / 5),  # of 5 trigrams, "she left and" is said twice
        ("My sister lost. My sister lost?", 1 / 6),  # a mark is a word, and case does not matter
        ("Why" + "!" * 9, 6 / 8),
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


# the table of output lengths


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
