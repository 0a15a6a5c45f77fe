"""The legend of a chart: the letters, names and values of its curves, newest or at the cursor."""

from collections.abc import Sequence

from rich.text import Text

from smolsum.runs.reader import Run
from smolsum.watch.curves import RUNS, Chart, Curve
from smolsum.watch.pane_text import DIM, number
from smolsum.watch.snapshot import Snapshot

MIN_ROWS, MAX_LEGEND_ROWS = 5, 3
"""Rows that a legend leaves for the drawing, and that it may have."""


def legend(
    snapshot: Snapshot, spec: Chart, more: Sequence[str], *, room: int, width: int, height: int
) -> tuple[str, list[Text]]:
    """Return the note in the title, of at most `room` characters; where that is too short, lines below the drawing.

    With enough lines every curve has its name; otherwise only its letter and value. `more` is named at the end.
    """
    curves, others, levels = shown_curves(snapshot, spec), _others(snapshot, spec), [*spec.levels(snapshot.run)][:1]
    named = short = [_value(snapshot, spec, curve) for curve in curves]
    hidden = hidden_curves(snapshot, spec)
    if len(curves) > 1 or others or hidden:
        marks = letters_of(snapshot, curves)
        short = [f"{mark} {value}" for mark, value in zip(marks, named, strict=True)]
    if len(curves) > 1 or hidden:
        named = [f"{mark} {curve.name} {value}" for mark, curve, value in zip(marks, curves, named, strict=True)]
    else:
        named = short
    cursor = snapshot.options.cursor
    at = [] if cursor is None else [f"at step {cursor:.0f}:"]
    off = [f"{curve.letter} {curve.name} off" for curve in hidden]
    parts = [*at, *named, *off, *others, *levels, *more]
    if len("  ".join(parts)) <= room:
        return "  ".join(parts), []
    lines = _in_lines(parts, width - 1)
    if len(lines) <= min(height - MIN_ROWS, MAX_LEGEND_ROWS):
        return "", [Text(f" {line}", style=DIM) for line in lines]
    off = [f"{curve.letter} off" for curve in hidden]
    return _fitting([*at, *short, *off, *others, *levels, *more], room), []


def shown_curves(snapshot: Snapshot, spec: Chart) -> list[Curve]:
    """Return the curves of the first run: all that are not hidden, or the first next to other runs."""
    curves, hidden = spec.curves(snapshot.run), hidden_curves(snapshot, spec)
    return curves[:1] if snapshot.others else [curve for curve in curves if curve not in hidden]


def hidden_curves(snapshot: Snapshot, spec: Chart) -> list[Curve]:
    """Return the curves that the user has hidden. The first run next to others has none, and one is always left."""
    curves = spec.curves(snapshot.run)
    hidden = [curve for curve in curves if curve.metric in snapshot.options.hidden]
    return hidden if len(hidden) < len(curves) and not snapshot.others else []


def curve_at(snapshot: Snapshot, spec: Chart, line: str, column: int) -> str | None:
    """Return the metric whose entry of the legend is in this column of a line of the pane; None for anything else, and
    for the only curve that is left."""
    start, end = line.rfind("  ", 0, column + 1) + 1, line.find("  ", column)
    entry = line[start : end if end >= 0 else len(line)].rpartition("─ ")[2].strip(" │|─-+╮")
    shown, hidden = shown_curves(snapshot, spec), hidden_curves(snapshot, spec)
    if snapshot.others or len(shown) + len(hidden) < 2:
        return None
    found = next((each for each in (*shown, *hidden) if _names(entry, each)), None)
    return None if found is None or [found] == shown else found.metric


def _names(entry: str, curve: Curve) -> bool:
    """Whether an entry of a legend is that of a curve: its letter, then its name or a value."""
    letter, _, rest = entry.partition(" ")
    return letter == curve.letter and (rest.startswith(f"{curve.name} ") or rest[:1] in "-.0123456789" or rest == "off")


def letters_of(snapshot: Snapshot, curves: Sequence[Curve]) -> list[str]:
    """Return the letter at the end of each curve; next to other runs, that of the run."""
    return [RUNS[0]] * len(curves) if snapshot.others else [curve.letter for curve in curves]


def _value(snapshot: Snapshot, spec: Chart, curve: Curve) -> str:
    """The value at the cursor, or the newest one, with the band around it; of an earlier stage, the step of the last
    value."""
    run, cursor = snapshot.run, snapshot.options.cursor
    last = run.series[curve.metric].last_step or 0
    if cursor is None and last < run.stage_began.get(run.stage, 0):
        return f"until {last}"
    value = _at(run, curve.metric, cursor)
    if spec.band and set(spec.band) <= set(run.series):
        low, high = (_at(run, name, cursor) for name in spec.band)
        return f"{value} (min {low}, max {high})"
    return value


def _at(run: Run, metric: str, cursor: float | None) -> str:
    """The newest value, or that of the cursor's step; a value of an earlier step has its step."""
    if metric not in run.series:
        return "-"
    if cursor is None:
        return number(run.last(metric))
    found = run.series[metric].at(cursor)
    if found is None:
        return "-"
    step, value = found
    return number(value) if step == int(cursor) else f"{number(value)} ({step})"


def _others(snapshot: Snapshot, spec: Chart) -> list[str]:
    """The letter of each other run, and the value of its first curve."""
    found = []
    for letter, run in zip(RUNS[1:], snapshot.others, strict=False):
        if curves := spec.curves(run)[:1]:
            found.append(f"{letter} {_at(run, curves[0].metric, snapshot.options.cursor)}")
    return found


def _in_lines(parts: Sequence[str], width: int) -> list[str]:
    """The parts in lines of at most `width` characters, without breaking a part."""
    lines: list[str] = []
    for part in parts:
        if lines and len(lines[-1]) + 2 + len(part) <= width:
            lines[-1] += f"  {part}"
        else:
            lines.append(part)
    return lines


def _fitting(parts: Sequence[str], room: int) -> str:
    """As many of the first parts as fit; at least one."""
    shown = list(parts)
    while len(shown) > 1 and len("  ".join(shown)) > room:
        shown.pop()
    return "  ".join(shown)
