"""Screens over the view: a line of input, the keys, and the list of all runs of a directory."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from math import inf
from pathlib import Path
from time import monotonic
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.events import Key
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from smolsum.errors import SmolsumError
from smolsum.runs.evaluation_records import Summary
from smolsum.runs.paths import RunPaths, last_started, list_runs
from smolsum.runs.reader import LAST_BYTES, Run
from smolsum.runs.samples import clean
from smolsum.runs.state import TROUBLE, RunState, progress, run_state
from smolsum.watch.curves import RUNS
from smolsum.watch.header import STATE_STYLE
from smolsum.watch.keys import help_rows
from smolsum.watch.pane_text import DIM, RED, ending

SCROLL = {"up": -1, "down": 1, "k": -1, "j": 1, "pageup": -10, "pagedown": 10, "home": -1000, "end": 1000}
"""Lines by which a key scrolls the help."""
PORTION_S = 0.05
"""Seconds of reading after which the list of runs is drawn and keys work."""
REFRESH_S = 1.0
MAX_QUEUED = 6
"""runs of a grid still to be trained that are named"""
UNITS = {"d": 86_400, "h": 3_600, "m": 60, "s": 1}
MIN_NAME = 16
WORDS = ("state", "tested after", "results")
"""Columns that begin at their left."""


class InputDialog(ModalScreen[str | None]):
    """Asks for a line of text; escape and ctrl-c return None."""

    DEFAULT_CSS = """
    InputDialog { align: center middle; background: $background 60%; }
    InputDialog > Vertical { width: 70; max-width: 90%; height: auto; border: round $foreground; padding: 1 2; }
    InputDialog Input, InputDialog Input:focus { border: none; height: 1; background: $surface; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,ctrl+c,ctrl+q", "dismiss", priority=True)]

    def __init__(self, text: str, value: str = "") -> None:
        super().__init__()
        self._text, self._value = text, value

    def compose(self) -> ComposeResult:
        with Vertical():
            yield Static(Text(self._text))
            yield Input(self._value)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self.dismiss(event.value.strip())


class Help(ModalScreen[None]):
    """All keys; any key closes it, except those that scroll where there is no room for all."""

    DEFAULT_CSS = """
    Help { align: center middle; background: $background 60%; }
    Help > VerticalScroll { width: 72; max-width: 100%; height: auto; max-height: 100%; border: round $foreground; }
    Help Static { height: auto; }
    """

    def __init__(self, *, readonly: bool) -> None:
        super().__init__()
        self._readonly = readonly

    def compose(self) -> ComposeResult:
        closing = "read only: the run cannot be paused or stopped from here" if self._readonly else ""
        lines = [f"{shown:<18} {text}" for shown, text in help_rows()]
        with VerticalScroll(can_focus=False):
            yield Static(Text("\n".join([*lines, closing]).rstrip()))

    def on_mount(self) -> None:
        self.call_after_refresh(self._name_the_rest)

    def on_key(self, event: Key) -> None:
        box = self.query_one(VerticalScroll)
        event.stop()
        if event.key in SCROLL and box.max_scroll_y:
            box.scroll_relative(y=SCROLL[event.key], animate=False)
        else:
            self.dismiss(None)

    def _name_the_rest(self) -> None:
        box = self.query_one(VerticalScroll)
        box.border_subtitle = "up, down: more keys" if box.max_scroll_y else ""


@dataclass(frozen=True)
class RunLine:
    """What the list says of a run."""

    paths: RunPaths
    state: RunState
    stage: str
    progress: str
    evaluated: str
    """what the newest evaluation on the test split was made after; empty before the first"""
    results: Mapping[str, tuple[str, float]]
    """its constraint and its quality: text and value (the higher the better), by title"""
    age_s: float
    """seconds since the run was last started"""


class RunList:
    """The runs of a directory, the one that was started last first. Only the ends of their files are read, in portions,
    as there may be many runs, and long ones."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.problem = ""
        """why the directory cannot be read; empty if it can"""
        self._runs: dict[Path, Run] = {}
        self._unread: list[Path] = []

    def poll(self, budget_s: float) -> bool:
        """Look for new runs and read what changed, for about `budget_s` seconds; whether all was read."""
        until = monotonic() + budget_s
        if not self._unread:
            try:
                found = [paths.root for paths in reversed(list_runs(self.folder))]
                self.problem = ""
            except SmolsumError as error:
                found, self.problem = [], str(error)
            self._runs = {root: self._runs.get(root) or Run(RunPaths(root), last_bytes=LAST_BYTES) for root in found}
            self._unread = found[::-1]  # read from its end, the newest first
        while self._unread and monotonic() < until:
            self._runs[self._unread.pop()].poll()
        return not self._unread

    def lines(self, query: str = "", sort: str = "") -> list[RunLine]:
        """Return a line for each run that was read and has all words of the query in its name, state or stage, in any
        case; the newest first, or the best by the result with the title `sort`."""
        now, unread = datetime.now(UTC), set(self._unread)
        lines = [_line(run, now) for root, run in self._runs.items() if root not in unread or run.status.state]
        for word in query.lower().split():
            lines = [line for line in lines if word in f"{line.paths.name} {line.state.state} {line.stage}".lower()]
        # sorting is stable: those without the result stay in their order, behind
        return sorted(lines, key=lambda line: -line.results[sort][1] if sort in line.results else inf)

    def __len__(self) -> int:
        return len(self._runs)


def _line(run: Run, now: datetime) -> RunLine:
    started = last_started(run.paths.root)
    age = max(now.timestamp() - started, 0.0) if started is not None else 0.0
    label, summary = run.newest_result
    return RunLine(run.paths, run_state(run, now), run.stage, progress(run), label, dict(_results(summary)), age)


def _results(summary: Summary) -> Iterator[tuple[str, tuple[str, float]]]:
    for one in () if summary.so_far else summary.measures:
        value = summary.metrics.get(one.name)
        if one.role and value is not None:
            yield clean(one.title), (format(value, one.form), -value if one.better == "lower" else value)


def draw_lines(
    lines: Sequence[RunLine], marked: Collection[Path], width: int, *, ascii: bool, at: Path | None = None
) -> tuple[Text, list[Text]]:
    """Return the head and the lines in columns of `width` characters; the runs that are `marked`, in this order, begin
    with the letters that they have in the view, and the run under the bar, `at`, with a `>`. The best of each result
    has a star. Results that have no room for a column each share one."""
    letters = dict(zip(marked, RUNS, strict=False))
    titles = list(dict.fromkeys(title for line in lines for title in line.results))
    each = {title: _results_column(lines, title, "*" if ascii else "★") for title in titles}
    shared = [
        "  ".join(f"{title} {each[title][place].strip()}" for title in line.results) for place, line in enumerate(lines)
    ]
    choices: list[dict[str, list[str]]] = [
        {"tested after": [clean(line.evaluated)[:12] for line in lines], **each},
        each,
        {"results": shared},
        *({title: each[title] for title in titles[:count]} for count in range(len(titles) - 1, -1, -1)),
    ]
    for choice in choices:
        columns = {"state": [f"{line.state.mark(ascii)} {line.state.state}" for line in lines]}
        columns |= {"step": [line.progress for line in lines], **choice, "age": [age(line.age_s) for line in lines]}
        sizes = {title: max(map(len, [title, *cells])) for title, cells in columns.items()}
        room = max(width - 3 - sum(size + 2 for size in sizes.values()), MIN_NAME)
        if room + 3 + sum(size + 2 for size in sizes.values()) <= width:
            break

    def cell(title: str, content: str) -> str:
        return f"  {content:{'<' if title in WORDS else '>'}{sizes[title]}}"

    drawn = []
    for place, line in enumerate(lines):
        here, state = line.paths.root == at, line.state.state
        name = ending(clean(line.paths.name), room, ascii=ascii)
        style = RED if state in TROUBLE else STATE_STYLE.get(state, DIM)
        text = Text(
            f"{'>' if here else ' '}{letters.get(line.paths.root, ' ')} {name:<{room}}", no_wrap=True, overflow="crop"
        )
        for title, cells in columns.items():
            text.append(cell(title, cells[place]), style=style if title == "state" and not here else "")
        drawn.append(text)
    head = f"   {'run':<{room}}" + "".join(cell(title, title) for title in columns)
    return Text(head, style=DIM, no_wrap=True, overflow="crop"), drawn


def _results_column(lines: Sequence[RunLine], title: str, star: str) -> list[str]:
    """The texts of a result, the best of several with a star."""
    values = [line.results[title][1] for line in lines if title in line.results]
    best = max(values) if len(set(values)) > 1 else inf
    found = (line.results.get(title, ("", -inf)) for line in lines)
    return [f"{text}{star if value == best else ' '}" if values else text for text, value in found]


def age(seconds: float) -> str:
    """Return a time in its largest unit: `3d`, `5h`, `12m`, `8s`."""
    unit = next((unit for unit, length in UNITS.items() if seconds >= length), "s")
    return f"{seconds // UNITS[unit]:.0f}{unit}"


class Filter(Input):
    """A line of input that leaves the space bar to the list."""

    def check_consume_key(self, key: str, character: str | None) -> bool:
        """Return whether the line takes a key; Textual asks this before it looks for actions."""
        return key != "space" and super().check_consume_key(key, character)


class RunSwitcher(ModalScreen[list[RunPaths] | None]):
    """Lists all runs of a directory: typing filters. Returns the runs to show, the first one in full and the others
    next to it; None on escape."""

    DEFAULT_CSS = """
    RunSwitcher { align: center middle; background: $background 60%; }
    RunSwitcher > Vertical { width: 120; max-width: 100%; height: 90%; border: round $foreground; padding: 0 1; }
    RunSwitcher Static { height: 1; }
    RunSwitcher #queue { height: auto; }
    RunSwitcher Input, RunSwitcher Input:focus { border: none; height: 1; padding: 0; background: $surface; }
    RunSwitcher OptionList, RunSwitcher OptionList:focus { border: none; height: 1fr; padding: 0; }
    RunSwitcher OptionList > .option-list--option { padding: 0; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(key, action, priority=True)
        for key, action in {
            "escape,ctrl+c,ctrl+q": "dismiss",
            "enter": "choose",
            "space": "mark",
            "tab": "compare",
            "ctrl+s": "sort",
            "up": "go(-1, False)",
            "down": "go(1, False)",
            "pageup": "go(-1, True)",
            "pagedown": "go(1, True)",
        }.items()
    ]

    def __init__(
        self, shown: Sequence[RunPaths], *, queued: Callable[[], Sequence[str]] = tuple, ascii: bool = False
    ) -> None:
        """`shown`: the runs of the view, which are marked if there are several. `queued` returns the names of those
        that the grid at work has not begun, in their order."""
        super().__init__()
        self._queued = queued
        self._runs, self._ascii = RunList(shown[0].root.parent), ascii
        self._shown = shown[0].root
        self._at: Path | None = self._shown
        self._marked = [paths.root for paths in shown] if len(shown) > 1 else []
        self._lines: list[RunLine] = []
        self._sort = ""
        """the title of the result that the runs are sorted by; empty: by age"""

    def compose(self) -> ComposeResult:
        with Vertical():
            yield Static(id="title")
            yield Filter(placeholder="type to filter by name, state or stage", select_on_focus=False)
            yield Static(id="head")
            yield Static(id="queue")
            yield OptionList()
            yield Static(
                Text("enter shows  tab compares it, or those marked  space marks  ctrl-s sorts  esc back"), id="keys"
            )

    def on_mount(self) -> None:
        self.set_interval(REFRESH_S, self._poll)
        self.call_after_refresh(self._poll)

    def on_resize(self) -> None:
        self.call_after_refresh(self._draw)

    def on_input_changed(self) -> None:
        self._draw()

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Show the run that the mouse chose."""
        self.dismiss([self._lines[event.option_index].paths])

    def on_option_list_option_highlighted(self, event: OptionList.OptionHighlighted) -> None:
        """Keep the bar on its run while the list changes."""
        if event.option_index < len(self._lines):
            self._at = self._lines[event.option_index].paths.root
            self._draw()

    def action_go(self, by: int, paged: bool) -> None:
        """Move the bar by a line or a page while the filter has the keys."""
        options = self.query_one(OptionList)
        if self._lines:
            by *= max(options.scrollable_content_region.height, 1) if paged else 1
            options.highlighted = min(max((options.highlighted or 0) + by, 0), len(self._lines) - 1)

    def action_mark(self) -> None:
        if self._at in self._marked:
            self._marked.remove(self._at)
        elif self._at is not None and len(self._marked) < len(RUNS):
            self._marked.append(self._at)
        self._draw()

    def action_compare(self) -> None:
        """Return the marked runs; with fewer than two, the run of the view and the one marked or under the bar."""
        here = [line.paths.root for line in self._lines]
        other = self._marked[0] if self._marked else self._at
        if len(self._marked) > 1:
            self.dismiss([RunPaths(root) for root in self._marked])
        elif other in here and other != self._shown:
            self.dismiss([RunPaths(self._shown), RunPaths(other)])

    def action_sort(self) -> None:
        """Sort by the next result of a test split, then by age again."""
        known = list(dict.fromkeys(title for line in self._lines for title in line.results))
        self._sort = next(iter(known[known.index(self._sort) + 1 if self._sort in known else 0 :]), "")
        self._draw()

    def action_choose(self) -> None:
        """Return the run under the bar alone, which also ends a comparison."""
        if self._at in [line.paths.root for line in self._lines]:
            self.dismiss([RunPaths(self._at)])

    def _poll(self) -> None:
        if not self._runs.poll(PORTION_S):
            self.call_later(self._poll)
        self._draw()

    def _draw(self) -> None:
        options, query = self.query_one(OptionList), self.query_one(Input).value
        width = options.scrollable_content_region.width
        if not width:
            return
        self._lines = self._runs.lines(query, self._sort)
        head, drawn = draw_lines(self._lines, self._marked, width, ascii=self._ascii, at=self._at)
        found = f"{len(self._lines)} of {len(self._runs)}" if query else str(len(self._runs))
        marked = f", {len(self._marked)} marked" if self._marked else ""
        count = f"{found} run{'' if found == '1' else 's'}"
        order = f"the best {self._sort} first" if self._sort else "the newest first"
        title = self._runs.problem or f"{count}{marked}, {order}, in {self._runs.folder}"
        self.query_one("#title", Static).update(Text(title))
        self.query_one("#head", Static).update(head)
        names, queue = self._queued(), self.query_one("#queue", Static)
        queue.update(_queue(names))
        queue.display = bool(names)
        roots = [line.paths.root for line in self._lines]
        if [option.id for option in options.options] == [root.name for root in roots]:
            for place, text in enumerate(drawn):
                if options.get_option_at_index(place).prompt != text:
                    options.replace_option_prompt_at_index(place, text)
        else:
            at = self._at
            options.set_options([Option(text, id=root.name) for text, root in zip(drawn, roots, strict=True)])
            if roots:
                options.highlighted = roots.index(at) if at in roots else 0


def _queue(names: Sequence[str]) -> Text:
    """The runs that the grid trains later, the last one first, as the list has its newest first."""
    lines = [f"   {name}  to train" for name in names[:MAX_QUEUED]]
    if more := len(names) - len(lines):
        lines.append(f"   … and {more} more to train")
    return Text("\n".join(lines[::-1]), style=DIM, no_wrap=True, overflow="crop")
