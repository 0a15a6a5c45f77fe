"""The question which of several running runs is meant."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import OptionList, Static

from smolsum.runs import RunPaths
from smolsum.watch.run import Run


class Picker(App[RunPaths]):
    """Lists runs, the newest first; returns the chosen one, or None."""

    ENABLE_COMMAND_PALETTE = False
    CSS = "OptionList { height: auto; max-height: 90%; border: round $foreground; }"
    BINDINGS: ClassVar[list[BindingType]] = [Binding("q,escape,ctrl+c,ctrl+q", "leave", priority=True)]

    def __init__(self, runs: Sequence[RunPaths]) -> None:
        super().__init__()
        self.animation_level = "none"
        self._runs = list(reversed(runs))

    def compose(self) -> ComposeResult:
        """A line for each run."""
        yield Static(Text(" several runs are at work: up, down, return to watch one, q to leave"))
        yield OptionList(*(Text(_told(paths)) for paths in self._runs))

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """The chosen run."""
        self.exit(self._runs[event.option_index])

    def action_leave(self) -> None:
        """None of them."""
        self.exit()


def _told(paths: RunPaths) -> str:
    """A run's name, state and step."""
    run = Run(paths)
    run.status.refresh()
    run.info.refresh()
    total = f"/{run.total}" if run.total else ""
    return f"{paths.name}   {run.status.value.get('state', '')}   step {run.step}{total}"
