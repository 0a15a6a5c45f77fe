"""A view of runs: the one model that it draws from, which follows them, and the pages with their tabs."""

import gc
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import cast

from rich.text import Text
from textual import events, on
from textual.app import App, ComposeResult
from textual.binding import Binding
from textual.filter import LineFilter
from textual.reactive import reactive
from textual.widgets import Input, Static, TabbedContent, TabPane, Tabs

from smolsum.linechart.zoom import View
from smolsum.runs.grid_follower import GridFollower
from smolsum.runs.paths import RunPaths
from smolsum.runs.reader import Run
from smolsum.runs.state import run_state
from smolsum.watch.completions import Completions
from smolsum.watch.model import Snapshot, ViewOptions
from smolsum.watch.pages import PAGES, Overview, ViewPage
from smolsum.watch.panes import header, message
from smolsum.watch.themes import DARK, LIGHT, ON_DARK, ON_LIGHT, TO_ASCII, WITHOUT_COLOUR
from smolsum.watch.widgets import KeyLine, RowTable

POLL_S = 0.5
CLOCK_S = 1.0
"""Seconds after which the times in the header are drawn again without any change."""
FIRST_LOOK_S = 0.5
"""Seconds of reading before the first page is drawn; a run of 10,000 steps takes less."""
SAY_S = 4.0
ARROW_KEYS = str.maketrans({"←": "left", "→": "right", "↑": "up", "↓": "down", "⏎": "enter"})
"""Keys without a character of ASCII."""


class Tabbed(TabPane):
    """A page with its tab. What gets the focus in it does not open it: keys may have left it meanwhile."""

    def on_descendant_focus(self, event: events.DescendantFocus) -> None:
        event.prevent_default()


