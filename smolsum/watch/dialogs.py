"""What the view asks: a text to search for, a word that confirms a stop, and the page of keys."""

from __future__ import annotations

from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from smolsum.watch.keys import help_rows

CONFIRM = "stop"


class Question(ModalScreen[str | None]):
    """Asks for a line of text; escape and ctrl-c give None."""

    DEFAULT_CSS = """
    Question { align: center middle; background: $background 60%; }
    Question > Vertical { width: 70; max-width: 90%; height: auto; border: round $foreground; padding: 1 2; }
    Question Input, Question Input:focus { border: none; height: 1; background: $surface; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,ctrl+c,ctrl+q", "cancel", priority=True)]

    def __init__(self, text: str, value: str = "") -> None:
        super().__init__()
        self._text, self._value = text, value

    def compose(self) -> ComposeResult:
        """The question above a line to write in."""
        with Vertical():
            yield Static(Text(self._text))
            yield Input(self._value, select_on_focus=False)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Return is the answer."""
        self.dismiss(event.value.strip())

    def action_cancel(self) -> None:
        """No answer."""
        self.dismiss(None)


class Help(ModalScreen[None]):
    """All keys; any key closes it."""

    DEFAULT_CSS = """
    Help { align: center middle; background: $background 60%; }
    Help > Static { width: 72; max-width: 100%; height: auto; max-height: 100%; border: round $foreground; }
    """

    def __init__(self, *, readonly: bool) -> None:
        super().__init__()
        self._readonly = readonly

    def compose(self) -> ComposeResult:
        """A line for each key, or for a pair."""
        closing = "read only: the run cannot be paused or stopped from here" if self._readonly else ""
        lines = [f"{shown:<18} {text}" for shown, text in help_rows()]
        yield Static(Text("\n".join([*lines, closing]).rstrip()))

    def on_key(self) -> None:
        """Any key."""
        self.dismiss(None)
