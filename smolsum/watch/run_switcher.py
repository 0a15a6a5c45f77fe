"""The dialog that lists all runs of a directory: typing filters, return shows the chosen one in the same view."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from smolsum.runs.paths import RunPaths
from smolsum.watch.curves import RUNS
from smolsum.watch.pane_text import DIM
from smolsum.watch.run_list import RunLine, RunList, draw_lines

PORTION_S = 0.05
"""Seconds of reading after which the list is drawn and keys work."""
REFRESH_S = 1.0
MAX_QUEUED = 6
"""runs of a grid still to be trained that are named"""


class Filter(Input):
    """A line of input that leaves the space bar to the list."""

    def check_consume_key(self, key: str, character: str | None) -> bool:
        """Return whether the line takes a key; Textual asks this before it looks for actions."""
        return key != "space" and super().check_consume_key(key, character)


class RunSwitcher(ModalScreen[list[RunPaths] | None]):
    """Returns the runs to show, the first one in full and the others next to it; None on escape."""

    DEFAULT_CSS = """
    RunSwitcher { align: center middle; background: $background 60%; }
    RunSwitcher > Vertical { width: 120; max-width: 100%; height: 90%; border: round $foreground; padding: 0 1; }
    RunSwitcher Static { height: 1; }
    RunSwitcher #queue { height: auto; }
    RunSwitcher Input, RunSwitcher Input:focus { border: none; height: 1; padding: 0; background: $surface; }
    RunSwitcher OptionList, RunSwitcher OptionList:focus { border: none; height: 1fr; padding: 0; }
    RunSwitcher OptionList > .option-list--option { padding: 0; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,ctrl+c,ctrl+q", "cancel", priority=True),
        Binding("enter", "choose", priority=True),
        Binding("space", "mark", priority=True),
        Binding("tab", "compare", priority=True),
        Binding("ctrl+s", "sort", priority=True),
        *(
            Binding(key, f"go({by}, {paged})", priority=True)
            for key, by, paged in (("up", -1, False), ("down", 1, False), ("pageup", -1, True), ("pagedown", 1, True))
        ),
    ]

    def __init__(
        self, shown: Sequence[RunPaths], *, queued: Callable[[], Sequence[str]] = tuple, ascii: bool = False
    ) -> None:
        """`shown`: the runs of the view, which are marked if there are several. `queued` returns the names of those
        that the grid at work has not begun, in their order."""
        super().__init__()
        self._queued = queued
        self._runs, self._ascii = RunList(shown[0].root.parent), ascii
        self._shown = shown[0].root
        self._at: Path | None = self._shown
        self._marked = [paths.root for paths in shown] if len(shown) > 1 else []
        self._lines: list[RunLine] = []
        self._sort = ""
        """the title of the result that the runs are sorted by; empty: by age"""

    def compose(self) -> ComposeResult:
        """The filter above the list."""
        with Vertical():
            yield Static(id="title")
            yield Filter(placeholder="type to filter by name, state or stage", select_on_focus=False)
            yield Static(id="head")
            yield Static(id="queue")
            yield OptionList()
            yield Static(
                Text("enter shows  tab compares it, or those marked  space marks  ctrl-s sorts  esc back"), id="keys"
            )

    def on_mount(self) -> None:
        """Read in portions, then once a second."""
        self.set_interval(REFRESH_S, self._poll)
        self.call_after_refresh(self._poll)

    def on_resize(self) -> None:
        """Draw the list as wide as it is now."""
        self.call_after_refresh(self._draw)

    def on_input_changed(self) -> None:
        """Show the runs that have the words."""
        self._draw()

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Show the run that the mouse chose."""
        self.dismiss([self._lines[event.option_index].paths])

    def on_option_list_option_highlighted(self, event: OptionList.OptionHighlighted) -> None:
        """Keep the bar on its run while the list changes."""
        if event.option_index < len(self._lines):
            self._at = self._lines[event.option_index].paths.root
            self._draw()

    def action_go(self, by: int, paged: bool) -> None:
        """Move the bar by a line or a page while the filter has the keys."""
        options = self.query_one(OptionList)
        if self._lines:
            by *= max(options.scrollable_content_region.height, 1) if paged else 1
            options.highlighted = min(max((options.highlighted or 0) + by, 0), len(self._lines) - 1)

    def action_mark(self) -> None:
        """Mark the run under the bar to be compared, or unmark it."""
        if self._at in self._marked:
            self._marked.remove(self._at)
        elif self._at is not None and len(self._marked) < len(RUNS):
            self._marked.append(self._at)
        self._draw()

    def action_compare(self) -> None:
        """Return the marked runs; with fewer than two, the run of the view and the one marked or under the bar."""
        here = [line.paths.root for line in self._lines]
        other = self._marked[0] if self._marked else self._at
        if len(self._marked) > 1:
            self.dismiss([RunPaths(root) for root in self._marked])
        elif other in here and other != self._shown:
            self.dismiss([RunPaths(self._shown), RunPaths(other)])

    def action_sort(self) -> None:
        """Sort by the next result of a test split, then by age again."""
        known = list(dict.fromkeys(title for line in self._lines for title in line.results))
        self._sort = next(iter(known[known.index(self._sort) + 1 if self._sort in known else 0 :]), "")
        self._draw()

    def action_choose(self) -> None:
        """Return the run under the bar alone, which also ends a comparison."""
        if self._at in [line.paths.root for line in self._lines]:
            self.dismiss([RunPaths(self._at)])

    def action_cancel(self) -> None:
        """Return None."""
        self.dismiss(None)

    def _poll(self) -> None:
        if not self._runs.poll(PORTION_S):
            self.call_later(self._poll)
        self._draw()

    def _draw(self) -> None:
        options = self.query_one(OptionList)
        query = self.query_one(Input).value
        width = options.scrollable_content_region.width
        if not width:
            return
        self._lines = self._runs.lines(query, self._sort)
        head, drawn = draw_lines(self._lines, self._marked, width, ascii=self._ascii, at=self._at)
        found = f"{len(self._lines)} of {len(self._runs)}" if query else str(len(self._runs))
        marked = f", {len(self._marked)} marked" if self._marked else ""
        count = f"{found} run{'' if found == '1' else 's'}"
        order = f"the best {self._sort} first" if self._sort else "the newest first"
        title = self._runs.problem or f"{count}{marked}, {order}, in {self._runs.folder}"
        self.query_one("#title", Static).update(Text(title))
        self.query_one("#head", Static).update(head)
        names, queue = self._queued(), self.query_one("#queue", Static)
        queue.update(_queue(names))
        queue.display = bool(names)
        roots = [line.paths.root for line in self._lines]
        if [option.id for option in options.options] == [root.name for root in roots]:
            for place, text in enumerate(drawn):
                if options.get_option_at_index(place).prompt != text:
                    options.replace_option_prompt_at_index(place, text)
        else:
            at = self._at
            options.clear_options()
            options.add_options(Option(text, id=line.paths.name) for text, line in zip(drawn, self._lines, strict=True))
            if roots:
                options.highlighted = roots.index(at) if at in roots else 0


def _queue(names: Sequence[str]) -> Text:
    """The runs that the grid trains later, the last one first, as the list has its newest first."""
    lines = [f"   {name}  to train" for name in names[:MAX_QUEUED]]
    if more := len(names) - len(lines):
        lines.append(f"   … and {more} more to train")
    return Text("\n".join(lines[::-1]), style=DIM, no_wrap=True)
