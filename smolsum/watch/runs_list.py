"""The list of all runs of a directory, over the view: filter, sort, group those that differ in their seed alone, show
another run, compare several."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from statistics import fmean, stdev
from typing import ClassVar, cast

from rich.text import Text
from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.reactive import reactive
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from smolsum.config.differences import group_seeds, told_apart
from smolsum.config.presets import leaves
from smolsum.console import duration
from smolsum.runs.listing import RunLine, RunList
from smolsum.runs.paths import RunPaths
from smolsum.runs.samples import clean
from smolsum.runs.state import TROUBLE
from smolsum.watch.charts import RUNS
from smolsum.watch.formats import DIM, RED, Rows, ending
from smolsum.watch.panes import STATE_STYLE
from smolsum.watch.widgets import KeyLine, RowTable

PORTION_S = 0.05
"""Seconds of reading after which the list of runs is drawn and keys work."""
REFRESH_S = 1.0
MAX_QUEUED = 6
"""runs of a grid still to be trained that are named"""
MOST_NAME, LEAST_NAME, LEAST_SETTING = 40, 20, 10
"""Characters of a run's name or a group's setting, by how much room there is; of a longer one the end is shown."""
BETWEEN = 2
"""Blanks between columns."""


@dataclass(frozen=True)
class RunRow:
    """A row of the list: a run, or a group of runs that differ in their seed alone."""

    lines: Sequence[RunLine]
    """of its runs, the newest first"""
    name: Mapping[str, str]
    """cells that tell it from other rows: the name of a run; of a group the number of runs, and settings"""

    @property
    def roots(self) -> list[Path]:
        return [line.run.paths.root for line in self.lines]

    def matches(self, query: str) -> bool:
        """Whether a run has all words of the query in its name, state or stage, in any case."""
        found = [f"{line.run.paths.name} {line.state.state} {line.run.stage}".lower() for line in self.lines]
        return any(all(word in one for word in query.lower().split()) for one in found)

    def state(self) -> Text:
        """The most urgent state of its runs, and how many are in it if not all."""
        states = [line.state for line in self.lines]
        one = max(states, key=lambda one: (one.state in TROUBLE, one.alive, one.state != "finished"))
        alike = sum(other.state == one.state for other in states)
        count = f" {alike}/{len(states)}" if alike < len(states) else ""
        return Text(f"{one.mark} {one.state}{count}", RED if one.state in TROUBLE else STATE_STYLE.get(one.state, DIM))

    def tested(self) -> list[RunLine]:
        """The runs that the results are of: those that were tested after the last stage that any was tested after."""
        after = [list(line.run.results).index(line.evaluated) if line.results else -1 for line in self.lines]
        return [line for line, place in zip(self.lines, after, strict=True) if place == max(after) >= 0]

    @property
    def done(self) -> bool:
        """Whether all its runs were tested after their last stage; the best result is one of these."""
        return all(line.results and line.run.tested for line in self.lines)

    def after(self) -> str:
        """What the results were measured after, and for how many of its runs if not all."""
        tested = self.tested()
        count = f" {len(tested)}/{len(self.lines)}" if 0 < len(tested) < len(self.lines) else ""
        return f"{clean((tested or self.lines)[0].evaluated)[:12]}{count}"

    def results(self) -> dict[str, tuple[str, float]]:
        """Text and value (the higher the better) of each result, by title: of a group the mean, and the standard
        deviation between its runs."""
        tested, found = self.tested(), {}
        for title in dict.fromkeys(title for line in tested for title in line.results):
            one = next(line.results[title][0] for line in tested if title in line.results)
            values = [line.results[title][1] for line in tested if title in line.results]
            spread = f" ±{format(stdev(values), one.form)}" if len(values) > 1 else ""
            part = f" of {len(values)}" if len(values) < len(tested) else ""
            rank = -fmean(values) if one.better == "lower" else fmean(values)
            found[title] = f"{format(fmean(values), one.form)}{spread}{part}", rank
        return found


def groups(lines: Sequence[RunLine]) -> list[RunRow]:
    """Return a row for all runs that differ in their seed alone, in the order of the first of each. Its name has few
    settings that tell it from the others, and the name of its newest run where they do not."""
    found = group_seeds((line, line.run.config) for line in lines)
    newest = [own[0].run for own in found]
    names = told_apart([leaves(run.config) for run in newest])
    if len(set(zip(*names.values(), strict=True))) < len(found):
        names["run"] = [run.paths.name for run in newest]
    names = {"runs": [str(len(own)) for own in found], **names}
    return [RunRow(own, {key: cells[n] for key, cells in names.items()}) for n, own in enumerate(found)]


def by_name(root: Path) -> list[str | int]:
    """Return what sorts runs by their names, and numbers in these by their values: seed 9 comes before seed 10."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", root.name)]


