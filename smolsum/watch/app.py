"""The live view: what its keys do to the model and to the pages."""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar, Literal, cast

from textual import events, on
from textual.app import App, SystemCommand
from textual.binding import Binding, BindingType
from textual.pilot import Pilot
from textual.screen import ModalScreen, Screen
from textual.widgets import Input, TabbedContent

from smolsum.errors import SmolsumError
from smolsum.linechart.chart import Chart
from smolsum.linechart.zoom import View
from smolsum.runs.control import make_request, withdraw
from smolsum.runs.paths import RunPaths
from smolsum.runs.reader import Run
from smolsum.watch.charts import CHARTS, UNITS, ChartSpec, RunChart, chart_of, log_is_possible
from smolsum.watch.completions import Completions
from smolsum.watch.export import exported
from smolsum.watch.model import SMOOTHING, ViewOptions
from smolsum.watch.pages import Metrics
from smolsum.watch.runs_list import RunSwitcher
from smolsum.watch.themes import DARK, LIGHT
from smolsum.watch.view import RunView
from smolsum.watch.widgets import InputDialog, RowTable

Request = Literal["pause", "resume", "stop"]
CONFIRM = "stop"
MOST_DRAWINGS = 20
"""Drawings until one changes nothing; a clock on the page may change with each."""
MOST_PINNED = 6
SCROLLED = 5
"""Lines by which a key scrolls the text of a completion; pages of lines are scrolled by what fits on the screen."""

MANY = 1_000_000
"""More than the steps of any run."""
CHARTED = ("overview", "charts", "chart", "results", "metrics")
BROWSED = ("overview", "completions")
OPENING = ("turn", "search", "runs", "stop")
"""Actions whose keys no widget gets, except a line of input: what is typed next is for what they open."""
ON: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("zoom", "pan", "all", "unit", "smooth", "log"), CHARTED),
    "columns": ("compare", "results", *BROWSED),
    "cursor": ("charts", "chart"),
    "pin": ("metrics", "chart"),
    "export": ("metrics", "chart"),
    "search": ("metrics", *BROWSED),
}
"""The pages on which an action works, where it does not work on all."""


def _key(keys: str, action: str, word: str, help: str = "", *, shown: str | None = None, show: bool = False) -> Binding:
    """A key with its word for the footer (if `show` or `shown` in another way, where it works), and the rest of its
    line in the help."""
    priority = action.startswith(("leave(", *OPENING))
    return Binding(keys, action, word, show or bool(shown), shown, priority, help)


