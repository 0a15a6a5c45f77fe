"""A view of runs on one canvas: reads them twice a second and draws what changed."""

import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

from rich.text import Text
from textual.app import ComposeResult

from smolsum.runs.paths import RunPaths
from smolsum.runs.reader import Run
from smolsum.runs.run_state import run_state
from smolsum.watch import layout
from smolsum.watch.canvas import Canvas
from smolsum.watch.completion_browser import Browser
from smolsum.watch.grid_follower import GridFollower
from smolsum.watch.keys import footer
from smolsum.watch.layout import Slot
from smolsum.watch.pane_text import ORANGE, cut
from smolsum.watch.panes import header, message
from smolsum.watch.snapshot import Snapshot, ViewOptions
from smolsum.watch.themes import ThemedApp

POLL_S = 0.5
REDRAW_S = 0.25
CLOCK_S = 1.0
"""Seconds after which the times in the header are drawn again without any change."""
FIRST_LOOK_S = 0.5
"""Seconds of reading before the first page is drawn; a run of 10,000 steps takes less."""
SAY_S = 4.0


class RunView(ThemedApp):
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
        super().__init__(light=light)
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
        self._saying = self._state = self._last_line = ""

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
        self._change(step=None, group=0, row=0, scroll=0, query="", listing="step", window=0, end=None, cursor=None)

    def compose(self) -> ComposeResult:
        """One canvas for everything."""
        yield self._canvas

    def _look_first(self) -> None:
        """Read what the first page shows of a long run, and of the others."""
        for run in (self.watched, *self.others):
            run.poll(FIRST_LOOK_S / (1 + len(self.others)))

    def on_mount(self) -> None:
        """Read and draw, then again every half second."""
        self._look_first()
        self.set_interval(POLL_S, self._poll)
        self._draw()

    def on_resize(self) -> None:
        """Draw the pages for the new size, which Textual knows only after this."""
        self.call_after_refresh(self._redraw)

    def snapshot(self) -> Snapshot:
        """Return this moment of the view."""
        return replace(self._browser.snapshot(self.options), grid=self._grid.view(self.watched.paths))

    def _follow(self) -> bool:
        """Read the grid, and go on to its next run once that has begun; whether anything changed."""
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
        if changed or state != self._state or self._browser.moved():
            self._state = state
            self._redraw()
        elif time.monotonic() - self._ticked >= CLOCK_S:
            self._tick()
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

    def _tick(self) -> None:
        """Draw what changes with time alone."""
        self._ticked = time.monotonic()
        snapshot, (width, height) = self.snapshot(), self.size
        self._canvas.put("header", 0, 0, width, header(snapshot, width))
        self._canvas.put("message", 0, height - 2, width, [self._message(snapshot, width)])

    def _draw(self) -> None:
        self._drawn, self._waiting = time.monotonic(), False
        width, height = self.size
        if not self.is_running:
            return
        names = self._pages()
        self.at = self.at if self.at in (*names, "chart") else names[0]
        self._browser.load(self.options)
        snapshot = self.snapshot()
        placed = self._placed = layout.slots(self.at, snapshot, width, height)
        for slot in placed:
            self._canvas.put(f"pane-{slot.pane}", slot.x, slot.y, slot.width, layout.pane(snapshot, slot))
        self._canvas.keep(["header", "message", "keys", *(f"pane-{slot.pane}" for slot in placed)])
        self._tick()
        state = snapshot.run_state
        line = footer(
            width,
            names,
            self.at,
            asks=self.options.asks and state.answers,
            state=state.state,
            listing=self.options.listing,
        )
        self._last_line = line.plain
        self._canvas.put("keys", 0, height - 1, width, [line])

    def _message(self, snapshot: Snapshot, width: int) -> Text:
        if self._saying and time.monotonic() < self._said_until:
            return cut(Text(f" {self._saying}", style=ORANGE), width, ascii=self.options.ascii)
        self._saying = ""
        return message(snapshot, width)

    def _change(self, **choices: object) -> None:
        """Change options and draw."""
        self.options = replace(self.options, **choices)  # type: ignore[arg-type]
        self._redraw()

    def say(self, text: str) -> None:
        """Show a sentence for a few seconds."""
        self._saying, self._said_until = text, time.monotonic() + SAY_S
        self._redraw()

    def _look(self, options: ViewOptions) -> None:
        self.options = options
        self._redraw()
