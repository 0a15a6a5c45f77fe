"""The widgets that pages are made of: a pane that is drawn from the model, a table, a text that scrolls, a question."""

from collections.abc import Callable
from typing import ClassVar, Self, cast

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.coordinate import Coordinate
from textual.geometry import Region
from textual.screen import ModalScreen
from textual.strip import Strip
from textual.widget import Widget
from textual.widgets import DataTable, Footer, Input, Static

from smolsum.watch.formats import PaneText, Rows
from smolsum.watch.model import Snapshot

Draw = Callable[[Snapshot, int, int], PaneText]
DrawText = Callable[[Snapshot, int], PaneText]
MOST_LINES = 12
CONTEXT = 2
"""Lines of a text above its first hit."""
SCROLLBAR, MIN_WIDTH = 1, 20
"""Columns of a text that its scrollbar takes, and that it has in any case."""


def moment_of(widget: Widget) -> Snapshot | None:
    """Return the moment that the app of a widget shows. (Widgets keep none: one that was closed would keep its run.)"""
    return cast("Snapshot | None", widget.app.moment)  # type: ignore[attr-defined]


def label(widget: Widget, title: str, note: str | Text) -> None:
    """Write the title of a widget on its frame, and the note as far as there is room."""
    widget.border_title, widget.border_subtitle = Content(title), Text.assemble(note)


class Sized:
    """Makes the size of a widget follow its content. (Textual 8.2 counts one layout for all that is asked for until it
    comes, and what the widget measured in another one meanwhile, without its newest content, stays its size.)"""

    _layout_updates: int

    def refresh(self, *regions: Region, layout: bool = False, **options: bool) -> Self:
        """Draw the widget again, and with `layout` find its size again."""
        self._layout_updates += layout
        return super().refresh(*regions, layout=layout, **options)  # type: ignore[misc,no-any-return]  # of the widget


class TextLines(Sized, Static):
    """Lines of text, as high as they are."""