KEYS = [
    _key("question_mark", "keys", "help", "all keys of this page, and back", show=True),
    _key("tab", "turn(1)", "page", "the next one (a click opens any)", show=True),
    _key("shift+tab", "turn(-1)", "page before"),
    _key("space", "request('pause')", "pause", "the run after its step", show=True),
    _key("space", "request('resume')", "resume", "the run", show=True),
    _key("space", "refuse('pause')", "pause", "the run, if it is at work"),
    _key("S", "stop", "stop", "the run after its step; it can be resumed", show=True),
    _key("S", "refuse('stop')", "stop", "the run, if it is at work"),
    _key("q", "leave", "quit", "the view; the run continues", show=True),
    _key("ctrl+c,ctrl+q", "leave(True)", "quit", "the view; the run continues"),
    _key("escape", "home", "back", "to the first page, or end a search", show=True),
    _key("slash", "search", "find", "a text in all samples of the run; a metric by its name", show=True),
    _key("v", "pin", "pin", "the metric first on the page of charts, or take it off", show=True),
    _key("1", "enlarge(0)", "enlarge", "the first chart, and back; 2 to 9 the others", shown="1-9"),
    *(_key(str(n), f"enlarge({n - 1})", CHARTS[n - 1].title, "alone") for n in range(2, 10)),
    _key("r", "runs", "runs", "show another, or compare several", show=True),
    _key("n", "browse('go_next', 1)", "next", "prompt or hit", shown="n N"),
    _key("N", "browse('go_next', -1)", "prompt or hit before"),
    _key("p", "browse('go_prompt', -1)", "prompt before"),
    _key("left_square_bracket", "browse('go_step', -1)", "step", "before (or evaluation)", shown="[ ]"),
    _key("right_square_bracket", "browse('go_step', 1)", "next step", "or evaluation"),
    _key("left_curly_bracket,home", f"browse('go_step', {-MANY})", "first step"),
    _key("right_curly_bracket,end", f"browse('go_step', {MANY})", "newest step", "as it comes"),
    _key("left", "browse('go_step', -1)", "step before"),
    _key("right", "browse('go_step', 1)", "next step"),
    _key("shift+left", "columns(-1)", "columns", "to the left"),
    _key("shift+right", "columns(1)", "columns", "to the right, of a table wider than its frame"),
    _key("s", "browse('sort')", "sort", "by the next column (or a click on a head)", show=True),
    _key("i", "browse('reverse')", "reverse", "the order"),
    _key("d", "browse('toggle_difference')", "diff", "to the prompt's first sample, or before training", show=True),
    _key("c", "copy", "copy", "the completion (with the mouse: drag over it)", show=True),
    _key("left", "cursor(-1)", "cursor", "to the left (or a click; shift: ten times as far)", shown="← →"),
    _key("right", "cursor(1)", "cursor", "to the right"),
    _key("shift+left", "cursor(-10)", "cursor", "far to the left"),
    _key("shift+right", "cursor(10)", "cursor", "far to the right"),
    _key("0", "all", "all steps", "and no cursor", show=True),
    _key("plus,equals_sign", "zoom(0.5)", "zoom", "in (wheel: there)", shown="+"),
    _key("minus", "zoom(2.0)", "out", "to more steps", show=True),
    _key("comma,less_than_sign", "pan(-1)", "pan", "to earlier steps", shown="<"),
    _key("full_stop,greater_than_sign", "pan(1)", "pan", "to later steps", shown=">"),
    _key("E", "export", "export", "the chart (SVG, CSV) into the current folder", show=True),
    _key("w", "smooth", "smooth", "lines, over the measured ones", show=True),
    _key("y", "log", "log", "scale, where values allow it", show=True),
    _key("x", "unit", "by time", "by tokens, by step", show=True),
    _key("h", "history", "history", "of the prompt at all its steps, and back", show=True),
    _key("b", "tests", "before/after", "training, the test split, and back", show=True),
    _key("pageup,u", "scroll(-1)", "scroll up"),
    _key("pagedown,m", "scroll(1)", "scroll down"),
    _key("f", "open('results')", "results", "what training did on the test split"),
    _key("e", "open('alerts')", "alerts", "with advice, workers, step times"),
    _key("l", "open('log')", "log", "the messages of the run, warnings marked"),
    _key("o", "open('config')", "config", "the settings of the run"),
    _key("t", "theme", "colours", "light or dark"),
]
"""For bindings, footer, help and palette; the footer shows those that fit, so the most useful come first."""