class RunView(App[None]):
    """Shows runs from one model, which follows them, on pages with tabs; its keys are in `WatchApp`."""

    CSS = """
    #head { height: 2; } #message { height: 1; }
    TabbedContent { height: 1fr; } TabPane { padding: 0; height: 1fr; } ContentSwitcher { height: 1fr; }
    Tabs, ContentTabs { height: 1; } Tabs Underline { display: none; }
    Tab { color: $foreground 85%; padding: 0 1; } Tab.-active { text-style: bold reverse; color: $foreground; }
    Footer { background: $background; } FooterKey { background: $background; color: $foreground; }
    FooterKey .footer-key--key, FooterKey .footer-key--description { background: $background; color: $foreground 85%; }
    FooterKey .footer-key--key { text-style: bold; color: $foreground; }
    FooterKey.-command-palette { border: none; margin: 0; padding: 0 1; }
    HelpPanel { split: initial; dock: right; layer: help; width: 60; max-width: 100%; background: $background;
                border-left: vkey $foreground; }
    Screen { layers: default help; }
    Screen > .screen--selection { background: $background; color: $foreground; text-style: reverse; }
    Toast { width: auto; max-width: 90%; padding: 0 1; }
    Input > .input--placeholder { color: $foreground 85%; }
    Pane, RowTable, TextView { border: round $foreground 50%; border-title-color: $foreground;
                               border-subtitle-color: $foreground; border-title-style: bold; }
    RowTable, TextView, VerticalScroll, KeyPanel {
        scrollbar-color: $foreground 50%; scrollbar-color-hover: $foreground 70%;
        scrollbar-color-active: $foreground 70%; scrollbar-background: $background;
        scrollbar-background-hover: $background; scrollbar-background-active: $background;
        scrollbar-corner-color: $background; }
    RunSwitcher RowTable { border: none; }
    """
    moment: reactive[Snapshot | None] = reactive(None, always_update=True)
    """what all widgets are drawn from"""

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
        self.HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (100, "-wide")]
        self.VERTICAL_BREAKPOINTS = [(0, "-low"), (30, "-high"), (55, "-higher")]
        self.register_theme(LIGHT)
        self.theme = LIGHT.name if light else DARK
        self.ansi_theme_dark, self.ansi_theme_light = ON_DARK, ON_LIGHT
        self.animation_level = "none"
        self.readonly, self._choosing, self._following = readonly, choosing, following
        self.options = options or ViewOptions()
        self.watched, self.others = run, tuple(others)
        self._grid = GridFollower(run.paths.root.parent)
        self._grid.poll()
        self._ticked, self._waiting = 0.0, False
        self._states: list[str] = []

    def get_line_filters(self) -> Sequence[LineFilter]:
        """Return what changes each line. (Textual's own filter for NO_COLOR leaves greys.)"""
        colours = [WITHOUT_COLOUR] if self.no_color else super().get_line_filters()
        return [*colours, *([TO_ASCII] if self.options.ascii else [])]

    def get_key_display(self, binding: Binding) -> str:
        """Return a key as footer and help show it."""
        shown = super().get_key_display(binding)
        return shown.translate(ARROW_KEYS) if self.options.ascii else shown

    def compose(self) -> ComposeResult:
        yield Static(id="head")
        with TabbedContent(initial="overview"):
            for name in PAGES:
                yield Tabbed(name, id=name)
        yield Static(id="message")
        yield KeyLine(compact=True)

    async def on_mount(self) -> None:
        self._look_first()
        tabs = self.query_one(TabbedContent)
        tabs.hide_tab("chart")
        self._name_pages()
        self.query_one(Tabs).can_focus = False
        await self._fill("overview")
        self.polls = self.set_interval(POLL_S, self._poll)
        self.draw()

    async def on_ready(self) -> None:
        gc.enable()  # the first page is drawn

    # the model

    def snapshot(self) -> Snapshot:
        found = Snapshot(self.watched, self.options, self.others, grid=self._grid.view(self.watched.paths))
        return replace(found, asks=not self.readonly and found.run_state.answers)

    def draw(self) -> None:
        """Draw all that is in view from a new moment, once what is to be done now is done."""
        if not self._waiting:
            self._waiting = True
            self.call_later(self._draw)

    def _draw(self) -> None:
        self._waiting = False
        if not self.closes:
            self.moment = self.snapshot()

    def watch_moment(self, before: Snapshot | None, now: Snapshot | None) -> None:
        if now is None or self.closes:
            return
        self._tick(now)
        tab = self.screen_stack[0].query_one(TabbedContent).get_tab("alerts")
        label = f"alerts {len(now.alerts) or ''}".rstrip()
        if str(tab.label) != label:
            tab.label = label
        if page := self.page:
            page.show(now)
        if before is None or (before.asks, before.run_state.state) != (now.asks, now.run_state.state):
            self.screen.refresh_bindings()

    def _tick(self, now: Snapshot) -> None:
        """Draw what changes with time alone."""
        self._ticked = time.monotonic()
        base = self.screen_stack[0]
        for name, lines in (("#head", header(now, self.size.width)), ("#message", [message(now, self.size.width)])):
            for widget in base.query(name).results(Static):  # none while the view closes
                widget.update(Text("\n").join(lines))

    def _look_first(self) -> None:
        for run in (self.watched, *self.others):
            run.poll(FIRST_LOOK_S / (1 + len(self.others)))

    def _poll(self) -> None:
        if self.closes:
            return
        changed = self._follow() | self.watched.poll()
        for other in self.others:
            changed |= other.poll()
        now = self.snapshot()
        states = [run_state(run, now.now).state for run in (self.watched, *self.others)]  # STALE comes without a change
        if changed or states != self._states:
            self._states = states
            self.draw()
        elif time.monotonic() - self._ticked >= CLOCK_S:
            self.draw() if self.at == "compare" else self._tick(now)
        if any(run.reading for run in (self.watched, *self.others)):
            self.call_later(self._poll)  # read a long run in portions, so that keys work in between

    def _follow(self) -> bool:
        """Read the grid, and follow its next run once that has begun; whether anything changed."""
        changed = self._grid.poll()
        paths = self._grid.under_way()
        if paths and paths != self.watched.paths and self._following and self.snapshot().grid and not self.others:
            self.show_runs([paths])
            self.say(f"the next run of the grid: {paths.name} (r lists all runs)")
        return changed

    def show_runs(self, runs: Sequence[RunPaths]) -> None:
        """Show other runs in this view: the first one in full, the others next to it."""
        if [paths.root for paths in runs] == [run.paths.root for run in (self.watched, *self.others)]:
            return
        self.watched, *others = (Run(paths) for paths in runs)
        self.others = tuple(others)
        if self._grid.runs_dir != self.watched.paths.root.parent:
            self._grid = GridFollower(self.watched.paths.root.parent)
        self._grid.poll()
        self._look_first()
        self._name_pages()
        for browser in self.screen_stack[0].query(Completions):
            browser.begin(self.watched)
        self._change(view=View())

    def _change(self, **choices: object) -> None:
        before, self.options = self.options, replace(self.options, **choices)  # type: ignore[arg-type]
        if (before.view == View()) != (self.options.view == View()):
            self.screen.refresh_bindings()
        self.draw()

    def say(self, text: str) -> None:
        self.clear_notifications()
        self.notify(text, timeout=SAY_S, markup=False)

    @property
    def closes(self) -> bool:
        """Whether the view is closing: a timer may still call then, when its pages are gone or its screen is."""
        return not (self.is_running and self.screen_stack and self.screen_stack[0].query(TabbedContent))

    # pages

    @property
    def at(self) -> str:
        return self.screen_stack[0].query_one(TabbedContent).active or next(iter(PAGES))

    @property
    def page(self) -> ViewPage | Completions | None:
        pane = self.screen_stack[0].query_one(TabbedContent).active_pane
        return cast("ViewPage | Completions", pane.children[0]) if pane and pane.children else None

    @property
    def browser(self) -> Completions | None:
        page = self.page
        shown = page.children[-1] if isinstance(page, Overview) and page.children else page
        return shown if isinstance(shown, Completions) else None

    def _name_pages(self) -> None:
        tabs = self.screen_stack[0].query_one(TabbedContent)
        (tabs.show_tab if self.others else tabs.hide_tab)("compare")

    async def _fill(self, name: str) -> None:
        """Make the widgets of a page, the first time that it is opened."""
        pane = self.screen_stack[0].query_one(f"#{name}", TabPane)
        if not pane.children:
            await pane.mount(PAGES[name]())

    @on(TabbedContent.TabActivated)
    async def _opened(self, event: TabbedContent.TabActivated) -> None:
        name = event.pane.id or ""
        await self._fill(name)
        if name != self.at:
            return
        if name != "chart":
            event.tabbed_content.hide_tab("chart")
        tables = list(event.pane.query(RowTable))
        if tables and not isinstance(self.screen.focused, Input):
            self.screen.set_focus(tables[0])
        elif not tables:
            self.screen.set_focus(None)
        self.screen.refresh_bindings()
        self.call_after_refresh(self.draw)

    def action_open(self, page: str) -> None:
        self.query_one(TabbedContent).active = page

    @property
    def pages(self) -> list[str]:
        """The pages that have a tab now."""
        return [name for name in PAGES if name != "chart" and (name != "compare" or self.others)]

    def action_turn(self, by: int) -> None:
        names = self.pages
        self.action_open(names[(names.index(self.at) + by) % len(names)] if self.at in names else names[0])