class Pane(TextLines):
    """Framed lines, drawn anew from each moment of the run in the size that the pane has; `-quiet` where it has no
    news."""

    DEFAULT_CSS = """
    Pane { text-wrap: nowrap; text-overflow: clip; width: 1fr; height: 1fr; }
    """
    ALLOW_SELECT = False

    def __init__(self, draw: Draw, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self._draw = draw
        self.drawn = PaneText("")
        self.most = MOST_LINES
        """lines of a pane that is as high as what it says, at most"""

    def show(self, snapshot: Snapshot) -> None:
        auto = self.styles.is_auto_height
        size = self.content_size
        width = size.width or (self.container_size.width - self.gutter.width)
        if width <= 0 or not (auto or size.height):
            return
        drawn = self.drawn = self._draw(snapshot, width, self.most if auto else size.height)
        self.set_class(not drawn.news, "-quiet")
        label(self, drawn.title, drawn.note)
        self.update(Text("\n").join(drawn.lines))

    def on_resize(self) -> None:
        if now := moment_of(self):
            self.show(now)


class RowTable(Sized, DataTable[Text], inherit_bindings=False):
    """Rows with a bar. The keys that it does not need are left to the app."""

    DEFAULT_CSS = """
    RowTable { height: 1fr; background: $background; background-tint: $background 0%; scrollbar-size: 1 1; }
    RowTable:focus { background-tint: $background 0%; }
    RowTable > .datatable--header { background: $background; color: $foreground; text-style: bold; }
    RowTable > .datatable--cursor, RowTable:focus > .datatable--cursor { background: $background; color: $foreground;
            text-style: bold reverse; }
    RowTable > .datatable--even-row, RowTable > .datatable--odd-row, RowTable > .datatable--fixed {
            background: $background; color: $foreground; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "cursor_up", "up", show=False),
        Binding("down,j", "cursor_down", "down", show=False),
        Binding("enter", "select_cursor", "open", show=False, tooltip="what is under the bar"),
    ]

    def __init__(self, draw: Callable[[Snapshot, int], Rows] | None = None, *, id: str | None = None) -> None:
        """`draw` makes the rows of a table without a bar from each moment of the run; other tables are filled."""
        fixed = 0 if draw is None else 1
        super().__init__(id=id, show_cursor=draw is None, cursor_type="row", cell_padding=1, fixed_columns=fixed)
        self._draw, self._note = draw, ""

    def show(self, snapshot: Snapshot) -> None:
        if self._draw:
            self.fill(self._draw(snapshot, self.size.width))

    def on_mount(self) -> None:
        for place in ("scroll_x", "scroll_y", "virtual_size"):
            self.watch(self, place, self._say_more)

    def on_resize(self) -> None:
        self._say_more()

    def _say_more(self) -> None:
        """Write the note on the frame, behind the keys that show what has no room."""
        x, y = self.scroll_offset
        ends = {"pgup": y > 0, "pgdn": y < self.max_scroll_y}
        ends |= {"shift+left": x > 0, "shift+right": x < self.max_scroll_x}
        keys = [key for key, able in ends.items() if able and self._draw]
        more = "more: " + ", ".join(keys).replace("up, pg", "up/").replace("left, shift+", "left/")
        self.border_subtitle = Content("  ".join([more, self._note] if keys else [self._note]))

    @property
    def widths(self) -> list[int]:
        """The cells of each column, with the blanks around it."""
        return [column.get_render_width(self) for column in self.ordered_columns]

    def _stops(self) -> list[int]:
        """Where scrolling to the right stops: at whole columns, as a number that is cut is another one; also within
        a column that is wider than its frame."""
        widths, found, at = self.widths, [0], 0
        room = max(self.scrollable_content_region.width - sum(widths[: self.fixed_columns]), 1)
        for width in widths[self.fixed_columns :]:
            found += range(at, at + width, room)
            at += width
        return found

    @property
    def max_scroll_x(self) -> int:
        most = super().max_scroll_x
        return next((stop for stop in self._stops() if stop >= most), most)

    def validate_scroll_x(self, value: float) -> float:
        """Go on to the next stop to the right, or back to the last one."""
        stops, value = self._stops(), super().validate_scroll_x(value)
        if value > self.scroll_x:
            return next((stop for stop in stops if stop >= value), stops[-1])
        return max(stop for stop in stops if stop <= value)

    validate_scroll_target_x = validate_scroll_x

    def render_line(self, y: int) -> Strip:
        """Return a line without the number that the right edge cuts, unless it is the only one."""
        strip, room, (x, _) = super().render_line(y), self.scrollable_content_region.width, self.scroll_offset
        first, end = sum(self.widths[: self.fixed_columns]), -x
        for column, width in zip(self.ordered_columns, self.widths, strict=True):
            start, end = end, end + width
            if first < start < room < end and column.label.justify == "right":
                return strip.crop(0, start).extend_cell_length(strip.cell_length, self.rich_style)
        return strip

    def fill(self, found: Rows) -> None:
        """Show these rows and keep the bar where it is; cells that stay as they are cost nothing."""
        titles, left = found.titles, found.left
        rows = [[self._cell(one, title in left) for title, one in zip(titles, row, strict=True)] for row in found.rows]
        self.border_title, self._note = Content(found.title), found.note
        if [*titles] != [str(column.label) for column in self.ordered_columns]:
            self.clear(columns=True)
            for title in titles:
                self.add_column(self._cell(title, title in left), width=0)
        # Textual measures new cells only once it is idle, and keeps what it drew before that
        widths = [max(map(cell_len, map(str, column))) for column in zip(titles, *rows, strict=True)]
        wider = widths != [column.width for column in self.ordered_columns]
        for column, width in zip(self.ordered_columns, widths, strict=True):
            column.width = width
        while self.row_count > len(rows):
            self.remove_row(self.ordered_rows[-1].key)
        for place, row in enumerate(rows):
            if place >= self.row_count:
                self.add_row(*row)
                continue
            for at, cell in enumerate(row):
                known = self.get_cell_at(Coordinate(place, at))
                if known != cell or known.style != cell.style:
                    # one is enough for the table to find its size; each one costs measuring its column
                    self.update_cell_at(Coordinate(place, at), cell, update_width=wider)
                    wider = False
        self._say_more()

    def _cell(self, cell: str | Text, left: bool) -> Text:
        text = cell if isinstance(cell, Text) else Text(cell)
        text.justify = "left" if left else "right"
        text.no_wrap, text.overflow = True, "ellipsis"
        return text


class TextView(VerticalScroll, can_focus=False):
    """A framed text that scrolls, and that the mouse selects: Textual's log widgets know either styles or selection."""

    DEFAULT_CSS = """
    TextView { height: 1fr; scrollbar-size-vertical: 1; }
    TextView > TextLines { height: auto; }
    """

    def __init__(self, draw: DrawText | None = None, *, newest_last: bool = False, id: str | None = None) -> None:
        """`draw` makes the text from each moment of the run; without it the view is filled."""
        super().__init__(id=id)
        self._draw, self._newest_last = draw, newest_last
        self._text = Text("\n")

    def compose(self) -> ComposeResult:
        yield TextLines()

    def show(self, snapshot: Snapshot) -> None:
        if self._draw:
            self.fill(self._draw(snapshot, max(self.size.width - SCROLLBAR, MIN_WIDTH)))

    def on_resize(self) -> None:
        if now := moment_of(self):
            self.show(now)

    def watch_show_vertical_scrollbar(self, needed: bool) -> None:
        """Stay at the end of a text that grows there, until the user scrolls; a short one stands at the top."""
        if self._newest_last:
            self.anchor(needed)

    def fill(self, found: PaneText) -> None:
        """Show this text; one that comes by itself stays at its end."""
        text = Text("\n").join(found.lines)
        label(self, found.title, found.note)
        if self._text != text:
            self._text = text
            self.query_one(TextLines).update(text)

    def begin(self, place: int = 0) -> None:
        """Scroll to the line with a character of the text; at the first page the text begins at its top."""
        lines = self._text[:place].wrap(Console(width=80), max(self.content_size.width, 8))
        row = len(lines) - 1 if place else 0
        self.scroll_to(y=max(row - CONTEXT, 0) if row >= self.content_size.height else 0, animate=False)


class KeyLine(Footer):
    """The keys of the page, as many whole ones as there is room for."""

    def compose(self) -> ComposeResult:
        room = self.app.size.width - sum(panel.outer_size.width for panel in self.screen.query("HelpPanel"))
        for key in sorted(super().compose(), key=lambda key: not key.has_class("-command-palette")):  # at the right
            width = cell_len(f"{key.key_display} {key.description} ")  # type: ignore[attr-defined]
            if width <= room:
                room -= width
                yield key

    def on_resize(self) -> None:
        self.call_after_refresh(self.recompose)


class SearchLine(Input):
    """A line for what is searched for in a table next to it, whose key the footer shows."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("enter", "submit", "find")]

    def __init__(self, placeholder: str) -> None:
        super().__init__(placeholder=placeholder, select_on_focus=True, compact=True)
        self.display = False

    def open(self, text: str) -> None:
        self.value, self.display = text, True
        self.screen.set_focus(self)

    def close(self) -> bool:
        """Put the line away and give the keys to the table; whether it was there."""
        was, self.display = self.display, False
        self.screen.set_focus(cast("Widget", self.parent).query_one(RowTable))
        return was


class InputDialog(ModalScreen[str | None]):
    """Asks for a line of text; escape and ctrl-c return None."""

    DEFAULT_CSS = """
    InputDialog { align: center middle; background: $background 60%; }
    InputDialog > Vertical { width: 70; max-width: 90%; height: auto; border: round $foreground; padding: 1 2;
                          background: $background; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,ctrl+c,ctrl+q", "dismiss", priority=True)]

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text

    def compose(self) -> ComposeResult:
        with Vertical():
            yield Static(Content(self._text))
            yield Input(compact=True)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self.dismiss(event.value.strip())
