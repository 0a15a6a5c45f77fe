"""The charts of a small terminal: a line for each, with the newest value and its course."""

from rich.text import Text

from smolsum.runs.reader import Run
from smolsum.runs.series import smoothed
from smolsum.watch.axes import Axis, scale, spans_of_rewards, window, without_outliers
from smolsum.watch.braille import Trace, draw, heights
from smolsum.watch.curves import CHARTS, RUNS, Chart, rewarded
from smolsum.watch.pane_text import CURVES, DIM, NAME_WIDTH, VALUE_WIDTH, Pane, number
from smolsum.watch.results_page import gained
from smolsum.watch.snapshot import Snapshot

MIN_SPARKLINE = 4
"""Characters below which a sparkline shows nothing."""


def sparklines(snapshot: Snapshot, width: int, height: int) -> Pane:
    """Return a line for each chart: its title, and the newest value and a sparkline of its first curve; those of
    several runs side by side, on one scale. There is a head above if there is room, or if there are several runs."""
    head = [_head(snapshot, width)] if snapshot.others or height > len(CHARTS) else []
    lines = [sparkline(snapshot, width, spec) for spec in CHARTS[: max(height - len(head), 0)]]
    tests = [] if snapshot.others else gained(snapshot.run, ascii=snapshot.options.ascii)
    lines += [Text(f"{'' if tests[0].startswith('validation') else 'test split '}{'  '.join(tests)}")] if tests else []
    levels = [name for spec in CHARTS for name in [*spec.levels(snapshot.run)][:1] if name.startswith("target")]
    note, title = "  ".join([*levels, "1-9 enlarges"]), f"charts, reward: {rewarded(snapshot.run.weights())}"
    if snapshot.others or not snapshot.run.weights() or len(title) + len(note) + 6 > width:
        title = "charts"
    return Pane(title, note, (*head, *lines)[:height])


def sparkline(snapshot: Snapshot, width: int, spec: Chart, *, name_width: int = NAME_WIDTH) -> Text:
    """Return the line of one chart."""
    runs = [snapshot.run, *snapshot.others]
    metric = next((curve.metric for run in runs for curve in spec.curves(run)[:1]), "")
    line = Text(f"{spec.title[:name_width]:<{name_width}}")
    room = _room(width, len(runs), name_width)
    while room < MIN_SPARKLINE and len(runs) > 2:
        runs.pop()
        room = _room(width, len(runs), name_width)
    line.append("".join(f"{number(run.last(metric)):>{VALUE_WIDTH}}" for run in runs))
    if room < MIN_SPARKLINE:
        return line
    for place, run in enumerate(runs):
        line.append(" ").append(_course(snapshot, run, metric, spec, room), style=CURVES[place % len(CURVES)])
    return line


def _head(snapshot: Snapshot, width: int) -> Text:
    """The head of the columns: the newest value and the steps of one run, or the letters of several."""
    runs = 1 + len(snapshot.others)
    names, room = list(RUNS[:runs]) if snapshot.others else ["newest"], _room(width, runs, NAME_WIDTH)
    line = f"{'':<{NAME_WIDTH}}{''.join(f'{name:>{VALUE_WIDTH}}' for name in names)}"
    if room >= MIN_SPARKLINE and snapshot.others:
        line += "".join(f" {name:<{room}}" for name in names)
    elif room >= MIN_SPARKLINE and snapshot.run.row:
        axis = Axis(snapshot.run, snapshot.options.unit)
        first, last = (axis.label(axis.place(step)) for step in window(snapshot))
        last = f"step {last}" if axis.unit == "step" else last
        line += f" {first}{last:>{max(room - len(first), 1)}}"
    return Text(line, style=DIM)


def _room(width: int, runs: int, name_width: int) -> int:
    """Characters of each sparkline."""
    return (width - name_width - VALUE_WIDTH * runs) // runs - 1


def _course(snapshot: Snapshot, run: Run, metric: str, spec: Chart, room: int) -> str:
    """The course of a metric in the shown steps; behind a divider, it begins anew where the reward changes. All runs
    have one scale, but each reward of a chart of rewards has its own."""
    if metric not in run.series:
        return " " * room
    axis, (first, last), options = Axis(run, snapshot.options.unit), window(snapshot), snapshot.options
    pieces = []
    for span in spans_of_rewards(run):
        low, high = max(span.first, first), min(span.last, last)
        points = run.series[metric].points(low - 1, high) if low <= high else []
        if points:
            pieces.append((axis.place(low), axis.place(high), smoothed(axis.points(points), options.smoothing)))
    if not pieces:
        return " " * room
    runs = [snapshot.run, *snapshot.others]
    common = [point for each in runs if metric in each.series for point in each.series[metric].points(first - 1, last)]
    begin, end = axis.place(first), axis.place(last)
    text = ""
    for a, b, points in pieces:
        left = round((a - begin) / (end - begin) * room) if end > begin else 0
        right = round((b - begin) / (end - begin) * room) if end > begin else room
        text = text.ljust(left)
        if text and points is not pieces[0][2]:
            text = text[:-1] + ("|" if options.ascii else "│")
        alone = spec.by_reward and len(pieces) > 1
        y = scale(without_outliers(points if alone else common), False, spec.least if not spec.log else None)
        columns = max(right - len(text), 1)
        if options.ascii:
            text += heights(points, columns, x=(a, b), y=y)
        else:
            text += draw([Trace(tuple(points))], columns, 1, x=(a, b), y=y).lines[0]
    return text[:room].ljust(room)
