"""The pages of the view: which widgets each one has, and how they lie in a terminal of any size."""

from collections.abc import Callable

from rich.text import Text
from textual import events, on
from textual.app import ComposeResult
from textual.containers import Container, Horizontal, VerticalScroll
from textual.widgets import Input

from smolsum.linechart.scale import number
from smolsum.runs.samples import clean
from smolsum.watch.charts import CARD, CHARTS, VALIDATION, RunChart, chart_of, sparkline
from smolsum.watch.completions import Completions
from smolsum.watch.formats import SKY, VALUE_WIDTH, Rows, ending
from smolsum.watch.model import Snapshot
from smolsum.watch.panes import alerts, constraints, run_log, settings, sparklines, times, workers
from smolsum.watch.results import comparison, differences, results, states
from smolsum.watch.widgets import MOST_LINES, Pane, RowTable, SearchLine, TextView, moment_of

MAX_NAME = 44
"""Characters of a metric's name; of a longer one the end is shown."""
MIN_COURSE = 8
STACKED = 30
"""Lines of a page from which its tables can be below each other."""
NARROW = 100
"""Columns of a page below which its tables are below each other at any height."""
FRAME = 2
LEAST_ALERTS = 4
"""Lines of the alerts on the first page, however much room workers and step times take."""
SPARKLINES = 13
"""Lines of the pane that has a line for each chart: nothing is below it on a page that is no higher."""


class ViewPage(Container):
    """What is drawn anew from each moment of the run while the page is open."""

    SCOPED_CSS = False  # the screen has classes for its size
    DEFAULT_CSS = """
    Overview #sparklines { display: none; height: 13; max-height: 100%; }
    Overview #charts { height: 2fr; layout: grid; grid-size: 3; grid-rows: 1fr; }
    Overview #side { height: 100%; scrollbar-size-vertical: 1; scrollbar-gutter: stable; }
    Overview #side Pane { height: auto; }
    Overview #side Pane.-quiet { display: none; }
    Overview Completions { height: 1fr; }
    Overview .-more { display: none; }
    Overview.-quiet #side { display: none; }
    Overview.-quiet #chart5 { display: block; }
    .-higher Overview #side { row-span: 2; }
    .-higher Overview #chart5, .-higher Overview #chart6 { display: block; }
    .-higher Overview.-quiet .-more { display: block; }
    .-narrow Overview RunChart, .-low Overview RunChart, .-narrow Overview Completions, .-low Overview Completions,
    .-narrow Overview.-quiet RunChart, .-low Overview.-quiet RunChart { display: none; }
    .-narrow Overview #sparklines, .-low Overview #sparklines { display: block; }
    .-narrow Overview #charts, .-low Overview #charts { layout: vertical; height: 1fr; }
    .-narrow Overview.-lowest #charts, .-low Overview.-lowest #charts { display: none; }
    ComparedRuns #states { height: auto; max-height: 50%; }
    ComparedRuns.-stacked #states { max-height: 40%; }
    ComparedRuns.-stacked Horizontal { layout: vertical; }
    ComparedRuns.-stacked #differences { height: auto; max-height: 50%; }
    ViewPage > Horizontal { height: 1fr; }
    Charts { layout: grid; grid-size: 3; grid-rows: 1fr; }
    .-narrow Charts, .-low Charts { grid-size: 2; }
    .-narrow Charts .-more, .-low Charts .-more { display: none; }
    #alerts ViewPage { layout: horizontal; }
    #alerts VerticalScroll { scrollbar-size-vertical: 1; }
    #alerts VerticalScroll Pane { height: auto; min-height: 3; }
    .-narrow #alerts ViewPage { layout: vertical; }
    .-narrow #results Horizontal, .-low #results Horizontal { display: none; }
    """

    def show(self, snapshot: Snapshot) -> None:
        drawn: list[Pane | RowTable | TextView] = [*self.query(Pane), *self.query(RowTable), *self.query(TextView)]
        for widget in drawn:
            widget.show(snapshot)


class Overview(ViewPage):
    """Charts above the newest completions; alerts, workers and step times while they have something to say, in the
    places of charts, but never of the first CARD. A small terminal has a line for each chart."""

    def compose(self) -> ComposeResult:
        yield Pane(sparklines, id="sparklines")
        with Container(id="charts"):
            for place, spec in enumerate(CHARTS):
                if place == CARD:
                    with VerticalScroll(id="side", can_focus=False):
                        for draw in (alerts, constraints, workers, times):
                            yield Pane(draw)
                yield RunChart(spec, id=f"chart{place}", classes="-more" if place >= CARD else "")
        yield Completions()

    def on_resize(self, event: events.Resize) -> None:
        self.set_class(event.size.height <= SPARKLINES, "-lowest")

    def show(self, snapshot: Snapshot) -> None:
        side = self.query_one("#side")
        first, *others = side.query(Pane)
        taken = sum(len(pane.drawn.lines) + FRAME for pane in others if pane.drawn.news)
        if side.size:  # a page that is being opened has none yet
            first.most = max(min(side.size.height - taken - FRAME, MOST_LINES), LEAST_ALERTS)
        super().show(snapshot)
        self.set_class(all(pane.has_class("-quiet") for pane in self.query("#side Pane")), "-quiet")
        completions = self.query_one(Completions)
        if completions.display:
            completions.show(snapshot)


