"""The panes of text: what is above and below every page, alerts, step times, workers, constraints, charts in a line
each, the log and the settings.

A pane is a function from a snapshot and a size in characters to what is drawn.
"""

import json
import re
from collections.abc import Mapping
from statistics import fmean, median

from rich.filesize import decimal
from rich.text import Text

from smolsum.config.constraints import Constraint, parse_constraints
from smolsum.config.differences import rewarded
from smolsum.config.presets import leaves
from smolsum.console import duration
from smolsum.errors import UsageError
from smolsum.linechart.scale import number
from smolsum.runs.alerts import Alert
from smolsum.runs.reader import Run
from smolsum.runs.records import NOTES, Status
from smolsum.runs.samples import clean
from smolsum.runs.state import TROUBLE, mean_step, pace, seconds_since, time_of_day
from smolsum.watch.charts import CHARTS, MIN_SPARKLINE, RUNS, axis_of, sparkline, sparkline_room
from smolsum.watch.formats import (
    DIM,
    GREEN,
    NAME_WIDTH,
    ORANGE,
    RED,
    SKY,
    VALUE_WIDTH,
    PaneText,
    bar,
    cut,
    ending,
    hanging,
)
from smolsum.watch.model import Snapshot
from smolsum.watch.results import compared_in_head, gained

WITH_KEYS = {"pausing": "space takes it back", "paused": "space resumes"}
"""Keys that replace a command in the message, for a user who can pause and stop the run."""
STATE_STYLE = {"running": GREEN, "finished": GREEN, "paused": SKY, "pausing": ORANGE, "stopping": ORANGE}
SAMPLED = {
    "evaluating": "evaluating on the test split",
    "validating": "validating",
    "measuring": "measuring the difficulty of prompts",
}
"""Phases of a run that sample completions, in words."""
STEPPING = ("training", "updating")
"""Phases within a step."""
SLOW_STEP_S = 10.0
"""Seconds of a step from which the count of its rollouts is news."""
OVERDUE_STEPS, OVERDUE_S = 3, 10.0
"""Usual steps, and seconds, after which a step is overdue."""


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
STAMP = re.compile(r"^(\d{4}-\d\d-\d\dT[\d:.]+Z) (.*)$")


def header(snapshot: Snapshot, width: int) -> list[Text]:
    """Return two lines: the run with its state, step and time; and a bar of its stages, with the grid at work."""
    run, state = snapshot.run, snapshot.run_state
    which = f" {RUNS[0]}" if snapshot.others else ""
    style = RED if state.state in TROUBLE else STATE_STYLE.get(state.state, "")
    mark = f"{state.mark} {state.state.upper()}"
    left = Text.assemble((f"{which} {clean(run.paths.name)} ", "bold"), " ", (mark, f"bold {style}".strip()))
    reading, total = run.reading, f"/{run.total}" if run.total else ""
    left.append(f"  reading metrics {run.read_share:.0%}" if reading else f"  step {run.step}{total}")
    if (since := _overdue(snapshot)) is not None:
        left.append(f"  last step {duration(since)} ago", style=f"bold {ORANGE}")
    left.append_text(compared_in_head(snapshot, width - left.cell_len - 2))
    took = pace(run, state, snapshot.now)
    found = [
        duration(took.elapsed_s) if took.elapsed_s is not None else "",
        f"eta {duration(took.eta_s)}" if took.eta_s is not None and not reading else "",
        "" if snapshot.others or not (trained := gained(run)) else trained.text,
        f"on {clean(run.status.host)}" if run.status.host else "",
        load_of(run),
    ]
    parts = [part for part in found if part]
    while parts and left.cell_len + len("  ".join(parts)) + 3 > width:
        parts.pop()  # state and step matter more
    right = "  ".join(parts)
    grid = cut(Text(f" {snapshot.grid.text} " if snapshot.grid else "", style="bold"), width)
    left = cut(left, width - len(right) - 2, pad=True)
    return [left.append(f" {right} "), _progress(snapshot, width - grid.cell_len).append_text(grid)]


def _overdue(snapshot: Snapshot) -> float | None:
    """The seconds since the last step of a run at work, once that is far longer than its steps take."""
    run, steps = snapshot.run, snapshot.run.recent("perf/step_s", MEAN_OVER)
    resting = run.status.phase not in STEPPING or snapshot.run_state.state != "running"
    if run.last_row_s is None or not steps or resting or run.reading:
        return None
    since = snapshot.now.timestamp() - run.last_row_s
    return since if since > max(OVERDUE_STEPS * median(steps), OVERDUE_S) else None