class WatchApp(RunView):
    """Shows a run, and the curves of others next to its own. Leaving the view does not affect the run."""

    BINDINGS: ClassVar[list[BindingType]] = [*KEYS]

    async def on_ready(self) -> None:
        if self._choosing:
            await self.action_runs()

    async def action_enlarge(self, chart: int) -> None:
        """Show one chart on the whole page, or go back."""
        if self.at == "chart" and self._charts[0].spec is CHARTS[chart]:
            self.action_home()
        else:
            await self.enlarge(CHARTS[chart])

    @on(Chart.Chosen)
    async def _chosen_in_chart(self, event: Chart.Chosen) -> None:
        if event.view:
            self._change(view=event.view)
        elif event.curve:
            self._change(hidden=self.options.hidden ^ {event.curve})
        else:
            await self.enlarge(cast("RunChart", event.chart).spec)

    @on(RowTable.RowSelected, "Metrics RowTable")
    async def _chosen_metric(self) -> None:
        if metric := self._metric():
            await self.enlarge(chart_of(metric))

    async def enlarge(self, spec: ChartSpec) -> None:
        """Show one chart on the whole page."""
        await self._fill("chart")
        self.query_one("#chart RunChart", RunChart).spec = spec
        self.query_one(TabbedContent).show_tab("chart")
        self.action_open("chart")
        self.draw()

    @property
    def _charts(self) -> list[RunChart]:
        return list(self.page.query(RunChart)) if self.page else []

    def action_home(self) -> None:
        """End a search; then show what was listed before; then go to the first page."""
        said = self.page.back() if isinstance(self.page, Completions | Metrics) else None
        if self.screen.query("HelpPanel"):
            self.action_keys()
        elif said is None:
            self.action_open("overview")
        elif said:
            self.say(said)

    def action_scroll(self, by: int) -> None:
        """Scroll the help, the text of a completion, or a page of lines; move a bar by a page."""
        if panels := self.screen.query("KeyPanel"):
            panels.first().scroll_relative(y=by * SCROLLED, animate=False)
        elif self.browser and self.browser.display:
            self.browser.scroll_text(SCROLLED * by)
        elif isinstance(self.page, Metrics):
            table = self.page.query_one(RowTable)
            (table.action_page_down if by > 0 else table.action_page_up)()
        elif self.page:
            views = self.page.query("RowTable, VerticalScroll")
            able = [one for one in views if (one.scroll_y < one.max_scroll_y if by > 0 else one.scroll_y > 0)]
            lines = min((one.scrollable_content_region.height - 1 for one in able), default=0)
            for view in able:  # by as much, so that no line of any is passed
                view.scroll_relative(y=by * max(lines, 1), animate=False)

    def action_columns(self, by: int) -> None:
        """Scroll tables that are wider than their frames, by a column."""
        for table in self.page.query(RowTable) if self.page else ():
            table.scroll_relative(x=by, animate=False)

    async def action_search(self) -> None:
        if self.at == "metrics":
            await self._fill("metrics")
            cast("Metrics", self.page).open_search()
        else:
            (await self._completions()).open_search()

    async def _completions(self) -> Completions:
        """Open the page of completions, on what the first page has of them."""
        before = self.browser
        await self._fill("completions")
        page = self.query_one("#completions Completions", Completions)
        self.action_open("completions")
        page.show(self.snapshot())
        if before and before is not page and before.display:
            page.take(before)
        return page

    def action_keys(self) -> None:
        if self.screen.query("HelpPanel"):
            self.action_hide_help_panel()
        else:
            self.action_show_help_panel()
        self.call_after_refresh(self.screen.refresh_bindings)

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """Every page and every action by its name; Textual's palette of commands asks for them."""
        for page in self.pages:
            yield SystemCommand(f"page {page}", "tab turns pages", lambda page=page: self.action_open(page))
        for key in KEYS:
            if not key.action.startswith("refuse") and self._check_action_state(key.action, self):
                title = f"{key.description} {key.tooltip}".strip()
                first = replace(key, key=key.key.split(",")[0])
                help = f"key: {self.get_key_display(first)}"
                yield SystemCommand(title, help, lambda key=key: self.run_action(key.action))

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Whether an action works now: on this page, and for this run."""
        modal = isinstance(self.screen, ModalScreen)
        now = self.moment
        match action:
            case _ if action in OPENING and (modal or isinstance(self.screen.focused, Input)):
                return False
            case "leave":
                return not (modal and parameters)
            case "request" | "stop":
                if now is None or not now.asks:
                    return False
                return action == "stop" or (parameters == ("pause",)) is not self.watched.requested("pause")
            case "home":
                return self.at != "overview" or bool(self.screen.query("HelpPanel")) or modal
            case "refuse":
                return now is not None and not now.asks
            case "browse" | "copy":
                return self.browser is not None and self.browser.display
            case "all" if self.options.view == View():
                return False
            case _ if action in ON:
                return self.at in ON[action]
        return True

    # charts

    def action_pin(self) -> None:
        """Put the metric under the bar, or the enlarged one, first on the page of charts, or take it off."""
        name = self._metric()
        if name is None or name not in self.watched.series:
            self.say("pins a metric of the page of metrics")
            return
        kept = tuple(one for one in self.options.pinned if one != name)
        off = kept != self.options.pinned
        self._change(pinned=kept if off else (*kept, name)[-MOST_PINNED:])
        self.say(f"{name} is off the page of charts" if off else f"{name} comes first on the page of charts")
        if isinstance(self.page, Metrics):
            self.page.follow(name)

    def _metric(self) -> str | None:
        """The metric under the bar, or that of the enlarged chart."""
        if isinstance(self.page, Metrics):
            return self.page.metric
        return next((chart.spec.title for chart in self._charts), None)

    def action_log(self) -> None:
        """Switch the scale of the enlarged chart, or of all charts where a logarithm means something."""
        shown = [chart.spec for chart in self._charts] if self.at == "chart" else CHARTS
        possible = {spec.title for spec in shown if log_is_possible(self.snapshot(), spec)}
        if possible:
            self._change(logs=self.options.logs ^ possible)
        else:
            self.say("no logarithmic scale: there are values of 0 or below")

    def action_export(self) -> None:
        metric = self._metric()
        if metric is None:
            self.say("no metric has this in its name")
            return
        spec = chart_of(metric) if isinstance(self.page, Metrics) else self._charts[0].spec
        self.say(exported(self.snapshot(), spec, Path.cwd(), self.ansi_theme))

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
        self._change(view=self.options.view.zoomed(self.snapshot().whole, factor))

    def action_pan(self, by: int) -> None:
        if not self.options.view.steps:
            self.say("all steps are in view: + zooms in")
        self._change(view=self.options.view.panned(self.snapshot().whole, by))

    def action_all(self) -> None:
        self._change(view=View())

    def action_cursor(self, by: int) -> None:
        for chart in self._charts[:1]:
            self._change(view=self.options.view.stepped(self.snapshot().whole, by, 2 * chart.size.width))

    # completions

    def action_browse(self, what: str, *by: int) -> None:
        getattr(self.browser, what)(*by)

    async def action_history(self) -> None:
        (await self._completions()).over_time()

    async def action_tests(self) -> None:
        (await self._completions()).test_split()

    def action_copy(self) -> None:
        """Copy the completion to the clipboard, if the terminal allows it."""
        what, text = self.browser.copied() if self.browser else ("", "")
        if text:
            self.copy_to_clipboard(text)
            self.say(f"sent {what} to the clipboard")

    @on(events.TextSelected)
    def _copy_selected(self) -> None:
        if text := self.screen.get_selected_text():
            self.copy_to_clipboard(text)
            self.say(f"sent {len(text)} selected characters to the clipboard")

    # runs

    async def action_runs(self) -> None:
        """List all runs of the directory, and show the chosen ones."""
        shown = [run.paths for run in (self.watched, *self.others)]
        switcher = RunSwitcher(shown, queued=self._queued, grouped=self.options.grouped)

        def chosen(runs: list[RunPaths] | None) -> None:
            self._change(grouped=switcher.grouped)
            self._chosen(runs)

        await self.push_screen(switcher, chosen)

    def _queued(self) -> Sequence[str]:
        grid = self.snapshot().grid
        return grid.left if grid and grid.alive else ()

    def _chosen(self, runs: list[RunPaths] | None) -> None:
        if runs:
            if len(runs) == 1 and self.at == "compare":  # which is gone then
                self.action_open("overview")
            self.show_runs(runs)
            self._following = runs == [self._grid.under_way()]
            if len(runs) > 1:
                self.action_open("compare")

    async def action_refuse(self, request: Request) -> None:
        """Say why the run does not take a request, unless the grid does."""
        if self._answering(request):
            await self.action_stop()

    async def action_stop(self) -> None:
        """Ask the run to stop, and so the grid after it, once the user has typed the word that confirms it."""
        grid = self.snapshot().grid
        what = grid.stop_question if grid else "The run finishes its step, saves and ends; it can be resumed."
        await self.push_screen(InputDialog(f"{what}\nType {CONFIRM} to stop it."), self._confirmed)

    def _confirmed(self, answer: str | None) -> None:
        if answer == CONFIRM:
            self.action_request("stop")
        else:
            self.say("not stopped")

    def _answering(self, request: Request) -> RunPaths | None:
        """Return the run that takes a request: the one that is shown, or, while a grid loads its next run, the one
        before. Say why where none does."""
        now = self.snapshot()
        state, grid = now.run_state, now.grid
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

    def action_request(self, request: Request) -> None:
        """Ask for it, unless nothing takes it."""
        if paths := self._answering(request):
            try:
                withdraw(paths, "pause") if request == "resume" else make_request(paths, request)
                if request == "resume":
                    self.say("the run continues")
                elif not self.snapshot().run_state.answers:
                    self.say("the grid ends before its next run, or in the first step of it")
            except SmolsumError as error:
                self.say(str(error))
        self._poll()

    def action_theme(self) -> None:
        self.theme = LIGHT.name if self.current_theme.dark else DARK
        self.draw()

    def action_leave(self, always: bool = False) -> None:
        self.exit()


def screen_text(app: App[None]) -> list[str]:
    return ["".join(segment.text for segment in strip).rstrip() for strip in app.screen._compositor.render_strips()]


def plain_page(run: Run, others: Sequence[Run], options: ViewOptions, size: tuple[int, int]) -> list[str]:
    """Return the first page of a view of this size as lines of plain text: the app runs without a terminal."""

    async def drawn() -> list[str]:
        app = WatchApp(run, others, options=options, readonly=True)
        async with app.run_test(size=size) as pilot:
            return (await settled(app, pilot))[:-1]

    return asyncio.run(drawn())


async def settled(app: RunView, pilot: Pilot[None]) -> list[str]:
    """Return the lines on the screen once a new drawing, in the sizes that widgets have by then, changes nothing, and
    the keys, which come last, are there."""
    app.polls.pause()
    before, shown = [""], [""]
    for _ in range(MOST_DRAWINGS):
        app.draw()
        await pilot.pause()
        before, shown = shown, screen_text(app)
        if shown == before and shown[-1]:
            break
    app.polls.resume()
    return shown
