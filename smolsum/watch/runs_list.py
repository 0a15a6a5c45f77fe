"""The list of all runs of a directory, over the view: filter, sort, show another run, compare several."""

from collections.abc import Callable, Sequence
from math import inf
from pathlib import Path
from typing import ClassVar

from rich.text import Text
from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from smolsum.console import duration
from smolsum.runs.listing import RunLine, RunList
from smolsum.runs.paths import RunPaths
from smolsum.runs.samples import clean
from smolsum.runs.state import TROUBLE
from smolsum.watch.charts import RUNS
from smolsum.watch.formats import DIM, RED, Rows, ending
from smolsum.watch.panes import STATE_STYLE
from smolsum.watch.widgets import RowTable

PORTION_S = 0.05
"""Seconds of reading after which the list of runs is drawn and keys work."""
REFRESH_S = 1.0
MAX_QUEUED = 6
"""runs of a grid still to be trained that are named"""
MOST_NAME = 40
"""Characters of a run's name; of a longer one the end is shown."""


class Filter(Input):
    """A line of input that leaves the space bar to the list."""

    def check_consume_key(self, key: str, character: str | None) -> bool:
        """Return whether the line takes a key; Textual asks this before it looks for actions."""
        return key != "space" and super().check_consume_key(key, character)


class RunTable(RowTable):
    """A table of which one click chooses a row; the first one moves the bar in others."""

    def on_click(self, event: events.Click) -> None:
        if (row := event.style.meta.get("row", -1)) >= 0:
            self.move_cursor(row=row, column=event.style.meta["column"])