def message(snapshot: Snapshot, width: int) -> Text:
    """Return what is wrong and what helps, in a highlighted line of `width` cells; if nothing is wrong, what the run
    does now, or its newest event."""
    state = snapshot.run_state
    if not state.detail:
        return cut(Text(f" {clean(_news(snapshot))}", style=DIM), width)
    hint = WITH_KEYS.get(state.state, state.hint) if snapshot.asks else state.hint
    if (grid := snapshot.grid) and not (state.alive or grid.alive or grid.complete):
        hint = grid.command
    line = cut(Text(f" {clean(state.detail)}{f'  -> {clean(hint)}' if hint else ''}"), width, pad=True)
    line.stylize(f"bold reverse {RED if state.state in TROUBLE else ORANGE}")
    return line


def _news(snapshot: Snapshot) -> str:
    """What the run does now, or its newest event."""
    run, state = snapshot.run, snapshot.run_state
    if run.reading:
        return "reading the run"
    status = run.status
    if state.alive and status.phase in SAMPLED:
        return f"{SAMPLED[status.phase]}: {status.stage}, {_sampled(status)}"
    sampling = status.phase != "updating" and status.done < status.completions
    if state.alive and sampling and (mean_step(run) or SLOW_STEP_S) >= SLOW_STEP_S:
        return f"sampling step {status.step + 1}: {_sampled(status)}"
    if not run.row and status.phase == "updating" and state.alive:
        return f"update of step {status.step + 1}: {_sampled(status, 'groups')}"
    if not run.row and state.hopeful:
        took = pace(run, state, snapshot.now).elapsed_s
        return "waiting for the first step" + (f", {duration(took)} so far" if took else "")
    return f"{time_of_day(run.events[-1].time) or '--:--:--'} {run.events[-1].message}" if run.events else ""


def _sampled(status: Status, noun: str = "completions") -> str:
    of = f" of {status.completions}" if status.completions else ""
    speed = "" if status.tok_s is None else f"{status.tok_s:,.0f} tok/s"
    left = "" if status.left_s is None else f"{duration(status.left_s)} left"
    return ", ".join(filter(None, (f"{status.done}{of} {noun}", speed, left)))


def _progress(snapshot: Snapshot, width: int) -> Text:
    """A bar for each stage, in proportion to its steps, with its name."""
    run = snapshot.run
    stages = run.stages or ({"steps": run.total} if run.total else {})
    if not stages:
        return cut(Text(" steps are not known yet", style=DIM), width, pad=True)
    line, done, left = Text(" "), run.step, width - 2
    for place, (name, steps) in enumerate(stages.items()):
        own = min(max(done, 0), steps)
        done -= steps
        room = left if place == len(stages) - 1 else max(round((width - 2) * steps / max(run.total, 1)), 12)
        label = f"{clean(name)} {own}/{steps} "
        longer = f"{label}from {clean(run.reused[name])} " if name in run.reused else label
        label = next((text for text in (longer, label, f"{clean(name)} ") if len(text) < room - 4), "")
        active = 0 < own < steps or (own == 0 and name == run.stage)
        line.append(label, style="bold" if active else "")
        line.append(bar(own / steps if steps else 1.0, max(room - len(label) - 1, 1)) + " ", style=SKY)
        left -= room
    line.truncate(width, overflow="crop")
    return line


def alerts(snapshot: Snapshot, width: int, height: int | None = None) -> PaneText:
    """Return the alerts as sentences, with advice where there is room; first why a run failed."""
    found, state = snapshot.alerts, snapshot.run_state
    if not found:
        nothing = "nothing unusual" if snapshot.run.row else f"nothing to judge{' yet' if state.hopeful else ''}"
        return PaneText("alerts", "0", (Text(nothing, style=DIM),), news=False)
    lines = [line for alert in found for line in _alert(alert, width, full=True)]
    if height is not None and len(lines) > height:
        lines = [line for alert in found for line in _alert(alert, width, full=alert.level == "trouble")]
    if height is not None and len(lines) > height >= MIN_LINES_WITH_MORE:
        lines = [*lines[: height - 1], Text("e shows all, with advice", style=DIM)]
    return PaneText("alerts", str(len(found)), tuple(lines))


