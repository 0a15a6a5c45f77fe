"""Completions as tables next to their texts: one list at a time, with the text of what is under its bar."""

from textual import on
from textual.app import ComposeResult
from textual.containers import Container
from textual.content import Content
from textual.widgets import Input

from smolsum.runs.pairs import has_example
from smolsum.runs.reader import Run
from smolsum.runs.samples import Order
from smolsum.watch.listings import MARK, PORTION, HitList, Listing, OverTime, Rollouts, Samples, Tests
from smolsum.watch.model import Snapshot
from smolsum.watch.widgets import RowTable, SearchLine, TextView

WIDE, WIDE_FOR_HITS, SIDE_BY_SIDE = 100, 160, 120
"""The least widths for a table next to a text, for one of hits, and for two texts next to each other."""


class Completions(Container):
    """A table of completions and the text of what is under its bar; `show` gives it a moment of the run."""

    DEFAULT_CSS = """
    Completions { layout: vertical; }
    Completions #listing { layout: horizontal; height: 1fr; }
    Completions #listing > RowTable { width: 2fr; }
    Completions #texts { layout: horizontal; width: 3fr; height: 1fr; }
    Completions.-below #listing { layout: vertical; }
    Completions.-below #listing > RowTable { width: 1fr; max-height: 12; }
    Completions.-below #texts { width: 1fr; }
    Completions.-stacked #texts { layout: vertical; }
    """

    samples: Samples
    rollouts: Rollouts
    hits: HitList | None
    """those of the search, while there is one"""
    listing: Listing | None = None
    """what is listed; None before the first moment of a run"""
    _title = ""
    _busy = False
    _shown: object = None

    def compose(self) -> ComposeResult:
        yield SearchLine("a text in any sample, or the number of an example of the test split (17)")
        with Container(id="listing"):
            yield RowTable()
            with Container(id="texts"):
                yield TextView(id="before")
                yield TextView(id="after")

    @property
    def _table(self) -> RowTable:
        return self.query_one(RowTable)

    def show(self, snapshot: Snapshot) -> None:
        """Show this moment of the run; of another run everything anew."""
        if self.listing is None or self.samples.run is not snapshot.run:
            self.begin(snapshot.run)
        self._load()

    def begin(self, run: Run) -> None:
        """Forget all that belongs to the run before."""
        if self.listing is not None:
            self.samples.searches.stop()
        self.samples, self.hits, self._shown = Samples(run), None, None
        self.rollouts = self.listing = Rollouts(self.samples)

    def take(self, other: "Completions") -> None:
        """Show the step and the prompt that another one shows."""
        self.rollouts.step, self.rollouts.place = other.rollouts.step, other.rollouts.place
        self.samples.order = other.samples.order
        self._list(self.rollouts, row=other._bar)

    def on_mount(self) -> None:
        self.set_interval(0.25, self._follow)
        self.watch(self._table, "scroll_y", self._more, init=False)

    def on_resize(self) -> None:
        self._lay_out()

    def _lay_out(self) -> None:
        pairs, width = isinstance(self.listing, Tests), self.size.width
        self.set_class(pairs or width < (WIDE_FOR_HITS if isinstance(self.listing, HitList) else WIDE), "-below")
        self.set_class(width < SIDE_BY_SIDE, "-stacked")
        self.query_one("#before").display = pairs

    def _follow(self) -> None:
        if self.listing and self.is_on_screen:
            before, self._busy = self._busy, self.samples.searches.running or self.samples.pairs.running
            if before or self._busy:
                self._load()

    def _more(self) -> None:
        """Read further hits when the table is scrolled to the last one."""
        hits, at_end = self.listing, self._table.is_vertical_scroll_end
        if isinstance(hits, HitList) and at_end and hits.most < len(hits.items):
            hits.most += PORTION
            self._load()

    def _load(self, row: int | None = None) -> None:
        """List what there is by now, with the bar on this row, or where it is."""
        listing, table = self.listing, self._table
        if listing is None:
            return
        self.samples.searches.keep(*dict.fromkeys(one.wanted for one in (self.hits, listing) if one and one.wanted))
        follows = isinstance(listing, OverTime) and table.cursor_row >= table.row_count - 1
        rows = listing.rows()
        table.fill(rows)
        self._title = rows.title
        if row is not None or follows:
            table.move_cursor(row=len(rows.rows) - 1 if row is None else row)
        self._lay_out()
        self._show_text()

    def _list(self, listing: Listing, row: int | None = None) -> None:
        """List something else, with the bar on this row, or on that where it was."""
        if self.listing:
            self.listing.row = self._bar
        self.listing, row = listing, listing.row if row is None else row
        if isinstance(listing, HitList):
            listing.most = row + PORTION
        self._table.clear(columns=True)
        self._load(row or (None if isinstance(listing, OverTime) else 0))

    @property
    def _bar(self) -> int:
        return max(self._table.cursor_row, 0)

    @on(RowTable.RowHighlighted)
    def _show_text(self) -> None:
        """Show the text of what is under the bar; another one from its top, or from its first hit."""
        if (listing := self.listing) is None:
            return
        self._table.border_title = Content(self._title.replace("#", str(self._bar + 1), 1))
        item = listing.items[self._bar] if self._bar < len(listing.items) else None
        views, found = [*self.query(TextView)], listing.texts(self._bar)
        for view, text in zip(views[-len(found) :], found, strict=True):
            view.fill(text)
            if self._shown != (listing, item):
                marks = [span.start for line in text.lines for span in line.spans if span.style == MARK]
                self.call_after_refresh(view.begin, marks[0] if marks else 0)
        self._shown = (listing, item)

    # what keys do

    def open_search(self) -> None:
        self.query_one(SearchLine).open(self.samples.query)

    @on(Input.Submitted)
    def _submitted(self, event: Input.Submitted) -> None:
        """List the hits of a search; for the number or id of an example of the test split, that before and after
        training; without a text, the rollouts of a step."""
        event.stop()
        self.query_one(SearchLine).close()
        query = self.samples.query = event.value.strip()
        self.hits = HitList(self.samples, query) if query else None
        found = Tests(self.samples, query) if query and has_example(self.samples.run, query) else self.hits
        self._list(found or self.rollouts, row=0)

    def back(self) -> str | None:
        """End a search that is under way, or show what was listed before; what was done, in words, or None where there
        is nothing to go back from."""
        if self.query_one(SearchLine).close():
            return ""
        if self.samples.searches.stop():
            self._load()
            return "search stopped: what was found so far is listed"
        if self.hits and isinstance(self.listing, OverTime | Tests):
            self._list(self.hits)
        elif self.hits or self.listing is not self.rollouts:
            self.samples.query, self.hits = "", None
            self._list(self.rollouts)
        else:
            return None
        return ""

    def go_step(self, by: int) -> None:
        """Show another step, after the last one the newest as it comes; in a list another row; of the test split
        another evaluation."""
        run, rollouts = self.samples.run, self.rollouts
        if isinstance(self.listing, Tests):
            self.listing.go(by)
            self._load()
        elif self.listing is not rollouts:
            self._table.move_cursor(row=self._bar + by)
        else:
            step = (run.step if rollouts.step is None else rollouts.step) + by
            rollouts.step = None if step >= run.step else max(step, run.first_step)
            self._load(row=0)

    def go_next(self, by: int) -> None:
        """Go to the next hit of a search, or the next row of another listing; without either, to the next prompt."""
        if self.listing is not self.rollouts:
            self._table.move_cursor(row=self._bar + by)
        elif self.hits:
            self._list(self.hits, row=max(self.hits.row + by, 0))
        else:
            self.go_prompt(by)

    def go_prompt(self, by: int) -> None:
        self.rollouts.place += by
        self._load(row=0)

    @on(RowTable.HeaderSelected)
    def sort(self) -> None:
        if self.listing:
            keys, by = self.listing.sort_keys(self._bar), self.samples.order.by
            place = keys.index(by) if by in keys else -1
            self._reorder(Order(keys[(place + 1) % len(keys)], self.samples.order.backwards))

    def reverse(self) -> None:
        self._reorder(Order(self.samples.order.by, not self.samples.order.backwards))

    def _reorder(self, order: Order) -> None:
        self.samples.order = order
        self._load(None if isinstance(self.listing, OverTime) else 0)  # which keeps its order

    def over_time(self) -> None:
        """List all steps at which the prompt was sampled, the newest one under the bar; or go back."""
        if isinstance(self.listing, OverTime):
            self.back()
        elif self.listing and (found := self.listing.selected(self._bar)):
            self._list(OverTime(self.samples, found[1].prompt_id))

    def test_split(self) -> None:
        """List the test split before and after training, or go back."""
        if isinstance(self.listing, Tests):
            self.back()
        else:
            self._list(Tests(self.samples))

    def toggle_difference(self) -> None:
        self.samples.difference = not self.samples.difference
        self._show_text()

    @on(RowTable.RowSelected)
    def choose(self) -> None:
        """Show the step of the row under the bar, and the sample of that row; a hit in an evaluation over time."""
        found = self.listing.selected(self._bar) if isinstance(self.listing, HitList | OverTime) else None
        if found and not found[0].evaluation:
            group, sample = found
            self.rollouts.step, self.rollouts.place = group.step, self.samples.groups(group.step).index(group)
            self._list(self.rollouts, row=self.samples.sorted(group).index(sample))
        elif found and isinstance(self.listing, HitList):
            self.over_time()

    def copied(self) -> tuple[str, str]:
        """Return what the key for copying takes, in words, and its text; empty for nothing."""
        found = self.listing.selected(self._bar) if self.listing else None
        if found is None:
            return "", ""
        group, sample = found
        return f"{group.prompt_id} of {group.evaluation}" if group.evaluation else "the completion", sample.text

    def scroll_text(self, by: int) -> None:
        for view in self.query(TextView):
            most = max(view.scrollable_content_region.height - 1, 1)
            view.scroll_relative(y=max(min(by, most), -most), animate=False)
