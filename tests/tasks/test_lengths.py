"""The table of output lengths."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from smolsum.tasks.text_metrics import PERCENTILES, length_row, length_table


@given(st.lists(st.integers(0, 512), min_size=1, max_size=300))
def test_table_is_that_of_numpy(tokens: list[int]) -> None:
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
def test_row(tokens: int, within: float, over: float, off: float) -> None:
    """The band is inclusive on both sides; the budget ends at the target."""
    row = length_row(tokens, 64, 5)
    assert (row["within_tol"], row["over_budget"], row["off_target"]) == (within, over, off)


@pytest.mark.parametrize(("tokens", "within"), [(24, (1, 1)), (25, (1, 1)), (22, (0, 1)), (27, (0, 0))])
def test_row_of_close_lengths(tokens: int, within: tuple[float, float]) -> None:
    """Within 5 of 24 is a fifth of the target: the shares within 1 and 2 do not depend on the tolerance."""
    row = length_row(tokens, 24, 5)
    assert row["within_tol"] == 1
    assert (row["within_1"], row["within_2"]) == within