class Charts(ViewPage):
    """All charts, and those of the metrics that the user put first."""

    _pinned: tuple[str, ...] = ()

    def compose(self) -> ComposeResult:
        specs = [*(chart_of(name) for name in self._pinned), *CHARTS][: len(CHARTS)]
        for place, spec in enumerate(specs):
            yield RunChart(spec, classes="-more" if place > CARD else "")

    def show(self, snapshot: Snapshot) -> None:
        if self._pinned != snapshot.options.pinned:
            self._pinned = snapshot.options.pinned
            self.refresh(recompose=True)
            self.call_after_refresh(self.show, snapshot)
        super().show(snapshot)


class Metrics(ViewPage):
    """A row for each metric: a mark if it is pinned, name, newest value, least, greatest, course."""

    def compose(self) -> ComposeResult:
        yield SearchLine("metrics with this in their name")
        yield RowTable()

    @property
    def metric(self) -> str | None:
        """The metric under the bar; None if the filter leaves none."""
        names, row = self._names(), self.query_one(RowTable).cursor_row
        return names[row] if 0 <= row < len(names) else None

    def _names(self) -> list[str]:
        """The metrics whose names contain the filter, in any case: pinned ones first, then by name."""
        now, wanted = moment_of(self), self.query_one(Input).value.strip().lower()
        found = [name for name in now.run.series if wanted in name.lower()] if now else []
        return sorted(found, key=lambda name: (now is not None and name not in now.options.pinned, name))

    def show(self, snapshot: Snapshot) -> None:
        names, series, table = self._names(), snapshot.run.series, self.query_one(RowTable)
        wanted = self.query_one(Input).value.strip()
        note = f"{len(names)} of {len(series)}" + (f"  /{wanted}" if wanted else "")
        if not names:
            nothing = f"no metric has {wanted!r} in its name" if wanted else "no step yet"
            table.fill(Rows("metrics", note, [""], [[nothing]]))
            return
        room = table.size.width - 3 * VALUE_WIDTH - 16
        most = min(max(room - MIN_COURSE, MIN_COURSE), MAX_NAME)
        shown = [ending(clean(name), most) for name in names]
        room = max(room - max(map(len, shown)), MIN_COURSE)
        rows: list[list[str | Text]] = []
        for name, title in zip(names, shown, strict=True):
            one, style = series[name], SKY if name in snapshot.options.pinned else ""
            values = (one.last, one.low, one.high) if one.count else (one.last, None, None)
            course = sparkline(snapshot, room, chart_of(name), name_width=0, value_width=0)
            rows.append([Text("*" if style else " ", style), Text(title, style), *map(number, values), course])
        titles = ["", "metric", "newest", "least", "most", "course"]
        table.fill(Rows("metrics", note, titles, rows, left=("", "metric", "course")))

    def follow(self, name: str) -> None:
        """Keep the bar on a metric whose row moves."""
        if name in self._names():
            self.call_after_refresh(lambda: self.query_one(RowTable).move_cursor(row=self._names().index(name)))

    def open_search(self) -> None:
        search = self.query_one(SearchLine)
        search.open(search.value)

    def back(self) -> str | None:
        """Put the filter away; None without a filter."""
        search = self.query_one(SearchLine)
        search.value = ""
        return "" if search.close() else None

    @on(Input.Changed)
    def _filter(self) -> None:
        if now := moment_of(self):
            self.query_one(RowTable).move_cursor(row=0)
            self.show(now)

    @on(Input.Submitted)
    def _filtered(self) -> None:
        self.screen.set_focus(self.query_one(RowTable))


class ComparedRuns(ViewPage):
    """Runs next to each other: the state of each, the settings that differ, the results; those below each other where
    one is wider than half of a page that is high enough or narrow."""

    def compose(self) -> ComposeResult:
        yield RowTable(states, id="states")
        yield Horizontal(RowTable(differences, id="differences"), RowTable(comparison))

    def show(self, snapshot: Snapshot) -> None:
        super().show(snapshot)
        tables = self.query("Horizontal RowTable").results(RowTable)
        wide = any(sum(table.widths) > self.size.width // 2 - 2 for table in tables)
        self.set_class(wide and (self.size.height >= STACKED or self.size.width < NARROW), "-stacked")


def _results() -> ViewPage:
    """What each stage did to the headline metrics, above the charts of the reward and of validations."""
    validation = next(spec for spec in CHARTS if spec.title == VALIDATION)
    return ViewPage(RowTable(results), Horizontal(RunChart(CHARTS[0]), RunChart(validation)))


def _alerts() -> ViewPage:
    """Alerts with advice, next to workers, constraints and step times."""
    return ViewPage(TextView(alerts), VerticalScroll(Pane(workers), Pane(constraints), Pane(times), can_focus=False))


PAGES: dict[str, Callable[[], ViewPage | Completions]] = {
    "overview": Overview,
    "compare": ComparedRuns,
    "charts": Charts,
    "metrics": Metrics,
    "completions": Completions,
    "results": _results,
    "alerts": _alerts,
    "log": lambda: ViewPage(TextView(run_log, newest_last=True)),
    "config": lambda: ViewPage(TextView(settings)),
    "chart": lambda: ViewPage(RunChart(CHARTS[0])),
}
"""In the order of the tab key; `compare` is there for several runs, `chart` while one is enlarged."""
