"""Completions as tables next to their texts: the rollouts of a prompt at a step, what a search found, a prompt at all
its steps, the test split before and after training."""

from collections.abc import Mapping, Sequence
from typing import Literal, cast

from msgspec import structs
from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.containers import Container
from textual.content import Content
from textual.widgets import Input

from smolsum.runs.pairs import PairReader, has_example
from smolsum.runs.reader import Run
from smolsum.runs.records import SampledRollout
from smolsum.runs.samples import (
    Group,
    Order,
    asked_and_got,
    clean,
    first_group,
    ordered,
    read_groups,
    scores_of,
    sort_keys,
)
from smolsum.runs.search import Searches, Wanted
from smolsum.watch.formats import ORANGE, PaneText, Rows
from smolsum.watch.listings import (
    GONE,
    MARK,
    Look,
    hit_row,
    progress_of,
    rollout,
    rollout_rows,
    searched,
    side,
    test_rows,
    time_rows,
)
from smolsum.watch.model import Snapshot
from smolsum.watch.widgets import RowTable, TextView

Listing = Literal["step", "hits", "time", "tests"]
PORTION = 200
"""Hits whose lines are read at once: at first, and when the bar comes near the last one."""
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

    _run: Run | None = None
    _searches: Searches

    def compose(self) -> ComposeResult:
        placeholder = "a text in any sample, or the number of a prompt (17)"
        search = Input(placeholder=placeholder, select_on_focus=True, compact=True)
        search.display = False
        yield search
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
        if self._run is not snapshot.run:
            self.begin(snapshot.run)
        self._load()

    def begin(self, run: Run) -> None:
        """Forget all that belongs to the run before."""
        if self._run is not None:
            self._searches.stop()
        self._run = run
        self._searches, self._pairs = Searches(run), PairReader(run)
        self.listing: Listing = "step"
        self.query_text = self._prompt = ""
        self.step: int | None = None
        """None: the newest one"""
        self.group = 0
        """index of the prompt of the step"""
        self.order = Order()
        self.difference = False
        self._later = -1
        self._bars: dict[str, int] = {}
        """the row under the bar of each listing that was left"""
        self._groups: tuple[Group, ...] = ()
        self._groups_of: int | None = None
        self._first: tuple[Group | None, Group | None] = (None, None)
        """a group, and the first rollouts of its prompt"""
        self._scores: tuple[str, Mapping[str, Mapping[str, float | None]]] = ("", {})
        self._most = PORTION
        self._lines: dict[int, Sequence[str | Text]] = {}
        """the rows of hits that were read"""
        self._shown: object = None

    def take(self, other: "Completions") -> None:
        """Show the step and the prompt that another one shows."""
        self.step, self.group, self.order = other.step, other.group, other.order
        self._list("step", row=other._bar)

    def on_mount(self) -> None:
        self.set_interval(0.25, self._follow)
        self.watch(self._table, "scroll_y", self._more, init=False)

    def on_resize(self) -> None:
        self._lay_out()
        if self._run is not None:
            self.call_after_refresh(self._load)  # the notes in the frames have another width

    def _lay_out(self) -> None:
        pairs, width = self._run is not None and self.listing == "tests", self.size.width
        searched = self._run is not None and self.listing == "hits"
        self.set_class(pairs or width < (WIDE_FOR_HITS if searched else WIDE), "-below")
        self.set_class(width < SIDE_BY_SIDE, "-stacked")
        self.query_one("#before").display = pairs

    def _follow(self) -> None:
        """Show how far searches are."""
        if self._run is not None and self.is_on_screen:
            progress = self._searches.progress(), self._pairs.running
            if progress != self._progress:
                self._load()

    _progress: object = None

    def _more(self) -> None:
        """Read further hits when the table is scrolled to the last one."""
        if (
            self._run
            and self.listing == "hits"
            and self._most < len(self._items)
            and self._table.is_vertical_scroll_end
        ):
            self._most += PORTION
            self._load()

    # what is listed

    def _load(self) -> None:
        wanted = [Wanted(text=self.query_text)] if self.query_text else []
        self._searches.keep(*wanted, *([Wanted(prompt_id=self._prompt)] if self.listing == "time" else []))
        table = self._table
        follows = self.listing == "time" and table.cursor_row >= table.row_count - 1
        make = {"step": self._rollouts, "hits": self._hits, "time": self._over_time, "tests": self._tests}[self.listing]
        rows = make()
        table.fill(rows)
        if follows:
            table.to(len(rows.rows) - 1)
        self._progress = self._searches.progress(), self._pairs.running
        self._lay_out()
        self._show_text()

    def _list(self, listing: Listing, *, row: int | None = None) -> None:
        """List something else, with the bar on this row, or on that where it was."""
        self._bars[self.listing] = self._table.cursor_row
        self.listing, self._most = listing, PORTION
        row = self._bars.get(listing, 0) if row is None else row
        while listing == "hits" and row >= self._most:
            self._most += PORTION
        self._table.forget()
        self._load()
        if listing != "time" or row:
            self._table.to(row)
        self._show_text()
        self._lay_out()

    @property
    def _bar(self) -> int:
        return max(self._table.cursor_row, 0)

    @property
    def _here(self) -> Run:
        assert self._run is not None
        return self._run

    def _rollouts(self) -> Rows:
        step = self.step if self.step is not None else self._here.step
        if step != self._groups_of:
            groups = read_groups(self._here.paths, step)
            if groups or self.step is not None:  # while the newest step is being written, the one before stays
                self._groups, self._groups_of = groups, step
        self._items: Sequence[object] = ()
        if not self._groups:
            return Rows("", "", [""], [["no completions of this step"]])
        group, order = self._groups[self.group % len(self._groups)], self.order
        kept = self._items = ordered(group, order.by, self._here.settings, backwards=order.backwards)
        several = len({sample.worker for one in self._groups for sample in one.samples}) > 1
        last = "error" if order.by == "error" else "worker" if several else ""
        return rollout_rows(group, kept, self._here.settings, last, self._order_note())

    def _hits(self) -> Rows:
        wanted = Wanted(text=self.query_text)
        scan = self._searches.of(wanted)
        order = self._items = self._searches.order(wanted, self.order)
        if (wanted, self.order) != self._lines_of:
            self._lines, self._lines_of = {}, (wanted, self.order)
        note = progress_of(scan) or self._order_note()
        if not order:
            return Rows("", note, [""], [[searched(scan)]])
        shown = self.order.by if scan.hits.column(self.order.by) is not None else "reward"
        for hit in order[: self._most]:
            if hit not in self._lines:
                self._lines[hit] = hit_row(scan, hit, shown, self.query_text, self._here.settings)
        left, titles = ("from", "prompt", "text"), ["from", "prompt", "#", shown, "text"]
        return Rows("", note, titles, [self._lines[hit] for hit in order[: self._most]], left)

    _lines_of: object = None

    def _heading(self) -> str:
        """What is listed, and where the bar is."""
        count, here = len(self._items), f"{self._bar + 1}/{len(self._items)}" if self._items else ""
        match self.listing:
            case "step" if self._groups:
                place = self.group % len(self._groups)
                return f"step {self._groups[place].step} prompt {place + 1}/{len(self._groups)}"
            case "step":
                return f"step {self.step if self.step is not None else self._here.step}"
            case "hits":
                hits = self._searches.of(Wanted(text=self.query_text)).hits.count
                return f"hit {self._bar + 1}/{hits} /{self.query_text}" if count else f"no hit /{self.query_text}"
            case "time":
                return f"{clean(self._prompt)} over time {here}"
            case "tests":
                return f"example {here}" if here else "before and after"

    def _over_time(self) -> Rows:
        scan = self._searches.of(Wanted(prompt_id=self._prompt))
        self._items = scan.hits.spans()
        return time_rows(scan, "" if self.order.by == "sample" else f"first {self._order_note()}")

    def _tests(self) -> Rows:
        tests = self._tested = self._pairs.read(self._later, self.order, self._prompt)
        self._items = tests.examples
        return test_rows(self._here, tests, self.order.by, self._order_note())

    def _order_note(self) -> str:
        natural = self.order.by == "sample" and self.listing != "step"
        searched = f"  /{self.query_text}" if self.query_text and self.listing != "hits" else ""
        return f"by {'order' if natural else self.order.by}{', reversed' * self.order.backwards}{searched}"

    # the text under the bar

    @on(RowTable.RowHighlighted)
    def _highlighted(self) -> None:
        if self._run is not None:
            if self.listing == "hits" and self._items and self._bar >= self._table.row_count - 1:
                self._more()
            self._show_text()

    def selected(self) -> tuple[Group | None, SampledRollout | None]:
        """Return the rollout under the bar with its group; nothing where its file is gone."""
        if not self._items or self._bar >= len(self._items):
            return None, None
        if self.listing == "step":
            group = self._groups[self.group % len(self._groups)]
            return group, ordered(group, self.order.by, self._here.settings, backwards=self.order.backwards)[self._bar]
        if self.listing == "tests":
            return None, None
        time = self.listing == "time"
        scan = self._searches.of(Wanted(prompt_id=self._prompt) if time else Wanted(text=self.query_text))
        item = self._items[self._bar]
        span = item if isinstance(item, range) else range(cast("int", item), cast("int", item) + 1)
        samples = [sample for hit in span if (sample := scan.sample(hit)) is not None]
        if not samples:
            return None, None
        source, first = scan.hits.source(span[0]), samples[0]
        if isinstance(source, str):
            if self._scores[0] != source:
                self._scores = source, scores_of(self._here.paths.evaluations / source)
            measured = self._scores[1].get(first.prompt_id, {})
            first = structs.replace(first, rewards={clean(name): value for name, value in measured.items()})
            group = Group(-1, clean(first.prompt_id), "", (), (first, *samples[1:]), evaluation=source)
            return group, first
        if source != self._groups_of:
            self._groups, self._groups_of = read_groups(self._here.paths, source), source
        found = next((one for one in self._groups if one.samples[0].prompt_id == first.prompt_id), None)
        if found is None:
            return None, None
        if time:
            return found, ordered(found, self.order.by, self._here.settings, backwards=self.order.backwards)[0]
        return found, next((one for one in found.samples if one.number == first.number), None)

    def _show_text(self) -> None:
        before, after = self.query_one("#before", TextView), self.query_one("#after", TextView)
        self._table.border_title = Content(self._heading())
        item = self._items[self._bar] if self._bar < len(self._items) else None
        if self.listing == "tests":
            for view in (before, after):
                view.fill(side(self._here, self._tested, str(item or ""), view.id or "", self._look))
            return
        group, sample = self.selected()
        if group is None or sample is None:
            after.fill(PaneText("text", "", (Text(GONE if item is not None else "", style=ORANGE),)))
            return
        first = None
        if self.difference and not group.evaluation:
            if self._first[0] is not group:
                self._first = group, first_group(self._here.paths, group, self._here.first_step)
            first = self._first[1]
        text = rollout(self._here, group, sample, first, self._look, repeated=self.listing != "step")
        named = f" of {group.evaluation or f'step {group.step}'}, {group.prompt_id}" if self.listing != "step" else ""
        note = f"{asked_and_got(sample, self._here.settings)}{', cut' if sample.truncated else ''}"
        after.fill(PaneText(f"rollout {sample.number + 1}{named}", note, (text,)))
        shown = (self.listing, self._groups_of, item if self.listing != "step" else (self.group, self._bar), self.order)
        if shown != self._shown:  # scroll another text to its top, or to its first hit
            self._shown = shown
            marks = [span.start for span in text.spans if span.style == MARK]
            self.call_after_refresh(after.begin, marks[0] if marks else 0)

    @property
    def _look(self) -> Look:
        return Look(self.query_text, self.order.by, self.difference)

    # what keys do

    def open_search(self) -> None:
        """Ask for what is searched for."""
        search = self.query_one(Input)
        search.value, search.display = self.query_text, True
        self.screen.set_focus(search)

    @on(Input.Submitted)
    def _submitted(self, event: Input.Submitted) -> None:
        """List the hits of a search; for the number or id of an example of the test split, that before and after
        training; without a text, the rollouts of a step."""
        event.stop()
        self.close_search()
        self.query_text, self._bars = event.value.strip(), {}
        if self.query_text and has_example(self._here, self.query_text):
            self._prompt, self._later = self.query_text, -1
            self._list("tests")
        else:
            self._list("hits" if self.query_text else "step")

    def close_search(self) -> bool:
        """Put the line of input away; whether it was there."""
        search = self.query_one(Input)
        was, search.display = search.display, False
        self.screen.set_focus(self._table)
        return bool(was)

    def back(self) -> str | None:
        """End a search that is under way, or show what was listed before; what was done, in words, or None where there
        is nothing to go back from."""
        if self.close_search():
            return ""
        if self._searches.stop():
            self._load()
            return "search stopped: what was found so far is listed"
        if self.listing in ("time", "tests") and self.query_text:
            self._list("hits")
        elif self.listing != "step" or self.query_text:
            self.query_text = ""
            self._list("step")
        else:
            return None
        return ""

    def move(self, by: int) -> None:
        """Move the bar; over the hits that are not read yet, too."""
        self._table.to(self._bar + by)

    def go_step(self, by: int) -> None:
        """Show another step, after the last one the newest as it comes; in a list another row; of the test split
        another evaluation."""
        run = self._here
        if self.listing in ("hits", "time"):
            self.move(by)
        elif self.listing == "tests":
            names = self._tested.names
            here = names.index(self._tested.after.name) if self._tested.after.name in names else 0
            self._later = min(max(here + by, 0), max(len(names) - 1, 0))
            self._load()
        else:
            step = (self.step if self.step is not None else run.step) + by
            self.step = None if step >= run.step else max(step, run.first_step)
            self._load()
            self._table.to(0)

    def go_next(self, by: int) -> None:
        """Go to the next hit of a search, or the next row of another listing; without either, to the next prompt."""
        if self.listing != "step":
            self.move(by)
        elif self.query_text:
            self._list("hits", row=max(self._bars.get("hits", 0) + by, 0))
        else:
            self.go_prompt(by)

    def go_prompt(self, by: int) -> None:
        self.group = (self.group + by) % max(len(self._groups), 1)
        self._load()
        self._table.to(0)

    def sort(self) -> None:
        """Sort by the next column."""
        if self.listing == "hits":
            keys = self._searches.of(Wanted(text=self.query_text)).hits.sort_keys()
        elif self.listing == "tests":
            keys = self._tested.sort_keys
        else:
            group, _ = self.selected()
            keys = sort_keys(group) if group else ["sample"]
        place = keys.index(self.order.by) if self.order.by in keys else -1
        self._reorder(Order(keys[(place + 1) % len(keys)], self.order.backwards))

    def reverse(self) -> None:
        self._reorder(Order(self.order.by, not self.order.backwards))

    def _reorder(self, order: Order) -> None:
        self.order, self._most = order, PORTION
        self._load()
        if self.listing != "time":  # which keeps its order
            self._table.to(0)

    def over_time(self) -> None:
        """List all steps at which the prompt was sampled, the newest one under the bar; or go back."""
        if self.listing == "time":
            self.back()
            return
        _, sample = self.selected()
        item = self._items[self._bar] if self.listing == "tests" and self._items else ""
        if prompt := str(item) or (sample.prompt_id if sample else ""):
            self._prompt = prompt
            self._bars.pop("time", None)
            self._list("time")

    def test_split(self) -> None:
        """List the test split before and after training, or go back."""
        if self.listing == "tests":
            self.back()
        else:
            self._prompt, self._later = "", -1
            self._list("tests", row=0)

    def toggle_difference(self) -> None:
        self.difference = not self.difference
        self._show_text()

    @on(RowTable.RowSelected)
    def choose(self) -> None:
        """Show the step of the row under the bar, and the sample of that row; a hit in an evaluation over time."""
        group, sample = self.selected()
        if self.listing not in ("hits", "time") or group is None or sample is None:
            return
        if group.evaluation:
            if self.listing == "hits":
                self.over_time()
            return
        kept = ordered(group, self.order.by, self._here.settings, backwards=self.order.backwards)
        self.step, self.group = group.step, self._groups.index(group)
        self._list("step", row=kept.index(sample))

    @on(RowTable.HeaderSelected)
    def _head_clicked(self) -> None:
        self.sort()

    def copied(self) -> tuple[str, str]:
        """Return what the key for copying takes, in words, and its text; empty for nothing."""
        if self.listing == "tests":
            if not self._items:
                return "", ""
            name, after = str(self._items[self._bar]), self._tested.after
            return f"{name} of {after.name}", after.samples[name].text
        _, sample = self.selected()
        return ("the completion", sample.text) if sample else ("", "")

    def scroll_columns(self, by: int) -> None:
        self._table.scroll_relative(x=by, animate=False)

    def scroll_text(self, by: int) -> None:
        for view in self.query(TextView):
            view.scroll_relative(y=by, animate=False)
