"""The panes of text: alerts, settings, step times, workers, constraints, log, metrics, and charts in a line each.

A pane is a function from a snapshot and a size in characters to a `Pane`; `layout.PANES` lists them all.
"""

import json
import re
from collections.abc import Mapping
from statistics import fmean

from rich.text import Text

from smolsum.config.constraints import Constraint, parse_constraints
from smolsum.config.presets import leaves
from smolsum.console import duration
from smolsum.errors import UsageError
from smolsum.runs.reader import Run
from smolsum.runs.records import NOTES
from smolsum.runs.samples import clean
from smolsum.runs.state import TROUBLE, seconds_since
from smolsum.watch.alerts import Alert, find_alerts
from smolsum.watch.axes import Axis, window
from smolsum.watch.charts import MIN_SPARKLINE, sparkline, sparkline_room
from smolsum.watch.curves import CHARTS, RUNS, chart_named, rewarded
from smolsum.watch.pane_text import (
    DIM,
    GREEN,
    NAME_WIDTH,
    ORANGE,
    RED,
    SKY,
    VALUE_WIDTH,
    Pane,
    bar,
    cut,
    ending,
    listed,
    number,
    scrolled,
    time_of_day,
    wrapped,
)
from smolsum.watch.results import gained
from smolsum.watch.snapshot import Snapshot

LEVELS = {"trouble": ("!!", RED), "warning": ("!", ORANGE), "note": ("i", SKY)}
"""Mark and style of an alert."""
MIN_LINES_WITH_MORE = 3
"""Lines of a pane from which the last one says that there is more."""
TIMES = {
    "rollout_s": "sampling",
    "score_s": "rewards",
    "fwd_bwd_s": "forward, backward",
    "optimizer_s": "optimizer",
    "publish_s": "publishing",
    "weight_encode_s": "weight encoding",
    "weight_sync_s": "weight sync",
    "validate_s": "validation",
}
MEAN_OVER = 20
"""Newest steps whose mean is shown."""
WORKER_STATES = {"worker_up": "ok", "worker_down": "DOWN"}
WORKER_COLUMNS = {"state": 7, "lag": 4, "tok/s": 8, "queue": 6, "synced": 9}
SPARE_COLUMNS = ("queue", "synced")
"""Columns that are dropped for full names, in this order."""
MARKS = {"failed": ("!!", RED), "warning": ("!", ORANGE), "note": ("", "")}
"""Mark and style of a message of the log; colour alone never carries meaning."""
INDENT = 13
STAMP = re.compile(r"^(\d{4}-\d\d-\d\dT[\d:.]+Z) (.*)$")
MAX_NAME = 44
"""Characters of a metric's name; of a longer one the end is shown."""


def alerts(snapshot: Snapshot, width: int, height: int, *, full: bool = False) -> Pane:
    """Return the alerts as sentences, with advice where there is room or if `full`; first why a run failed."""
    state = snapshot.run_state
    found = [Alert("trouble", clean(state.detail), clean(state.hint))] if state.state in TROUBLE else []
    found += find_alerts(snapshot.run)
    if not found:
        nothing = (
            "nothing unusual" if snapshot.run.row else "nothing to judge yet" if state.hopeful else "nothing to judge"
        )
        return Pane("alerts", "0", (Text(nothing, style=DIM),), news=False)
    lines = [line for alert in found for line in _alert(alert, width, full=True)]
    if len(lines) > height and not full:
        lines = [line for alert in found for line in _alert(alert, width, full=alert.level == "trouble")]
    if len(lines) > height >= MIN_LINES_WITH_MORE:
        lines = [*lines[: height - 1], Text("e shows all, with advice", style=DIM)]
    return Pane("alerts", str(len(found)), tuple(lines))


def _alert(alert: Alert, width: int, *, full: bool) -> list[Text]:
    mark, style = LEVELS[alert.level]
    first, *rest = wrapped(alert.sentence, width - 3)
    lines = [Text.assemble((f"{mark:<3}", f"bold {style}"), first), *(Text("   ").append_text(line) for line in rest)]
    return lines + (wrapped(f"-> {alert.advice}", width - 3, DIM, "   ") if full else [])


def settings(snapshot: Snapshot, width: int, height: int) -> Pane:
    """Return the resolved configuration, from the scrolled line on."""
    lines = [
        Text(clean(f"{key} = {json.dumps(value, ensure_ascii=False, default=str)}"))
        for key, value in leaves(snapshot.run.config).items()
    ]
    title = f"config of {RUNS[0]}" if snapshot.others else "config"
    return scrolled(title, str(snapshot.run.paths.config), lines, height, snapshot.options.scroll)


