"""A view of runs: reads them twice a second and draws a page of text; only lines that changed go to the terminal."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from rich.cells import cell_len
from rich.style import Style
from rich.text import Text
from textual import events
from textual.app import App, ComposeResult
from textual.filter import LineFilter
from textual.geometry import Region
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from smolsum.runs.paths import RunPaths
from smolsum.runs.reader import Run
from smolsum.runs.state import run_state
from smolsum.watch import layout
from smolsum.watch.completion_browser import Browser
from smolsum.watch.grid_follower import GridFollower
from smolsum.watch.header import header, message
from smolsum.watch.keys import footer
from smolsum.watch.layout import Slot
from smolsum.watch.pane_text import ORANGE, cut
from smolsum.watch.snapshot import Snapshot, ViewOptions
from smolsum.watch.themes import DARK, LIGHT, filters

POLL_S = 0.5
REDRAW_S = 0.25
CLOCK_S = 1.0
"""Seconds after which the times in the header are drawn again without any change."""
FIRST_LOOK_S = 0.5
"""Seconds of reading before the first page is drawn; a run of 10,000 steps takes less."""
SAY_S = 4.0


class Canvas(Widget):
    """Lines of text over the whole screen, and what the mouse does there."""

    DEFAULT_CSS = "Canvas { width: 100%; height: 100%; overflow: hidden; }"

    class Pressed(Message):
        """The mouse was pressed, moved or released, or its wheel turned, at a place in characters; `meta` is that of
        the text there, as a row of a table has it."""

        def __init__(self, kind: str, x: int, y: int, *, times: int = 1, meta: Mapping[str, Any] | None = None) -> None:
            super().__init__()
            self.kind, self.x, self.y, self.times, self.meta = kind, x, y, times, meta or {}

    def __init__(self) -> None:
        super().__init__()
        self._lines: dict[int, Text] = {}
        self._strips: dict[int, Strip] = {}
        self._selected: Mapping[int, tuple[int, int]] = {}

    def put(self, y: int, lines: Sequence[Text]) -> None:
        """Put lines at a row and below, and draw those that changed."""
        for row, line in enumerate(lines, y):
            known = self._lines.get(row)
            if known is None or (known, known.style) != (line, line.style):
                self._lines[row] = line
                self._strips[row] = Strip([one for one in line.render(self.app.console) if one.text])
                self.refresh(Region(0, row, self.size.width, 1))

    def select(self, covered: Mapping[int, tuple[int, int]]) -> None:
        """Show these columns of these rows in reverse video, and no others."""
        for y in {**self._selected, **covered}:
            if self._selected.get(y) != covered.get(y):
                self.refresh(Region(0, y, self.size.width, 1))
        self._selected = covered

    def render_line(self, y: int) -> Strip:
        """Return a row of the screen; Textual calls this for each row that was refreshed."""
        row = self._strips.get(y, Strip([])).adjust_cell_length(self.size.width).apply_style(self.rich_style)
        if y not in self._selected:
            return row
        begin, end = self._selected[y]
        marked = row.crop(begin, end).apply_style(Style(reverse=True))
        return Strip.join([row.crop(0, begin), marked, row.crop(end)])

    def on_click(self, event: events.Click) -> None:
        meta = self.screen.get_style_at(event.screen_x, event.screen_y).meta
        self.post_message(self.Pressed("click", event.x, event.y, times=event.chain, meta=meta))

    def on_mouse_down(self, event: events.MouseDown) -> None:
        self.capture_mouse()  # until it is released, all that the mouse does belongs here
        self.post_message(self.Pressed("press", event.x, event.y))

    def on_mouse_up(self, event: events.MouseUp) -> None:
        self.release_mouse()
        self.post_message(self.Pressed("release", event.x, event.y))

    def on_mouse_move(self, event: events.MouseMove) -> None:
        self.post_message(self.Pressed("move", event.x, event.y))

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        self.post_message(self.Pressed("up", event.x, event.y))

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        self.post_message(self.Pressed("down", event.x, event.y))


@dataclass(frozen=True)
class MouseSelection:
    """Text of a pane that the mouse selects, from one place of the screen to another. Textual's own selection would
    run over frames and neighbouring panes, and would keep the lines as the page broke them."""

    slot: Slot
    begin: tuple[int, int]
    """x and y where the mouse was pressed"""
    end: tuple[int, int]

    def covered(self) -> Mapping[int, tuple[int, int]]:
        """Return the covered columns of each row of the screen, from the first to behind the last one."""
        slot = self.slot
        left, right, top, bottom = slot.x + 1, slot.x + slot.width - 1, slot.y + 1, slot.y + slot.height - 2
        places = [(min(max(y, top), bottom), min(max(x, left), right - 1)) for x, y in (self.begin, self.end)]
        (first, x_first), (last, x_last) = sorted(places)
        return {
            y: (x_first if y == first else left, x_last + 1 if y == last else right) for y in range(first, last + 1)
        }

    def text(self, lines: Sequence[Text]) -> str:
        """Return what is selected of the lines of the pane. Lines that continue in the next one are joined; the
        column before a text is left out."""
        found, edge = "", self.slot.x + 1
        for y, (begin, end) in self.covered().items():
            place = y - self.slot.y - 1
            if place < len(lines):
                part = _cells(lines[place].plain, begin - edge, end - edge).rstrip()
                found += (part.removeprefix(" ") if begin == edge else part) + lines[place].end
        return found.strip("\n ")


def _cells(text: str, begin: int, end: int) -> str:
    """The characters of a line between two columns; a wide one counts where it begins."""
    found, column = "", 0
    for character in text:
        if begin <= column < end:
            found += character
        column += cell_len(character)
    return found


class RunView(App[None]):
    """Draws a run, and the curves of others next to its own, as its options say; its keys are in `WatchApp`."""

    def __init__(
        self,
        run: Run,
        others: Sequence[Run] = (),
        *,
        options: ViewOptions | None = None,
        readonly: bool = False,
        choosing: bool = False,
        following: bool = False,
        light: bool = False,
    ) -> None:
        """With `choosing`, the view opens with the list of runs over it; with `following`, it goes from run to run of
        the grid that the run belongs to; `light`: with the light theme."""
        super().__init__()
        self.register_theme(LIGHT)
        self.theme = LIGHT.name if light else DARK
        usual = super().get_line_filters()
        self._filters_on = {dark: filters(usual, dark=dark, colour=not self.no_color) for dark in (False, True)}
        self.animation_level = "none"
        self.readonly, self._choosing, self._following = readonly, choosing, following
        self.options = replace(options or ViewOptions(), asks=not readonly)
        self.set_class(self.options.ascii, "-ascii")
        self.at = ""
        self._grid = GridFollower(run.paths.root.parent)
        self._take(run, others)
        self._canvas = Canvas()
        self._placed: tuple[Slot, ...] = ()
        self._drawn = self._ticked = self._said_until = 0.0
        self._waiting = False
        self._saying = self._state = ""
        self._searched: object = None
        """how far searches were when the page was drawn"""

    def get_line_filters(self) -> Sequence[LineFilter]:
        """Return how lines are coloured; Textual calls this for each one."""
        return self._filters_on[self.current_theme.dark]

    def _take(self, run: Run, others: Sequence[Run]) -> None:
        """Make these the runs of the view, and forget all that belongs to those before."""
        self.watched, self.others = run, tuple(others)
        self._browser = Browser(run, self.others)
        if self._grid.runs_dir != run.paths.root.parent:
            self._grid = GridFollower(run.paths.root.parent)
        self._grid.poll()

    def show_runs(self, runs: Sequence[RunPaths]) -> None:
        """Show other runs in this view: the first one in full, the others next to it."""
        if [paths.root for paths in runs] == [run.paths.root for run in (self.watched, *self.others)]:
            return
        first, *others = (Run(paths) for paths in runs)
        self._browser.stop()
        self._take(first, others)
        self._look_first()
        self._change(step=None, group=0, rows={}, scroll=0, query="", listing="step", window=0, end=None, cursor=None)

    def compose(self) -> ComposeResult:
        yield self._canvas

    def _look_first(self) -> None:
        for run in (self.watched, *self.others):
            run.poll(FIRST_LOOK_S / (1 + len(self.others)))

    def on_mount(self) -> None:
        self._look_first()
        self.set_interval(POLL_S, self._poll)
        self._draw()

    def on_resize(self) -> None:
        self.call_after_refresh(self._redraw)  # Textual knows the new size only then

    def snapshot(self) -> Snapshot:
        return replace(self._browser.load(self.options), grid=self._grid.view(self.watched.paths))

    def _follow(self) -> bool:
        """Read the grid, and follow its next run once that has begun; whether anything changed."""
        changed = self._grid.poll()
        paths = self._grid.under_way()
        if paths and paths != self.watched.paths and self._following and self.snapshot().grid and not self.others:
            self.show_runs([paths])
            self.say(f"the next run of the grid: {paths.name} (r lists all runs)")
        return changed

    def _pages(self) -> tuple[str, ...]:
        return layout.pages(*self.size, compared=bool(self.others))

    def _poll(self) -> None:
        changed = self._follow() | self.watched.poll()
        for other in self.others:
            changed |= other.poll()
        now = datetime.now(UTC)  # a run becomes STALE without any change
        state = " ".join(run_state(run, now).state for run in (self.watched, *self.others))
        if changed or state != self._state or self._browser.progress() != self._searched:
            self._state = state
            self._redraw()
        elif time.monotonic() - self._ticked >= CLOCK_S:
            self._tick(self.snapshot())
        if any(run.behind() for run in (self.watched, *self.others)):
            self.call_later(self._poll)  # read a long run in portions, so that keys work in between

    def _redraw(self) -> None:
        """Draw, at most every quarter of a second."""
        wait = self._drawn + REDRAW_S - time.monotonic()
        if wait <= 0:
            self._draw()
        elif not self._waiting:
            self._waiting = True
            self.set_timer(wait, self._draw)

    def _tick(self, snapshot: Snapshot) -> None:
        """Draw what changes with time alone."""
        self._ticked = time.monotonic()
        width, height = self.size
        if self._saying and time.monotonic() >= self._said_until:
            self._saying = ""
        said = Text(f" {self._saying}", style=ORANGE)
        last = cut(said, width, ascii=self.options.ascii) if self._saying else message(snapshot, width)
        self._canvas.put(0, header(snapshot, width))
        self._canvas.put(height - 2, [last])

    def _draw(self) -> None:
        self._drawn, self._waiting = time.monotonic(), False
        width, height = self.size
        if not self.is_running:
            return
        names = self._pages()
        self.at = self.at if self.at in (*names, "chart") else names[0]
        self._searched = self._browser.progress()
        snapshot = self.snapshot()
        self._placed = layout.slots(self.at, snapshot, width, height)
        self._canvas.put(layout.HEADER, layout.body(snapshot, self._placed, height))
        self._tick(snapshot)
        state, options = snapshot.run_state, self.options
        asks = options.asks and state.answers
        line = footer(width, names, self.at, asks=asks, state=state.state, listing=options.listing)
        self._canvas.put(height - 1, [line])

    def _change(self, **choices: object) -> None:
        self._look(replace(self.options, **choices))  # type: ignore[arg-type]

    def _look(self, options: ViewOptions) -> None:
        self.options = options
        self._redraw()

    def say(self, text: str) -> None:
        """Show a sentence for a few seconds."""
        self._saying, self._said_until = text, time.monotonic() + SAY_S
        self._redraw()
