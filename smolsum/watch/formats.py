"""Names and lines in the room that they have, the colours of the view, and the content of a pane."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.text import Text

# names of the terminal's colours; the themes say how they look
SKY, ORANGE, GREEN, PURPLE, RED, YELLOW = "blue", "yellow", "green", "magenta", "red", "bright_yellow"
CURVES = (SKY, ORANGE, GREEN, PURPLE, YELLOW)
DIM = "bright_black"
NAME_WIDTH, VALUE_WIDTH = 16, 9
"""Columns of lines that begin with the name of a metric and its value, in characters."""


@dataclass(frozen=True)
class PaneText:
    """What a pane shows: its title and a note, which its frame has, and its lines."""

    title: str
    note: str | Text = ""
    lines: tuple[Text, ...] = ()
    news: bool = True
    """False: there is nothing to say, and the first page gives the room to others"""


@dataclass(frozen=True)
class Rows:
    """What a table shows: its title and a note, the titles of its columns, and the cells of its rows."""

    title: str
    note: str
    titles: Sequence[str]
    rows: Sequence[Sequence[str | Text]]
    left: Sequence[str] = ("",)
    """columns of words, which begin at their left"""


def hanging(head: Text, text: str, width: int, style: str = "") -> list[Text]:
    """Return a paragraph in lines of at most `width` cells behind a head, below which all lines begin."""
    inset = head.cell_len
    lines = Text(text).wrap(Console(), max(width - inset, 8)) or [Text()]
    return [Text.assemble(" " * inset if at else head, (line.plain.rstrip(), style)) for at, line in enumerate(lines)]


def cut(text: Text, width: int, *, pad: bool = False) -> Text:
    """Return a line of at most `width` cells, with `pad` of as many; a longer one is cut and ends with an ellipsis."""
    shorter = text.copy() if width > 0 else Text()
    shorter.truncate(width, overflow="ellipsis", pad=pad)
    return shorter


def ending(text: str, width: int) -> str:
    """Return the end of a name in at most `width` characters: addresses differ at their end."""
    return text if len(text) <= width else f"…{text[len(text) - width + 1 :]}"[: max(width, 0)]


def bar(share: float, width: int) -> str:
    """Return a bar of `width` cells, filled to a share in [0, 1]."""
    full = round(min(max(share, 0.0), 1.0) * width)
    return "█" * full + "░" * (width - full)
