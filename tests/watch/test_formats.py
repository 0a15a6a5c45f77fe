"""Numbers, cut lines and names in the room that they have."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.text import Text

from smolsum.watch.formats import cut, ending, number


@given(st.floats(allow_nan=False, allow_infinity=False, min_value=-1e300, max_value=1e300))
def test_a_number_has_at_most_seven_characters(value: float) -> None:
    """The scale of a chart has room for seven, and a number keeps its size within them."""
    shown = number(value)
    assert len(shown) <= 7
    assert float(shown) == pytest.approx(value, rel=0.5, abs=0.0)


def test_numbers_that_were_too_long() -> None:
    """Powers of ten have no more digits than they need."""
    assert [number(value) for value in (-1.25e-5, -1.5e-300, -123_456.7)] == ["-1.3e-5", "-2e-300", "-1.2e5"]


@pytest.mark.parametrize(("width", "shown"), [(9, "123456789"), (8, "1234567…"), (0, "")])
def test_a_cut_line_says_so(width: int, shown: str) -> None:
    assert cut(Text("123456789"), width).plain == shown


@pytest.mark.parametrize(("width", "shown"), [(14, "127.0.0.1:8461"), (6, "…:8461"), (0, "")])
def test_an_address_keeps_its_end(width: int, shown: str) -> None:
    """Two workers of one machine differ in their ports."""
    assert ending("127.0.0.1:8461", width) == shown
