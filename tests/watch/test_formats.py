"""Cut and wrap lines and names in the room that they have."""

import pytest
from rich.text import Text

from smolsum.watch.formats import cut, ending, hanging


@pytest.mark.parametrize(("width", "shown"), [(9, "123456789"), (8, "1234567…"), (0, "")])
def test_a_cut_line_says_so(width: int, shown: str) -> None:
    assert cut(Text("123456789"), width).plain == shown


@pytest.mark.parametrize(("width", "shown"), [(14, "127.0.0.1:8461"), (6, "…:8461"), (0, "")])
def test_an_address_keeps_its_end(width: int, shown: str) -> None:
    """Two workers of one machine differ in their ports."""
    assert ending("127.0.0.1:8461", width) == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a paragraph of many words", ["A: a paragraph of", "   many words"]),
        ("日本語の要約を六十四", ["A: 日本語の要約を", "   六十四"]),
        ("", ["A: "]),
    ],
    ids=["words", "wide characters", "empty"],
)
def test_a_paragraph_hangs_in_its_cells(text: str, shown: list[str]) -> None:
    """A character of Chinese or Japanese fills two cells."""
    assert [line.plain for line in hanging(Text("A: "), text, 17)] == shown