def times(snapshot: Snapshot, width: int, height: int) -> Pane:
    """Return where the time of a step goes, as the mean of the last steps, the longest part first."""
    run = snapshot.run
    steps = run.recent("perf/step_s", MEAN_OVER)
    if not steps:
        return Pane("step time", "", (Text("waiting for the first step", style=DIM),), news=False)
    mean = fmean(steps)
    parts = {}
    for name in run.named("perf/", "_s"):
        part = name.removeprefix("perf/")
        # a part that only some steps have, such as a validation, counts with its share of the steps
        seconds = sum(run.series[name].recent(len(steps), run.step - len(steps) + 1)) / len(steps)
        if part != "step_s" and "tok_s" not in part and seconds:
            parts[TIMES.get(part, part.removesuffix("_s").replace("_", " "))] = seconds
    rest = mean - sum(parts.values())
    if rest > 0.01 * mean:
        parts["other"] = rest
    load = load_of(run)
    notes = [_speed(run), f"process: {load}" if load else ""]
    lines: list[Text] = []
    speed = [line for note in notes if note for line in wrapped(note, width, DIM)]
    for label, seconds in sorted(parts.items(), key=lambda part: -part[1])[: max(height - len(speed), 2)]:
        head = f"{label[:17]:<17} {seconds:>7.2f}s "
        lines.append(
            Text(head).append(bar(seconds / mean, max(width - len(head) - 1, 1), ascii=snapshot.options.ascii), SKY)
        )
    return Pane("step time", f"{mean:.2f} s, mean of {len(steps)}", tuple([*lines, *speed][:height]))


def workers(snapshot: Snapshot, width: int, height: int) -> Pane:
    """Return state, version lag, speed, queue and bytes of each worker, and its last error with a hint.

    A worker is known by its id, which completions have under `worker`. From the newest line of metrics.jsonl:
        workers/<id>/lag            policy versions that its weights are behind those of the trainer
        workers/<id>/tok_s          completion tokens a second, while it sampled; not shown where it is down or silent
        workers/<id>/queue          prompts that it has and has not answered
        workers/<id>/bytes_synced   bytes of weights that it received since the attempt began
    The newest event with `worker: <id>` gives the state (worker_up: ok; worker_down: DOWN; any other worker_<word>: the
    word) and the last error, with the time since.
    """
    run = snapshot.run
    names = run.workers()
    if not names:
        return Pane("workers", "local", (Text("sampled by the trainer itself", style=DIM),), news=False)
    columns = dict(WORKER_COLUMNS)
    for spare in SPARE_COLUMNS:
        if max(map(len, names)) + 1 + sum(columns.values()) > width:
            del columns[spare]
    room = min(max(max(map(len, names)) + 1, 12), max(width - sum(columns.values()), 2))
    lines = [Text(f"{'name':<{room}}{_row(columns, {key: key for key in columns})}", style=DIM)]
    up = 0
    for name in names:
        event = run.worker_events.get(name)
        kind = event.kind if event else "worker_up"
        state = WORKER_STATES.get(kind, kind.removeprefix("worker_")[:6])
        answers = state not in ("DOWN", "silent")
        up += answers
        lag, speed, queue, synced = (
            run.in_last_step(f"workers/{name}/{key}") for key in ("lag", "tok_s", "queue", "bytes_synced")
        )
        cells = {"state": state, "lag": _whole(lag), "tok/s": _whole(speed if answers else None)}
        cells |= {"queue": _whole(queue), "synced": _bytes(synced)}
        shown = ending(clean(name), room - 1, ascii=snapshot.options.ascii)
        lines.append(Text(f"{shown:<{room}}{_row(columns, cells)}", style=RED if state == "DOWN" else ""))
        if event and event.message and state != "ok":
            hint = f" -> {event.hint}" if event.hint else ""
            since = seconds_since(event.time, snapshot.now)
            ago = "" if since is None else f"{duration(since)} ago: "
            lines += wrapped(clean(f"{ago}{event.message}{hint}"), width, ORANGE, "  ")
    return Pane("workers", f"{up}/{len(names)}", tuple(lines[:height]))


def _row(columns: Mapping[str, int], cells: Mapping[str, str]) -> str:
    """The cells in their columns, words to the left and numbers to the right."""
    return "".join(f"{cells[key]:{'<' if key == 'state' else '>'}{size}}" for key, size in columns.items())