def _alert(alert: Alert, width: int, *, full: bool) -> list[Text]:
    mark, style = LEVELS[alert.level]
    lines = hanging(Text(f"{mark:<3}", f"bold {style}"), alert.sentence, width)
    return lines + (hanging(Text("   "), f"-> {alert.advice}", width, DIM) if full else [])


def times(snapshot: Snapshot, width: int, height: int) -> PaneText:
    """Return where the time of a step goes, as the mean of the last steps, the longest part first."""
    run = snapshot.run
    steps = run.recent("perf/step_s", MEAN_OVER)
    if not steps:
        return PaneText("step time", "", (Text("waiting for the first step", style=DIM),), news=False)
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
    overlap = "parts overlap: what workers do goes on beside the update" if rest < -0.01 * mean else ""
    notes, lines = [overlap, _speed(run), f"process: {load}" if load else ""], list[Text]()
    speed = [line for note in notes if note for line in hanging(Text(), note, width, DIM)]
    for label, seconds in sorted(parts.items(), key=lambda part: -part[1])[: max(height - len(speed), 2)]:
        head = f"{label[:17]:<17} {seconds:>7.2f}s "
        lines.append(Text(head).append(bar(seconds / mean, max(width - len(head) - 1, 1)), SKY))
    return PaneText("step time", f"{mean:.2f} s, mean of {len(steps)}", tuple([*lines, *speed][:height]))


def workers(snapshot: Snapshot, width: int, height: int) -> PaneText:
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
        return PaneText("workers", "local", (Text("sampled by the trainer itself", style=DIM),), news=False)
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
        cells |= {"queue": _whole(queue), "synced": "-" if synced is None else decimal(int(synced))}
        shown = ending(clean(name), room - 1)
        lines.append(Text(f"{shown:<{room}}{_row(columns, cells)}", style=RED if state == "DOWN" else ""))
        if event and event.message and state != "ok":
            hint = f" -> {event.hint}" if event.hint else ""
            since = seconds_since(event.time, snapshot.now)
            ago = "" if since is None else f"{duration(since)} ago: "
            lines += hanging(Text("  "), clean(f"{ago}{event.message}{hint}"), width, ORANGE)
    return PaneText("workers", f"{up}/{len(names)}", tuple(lines[:height]))


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


def constraints(snapshot: Snapshot, width: int, height: int) -> PaneText:
    """Return how each constraint of the stage stands, as the mean of the last steps: the share of rollouts that meet it
    (or the value), what it has to be, and the multiplier. The note is the reward that the constraints cost."""
    run = snapshot.run
    lines = [line for one in _constraints_of(run) for line in _constraint(run, one, width)]
    if not lines:
        return PaneText("constraints", "", (Text("this stage has none", style=DIM),), news=False)
    costs = run.recent("constraint/cost", MEAN_OVER)
    return PaneText("constraints", f"cost {number(fmean(costs))} of reward" if costs else "", tuple(lines[:height]))


def _constraints_of(run: Run) -> tuple[Constraint, ...]:
    """The constraints of the run's current stage, or of its last one; none where they cannot be read."""
    stages = run.settings.stages
    stage = stages.get(run.stage) or next(reversed(stages.values()), None)
    try:
        return parse_constraints(stage.constraints if stage else "")
    except UsageError:
        return ()


def _constraint(run: Run, one: Constraint, width: int) -> list[Text]:
    """A constraint in one line, or in two where its text leaves no room for how it stands."""
    name, share = f"constraint/{one.slug}", one.level is not None
    values = run.recent(f"{name}/{'share' if share else 'mean'}", MEAN_OVER)
    if not values:  # before the first step, and where the data lack what is bounded
        text = cut(Text(clean(one.text)), max(width - 13, 0))
        return [Text.assemble("   ", text, ("  no value", DIM))]
    found, multiplier = fmean(values), run.last(f"{name}/multiplier")
    said, bound = one.text, run.last(f"{name}/bound")
    if bound is not None:
        said, one = f"{one.text} ({number(bound)})", one.ending_at(bound)
    met = one.shortfall(found) <= 0
    state = f"{found:.1%} of {one.level:.0%}" if share else number(found)
    state += "" if multiplier is None else f"  x {multiplier:.2f}"
    mark = ("ok " if met else "!  ", GREEN if met else f"bold {ORANGE}")
    text = cut(Text(clean(said)), width - 3)
    gap = width - 3 - text.cell_len - len(state)
    if gap > 0:
        return [Text.assemble(mark, text, " " * gap, state)]
    return [Text.assemble(mark, text), Text(f"{state:>{width}}")]