class Filter(Input):
    """A line of input that leaves the space bar to the list."""

    def check_consume_key(self, key: str, character: str | None) -> bool:
        """Return whether the line takes a key; Textual asks this before it looks for actions."""
        return key != "space" and super().check_consume_key(key, character)


class RunTable(RowTable):
    """A table of which one click chooses a row, or in the first column marks it; the first click moves the bar in
    others."""

    def on_click(self, event: events.Click) -> None:
        if (row := event.style.meta.get("row", -1)) >= 0:
            self.move_cursor(row=row, column=(column := event.style.meta["column"]))
            if column == 0:
                event.prevent_default()
                cast("RunSwitcher", self.screen).mark(row)


class RunSwitcher(ModalScreen[list[RunPaths] | None]):
    """Lists all runs of a directory: typing filters. Returns the runs to show, the first one in full and the others
    next to it; None on escape."""

    DEFAULT_CSS = """
    RunSwitcher { align: center top; background: $background 60%; }
    RunSwitcher > Vertical { width: 120; max-width: 100%; height: 1fr; border: round $foreground; padding: 0 1;
                             border-title-style: bold; background: $background; }
    RunSwitcher Static { height: auto; color: $foreground 85%; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(key, action, word, show=bool(word), priority=True)
        for key, action, word in (
            ("enter", "choose", "show"),
            ("tab", "compare", "compare"),
            ("space", "mark", "mark"),
            ("ctrl+g", "group(True)", "group seeds"),
            ("ctrl+g", "group(False)", "ungroup"),
            ("ctrl+s", "sort", "sort"),
            ("escape", "dismiss", "back"),
            ("ctrl+c,ctrl+q", "dismiss", ""),
            ("up", "go('cursor_up')", ""),
            ("down", "go('cursor_down')", ""),
            ("pageup", "go('page_up')", ""),
            ("pagedown", "go('page_down')", ""),
        )
    ]
    grouped = reactive(False, bindings=True)
    """whether runs that differ in their seed alone share a row"""

    def __init__(
        self, shown: Sequence[RunPaths], *, queued: Callable[[], Sequence[str]] = tuple, grouped: bool = False
    ) -> None:
        """`shown`: the runs of the view, which are marked if there are several. `queued` returns the names of those
        that the grid at work has not begun, in their order."""
        super().__init__()
        self.set_reactive(RunSwitcher.grouped, grouped)
        self._queued = queued
        self._runs = RunList(shown[0].root.parent)
        self._shown = shown[0].root
        self._at = self._kept = self._shown
        """the run that the bar is on, and the one that it is kept on, unless that is not listed (yet)"""
        self._marked = [paths.root for paths in shown] if len(shown) > 1 else []
        self._refused: Path | None = None
        """where the bar was when a row had more runs than can still be marked"""
        self._rows: list[RunRow] = []
        self._sort = ""
        """the title of the result that the runs are sorted by; empty: by age"""

    def compose(self) -> ComposeResult:
        with Vertical():
            yield Filter(placeholder="type to filter by name, state or stage", select_on_focus=False, compact=True)
            yield RunTable()
            yield Static(id="queue")
        yield KeyLine(compact=True, show_command_palette=False)

    def on_mount(self) -> None:
        self.query_one(RowTable).can_focus = False
        self.set_interval(REFRESH_S, self._poll)
        self.call_after_refresh(self._poll)

    @on(RowTable.RowSelected)
    def _chosen(self, event: RowTable.RowSelected) -> None:
        self.dismiss([self._rows[event.cursor_row].lines[0].run.paths])

    def action_go(self, action: str) -> None:
        """Move the bar, with an action of the table, while the filter has the keys."""
        table = self.query_one(RowTable)
        getattr(table, f"action_{action}")()
        if self._rows:
            self._at = self._kept = self._rows[table.cursor_row].roots[0]

    @property
    def _roots(self) -> list[Path]:
        """The runs of the row under the bar."""
        return next((row.roots for row in self._rows if self._at in row.roots), [])

    def mark(self, row: int) -> None:
        """Mark the runs of a row, or take their marks away."""
        self._at = self._kept = self._rows[row].roots[0]
        self.action_mark()

    def action_mark(self) -> None:
        """Mark the runs of the row; take their marks away if all have one, or some and there is no room for the others;
        say so if a row without marks has no room."""
        kept = [root for root in self._marked if root not in self._roots]
        new = sorted(set(self._roots) - set(self._marked), key=by_name)
        self._refused = None
        if new and len(self._marked) + len(new) <= len(RUNS):
            self._marked += new
        elif len(kept) < len(self._marked):
            self._marked = kept
        else:
            self._refused = self._at
        self._show()

    def action_compare(self) -> None:
        """Return the marked runs, unless the bar is on a group without marks; with fewer than two, those of the group,
        in the order of their names; else the run of the view and the one marked or under the bar. With the bar on the
        run of the view it is the next one of the list, by age the one before it."""
        while not self._runs.poll(PORTION_S):  # to the run that is meant, also where tab is pressed at once
            pass
        self._show()
        own = self._roots
        marked = self._marked if len(own) < 2 or {*own} & {*self._marked} else []
        runs = marked if len(marked) > 1 else sorted(own[: len(RUNS)], key=by_name)
        if len(runs) < 2:
            runs = [self._shown, *(marked or runs)]
        if len(set(runs)) < 2:
            here = self.query_one(RowTable).cursor_row
            runs = [self._shown, *(row.roots[0] for row in [*self._rows[here + 1 :], *self._rows[:here]][:1])]
        if len(runs) > 1:
            self.dismiss([RunPaths(root) for root in runs])
        else:
            self.notify("there is no other run to compare with", markup=False)

    def action_group(self, grouped: bool) -> None:
        self.grouped = grouped
        self._show()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool:
        return action != "group" or parameters != (self.grouped,)

    def action_sort(self) -> None:
        """Sort by the next result of a test split, then by age again."""
        known = list(dict.fromkeys(title for row in self._rows for line in row.lines for title in line.results))
        self._sort = next(iter(known[known.index(self._sort) + 1 if self._sort in known else 0 :]), "")
        self._show()

    def action_choose(self) -> None:
        """Return the run under the bar alone, of a group the newest one, which also ends a comparison."""
        if roots := self._roots:
            self.dismiss([RunPaths(roots[0])])

    def _poll(self) -> None:
        if not self._runs.poll(PORTION_S):
            self.call_later(self._poll)
        self._show()

    @on(Input.Changed)
    def _show(self) -> None:
        query, table, box = self.query_one(Input).value, self.query_one(RowTable), self.query_one(Vertical)
        runs = self._runs.lines()
        rows = groups(runs) if self.grouped else [RunRow([one], {"run": one.run.paths.name}) for one in runs]
        self._rows = listed(rows, query, self._sort)
        count = f"{len(self._runs)} run{'' if len(self._runs) == 1 else 's'}"
        count = f"{len(rows)} group{'' if len(rows) == 1 else 's'} of {count}" if self.grouped else count
        count = f"{len(self._rows)} of {count}" if query else count
        marked = f", {len(self._marked)} marked" if self._marked else ""
        order = f"the best {self._sort} first, unfinished runs last" if self._sort else "the newest first"
        title = self._runs.problem or f"{count}{marked}, {order}, in {self._runs.folder}"
        if self._refused in self._roots:
            title = f"no room for {len(self._roots)} more: {len(self._marked)} of at most {len(RUNS)} are marked"
        box.border_title = Content(title)
        shown = run_rows(self._rows or rows, self._marked, table.content_size.width)
        table.fill(shown if self._rows else replace(shown, rows=()))  # a filter that finds nothing leaves the head
        if self._rows:
            self._at = self._kept if any(self._kept in row.roots for row in self._rows) else self._rows[0].roots[0]
            table.move_cursor(row=next(n for n, row in enumerate(self._rows) if self._at in row.roots))
        names, queue = self._queued(), self.query_one("#queue", Static)
        lines = [f"{name}  to train" for name in names[:MAX_QUEUED]]
        queue.update(Content("\n".join([*lines, f"and {len(names) - len(lines)} more"][: len(names)])))
        queue.display = bool(names)


def listed(rows: Sequence[RunRow], query: str, sort: str) -> list[RunRow]:
    """Return the rows with a run that matches the query, in their order, or the best by the result with this title; in
    front those that are done, and behind those without the result."""
    found = [row for row in rows if row.matches(query)]

    def rank(row: RunRow) -> tuple[bool, bool, float]:
        value = row.results().get(sort, ("", -inf))[1]
        return value == -inf, not row.done, -value

    return sorted(found, key=rank) if sort else found


def run_rows(rows: Sequence[RunRow], marked: Sequence[Path], width: int) -> Rows:
    """Return the cells of each row; those of runs that are `marked`, in this order, begin with the letters that they
    have in the view. The best of each result after the last stage has a star. Results that have no room for a column
    each share one."""
    letters, found = dict(zip(marked, RUNS, strict=False)), [row.results() for row in rows]
    results: dict[str, Sequence[str | Text]] = {}
    for title in dict.fromkeys(title for one in found for title in one):
        values = [one[title][1] for row, one in zip(rows, found, strict=True) if row.done and title in one]
        best = max(values) if len(set(values)) > 1 else inf
        cells = [(row.done, *one.get(title, ("", -inf))) for row, one in zip(rows, found, strict=True)]
        results[title] = [f"{text}{'★' if done and value == best else ''}" for done, text, value in cells]
    names = {key: [clean(row.name[key]) for row in rows] for key in (rows[0].name if rows else ())}
    grouped, long = "runs" in names, [key for key in names if key != "runs"]
    spare = [*(["after"] if all(row.done for row in rows) else []), "age", *(["state"] if grouped else [])]
    columns: dict[str, Sequence[str | Text]] = {
        "": ["".join(sorted(letters.get(root, "") for root in row.roots)) or " " for row in rows],
        **names,
        "state": [row.state() for row in rows],
        **({} if grouped else {"step": [row.lines[0].progress for row in rows]}),
        "after": [row.after() for row in rows],
        **results,
        "age": [duration(row.lines[0].age_s) for row in rows],
    }
    sizes = {title: max([len(title), *map(len, cells)]) for title, cells in columns.items()}
    shown, most = fitted(sizes, long, spare, least := LEAST_SETTING if grouped else LEAST_NAME, width)
    if not most and results:
        columns["results"] = ["  ".join(f"{title} {results[title][n]}" for title in one) for n, one in enumerate(found)]
        shown = [*(title for title in shown if title not in results), "results"]
    for key in long:
        columns[key] = [ending(cell, most or least) for cell in names[key]]
    titles = {title: ending(title, most or least) if title in long else title for title in shown}
    left = [titles[title] for title in shown if title not in ("runs", "step", "age", *results)]
    cells_of = [[columns[title][n] for title in shown] for n in range(len(rows))]
    return Rows("", "", list(titles.values()), cells_of, left=left)


def fitted(
    sizes: Mapping[str, int], long: Sequence[str], spare: Sequence[str], least: int, width: int
) -> tuple[list[str], int]:
    """Return the columns that there is room for, without the first `spare` ones if need be, and how many characters
    those of `long` names have; 0 where not even `least` have room."""
    for dropped in range(len(spare) + 1):
        shown = [title for title in sizes if title not in spare[:dropped]]
        for most in range(MOST_NAME, least - 1, -1):
            if sum(BETWEEN + min(sizes[title], most if title in long else width) for title in shown) <= width:
                return shown, most
    return shown, 0
