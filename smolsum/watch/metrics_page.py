"""The page of all metrics of a run: newest value, extremes and course of each; filtered, chosen, pinned."""

from rich.text import Text

from smolsum.runs.completion_groups import clean
from smolsum.watch.curves import chart_named
from smolsum.watch.pane_text import DIM, ORANGE, SKY, VALUE_WIDTH, Pane, ending, number
from smolsum.watch.snapshot import Snapshot
from smolsum.watch.sparklines import sparkline

MAX_NAME = 44
"""Characters of a name; of a longer one the end is shown."""


def metrics_shown(snapshot: Snapshot) -> list[str]:
    """Return the metrics whose names contain the filter, in any case: pinned ones first, then by name."""
    wanted, pinned = snapshot.options.metric_query.lower(), snapshot.options.pinned
    found = [name for name in snapshot.run.series if wanted in name.lower()]
    return sorted(found, key=lambda name: (name not in pinned, name))


def chosen_metric(snapshot: Snapshot) -> str | None:
    """Return the metric under the bar; None if the filter leaves none."""
    found = metrics_shown(snapshot)
    return found[min(snapshot.options.metric_row, len(found) - 1)] if found else None


def metrics(snapshot: Snapshot, width: int, height: int) -> Pane:
    """Return a line for each metric: a mark if it is pinned, name, newest value, least, greatest, course."""
    options, found = snapshot.options, metrics_shown(snapshot)
    note = f"{len(found)} of {len(snapshot.run.series)}" + (
        f"  /{options.metric_query}" if options.metric_query else ""
    )
    if not found:
        nothing = f"no metric has {options.metric_query!r} in its name" if options.metric_query else "no step yet"
        return Pane("metrics", note, (Text(nothing, style=ORANGE if options.metric_query else DIM),))
    room = min(max(map(len, found)), MAX_NAME, max(width - 3 * VALUE_WIDTH - 12, 12)) + 1
    head = f"  {'':<{room}}" + "".join(f"{title:>{VALUE_WIDTH}}" for title in ("newest", "least", "most"))
    rows = max(height - 1, 1)
    here = first_row(snapshot, rows) if rows < len(found) else 0
    lines = [Text(head, style=DIM)]
    for place, name in list(enumerate(found))[here : here + rows]:
        series = snapshot.run.series[name]
        shown = ending(clean(name), room - 1, ascii=options.ascii)
        line = Text(
            f"{'*' if name in options.pinned else ' '} {shown:<{room}}", style=SKY if name in options.pinned else ""
        )
        values = (series.last, series.low if series.count else None, series.high if series.count else None)
        line.append("".join(f"{number(value):>{VALUE_WIDTH}}" for value in values))
        course = sparkline(snapshot, width - line.cell_len + VALUE_WIDTH, chart_named(name), name_width=0)
        line.append_text(course[VALUE_WIDTH * (1 + len(snapshot.others)) :])
        if place == min(options.metric_row, len(found) - 1):
            line.stylize("reverse")
        lines.append(line)
    return Pane("metrics", note, tuple(lines))


def first_row(snapshot: Snapshot, rows: int) -> int:
    """Return the first metric on a page of so many rows, with the chosen one in view."""
    count = len(metrics_shown(snapshot))
    return max(0, min(min(snapshot.options.metric_row, count - 1) - rows // 2, count - rows))
