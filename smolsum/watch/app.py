"""The live view: the keys and the mouse, and what they do to what is drawn."""

import gc
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Literal

from textual.binding import Binding, BindingType
from textual.screen import ModalScreen

from smolsum.errors import SmolsumError
from smolsum.runs.control import make_request, withdraw
from smolsum.runs.paths import RunPaths
from smolsum.watch import charts, completion_browser, layout
from smolsum.watch.axes import UNITS, panned, pointed, stepped, zoomed
from smolsum.watch.curves import CHARTS, METRIC, chart_named
from smolsum.watch.dialogs import Help, InputDialog, RunSwitcher
from smolsum.watch.export import exported
from smolsum.watch.keys import KEYS, MANY, PAGE
from smolsum.watch.layout import Slot
from smolsum.watch.panes import chosen_metric, metrics_shown
from smolsum.watch.snapshot import SMOOTHING, ViewOptions
from smolsum.watch.themes import DARK, LIGHT
from smolsum.watch.view import Canvas, MouseSelection, RunView

Request = Literal["pause", "resume", "stop"]
CONFIRM = "stop"
MOST_PINNED = 6
OF_LINES = ("advice", "config", "log", "compare")
"""Pages that are scrolled by lines."""
FRAME = 7
"""Lines of the screen that scroll never passes over: header, frame, message, keys, and one that stays."""
SELECTABLE = ("texts", "before", "after", "advice", "log", "config")
"""Panes whose text the mouse selects."""