def _speed(run: Run) -> str:
    """The sampling speed of the last steps and the peak of memory, as far as they are known."""
    remote = bool(run.workers())  # the trainer then only waits for them: their own pane has their speeds
    tokens = [] if remote else run.recent("num_tokens", MEAN_OVER)
    seconds = run.recent("perf/rollout_s", MEAN_OVER)
    memory = run.last("perf/peak_memory_gb")
    parts = [f"{sum(tokens) / sum(seconds):,.0f} tok/s sampled"] if tokens and sum(seconds) else []
    return ", ".join([*parts, *([f"peak memory {memory:.2f} GB"] if memory is not None else [])])


def load_of(run: Run) -> str:
    """Return the share of the processor in the last steps and the memory of the training process now."""
    shares = run.recent("system/cpu_percent", MEAN_OVER)
    parts = [f"{fmean(shares):.0f}% CPU"] if shares else []
    for name, words in (("system/memory_rss_gb", "GB in RAM"), ("system/gpu_memory_gb", "GB on the GPU")):
        size = run.last(name)
        parts += [f"{size:.2f} {words}"] if size is not None else []
    return ", ".join(parts)


def _whole(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


def _bytes(value: float | None) -> str:
    if value is None:
        return "-"
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{number(value)} {unit}" if unit != "B" else f"{value:.0f} B"
        value /= 1000
    return f"{value:.1f} TB"


def constraints(snapshot: Snapshot, width: int, height: int) -> Pane:
    """Return how each constraint of the stage stands, as the mean of the last steps: the share of rollouts that meet it
    (or the value), what it has to be, and the multiplier. The note is the reward that the constraints cost."""
    run, ascii = snapshot.run, snapshot.options.ascii
    lines = [line for one in _constraints_of(run) for line in _constraint(run, one, width, ascii=ascii)]
    if not lines:
        return Pane("constraints", "", (Text("this stage has none", style=DIM),), news=False)
    costs = run.recent("constraint/cost", MEAN_OVER)
    return Pane("constraints", f"cost {number(fmean(costs))} of reward" if costs else "", tuple(lines[:height]))


def _constraints_of(run: Run) -> tuple[Constraint, ...]:
    """The constraints of the run's current stage, or of its last one; none where they cannot be read."""
    stages = run.config.get("stages")
    named = stages if isinstance(stages, dict) else {}
    stage = named.get(run.stage) or next(reversed(named.values()), None)
    text = stage.get("constraints") if isinstance(stage, dict) else None
    try:
        return parse_constraints(text if isinstance(text, str) else "")
    except UsageError:
        return ()


def _constraint(run: Run, one: Constraint, width: int, *, ascii: bool) -> list[Text]:
    """A constraint in one line, or in two where its text leaves no room for how it stands."""
    name, share = f"constraint/{one.slug}", one.level is not None
    values = run.recent(f"{name}/{'share' if share else 'mean'}", MEAN_OVER)
    if not values:  # before the first step, and where the data lack what is bounded
        text = cut(Text(clean(one.text)), max(width - 13, 0), ascii=ascii)
        return [Text.assemble("   ", text, ("  no value", DIM))]
    found, multiplier = fmean(values), run.last(f"{name}/multiplier")
    met = one.shortfall(found) <= 0
    state = f"{found:.1%} of {one.level:.0%}" if share else number(found)
    state += "" if multiplier is None else f"  x {multiplier:.2f}"
    mark = ("ok " if met else "!  ", GREEN if met else f"bold {ORANGE}")
    text = cut(Text(clean(one.text)), width - 3, ascii=ascii)
    gap = width - 3 - text.cell_len - len(state)
    if gap > 0:
        return [Text.assemble(mark, text, " " * gap, state)]
    return [Text.assemble(mark, text), Text(f"{state:>{width}}")]


def run_log(snapshot: Snapshot, width: int, height: int) -> Pane:
    """Return the messages of the run, the newest last; scrolling shows older ones. Each has its time of day, and a mark
    where it is a warning (!) or says how the run failed (!!); a line names each attempt. Below a failure is its
    traceback."""
    lines: list[Text] = []
    events = sorted(_entries(snapshot), key=lambda entry: entry[0])
    attempt = 0
    for _, stamp, level, own, message in events:
        if own > attempt:
            attempt = own
            day = time_of_day(stamp, "%Y-%m-%d")
            lines.append(Text(f"attempt {attempt}{f', {day}' if day else ''}", style=f"bold {DIM}"))
        mark, style = MARKS[level]
        first, *more = message.split("\n")
        text = wrapped(clean(first), width - INDENT, style)
        time = f"{time_of_day(stamp) or '--:--:--'}  "
        head = Text.assemble((time, DIM), (f"{mark:<3}", f"bold {style}".strip()))
        lines += [head.append_text(text[0]), *(Text(" " * INDENT).append_text(line) for line in text[1:])]
        lines += [Text(f"{'':{INDENT}}{clean(line)}"[:width], style=DIM) for line in more]
    warnings = sum(level != "note" for _, _, level, _, _ in events)
    note = f"{len(events)} message{'' if len(events) == 1 else 's'}" + (f", {warnings} marked" if warnings else "")
    start = len(lines) - height - snapshot.options.scroll
    return scrolled("log", note, lines or [Text("none yet", style=DIM)], height, start)


def _entries(snapshot: Snapshot) -> list[tuple[tuple[str, int], str, str, int, str]]:
    """The order, time, level, attempt and text of each message; a traceback comes right after its event."""
    found = []
    for event in snapshot.run.events:
        level = "failed" if event.kind == "failed" else "note" if event.kind in NOTES else "warning"
        hint = f" -> {event.hint}" if event.hint else ""
        found.append(((event.time, 0), event.time, level, event.attempt, f"{event.message}{hint}"))
    for attempt, line in snapshot.run.log_lines:
        match = STAMP.match(line)
        if match:
            stamp, text = match.groups()
            found.append(((stamp, 1), stamp, "failed", attempt, text))
        elif found and found[-1][0][1] == 1:
            order, stamp, level, attempt, text = found[-1]
            found[-1] = (order, stamp, level, attempt, f"{text}\n{line}")
    return found


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
    options, found, series = snapshot.options, metrics_shown(snapshot), snapshot.run.series
    note = f"{len(found)} of {len(series)}" + (f"  /{options.metric_query}" if options.metric_query else "")
    if not found:
        nothing = f"no metric has {options.metric_query!r} in its name" if options.metric_query else "no step yet"
        return Pane("metrics", note, (Text(nothing, style=ORANGE if options.metric_query else DIM),))
    room = min(max(map(len, found)), MAX_NAME, max(width - 3 * VALUE_WIDTH - 12, 12)) + 1
    head = f"  {'':<{room}}" + "".join(f"{title:>{VALUE_WIDTH}}" for title in ("newest", "least", "most"))

    def row(place: int) -> Text:
        name, one = found[place], series[found[place]]
        pinned, shown = name in options.pinned, ending(clean(name), room - 1, ascii=options.ascii)
        values = (one.last, one.low, one.high) if one.count else (one.last, None, None)
        line = Text(f"{'*' if pinned else ' '} {shown:<{room}}", style=SKY if pinned else "")
        line.append("".join(f"{number(value):>{VALUE_WIDTH}}" for value in values))
        course = sparkline(snapshot, width - line.cell_len + VALUE_WIDTH, chart_named(name), name_width=0)
        return line.append_text(course[VALUE_WIDTH * (1 + len(snapshot.others)) :])

    return listed("metrics", note, head, len(found), min(options.metric_row, len(found) - 1), row, height)


def sparklines(snapshot: Snapshot, width: int, height: int) -> Pane:
    """Return the charts of a small terminal, a line for each. There is a head above if there is room, or if there are
    several runs."""
    head = [_head(snapshot, width)] if snapshot.others or height > len(CHARTS) else []
    lines = [sparkline(snapshot, width, spec) for spec in CHARTS[: max(height - len(head), 0)]]
    tests = [] if snapshot.others else gained(snapshot.run, ascii=snapshot.options.ascii)
    lines += [Text(f"{'' if tests[0].startswith('validation') else 'test split '}{'  '.join(tests)}")] if tests else []
    levels = [name for spec in CHARTS for name in [*spec.levels(snapshot.run)][:1] if name.startswith("target")]
    note, title = "  ".join([*levels, "1-9 enlarges"]), f"charts, reward: {rewarded(snapshot.run.weights())}"
    if snapshot.others or not snapshot.run.weights() or len(title) + len(note) + 6 > width:
        title = "charts"
    return Pane(title, note, (*head, *lines)[:height])


def _head(snapshot: Snapshot, width: int) -> Text:
    """The head of the columns: the newest value and the steps of one run, or the letters of several."""
    runs = 1 + len(snapshot.others)
    names, room = list(RUNS[:runs]) if snapshot.others else ["newest"], sparkline_room(width, runs)
    line = f"{'':<{NAME_WIDTH}}{''.join(f'{name:>{VALUE_WIDTH}}' for name in names)}"
    if room >= MIN_SPARKLINE and snapshot.others:
        line += "".join(f" {name:<{room}}" for name in names)
    elif room >= MIN_SPARKLINE and snapshot.run.row:
        axis = Axis(snapshot.run, snapshot.options.unit)
        first, last = (axis.label(axis.place(step)) for step in window(snapshot))
        last = f"step {last}" if axis.unit == "step" else last
        line += f" {first}{last:>{max(room - len(first), 1)}}"
    return Text(line, style=DIM)
