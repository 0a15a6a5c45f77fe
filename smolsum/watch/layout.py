"""Pages: which panes a terminal of any size shows, and where."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from rich.text import Text

from smolsum.runs.completion_groups import read_groups
from smolsum.runs.reader import Run
from smolsum.watch import completion_browser
from smolsum.watch.charts import CHARTS, chart, sparklines
from smolsum.watch.pane_text import Pane, framed
from smolsum.watch.panes import alerts, events, header, message, results, settings, times, workers
from smolsum.watch.snapshot import Snapshot, ViewOptions

Draw = Callable[[Snapshot, int, int], Pane]
WIDE, TALL = 100, 30
"""The smallest terminal for several charts side by side; on a smaller one each pane has its own page."""
NARROW, LOW = 80, 24
"""The smallest terminal for pages; a smaller one shows a summary only."""
HEADER = 2


PANES: dict[str, Draw] = {
    **{f"chart{number}": partial(chart, spec=spec) for number, spec in enumerate(CHARTS)},
    "sparklines": sparklines,
    "workers": workers,
    "times": times,
    "alerts": alerts,
    "advice": partial(alerts, full=True),
    "results": results,
    "events": events,
    "config": settings,
    "table": completion_browser.table,
    "texts": completion_browser.texts,
}


@dataclass(frozen=True)
class Slot:
    """The place of a pane on the screen, with its frame, in characters from the upper left."""

    pane: str
    x: int
    y: int
    width: int
    height: int


def pages(width: int, height: int) -> tuple[str, ...]:
    """Return the names of the pages for a terminal of this size, in the order of the tab key."""
    if width < NARROW or height < LOW:
        return ("summary",)
    if width < WIDE or height < TALL:
        return ("summary", "completions", "results", "advice", "workers", "events", "config")
    return ("overview", "charts", "completions", "results", "advice", "config")


def slots(page: str, width: int, height: int, zoomed: int = 0) -> tuple[Slot, ...]:
    """Return the places of the panes of a page, which fill the terminal between header, message and keys."""
    area = (0, HEADER, width, height - HEADER - 2)
    match page:
        case "chart":
            return (Slot(f"chart{zoomed}", *area),)
        case "summary":
            charts = min(len(CHARTS) + 3, max(area[3] - 4, 3), area[3])
            return _rows([("sparklines", charts), ("alerts", area[3] - charts)], area)
        case "overview":
            return _overview(area)
        case "charts":
            return _grid([f"chart{n}" for n in range(len(CHARTS))], 3, area)
        case "completions":
            left = max(46, width * 2 // 5) if width >= WIDE else width
            if left == width:
                upper = min(12, area[3] // 2)
                return _rows([("table", upper), ("texts", area[3] - upper)], area)
            return (Slot("table", 0, HEADER, left, area[3]), Slot("texts", left, HEADER, width - left, area[3]))
        case "advice" if width >= WIDE:
            half = width // 2
            upper = max(area[3] * 2 // 5, 8)
            return (
                Slot("advice", 0, HEADER, half, area[3]),
                *_rows([("workers", upper), ("events", area[3] - upper)], (half, HEADER, width - half, area[3])),
            )
        case "results" if width >= WIDE:
            below = area[3] // 2
            tops = _rows([("results", area[3] - below)], area)
            return (*tops, *_grid(["chart0", "chart7"], 2, (0, HEADER + area[3] - below, width, below)))
        case "workers":
            return _rows([("workers", area[3] // 2), ("times", area[3] - area[3] // 2)], area)
        case _:
            return (Slot(page, *area),)


def _overview(area: tuple[int, int, int, int]) -> tuple[Slot, ...]:
    """Charts on the left, as many as fit; workers, times and alerts on the right; completions below."""
    x, y, width, height = area
    lower = max(12, height * 2 // 5) if height < 44 else height // 3
    upper, side = height - lower, max(width // 3, 38)
    rows = max(2, upper // 11)
    left = _grid([f"chart{n}" for n in range(min(2 * rows, 8))], 2, (x, y, width - side, upper))
    times_height = 7
    workers_height = max(4, min(upper // 4, 10))
    right = _rows(
        [("workers", workers_height), ("times", times_height), ("alerts", upper - workers_height - times_height)],
        (width - side, y, side, upper),
    )
    table = max(46, width * 2 // 5)
    below = (Slot("table", x, y + upper, table, lower), Slot("texts", table, y + upper, width - table, lower))
    return (*left, *right, *below)


def _rows(parts: Sequence[tuple[str, int]], area: tuple[int, int, int, int]) -> tuple[Slot, ...]:
    """Panes below each other, each with its height."""
    x, y, width, _ = area
    found = []
    for pane, height in parts:
        found.append(Slot(pane, x, y, width, height))
        y += height
    return tuple(slot for slot in found if slot.height >= 3)


def _grid(panes: Sequence[str], columns: int, area: tuple[int, int, int, int]) -> tuple[Slot, ...]:
    """Panes in rows of `columns`, which fill the area to its last line."""
    x, y, width, height = area
    rows = -(-len(panes) // columns)
    lefts = [x + width * n // columns for n in range(columns + 1)]
    tops = [y + height * n // rows for n in range(rows + 1)]
    found = []
    for n, pane in enumerate(panes):
        row, column = divmod(n, columns)
        found.append(Slot(pane, lefts[column], tops[row], lefts[column + 1] - lefts[column], tops[row + 1] - tops[row]))
    return tuple(found)


def pane(snapshot: Snapshot, slot: Slot) -> list[Text]:
    """Return a pane as the lines of its slot."""
    drawn = PANES[slot.pane](snapshot, slot.width - 2, slot.height - 2)
    return framed(drawn, slot.width, slot.height, ascii=snapshot.options.ascii)


def page(snapshot: Snapshot, name: str, width: int, height: int) -> list[Text]:
    """Return a whole page without the line of keys: header, panes, message."""
    placed = slots(name, width, height, snapshot.options.chart)
    drawn = {slot: pane(snapshot, slot) for slot in placed}
    lines = header(snapshot, width)
    for y in range(HEADER, height - 2):
        line = Text()
        for slot in sorted(placed, key=lambda slot: slot.x):
            if slot.y <= y < slot.y + slot.height:
                line.append_text(drawn[slot][y - slot.y])
        lines.append(line)
    return [*lines, message(snapshot, width)]


def plain_page(run: Run, other: Run | None, options: ViewOptions, width: int, height: int) -> list[str]:
    """Return the first page of a view of this size as lines of plain text."""
    snapshot = Snapshot(run, options, other, read_groups(run.paths, run.step))
    return [line.plain.rstrip() for line in page(snapshot, pages(width, height)[0], width, height)]
