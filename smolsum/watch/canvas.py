"""Lines of text at places of a terminal, through Textual's widgets: what did not change is not drawn again."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from rich.segment import Segment
from rich.text import Text
from textual.color import Color
from textual.filter import LineFilter
from textual.widget import Widget
from textual.widgets import Static


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
