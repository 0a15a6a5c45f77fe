"""Pages: which panes a terminal of any size shows, and where."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from rich.text import Text

from smolsum.runs.reader import Run
from smolsum.runs.samples import read_groups
from smolsum.watch import completions
from smolsum.watch.charts import chart
from smolsum.watch.curves import CARD, CHARTS, METRIC, chart_named
from smolsum.watch.grid_follower import grid_of
from smolsum.watch.header import header, message
from smolsum.watch.pane_text import Pane, framed
from smolsum.watch.panes import alerts, constraints, metrics, run_log, settings, sparklines, times, workers
from smolsum.watch.results import comparison, differences, gained, results, states
from smolsum.watch.snapshot import Snapshot, ViewOptions

Draw = Callable[[Snapshot, int, int], Pane]
Area = tuple[int, int, int, int]
"""x, y, width and height in characters"""
WIDE, TALL = 100, 30
"""The smallest terminal for several charts side by side; on a smaller one each pane has its own page."""
NARROW, LOW = 80, 24
"""The smallest terminal for pages; a smaller one shows a summary only."""
HEADER = 2
TABLE_WIDTH = 46
"""The least width of the table of rollouts."""
LONG_ROWS = 160
"""The least width for a list of hits next to a text."""
SIDE_BY_SIDE = 120
"""The least width for two texts next to each other."""
SETTING, RESULT = 24, 8
"""Columns of a setting's name, and of its value in each compared run, next to the results."""
MIN_PANE, MIN_CHART = 3, 11
"""Lines of a pane with one line in its frame, and of a chart with a scale, an axis and a legend."""
MAX_ROWS = 3
"""Rows of charts on the first page."""
NEWS = ("alerts", "constraints", "workers", "times")
"""Panes that are on the first page only while they have news, the most urgent first."""
MAX_NEWS = 12
"""Lines that such a pane asks for at most."""


PANES: dict[str, Draw] = {
    **{f"chart{number}": partial(chart, spec=spec) for number, spec in enumerate(CHARTS)},
    "sparklines": sparklines,
    "workers": workers,
    "constraints": constraints,
    "times": times,
    "alerts": alerts,
    "advice": partial(alerts, full=True),
    "results": results,
    "metrics": metrics,
    "states": states,
    "differences": differences,
    "comparison": comparison,
    "log": run_log,
    "config": settings,
    "table": completions.table,
    "texts": completions.text,
    "before": completions.before,
    "after": completions.after,
}


@dataclass(frozen=True)
class Slot:
    """The place of a pane on the screen, with its frame, in characters from the upper left."""

    pane: str
    x: int
    y: int
    width: int
    height: int

    def has(self, x: int, y: int) -> bool:
        return self.x <= x < self.x + self.width and self.y <= y < self.y + self.height


def pages(width: int, height: int, *, compared: bool = False) -> tuple[str, ...]:
    """Return the names of the pages for a terminal of this size, in the order of the tab key; one more for `compared`
    runs."""
    if width < NARROW or height < LOW:
        return ("summary",)
    more = ("compare",) if compared else ()
    if width < WIDE or height < TALL:
        last = ("charts", "metrics", "completions", "results", "advice", "workers", "log", "config")
        return ("summary", *more, *last)
    return ("overview", *more, "charts", "metrics", "completions", "results", "advice", "log", "config")


