"""What the mouse points at, as new options of the view."""

from collections.abc import Sequence
from dataclasses import replace

from rich.text import Text

from smolsum.watch import navigation
from smolsum.watch.canvas import Canvas
from smolsum.watch.charts import step_at
from smolsum.watch.curves import chart_named
from smolsum.watch.layout import PANES, Slot, pane
from smolsum.watch.legend import curve_at
from smolsum.watch.snapshot import Snapshot, ViewOptions


def page_at(line: str, x: int, names: Sequence[str]) -> str | None:
    """Return the page whose name is at this place of the last line of the screen."""
    word = f"{line[:x].rpartition(' ')[2]}{line[x:].partition(' ')[0]}".strip("[]")
    return word if word in names else None


def on_chart(snapshot: Snapshot, slot: Slot, event: Canvas.Pressed) -> ViewOptions:
    """Return the options after an event on a chart. The wheel zooms around the pointer, a click sets the cursor, a
    second one enlarges the chart. A click on an entry of the legend hides its curve, or shows it again."""
    spec, options = chart_named(slot.pane), snapshot.options
    step = step_at(snapshot, slot.width - 2, spec, event.x - slot.x - 1)
    if event.kind in ("up", "down"):
        return navigation.zoomed(snapshot, 0.5 if event.kind == "up" else 2.0, step)
    if event.kind != "click":
        return options
    line = pane(snapshot, slot)[event.y - slot.y].plain
    if metric := curve_at(snapshot, spec, line, event.x - slot.x):
        return replace(options, hidden=options.hidden ^ {metric})
    return replace(options, chart=slot.pane) if event.times >= 2 else navigation.pointed(snapshot, step)


def rows_from_bar(snapshot: Snapshot, slot: Slot, event: Canvas.Pressed) -> int | None:
    """Return how many rows below the bar (the line in reverse video) of a pane the pointer is; None where it is on no
    row: on the frame, the head, a blank line, or below one."""
    lines, row = PANES[slot.pane](snapshot, slot.width - 2, slot.height - 2).lines, event.y - slot.y - 1
    bar = next((place for place, line in enumerate(lines) if _is_reversed(line)), None)
    if bar is None or not 0 < row < len(lines):
        return None
    between = lines[min(row, bar) : max(row, bar) + 1]
    return row - bar if all(line.plain.strip() for line in between) else None


def _is_reversed(line: Text) -> bool:
    """Whether all of a line is in reverse video."""
    styles = [str(line.style), *(str(span.style) for span in line.spans if span.end - span.start >= len(line))]
    return any("reverse" in style.split() for style in styles)