def settings(snapshot: Snapshot, _width: int) -> PaneText:
    lines = [
        f"{key} = {json.dumps(value, ensure_ascii=False, default=str)}"
        for key, value in leaves(snapshot.run.config).items()
    ]
    title = f"config of {RUNS[0]}" if snapshot.others else "config"
    return PaneText(title, str(snapshot.run.paths.config), tuple(Text(clean(line)) for line in lines))


def run_log(snapshot: Snapshot, width: int) -> PaneText:
    """Return the messages of the run, the newest last, and how many there are. Each has its time of day, and a mark
    where it is a warning (!) or says how the run failed (!!); a line names each attempt. Below a failure is its
    traceback."""
    lines: list[Text] = []
    events, attempt = sorted(_entries(snapshot), key=lambda entry: entry[:2]), 0
    for stamp, _, level, own, message in events:
        if own > attempt:
            attempt = own
            day = time_of_day(stamp, "%Y-%m-%d")
            lines.append(Text(f"attempt {attempt}{f', {day}' if day else ''}", style=f"bold {DIM}"))
        mark, style = MARKS[level]
        first, *more = message.split("\n")
        time = f"{time_of_day(stamp) or '--:--:--'}  "
        head = Text.assemble((time, DIM), (f"{mark:<3}", f"bold {style}".strip()))
        lines += hanging(head, clean(first), width, style)
        lines += [Text(f"{'':{len(head)}}{clean(line)}"[:width], style=DIM) for line in more]
    warnings = sum(level != "note" for _, _, level, *_ in events)
    note = f"{len(events)} message{'' if len(events) == 1 else 's'}" + (f", {warnings} marked" if warnings else "")
    return PaneText("log", note, tuple(lines) or (Text("none yet", style=DIM),))


def _entries(snapshot: Snapshot) -> list[tuple[str, bool, str, int, str]]:
    """The time of each message, whether it is a traceback (which comes right after its event), level, attempt, text."""
    found = []
    for event in snapshot.run.events:
        level = "failed" if event.kind == "failed" else "note" if event.kind in NOTES else "warning"
        hint = f" -> {event.hint}" if event.hint else ""
        found.append((event.time, False, level, event.attempt, f"{event.message}{hint}"))
    for attempt, line in snapshot.run.log_lines:
        if match := STAMP.match(line):
            found.append((match[1], True, "failed", attempt, match[2]))
        elif found and found[-1][1]:
            stamp, _, level, own, text = found[-1]
            found[-1] = (stamp, True, level, own, f"{text}\n{line}")
    return found


def sparklines(snapshot: Snapshot, width: int, height: int) -> PaneText:
    """Return the charts of a small terminal, a line for each. There is a head above if there is room, or if there are
    several runs."""
    head = [_head(snapshot, width)] if snapshot.others or height > len(CHARTS) else []
    lines = [sparkline(snapshot, width, spec) for spec in CHARTS[: max(height - len(head), 0)]]
    if not snapshot.others and (trained := gained(snapshot.run)):
        lines.append(Text(trained.text if trained.validated else f"test split {trained.text}"))
    levels = [name for spec in CHARTS for name in [*spec.levels(snapshot.run)][:1] if name.startswith("target")]
    note, title = "  ".join([*levels, "1-9 enlarges"]), f"charts, reward: {rewarded(snapshot.run.weights())}"
    if snapshot.others or not snapshot.run.weights() or len(title) + len(note) + 6 > width:
        title = "charts"
    return PaneText(title, note, (*head, *lines)[:height])


def _head(snapshot: Snapshot, width: int) -> Text:
    """The head of the columns: the newest value and the steps of one run, or the letters of several."""
    runs = 1 + len(snapshot.others)
    names, room = list(RUNS[:runs]) if snapshot.others else ["newest"], sparkline_room(width, runs)
    line = f"{'':<{NAME_WIDTH}}{''.join(f'{name:>{VALUE_WIDTH}}' for name in names)}"
    if room >= MIN_SPARKLINE and snapshot.others:
        line += "".join(f" {name:<{room}}" for name in names)
    elif room >= MIN_SPARKLINE and snapshot.run.row:
        axis = axis_of(snapshot.run, snapshot.options.unit)
        first, last = (axis.label(axis.place(step)) for step in snapshot.in_view)
        first, last = (f"step {first}", f"step {last}") if axis.unit == "step" else (first, last)
        line += f" {first}{last:>{max(room - len(first), 1)}}"
    return Text(line, style=DIM)
