"""Lines of text at places of a terminal, through Textual's widgets: what did not change is not drawn again.

What a pane shows: a title, a note beside it, and lines of text; and how that looks without an app.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from rich.segment import Segment
from rich.text import Text
from textual.color import Color
from textual.filter import LineFilter
from textual.widget import Widget
from textual.widgets import Static

CORNERS = {False: tuple("╭─╮│╰╯"), True: tuple("+-+|++")}
# Okabe and Ito's palette (jfly.uni-koeln.de/color, 2008), told apart by readers who are colour-blind
SKY, ORANGE, GREEN, PURPLE, RED, YELLOW = "#56b4e9", "#e69f00", "#009e73", "#cc79a7", "#d55e00", "#f0e442"
CURVES = (SKY, ORANGE, GREEN, PURPLE, YELLOW)
DIM = "grey58"


@dataclass(frozen=True)
class Pane:
    """The content of a pane, without its frame."""

    title: str
    note: str
    lines: tuple[Text, ...]


def framed(block: Pane, width: int, height: int, *, ascii: bool = False) -> list[Text]:
    """Returns exactly `height` lines of `width` cells: the block in a box, cut or filled up."""
    left, line, right, side, low_left, low_right = CORNERS[ascii]
    room = max(width - 6, 0)
    title = cut(Text(f" {block.title} "), room, ascii=ascii)
    note = cut(Text(block.note), max(room - title.cell_len, 0), ascii=ascii)
    fill = line * max(width - 4 - title.cell_len - note.cell_len - (2 if note.cell_len else 0), 0)
    head = Text(f"{left}{line}").append_text(title).append(fill)
    if note.cell_len:
        head.append(" ").append_text(note).append(" ")
    out = [head.append(f"{line}{right}")]
    for number in range(height - 2):
        content = block.lines[number].copy() if number < len(block.lines) else Text()
        content.truncate(width - 2, overflow="crop", pad=True)
        out.append(Text(side).append_text(content).append(side))
    return [*out, Text(f"{low_left}{line * (width - 2)}{low_right}")][:height]


def beside(columns: Sequence[Sequence[Text]]) -> list[Text]:
    """Returns columns of equally many lines next to each other."""
    return [Text().join(parts) for parts in zip(*columns, strict=True)]


def wrapped(text: str, width: int, style: str = "", indent: str = "") -> list[Text]:
    """Returns a paragraph in lines of at most `width` cells."""
    from textwrap import wrap

    found = wrap(text, max(width, 8), initial_indent=indent, subsequent_indent=indent) or [""]
    return [Text(line, style=style) for line in found]


def _powers(value: float, places: int) -> str:
    """A number with so many decimal places and its power of ten, which has no more digits than it needs."""
    mantissa, power = f"{value:.{places}e}".split("e")
    return f"{mantissa}e{int(power)}"


def cut(text: Text, width: int, *, ascii: bool = False) -> Text:
    """Returns a line of at most `width` cells; one that was longer ends with what says so."""
    if text.cell_len <= width:
        return text
    mark = "..." if ascii else "…"
    shorter = text.copy()
    shorter.truncate(max(width - len(mark), 0), overflow="crop")
    return shorter.append(mark[: max(width, 0)])


def ending(text: str, width: int, *, ascii: bool = False) -> str:
    """Returns the end of a name in at most `width` characters: there addresses differ."""
    if len(text) <= width:
        return text
    mark = ".." if ascii else "…"
    return (mark + text[len(text) - max(width - len(mark), 0) :])[: max(width, 0)]


def bar(share: float, width: int, *, ascii: bool = False) -> str:
    """Returns a bar of `width` cells, filled to a share in [0, 1]."""
    full = round(min(max(share, 0.0), 1.0) * width)
    return ("#" * full + "." * (width - full)) if ascii else ("█" * full + "░" * (width - full))


def number(value: float | None) -> str:
    """Returns a number in at most seven characters: whole ones as they are, else three digits; `-` for none."""
    if value is None:
        return "-"
    size = abs(value)
    if value == int(value) and size < 100_000:
        return str(int(value))
    if size < 0.001 or size >= 99_999.5:
        return next(text for places in (1, 0) if len(text := _powers(value, places)) <= 7)
    if size >= 100:
        return f"{value:.0f}"
    return f"{value:.3f}" if size < 10 else f"{value:.1f}"


class Colourless(LineFilter):
    """Leaves bold, underlined and reversed text as it is, in the terminal's own colours."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        """Textual calls this with every line that it writes."""
        return [Segment(text, style.without_color if style else style, control) for text, style, control in segments]


class Canvas(Widget):
    """Rectangles over the whole screen, each with a name."""

    DEFAULT_CSS = "Canvas { overflow: hidden; } Canvas > Static { position: absolute; }"

    def __init__(self) -> None:
        super().__init__()
        self._widgets: dict[str, Static] = {}
        self._texts: dict[str, Text] = {}
        self._places: dict[str, tuple[int, int, int, int]] = {}

    def put(self, name: str, x: int, y: int, width: int, lines: Sequence[Text]) -> None:
        """Puts lines at their place, and touches the screen only where they changed."""
        widget = self._widgets.get(name)
        if widget is None:
            widget = self._widgets[name] = Static(id=name)
            self.mount(widget)
        text = Text("\n", no_wrap=True, end="").join(lines)
        text.no_wrap = True
        place = (x, y, width, len(lines))
        if self._places.get(name) != place:
            self._places[name] = place
            widget.styles.offset, widget.styles.width, widget.styles.height = (x, y), width, len(lines)
        if self._texts.get(name) != text or self._texts[name].spans != text.spans:
            widget.update(text)
            self._texts[name] = text

    def keep(self, names: Collection[str]) -> None:
        """Hides every rectangle that is not named."""
        for name, widget in self._widgets.items():
            widget.display = name in names
