"""Screens over the view: a line of input, and the keys."""

from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.events import Key
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from smolsum.watch.keys import help_rows

SCROLL = {"up": -1, "down": 1, "k": -1, "j": 1, "pageup": -10, "pagedown": 10, "home": -1000, "end": 1000}
"""Lines by which a key scrolls the help."""


class InputDialog(ModalScreen[str | None]):
    """Asks for a line of text; escape and ctrl-c return None."""

    DEFAULT_CSS = """
    InputDialog { align: center middle; background: $background 60%; }
    InputDialog > Vertical { width: 70; max-width: 90%; height: auto; border: round $foreground; padding: 1 2; }
    InputDialog Input, InputDialog Input:focus { border: none; height: 1; background: $surface; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,ctrl+c,ctrl+q", "cancel", priority=True)]

    def __init__(self, text: str, value: str = "") -> None:
        super().__init__()
        self._text, self._value = text, value

    def compose(self) -> ComposeResult:
        """The question above an input line."""
        with Vertical():
            yield Static(Text(self._text))
            yield Input(self._value)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Return the answer."""
        self.dismiss(event.value.strip())

    def action_cancel(self) -> None:
        """Return None."""
        self.dismiss(None)


class Help(ModalScreen[None]):
    """All keys; any key closes it, except those that scroll where there is no room for all."""

    DEFAULT_CSS = """
    Help { align: center middle; background: $background 60%; }
    Help > VerticalScroll { width: 72; max-width: 100%; height: auto; max-height: 100%; border: round $foreground; }
    Help Static { height: auto; }
    """

    def __init__(self, *, readonly: bool) -> None:
        super().__init__()
        self._readonly = readonly

    def compose(self) -> ComposeResult:
        """A line for each row of keys."""
        closing = "read only: the run cannot be paused or stopped from here" if self._readonly else ""
        lines = [f"{shown:<18} {text}" for shown, text in help_rows()]
        with VerticalScroll(can_focus=False):
            yield Static(Text("\n".join([*lines, closing]).rstrip()))

    def on_mount(self) -> None:
        """Say how to see the rest, if there is one."""
        self.call_after_refresh(self._name_the_rest)

    def on_key(self, event: Key) -> None:
        """Scroll, or close the dialog."""
        box = self.query_one(VerticalScroll)
        event.stop()
        if event.key in SCROLL and box.max_scroll_y:
            box.scroll_relative(y=SCROLL[event.key], animate=False)
        else:
            self.dismiss(None)

    def _name_the_rest(self) -> None:
        box = self.query_one(VerticalScroll)
        box.border_subtitle = "up, down: more keys" if box.max_scroll_y else ""
