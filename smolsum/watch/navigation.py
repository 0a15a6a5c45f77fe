"""Where charts look: zoom, pan and cursor, as functions from a moment of the view to new options."""

from dataclasses import replace

from smolsum.watch.axes import window
from smolsum.watch.snapshot import Snapshot, ViewOptions

MIN_WINDOW = 8
"""Steps below which charts do not zoom in."""
PAN = 0.25
"""Part of the window that a key moves it by."""


def zoomed(snapshot: Snapshot, factor: float, around: float | None = None) -> ViewOptions:
    """Return the options with `factor` times as many steps in view; the step `around`, or else the cursor or the newest
    step, stays where it is."""
    options, (first, last) = snapshot.options, window(snapshot)
    begin, end = _whole(snapshot)
    steps = last - first + 1
    wanted = max(round(steps * factor), min(MIN_WINDOW, round(steps)))
    if wanted >= end - begin + 1:
        return replace(options, window=0, end=None)
    fixed = around if around is not None else options.cursor if options.cursor is not None else last
    share = (last - fixed) / steps
    return _moved(snapshot, wanted, fixed + share * wanted)


def panned(snapshot: Snapshot, by: int) -> ViewOptions:
    """Return the options with the window moved by a part of its width; at the end it follows the newest step."""
    first, last = window(snapshot)
    if not snapshot.options.window:
        return snapshot.options
    return _moved(snapshot, snapshot.options.window, last + by * max(1, round(PAN * (last - first + 1))))


def pointed(snapshot: Snapshot, step: float | None) -> ViewOptions:
    """Return the options with the cursor at a step, moved into view."""
    if step is None:
        return replace(snapshot.options, cursor=None)
    begin, end = _whole(snapshot)
    step = min(max(step, begin), end)
    found, (first, last) = replace(snapshot.options, cursor=step), window(snapshot)
    if found.window and not first <= step <= last:
        end_of_window = step if step > last else step + found.window - 1
        return _moved(replace(snapshot, options=found), found.window, end_of_window)
    return found


def stepped(snapshot: Snapshot, by: int, columns: int) -> ViewOptions:
    """Return the options with the cursor moved by that many of `columns` columns, at least a step each; it begins at
    the newest step in view."""
    first, last = window(snapshot)
    cursor = snapshot.options.cursor
    width = max(1, round((last - first) / max(columns, 1)))
    return pointed(snapshot, last if cursor is None else cursor + by * width)


def _whole(snapshot: Snapshot) -> tuple[float, float]:
    """The first and the last step that there is."""
    return window(replace(snapshot, options=replace(snapshot.options, window=0, end=None)))


def _moved(snapshot: Snapshot, steps: int, end: float) -> ViewOptions:
    """The options with a window of so many steps up to `end`, within the run."""
    begin, newest = _whole(snapshot)
    end = max(round(end), round(begin) + steps - 1)
    return replace(snapshot.options, window=steps, end=None if end >= newest else end)
