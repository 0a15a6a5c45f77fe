"""The widget of the view: named rectangles of text. Only lines that changed are sent to the terminal."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual import events
from textual.color import Color
from textual.filter import LineFilter
from textual.geometry import Region
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

REVERSE = Style(reverse=True)


@dataclass
class Rectangle:
    """Lines of text at their place, and how they look on the terminal."""

    x: int
    y: int
    width: int
    lines: list[Text] = field(default_factory=list)
    strips: list[Strip] = field(default_factory=list)


class Canvas(Widget):
    """Rectangles of text over the whole screen."""

    DEFAULT_CSS = "Canvas { width: 100%; height: 100%; overflow: hidden; }"

    class Pressed(Message):
        """The mouse was pressed, or its wheel turned, at a place in characters."""

        def __init__(self, kind: str, x: int, y: int, *, times: int = 1) -> None:
            super().__init__()
            self.kind, self.x, self.y, self.times = kind, x, y, times

    def __init__(self) -> None:
        super().__init__()
        self._rectangles: dict[str, Rectangle] = {}
        self._selected: Mapping[int, tuple[int, int]] = {}

    def put(self, name: str, x: int, y: int, width: int, lines: Sequence[Text]) -> None:
        """Put lines at their place, and draw those that changed."""
        before = self._rectangles.get(name)
        if before is None or (before.x, before.y, before.width, len(before.lines)) != (x, y, width, len(lines)):
            self._drop(name)
            before = self._rectangles[name] = Rectangle(
                x, y, width, [Text("\0")] * len(lines), [Strip.blank(width)] * len(lines)
            )
        for row, line in enumerate(lines):
            known = before.lines[row]
            if known.plain == line.plain and known.spans == line.spans and known.style == line.style:
                continue
            before.lines[row] = line
            segments = [one for one in line.render(self.app.console) if one.text]
            before.strips[row] = Strip(segments).adjust_cell_length(width)
            self.refresh(Region(x, y + row, width, 1))

    def select(self, covered: Mapping[int, tuple[int, int]]) -> None:
        """Show these columns of these rows in reverse video, and no others."""
        for y in {**self._selected, **covered}:
            if self._selected.get(y) != covered.get(y):
                self.refresh(Region(0, y, self.size.width, 1))
        self._selected = covered

    def keep(self, names: Collection[str]) -> None:
        """Remove all other rectangles."""
        for name in [name for name in self._rectangles if name not in names]:
            self._drop(name)

    def _drop(self, name: str) -> None:
        gone = self._rectangles.pop(name, None)
        if gone is not None:
            self.refresh(Region(gone.x, gone.y, gone.width, len(gone.lines)))

    def render_line(self, y: int) -> Strip:
        """Return a row of the screen; Textual calls this for each row that was refreshed."""
        found = [one for one in self._rectangles.values() if one.y <= y < one.y + len(one.lines)]
        parts, x = [], 0
        for one in sorted(found, key=lambda one: one.x):
            if one.x > x:
                parts.append(Strip.blank(one.x - x))
            parts.append(one.strips[y - one.y])
            x = one.x + one.width
        row = Strip.join(parts).adjust_cell_length(self.size.width).apply_style(self.rich_style)
        if y not in self._selected:
            return row
        begin, end = self._selected[y]
        return Strip.join([row.crop(0, begin), row.crop(begin, end).apply_style(REVERSE), row.crop(end)])

    def on_click(self, event: events.Click) -> None:
        """Pass a click on, with its place."""
        self.post_message(self.Pressed("click", event.x, event.y, times=event.chain))

    def on_mouse_down(self, event: events.MouseDown) -> None:
        """Pass the place on where the mouse is pressed; until it is released, all that it does belongs here."""
        self.capture_mouse()
        self.post_message(self.Pressed("press", event.x, event.y))

    def on_mouse_up(self, event: events.MouseUp) -> None:
        """Pass the place on where the mouse is released."""
        self.release_mouse()
        self.post_message(self.Pressed("release", event.x, event.y))

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        """Pass the wheel on, with its place."""
        self.post_message(self.Pressed("up", event.x, event.y))

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        """Pass the wheel on, with its place."""
        self.post_message(self.Pressed("down", event.x, event.y))

    def on_mouse_move(self, event: events.MouseMove) -> None:
        """Pass the pointer's place on."""
        self.post_message(self.Pressed("move", event.x, event.y))


class Colourless(LineFilter):
    """Removes colours and keeps bold, underlined and reversed text."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        """Return a line without colours; Textual calls this for each one."""
        return [Segment(text, style.without_color if style else style, control) for text, style, control in segments]