class WatchApp(RunView):
    """Shows a run, and the curves of others next to its own. Leaving the view does not affect the run.

    Each action has its keys and its help in `keys.KEYS`.
    """

    ENABLE_COMMAND_PALETTE = False
    ALLOW_SELECT = False  # text is selected within a pane, and without its frame
    CSS = """
    App.-ascii InputDialog > Vertical, App.-ascii Help > VerticalScroll, App.-ascii RunSwitcher > Vertical {
        border: ascii $foreground;
    }
    VerticalScroll, OptionList { scrollbar-color: $foreground; scrollbar-background: $background; }
    Input > .input--placeholder { color: $foreground 85%; }
    OptionList > .option-list--option-highlighted, OptionList:focus > .option-list--option-highlighted {
        background: $foreground; color: $background; text-style: bold;
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(key.names, key.action, key.help, priority=key.action in ("turn(1)", "turn(-1)")) for key in KEYS
    ]
    _selection: MouseSelection | None = None

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Tab does not turn pages under a dialog, although the app gets the key first."""
        return action != "turn" or not isinstance(self.screen, ModalScreen)

    def on_ready(self) -> None:
        gc.enable()  # the first page is drawn
        if self._choosing:
            self.action_runs()

    # pages

    def action_open(self, page: str) -> None:
        self.at = page if page in self._pages() else self.at
        self._change(scroll=0)

    def action_turn(self, by: int) -> None:
        names = self._pages()
        self.action_open(names[(names.index(self.at) + by) % len(names)] if self.at in names else names[0])

    def action_enlarge(self, chart: int) -> None:
        """Show one chart on the whole page, or go back."""
        name = f"chart{chart}"
        if self.at == "chart" and self.options.chart == name:
            self.action_home()
        else:
            self.at = "chart"
            self._change(chart=name)

    def action_home(self) -> None:
        """End a search; then show what was listed before; then go to the first page."""
        if self._browser.stop():
            self.say("search stopped: what was found so far is listed")
        elif self.options.listing != "step" or (self.options.query and self.at == "completions"):
            self._look(completion_browser.back(self.snapshot()))
        else:
            self.at = self._pages()[0]
            self._change(query="", metric_query="", scroll=0)

    def action_choose(self) -> None:
        """Enlarge the metric under the bar of the page of metrics; show the step of the hit or row under the bar."""
        if self.at == "completions":
            self._look(completion_browser.opened(self.snapshot()))
        elif self.at == "metrics" and (name := chosen_metric(self.snapshot())):
            self.at = "chart"
            self._change(chart=f"{METRIC}{name}")

    def action_move(self, by: int) -> None:
        """Move the bar; scroll by a line on pages without rows."""
        if self.at in OF_LINES:
            self.action_scroll(by)
        elif self.at == "metrics":
            self._to_row(self.options.metric_row + by)
        else:
            self._look(completion_browser.moved(self.snapshot(), by))

    def _to_row(self, row: int) -> None:
        if self.at == "metrics":
            most = max(len(metrics_shown(self.snapshot())) - 1, 0)
            self._change(metric_row=min(max(row, 0), most))
        else:
            self._look(completion_browser.at_row(self.snapshot(), row))

    def action_scroll(self, by: int) -> None:
        """Scroll a text by so many lines; PAGE stands for what fits on a page of lines, which stops at its ends."""
        if self.at in OF_LINES and abs(by) == PAGE:
            by = by // PAGE * max(self.size.height - FRAME, 1)
        by = -by if self.at in ("advice", "log") else by  # the newest line is the last one
        above_hit = self.options.query and self.at not in OF_LINES  # a long text begins at its first hit
        self._change(scroll=max(self.options.scroll + by, -MANY if above_hit else 0))

    def action_search(self) -> None:
        if self.at == "metrics":
            self.push_screen(InputDialog("metrics with this in their name", self.options.metric_query), self._filter)
        else:
            self.push_screen(
                InputDialog("a text in any sample, or the number of a prompt (17)", self.options.query), self._search
            )

    def _filter(self, query: str | None) -> None:
        if query is not None:
            self._change(metric_query=query, metric_row=0)

    def action_help(self) -> None:
        self.push_screen(Help(readonly=self.readonly))

    # charts

    def action_pin(self) -> None:
        """Put the metric under the bar, or the enlarged one, first on the page of charts, or take it off."""
        name = chosen_metric(self.snapshot()) if self.at == "metrics" else None
        if self.at == "chart" and self.options.chart.startswith(METRIC):
            name = self.options.chart.removeprefix(METRIC)
        if name is None:
            self.say("pins a metric of the page of metrics")
            return
        kept = tuple(one for one in self.options.pinned if one != name)
        if kept != self.options.pinned:
            self._change(pinned=kept)
            self.say(f"{name} is off the page of charts")
        else:
            self._change(pinned=(*kept, name)[-MOST_PINNED:])
            if self.at == "metrics":
                self._to_row(metrics_shown(self.snapshot()).index(name))  # the metric has moved, and the bar with it
            self.say(f"{name} comes first on the page of charts")

    def action_log(self) -> None:
        """Switch the scale of the enlarged chart, or of all charts where a logarithm means something."""
        shown = [chart_named(self.options.chart)] if self.at == "chart" else list(CHARTS)
        possible = {chart.title for chart in shown if charts.log_is_possible(self.snapshot(), chart)}
        if possible:
            self._change(logs=self.options.logs ^ possible)
        else:
            self.say("no logarithmic scale: there are values of 0 or below")

    def action_export(self) -> None:
        name = chosen_metric(self.snapshot()) if self.at == "metrics" else None
        if self.at != "chart" and name is None:
            self.say("enlarge a chart first (1-9, or a double click), then E exports it")
        else:
            spec = chart_named(self.options.chart if name is None else f"{METRIC}{name}")
            self.say(exported(self.snapshot(), spec, Path.cwd(), light=not self.current_theme.dark))

    def action_smooth(self) -> None:
        """Smooth more, then not at all."""
        self._change(smoothing=SMOOTHING[(SMOOTHING.index(self.options.smoothing) + 1) % len(SMOOTHING)])

    def action_unit(self) -> None:
        """Put the next unit that the run has along the charts."""
        units = [unit for unit, metric in UNITS.items() if not metric or metric in self.watched.series]
        place = units.index(self.options.unit) + 1 if self.options.unit in units else 0
        self._change(unit=units[place % len(units)])
        self.say(f"charts by {self.options.unit}" if len(units) > 1 else "this run measured neither time nor tokens")

    def action_zoom(self, factor: float) -> None:
        self._look(zoomed(self.snapshot(), factor))

    def action_pan(self, by: int) -> None:
        if not self.options.window:
            self.say("all steps are in view: + zooms in")
        self._look(panned(self.snapshot(), by))

    def action_all(self) -> None:
        self._change(window=0, end=None, cursor=None)

    def action_side(self, by: int) -> None:
        """Move the cursor of charts; on pages with completions, turn to another step."""
        slot = next((slot for slot in self._placed if slot.pane.startswith("chart")), None)
        if self.at not in ("chart", "charts") or slot is None:
            self.action_step(by)
        else:
            self._look(stepped(self.snapshot(), by, 2 * slot.width))

    # completions

    def action_step(self, by: int) -> None:
        """Show the completions of another step, or another row of what is listed."""
        self._look(completion_browser.other_step(self.snapshot(), by))

    def action_prompt(self, by: int) -> None:
        self._look(completion_browser.next_prompt(self.snapshot(), by))

    def action_next(self, by: int) -> None:
        """Go to the next hit of a search, or the next prompt."""
        self._look(completion_browser.next_one(self.snapshot(), by))

    def action_sort(self) -> None:
        self._look(completion_browser.next_order(self.snapshot()))

    def action_reverse(self) -> None:
        self._look(completion_browser.reordered(self.options, backwards=not self.options.backwards))

    def action_history(self) -> None:
        """List the steps at which the shown prompt was sampled, or go back."""
        self._browse(completion_browser.over_time(self.snapshot()))

    def action_tests(self) -> None:
        """List the test split before and after training, or go back."""
        self._browse(completion_browser.test_split(self.snapshot()))

    def _browse(self, options: ViewOptions) -> None:
        self.at = "completions" if "completions" in self._pages() else self.at
        self._look(options)

    def _search(self, query: str | None) -> None:
        if query is not None:
            self._browse(completion_browser.searching(self.snapshot(), query))

    def action_difference(self) -> None:
        self._change(difference=not self.options.difference, scroll=0)

    def action_copy(self) -> None:
        """Copy the completion to the clipboard, if the terminal allows it."""
        what, text = completion_browser.copied(self.snapshot())
        if text:
            self.copy_to_clipboard(text)
            self.say(f"sent {what} to the clipboard of the terminal")

    # the mouse

    def on_canvas_pressed(self, event: Canvas.Pressed) -> None:
        """Do what the mouse points at: a page, a curve of a legend, a row or the head of a table, a chart, a text."""
        if isinstance(self.screen, ModalScreen):
            return
        slot = next((slot for slot in self._placed if slot.has(event.x, event.y)), None)
        if event.kind in ("press", "move", "release"):
            self._drag(slot, event)
        elif "page" in event.meta:
            self.action_open(event.meta["page"])
        elif "curve" in event.meta:
            self._change(hidden=self.options.hidden ^ {event.meta["curve"]})
        elif "row" in event.meta:
            self._to_row(event.meta["row"])
            if event.times >= 2:
                self.action_choose()
        elif "head" in event.meta and self.at != "metrics":
            self.action_sort()
        elif slot is not None and slot.pane.startswith(("chart", METRIC)):
            self._press_chart(slot, event)
        elif event.kind in ("up", "down"):
            down = 1 if event.kind == "down" else -1
            if slot is not None and slot.pane in ("table", "metrics"):
                self.action_move(down)
            else:
                self.action_scroll(3 * down)

    def _press_chart(self, slot: Slot, event: Canvas.Pressed) -> None:
        """The wheel zooms around the pointer, a click sets the cursor, a second one enlarges the chart."""
        snapshot = self.snapshot()
        step = charts.step_at(snapshot, slot.width - 2, chart_named(slot.pane), event.x - slot.x - 1)
        if event.kind in ("up", "down"):
            self._look(zoomed(snapshot, 0.5 if event.kind == "up" else 2.0, step))
        elif event.times >= 2:
            self.at = "chart"
            self._change(chart=slot.pane)
        else:
            self._look(pointed(snapshot, step))

    def _drag(self, slot: Slot | None, event: Canvas.Pressed) -> None:
        """Select text with the mouse, and copy it when it is released."""
        at, selection = (event.x, event.y), self._selection
        if event.kind == "press":
            self._selection = MouseSelection(slot, at, at) if slot and slot.pane in SELECTABLE else None
            self._canvas.select({})
        elif event.kind == "move" and selection:
            self._selection = MouseSelection(selection.slot, selection.begin, at)
            self._canvas.select(self._selection.covered())
        elif event.kind == "release" and selection:
            self._selection = None
            drawn = layout.content(self.snapshot(), selection.slot)
            if selection.begin != selection.end and (text := selection.text(drawn.lines)):
                self.copy_to_clipboard(text)
                self.say(f"sent {len(text)} selected characters to the clipboard of the terminal")

    # runs

    def action_runs(self) -> None:
        """List all runs of the directory, and show the chosen ones."""
        shown = [run.paths for run in (self.watched, *self.others)]
        self.push_screen(RunSwitcher(shown, queued=self._queued, ascii=self.options.ascii), self._chosen)

    def _queued(self) -> Sequence[str]:
        grid = self.snapshot().grid
        return grid.left if grid and grid.alive else ()

    def _chosen(self, runs: list[RunPaths] | None) -> None:
        if runs:
            self.at = "compare" if len(runs) > 1 else self.at
            self.show_runs(runs)
            self._following = runs == [self._grid.under_way()]

    def action_pause(self) -> None:
        if self._answering("pause"):
            pausing = not self.watched.requested("pause")
            self._request("pause" if pausing else "resume")
            if not pausing:
                self.say("the run continues")

    def action_stop(self) -> None:
        """Ask the run to stop, and so the grid after it, once the user has typed the word that confirms it."""
        if self._answering("stop"):
            grid = self.snapshot().grid
            what = grid.stop_question if grid else "The run finishes its step, saves and ends; it can be resumed."
            self.push_screen(InputDialog(f"{what}\nType {CONFIRM} to stop it."), self._confirmed)

    def _confirmed(self, answer: str | None) -> None:
        if answer == CONFIRM:
            self._request("stop")
        else:
            self.say("not stopped")

    def _answering(self, request: Request) -> RunPaths | None:
        """Return the run that takes a request: the one that is shown, or, while a grid loads its next run, the one
        before. Say why where none does."""
        state, grid = self.snapshot().run_state, self.snapshot().grid
        if self.readonly:
            self.say("this view only reads (--readonly)")
        elif state.answers:
            return self.watched.paths
        elif grid and grid.loading and self._following:
            if request == "stop" and (before := self._grid.ended_last()):
                return before
            self.say(f"run {grid.number} of {grid.total} is being loaded: try again once it trains")
        else:
            under_way = self._grid.under_way()
            more = f"; {under_way.name} is being trained (r shows it)" if under_way else ""
            self.say(f"nothing to pause or stop: the run is {state.state}{more}")
        return None

    def _request(self, request: Request) -> None:
        paths = self._answering(request)
        try:
            if paths and request == "resume":
                withdraw(paths, "pause")
            elif paths and request != "resume":
                make_request(paths, request)
            if paths and not self.snapshot().run_state.answers:
                self.say("the grid ends before its next run, or in the first step of it")
        except SmolsumError as error:
            self.say(str(error))
        self._poll()

    def action_theme(self) -> None:
        self.theme = LIGHT.name if self.current_theme.dark else DARK

    def action_leave(self) -> None:
        self.exit()