class RunSwitcher(ModalScreen[list[RunPaths] | None]):
    """Lists all runs of a directory: typing filters. Returns the runs to show, the first one in full and the others
    next to it; None on escape."""

    DEFAULT_CSS = """
    RunSwitcher { align: center middle; background: $background 60%; }
    RunSwitcher > Vertical { width: 120; max-width: 100%; height: 90%; border: round $foreground; padding: 0 1;
                             border-title-style: bold; background: $background; }
    RunSwitcher Static { height: auto; color: $foreground 85%; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(key, action, priority=True)
        for key, action in {
            "escape,ctrl+c,ctrl+q": "dismiss",
            "enter": "choose",
            "space": "mark",
            "tab": "compare",
            "ctrl+s": "sort",
            "up": "go(-1, False)",
            "down": "go(1, False)",
            "pageup": "go(-1, True)",
            "pagedown": "go(1, True)",
        }.items()
    ]

    def __init__(self, shown: Sequence[RunPaths], *, queued: Callable[[], Sequence[str]] = tuple) -> None:
        """`shown`: the runs of the view, which are marked if there are several. `queued` returns the names of those
        that the grid at work has not begun, in their order."""
        super().__init__()
        self._queued = queued
        self._runs = RunList(shown[0].root.parent)
        self._shown = shown[0].root
        self._at: Path | None = self._shown
        self._marked = [paths.root for paths in shown] if len(shown) > 1 else []
        self._lines: list[RunLine] = []
        self._sort = ""
        """the title of the result that the runs are sorted by; empty: by age"""

    def compose(self) -> ComposeResult:
        with Vertical():
            yield Filter(placeholder="type to filter by name, state or stage", select_on_focus=False, compact=True)
            yield RunTable()
            yield Static(id="queue")
            yield Static("enter shows  tab compares it, or those marked  space marks  ctrl-s sorts  esc back")

    def on_mount(self) -> None:
        self.query_one(RowTable).can_focus = False
        self.set_interval(REFRESH_S, self._poll)
        self.call_after_refresh(self._poll)

    @on(Input.Changed)
    def _filtered(self) -> None:
        self._show()

    @on(RowTable.RowSelected)
    def _chosen(self, event: RowTable.RowSelected) -> None:
        self.dismiss([self._lines[event.cursor_row].paths])

    def action_go(self, by: int, paged: bool) -> None:
        """Move the bar by a line or a page while the filter has the keys."""
        table = self.query_one(RowTable)
        table.move_cursor(row=table.cursor_row + by * (max(table.content_size.height - 1, 1) if paged else 1))
        if self._lines:
            self._at = self._lines[table.cursor_row].paths.root

    def action_mark(self) -> None:
        if self._at in self._marked:
            self._marked.remove(self._at)
        elif self._at is not None and len(self._marked) < len(RUNS):
            self._marked.append(self._at)
        self._show()

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
        self._show()

    def action_choose(self) -> None:
        """Return the run under the bar alone, which also ends a comparison."""
        if self._at in [line.paths.root for line in self._lines]:
            self.dismiss([RunPaths(self._at)])

    def _poll(self) -> None:
        if not self._runs.poll(PORTION_S):
            self.call_later(self._poll)
        self._show()

    def _show(self) -> None:
        query, table, box = self.query_one(Input).value, self.query_one(RowTable), self.query_one(Vertical)
        self._lines = self._runs.lines(query, self._sort)
        found = f"{len(self._lines)} of {len(self._runs)}" if query else str(len(self._runs))
        marked = f", {len(self._marked)} marked" if self._marked else ""
        count = f"{found} run{'' if found == '1' else 's'}"
        order = f"the best {self._sort} first" if self._sort else "the newest first"
        title = self._runs.problem or f"{count}{marked}, {order}, in {self._runs.folder}"
        box.border_title = Content(title)
        table.fill(run_rows(self._lines, self._marked, table.content_size.width))
        roots = [line.paths.root for line in self._lines]
        if roots:
            self._at = self._at if self._at in roots else roots[0]
            table.move_cursor(row=roots.index(self._at))
        names, queue = self._queued(), self.query_one("#queue", Static)
        lines = [f"{name}  to train" for name in names[:MAX_QUEUED]]
        queue.update(Content("\n".join([*lines, f"and {len(names) - len(lines)} more"][: len(names)])))
        queue.display = bool(names)


def run_rows(lines: Sequence[RunLine], marked: Sequence[Path], width: int) -> Rows:
    """Return a row for each run; those that are `marked`, in this order, begin with the letters that they have in the
    view. The best of each result has a star. Results that have no room for a column each share one."""
    letters = dict(zip(marked, RUNS, strict=False))
    results: dict[str, Sequence[str | Text]] = {}
    for title in dict.fromkeys(title for line in lines for title in line.results):
        values = [line.results[title][1] for line in lines if title in line.results]
        best = max(values) if len(set(values)) > 1 else inf
        cells = (line.results.get(title, ("", -inf)) for line in lines)
        results[title] = [f"{text}{'★' if value == best else ''}" for text, value in cells]
    columns: dict[str, Sequence[str | Text]] = {
        "": [letters.get(line.paths.root, " ") for line in lines],
        "run": [ending(clean(line.paths.name), MOST_NAME) for line in lines],
        "state": [
            Text(
                f"{line.state.mark} {line.state.state}",
                RED if line.state.state in TROUBLE else STATE_STYLE.get(line.state.state, DIM),
            )
            for line in lines
        ],
        "step": [line.progress for line in lines],
        "tested after": [clean(line.evaluated)[:12] for line in lines],
        **results,
        "age": [duration(line.age_s) for line in lines],
    }
    sizes = [max([len(title), *(len(cell) for cell in cells)]) + 2 for title, cells in columns.items()]
    if sum(sizes) > width:
        del columns["tested after"]
    if sum(sizes) - 14 > width:
        shared = ["  ".join(f"{title} {results[title][n]}" for title in line.results) for n, line in enumerate(lines)]
        columns = {title: cells for title, cells in columns.items() if title not in results}
        columns = {**columns, "results": shared} if results else columns
    rows = [[cells[n] for cells in columns.values()] for n in range(len(lines))]
    return Rows("", "", list(columns), rows, left=("", "run", "state", "tested after", "results"))
