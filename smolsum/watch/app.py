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
from smolsum.watch import completion_navigation, mouse, navigation
from smolsum.watch.axes import UNITS
from smolsum.watch.canvas import Canvas
from smolsum.watch.charts import log_is_possible
from smolsum.watch.completion_actions import CompletionActions
from smolsum.watch.curves import CHARTS, METRIC, chart_named
from smolsum.watch.dialogs import Help, InputDialog
from smolsum.watch.export import exported
from smolsum.watch.keys import KEYS, MANY, PAGE
from smolsum.watch.layout import Slot
from smolsum.watch.metrics_page import chosen_metric, metrics_shown
from smolsum.watch.run_switcher import RunSwitcher
from smolsum.watch.snapshot import SMOOTHING

CONFIRM = "stop"
MOST_PINNED = 6
OF_LINES = ("advice", "config", "log", "compare")
"""Pages that are scrolled by lines."""
FRAME = 7
"""Lines of the screen that scroll never passes over: header, frame, message, keys, and one that stays."""


class WatchApp(CompletionActions):
    """Shows a run, and the curves of others next to its own. Leaving the view does not affect the run.

    Each action has its keys and its help in `keys.KEYS`.
    """

    ENABLE_COMMAND_PALETTE = False
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

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Tab does not turn pages under a dialog, although the app gets the key first."""
        return action != "turn" or not isinstance(self.screen, ModalScreen)

    def on_ready(self) -> None:
        """The first page is drawn."""
        gc.enable()
        if self._choosing:
            self.action_runs()

    def action_turn(self, by: int) -> None:
        names = self._pages()
        self.at = names[(names.index(self.at) + by) % len(names)] if self.at in names else names[0]
        self._change(scroll=0)

    def action_open(self, page: Literal["results", "advice", "config", "log"]) -> None:
        self.at = page if page in self._pages() else self.at
        self._change(scroll=0)

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
            return
        if self.options.listing != "step" or (self.options.query and self.at == "completions"):
            self._look(completion_navigation.back(self.snapshot()))
            return
        self.at = self._pages()[0]
        self._change(query="", metric_query="", scroll=0)

    def action_choose(self) -> None:
        """Enlarge the metric under the bar of the page of metrics; show the step of the hit or row under the bar."""
        if self.at == "completions":
            self._look(completion_navigation.opened(self._browser.load(self.options)))
        if self.at == "metrics" and (name := chosen_metric(self.snapshot())):
            self.at = "chart"
            self._change(chart=f"{METRIC}{name}")

    def action_pin(self) -> None:
        """Put the metric under the bar, or the enlarged one, first on the page of charts, or take it off."""
        enlarged = self.options.chart.removeprefix(METRIC) if self.at == "chart" else None
        name = enlarged if enlarged != self.options.chart else None
        name = chosen_metric(self.snapshot()) if self.at == "metrics" else name
        if name is None:
            self.say("pins a metric of the page of metrics")
            return
        kept = tuple(one for one in self.options.pinned if one != name)
        off = len(kept) < len(self.options.pinned)
        row = self.options.metric_row
        self._change(pinned=kept if off else (*kept, name)[-MOST_PINNED:])
        if self.at == "metrics":  # the bar stays on the metric, which has moved
            self._change(metric_row=metrics_shown(self.snapshot()).index(name) if not off else row)
        self.say(f"{name} is off the page of charts" if off else f"{name} comes first on the page of charts")

    def action_log(self) -> None:
        """Switch the scale of the enlarged chart, or of all charts where a logarithm means something."""
        charts = [chart_named(self.options.chart)] if self.at == "chart" else list(CHARTS)
        possible = {chart.title for chart in charts if log_is_possible(self.snapshot(), chart)}
        if possible:
            self._change(logs=self.options.logs ^ possible)
        else:
            self.say("no logarithmic scale: there are values of 0 or below")

    def action_export(self) -> None:
        """Write the enlarged chart, or that of the metric under the bar, as SVG and CSV."""
        name = chosen_metric(self.snapshot()) if self.at == "metrics" else None
        if self.at != "chart" and name is None:
            self.say("enlarge a chart first (1-9, or a double click), then E exports it")
            return
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
        """Show fewer or more steps."""
        self._look(navigation.zoomed(self.snapshot(), factor))

    def action_pan(self, by: int) -> None:
        """Show earlier or later steps."""
        if not self.options.window:
            self.say("all steps are in view: + zooms in")
        self._look(navigation.panned(self.snapshot(), by))

    def action_all(self) -> None:
        """Show all steps, without a cursor."""
        self._change(window=0, end=None, cursor=None)

    def action_side(self, by: int) -> None:
        """Move the cursor of charts; on pages with completions, turn to another step."""
        slot = next((slot for slot in self._placed if slot.pane.startswith("chart")), None)
        if self.at not in ("chart", "charts") or slot is None:
            self.action_step(by)
        else:
            self._look(navigation.stepped(self.snapshot(), by, 2 * slot.width))

    def on_canvas_pressed(self, event: Canvas.Pressed) -> None:
        """Do what the mouse points at."""
        if isinstance(self.screen, ModalScreen):
            return
        if event.kind == "click" and event.y == self.size.height - 1:
            if page := mouse.page_at(self._last_line, event.x, self._pages()):
                self.at = page
                self._change(scroll=0)
            return
        slot = next((slot for slot in self._placed if slot.has(event.x, event.y)), None)
        if self.drag(slot, event):
            return
        on_chart = slot is not None and slot.pane.startswith(("chart", METRIC))
        if slot is not None and on_chart and event.kind in ("click", "up", "down"):
            options = mouse.on_chart(self.snapshot(), slot, event)
            enlarged = event.kind == "click" and event.times >= 2 and options.chart == slot.pane
            self.at = "chart" if enlarged else self.at
            self._look(options)
        elif event.kind in ("up", "down"):
            down = 1 if event.kind == "down" else -1
            if slot is not None and slot.pane in ("table", "metrics"):
                self.action_move(down)
            else:
                self.action_scroll(3 * down)
        elif event.kind == "click" and slot is not None and slot.pane in ("table", "metrics"):
            self._press_row(slot, event)

    def _press_row(self, slot: Slot, event: Canvas.Pressed) -> None:
        """Put the bar on the row under the pointer; a second click opens it. The head of a table sorts by the next
        column."""
        by = mouse.rows_from_bar(self.snapshot(), slot, event)
        if by is not None:
            self.action_move(by)
            if event.times >= 2:
                self.action_choose()
        elif slot.pane == "table" and event.y == slot.y + 1:
            self.action_sort()

    def action_move(self, by: int) -> None:
        """Select another rollout; scroll by a line on pages without rollouts."""
        if self.at in OF_LINES:
            self.action_scroll(by)
            return
        if self.at == "metrics":
            most = max(len(metrics_shown(self.snapshot())) - 1, 0)
            self._change(metric_row=min(max(self.options.metric_row + by, 0), most))
            return
        self._look(completion_navigation.moved(self.snapshot(), by))

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
                self.say("the run goes on")

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

    def _answering(self, request: Literal["pause", "resume", "stop"]) -> RunPaths | None:
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

    def _request(self, request: Literal["pause", "resume", "stop"]) -> None:
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

    def action_leave(self) -> None:
        self.exit()