def slots(page: str, snapshot: Snapshot, width: int, height: int) -> tuple[Slot, ...]:
    """Return the places of the panes of a page, which fill the terminal between header, message and keys."""
    area = (0, HEADER, width, height - HEADER - 2)
    match page:
        case "chart":
            return (Slot(snapshot.options.chart, *area),)
        case "summary":
            return _summary(snapshot, area)
        case "overview":
            return _overview(snapshot, area)
        case "charts" if width < WIDE or height < TALL:
            return _grid(_charts(snapshot, CARD + 1), 2, area)
        case "charts":
            return _grid(_charts(snapshot, len(CHARTS)), 3, area)
        case "completions" if snapshot.options.listing == "tests":
            upper = min(12, area[3] // 3)
            x, y, _, lower = (0, HEADER + upper, width, area[3] - upper)
            top = Slot("table", 0, HEADER, width, upper)
            if width < SIDE_BY_SIDE:
                return (top, *_rows([("before", lower // 2), ("after", lower - lower // 2)], (x, y, width, lower)))
            half = width // 2
            return (top, Slot("before", x, y, half, lower), Slot("after", half, y, width - half, lower))
        case "completions":
            wide = LONG_ROWS if snapshot.options.listing == "hits" else WIDE
            left = max(TABLE_WIDTH, width * 2 // 5) if width >= wide else width
            if left == width:
                upper = min(12, area[3] // 2)
                return _rows([("table", upper), ("texts", area[3] - upper)], area)
            return (Slot("table", 0, HEADER, left, area[3]), Slot("texts", left, HEADER, width - left, area[3]))
        case "compare":
            return _compare(snapshot, area)
        case "advice" if width >= WIDE:
            half = width // 2
            upper = max(area[3] * 2 // 5, 8)
            return (
                Slot("advice", 0, HEADER, half, area[3]),
                *_rows([("workers", upper), ("log", area[3] - upper)], (half, HEADER, width - half, area[3])),
            )
        case "results" if width >= WIDE:
            below = area[3] // 2
            tops = _rows([("results", area[3] - below)], area)
            return (*tops, *_grid(["chart0", f"chart{CARD}"], 2, (0, HEADER + area[3] - below, width, below)))
        case "workers":
            return _rows([("workers", area[3] // 2), ("times", area[3] - area[3] // 2)], area)
        case _:
            return (Slot(page, *area),)


def _compare(snapshot: Snapshot, area: Area) -> tuple[Slot, ...]:
    """The runs above the settings that differ and the results, which are next to each other where that fits."""
    x, y, width, height = area
    above = min(len(states(snapshot, width - 2, height).lines) + 2, height // 2)
    below = height - above
    if width // 2 < SETTING + RESULT * (1 + len(snapshot.others)):
        few = min(len(differences(snapshot, width - 2, below).lines) + 2, max(below // 3, MIN_PANE + 2))
        return _rows([("states", above), ("differences", few), ("comparison", below - few)], area)
    return (*_rows([("states", above)], area), *_grid(["differences", "comparison"], 2, (x, y + above, width, below)))


def _charts(snapshot: Snapshot, most: int) -> list[str]:
    pinned = [f"{METRIC}{name}" for name in snapshot.options.pinned]
    return [*pinned, *(f"chart{n}" for n in range(len(CHARTS)))][:most]


def _summary(snapshot: Snapshot, area: Area) -> tuple[Slot, ...]:
    """A line for each chart; below them the panes with news, if any."""
    rows = min(len(CHARTS) + 3 + bool(gained(snapshot.run, ascii=False)), max(area[3] - 4, 3), area[3])
    below = _shared(_news(snapshot, area[2] - 2), area[3] - rows)
    return _rows([("sparklines", area[3] - sum(height for _, height in below)), *below], area)


def _overview(snapshot: Snapshot, area: Area) -> tuple[Slot, ...]:
    """Charts in three columns above the completions. Panes with news take places of charts from the lower right, but
    never those of the first CARD; workers without room there are next to the completions."""
    x, y, width, height = area
    lower = max(10, height // 3)
    upper = height - lower
    rows = min(max(2, upper // MIN_CHART), MAX_ROWS)
    cells = _grid([f"chart{n}" for n in range(3 * rows)], 3, (x, y, width, upper))
    side, wanted = cells[-1], _news(snapshot, cells[-1].width - 2)
    taken = 0
    while _total(wanted) > (room := _total([("", cell.height) for cell in cells[2::3][rows - taken :]])):
        if len(cells) - taken == CARD:
            break
        taken += 1
    aside = [one for one in wanted if one[0] == "workers"] if _total(wanted) > room else []
    above = [one for one in wanted if one not in aside]
    if not above:
        above, aside = aside, []
    free = [cell for cell in cells if cell not in cells[2::3][rows - taken :]]
    charts = tuple(replace(cell, pane=f"chart{n}") for n, cell in enumerate(free))
    news = _rows(_shared(above, room), (side.x, y + upper - room, side.width, room))
    left = side.x if aside else width
    table = max(TABLE_WIDTH, left * 2 // 5)
    below = (Slot("table", x, y + upper, table, lower), Slot("texts", table, y + upper, left - table, lower))
    return (*charts, *news, *below, *_rows(_shared(aside, lower), (left, y + upper, width - left, lower)))


def _news(snapshot: Snapshot, width: int) -> list[tuple[str, int]]:
    """The panes of the first page that have something to say now, the most urgent first, with their heights."""
    drawn = {name: PANES[name](snapshot, width, MAX_NEWS) for name in NEWS}
    return [(name, len(pane.lines) + 2) for name, pane in drawn.items() if pane.news]


def _total(panes: Sequence[tuple[str, int]]) -> int:
    return sum(height for _, height in panes)


def _shared(wanted: Sequence[tuple[str, int]], height: int) -> list[tuple[str, int]]:
    """The panes with heights that fill `height` lines: where there are too few, the least urgent ones shrink first, and
    then go."""
    kept = wanted[: height // MIN_PANE]
    heights = [own for _, own in kept]
    for place in reversed(range(len(kept))):
        over = sum(heights) - height
        heights[place] -= max(0, min(over, heights[place] - MIN_PANE))
    if kept:
        heights[-1] += max(0, height - sum(heights))
    return [(name, own) for (name, _), own in zip(kept, heights, strict=True)]


def _rows(parts: Sequence[tuple[str, int]], area: Area) -> tuple[Slot, ...]:
    """Panes below each other, each with its height."""
    x, y, width, _ = area
    found = []
    for pane, height in parts:
        found.append(Slot(pane, x, y, width, height))
        y += height
    return tuple(slot for slot in found if slot.height >= 3)


def _grid(panes: Sequence[str], columns: int, area: Area) -> tuple[Slot, ...]:
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


def content(snapshot: Snapshot, slot: Slot) -> Pane:
    """Return what is within the frame of a slot."""
    draw = PANES.get(slot.pane) or partial(chart, spec=chart_named(slot.pane))
    return draw(snapshot, slot.width - 2, slot.height - 2)


def pane(snapshot: Snapshot, slot: Slot) -> list[Text]:
    """Return a pane as the lines of its slot."""
    return framed(content(snapshot, slot), slot.width, slot.height, ascii=snapshot.options.ascii)


def body(snapshot: Snapshot, placed: Sequence[Slot], height: int) -> list[Text]:
    """Return the lines of a page between the header and the message."""
    drawn = {slot: pane(snapshot, slot) for slot in sorted(placed, key=lambda slot: slot.x)}
    return [
        Text().join(lines[y - slot.y] for slot, lines in drawn.items() if slot.y <= y < slot.y + slot.height)
        for y in range(HEADER, height - 2)
    ]


def page(snapshot: Snapshot, name: str, width: int, height: int) -> list[Text]:
    """Return a whole page without the line of keys: header, panes, message."""
    placed = slots(name, snapshot, width, height)
    return [*header(snapshot, width), *body(snapshot, placed, height), message(snapshot, width)]


def plain_page(run: Run, others: Sequence[Run], options: ViewOptions, width: int, height: int) -> list[str]:
    """Return the first page of a view of this size as lines of plain text."""
    snapshot = Snapshot(run, options, tuple(others), read_groups(run.paths, run.step), grid=grid_of(run.paths))
    return [line.plain.rstrip() for line in page(snapshot, pages(width, height)[0], width, height)]
