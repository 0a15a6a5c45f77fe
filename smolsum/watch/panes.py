"""The text of a page: header and message, and the panes alerts, settings, step times and workers.

A pane is a function from a snapshot and a size in characters to a `Pane`; `layout.PANES` lists them all.
"""

import json
from collections.abc import Mapping
from statistics import fmean, median

from rich.text import Text

from smolsum.config.presets import leaves
from smolsum.console import duration
from smolsum.runs.completion_groups import clean
from smolsum.runs.reader import Run
from smolsum.runs.records import Status
from smolsum.runs.run_state import TROUBLE, mean_step, pace, seconds_since
from smolsum.watch import results_page
from smolsum.watch.alerts import Alert, find_alerts
from smolsum.watch.compare_page import compared_in_head
from smolsum.watch.curves import RUNS
from smolsum.watch.pane_text import DIM, GREEN, ORANGE, RED, SKY, Pane, bar, cut, ending, number, time_of_day, wrapped
from smolsum.watch.snapshot import Snapshot

WITH_KEYS = {"pausing": "space takes it back", "paused": "space resumes"}
"""Keys that replace a command in the message, for a user who can pause and stop the run."""
STATE_STYLE = {"running": GREEN, "finished": GREEN, "paused": SKY, "pausing": ORANGE, "stopping": ORANGE}
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
SAMPLED = {
    "evaluating": "evaluating on the test split",
    "validating": "validating",
    "measuring": "measuring the difficulty of prompts",
}
"""Phases of a run that sample completions, in words."""
SLOW_STEP_S = 10.0
"""Seconds of a step from which the count of its rollouts is news."""
OVERDUE_STEPS, OVERDUE_S = 3, 10.0
"""Usual steps, and seconds, after which a step is overdue."""
MEAN_OVER = 20
"""Newest steps whose mean is shown."""
WORKER_STATES = {"worker_up": "ok", "worker_down": "DOWN"}
WORKER_COLUMNS = {"state": 7, "lag": 4, "tok/s": 8, "queue": 6, "synced": 9}
SPARE_COLUMNS = ("queue", "synced")
"""Columns that are dropped for full names, in this order."""


def header(snapshot: Snapshot, width: int) -> list[Text]:
    """Return two lines: the run with its state, step and time; and a bar of its stages, with the grid at work."""
    run, state = snapshot.run, snapshot.run_state
    which = f" {RUNS[0]}" if snapshot.others else ""
    style = RED if state.state in TROUBLE else STATE_STYLE.get(state.state, "")
    mark = f"{state.mark(snapshot.options.ascii)} {state.state.upper()}"
    left = Text.assemble((f"{which} {clean(run.paths.name)} ", "bold"), " ", (mark, f"bold {style}".strip()))
    total = f"/{run.total}" if run.total else ""
    reading = run.read_share < 1
    left.append(f"  reading metrics {run.read_share:.0%}" if reading else f"  step {run.step}{total}")
    if state.alive and run.status.phase in SAMPLED:
        left.append(f"  {run.status.phase} {run.status.done}/{run.status.completions or '?'}", style="bold")
    if (since := overdue(snapshot)) is not None:
        left.append(f"  last step {duration(since)} ago", style=f"bold {ORANGE}")
    left.append_text(compared_in_head(snapshot, width - left.cell_len - 2))
    took = pace(run, state, snapshot.now)
    gained = results_page.gained(run, ascii=snapshot.options.ascii)
    parts = [
        duration(took.elapsed_s) if took.elapsed_s is not None else "",
        f"eta {duration(took.eta_s)}" if took.eta_s is not None and not reading else "",
        "" if snapshot.others else " ".join(gained),
        f"on {clean(run.status.host)}" if run.status.host else "",
        _load(run),
    ]
    parts = [part for part in parts if part]
    while parts and left.cell_len + len("  ".join(parts)) + 3 > width:
        parts.pop()  # state and step matter more
    right = "  ".join(parts)
    left = cut(left, max(width - len(right) - 2, 0), ascii=snapshot.options.ascii)
    left.pad_right(max(width - len(right) - 2 - left.cell_len, 0))
    if snapshot.grid is None:
        return [left.append(f" {right} "), _progress(snapshot, width)]
    grid = cut(Text(f" {snapshot.grid.text} ", style="bold"), width, ascii=snapshot.options.ascii)
    return [left.append(f" {right} "), _progress(snapshot, width - grid.cell_len).append_text(grid)]


def overdue(snapshot: Snapshot) -> float | None:
    """Return the seconds since the last step of a run at work, once that is far longer than its steps take."""
    run, steps = snapshot.run, snapshot.run.recent("perf/step_s", MEAN_OVER)
    resting = run.status.phase != "training" or snapshot.run_state.state != "running"
    if run.last_row_s is None or not steps or resting or run.read_share < 1:
        return None
    since = snapshot.now.timestamp() - run.last_row_s
    return since if since > max(OVERDUE_STEPS * median(steps), OVERDUE_S) else None


def message(snapshot: Snapshot, width: int) -> Text:
    """Return what is wrong and what helps, in a highlighted line of `width` cells; if nothing is wrong, what the run
    does now, or its newest event."""
    state = snapshot.run_state
    if not state.detail:
        return cut(Text(f" {clean(_news(snapshot))}", style=DIM), width, ascii=snapshot.options.ascii)
    hint = WITH_KEYS.get(state.state, state.hint) if snapshot.options.asks else state.hint
    if (grid := snapshot.grid) and not (state.alive or grid.alive or grid.complete):
        hint = grid.command
    line = Text(f" {clean(state.detail)}{f'  -> {clean(hint)}' if hint else ''}")
    line = cut(line, width, ascii=snapshot.options.ascii)
    line.pad_right(width - line.cell_len)
    line.stylize(f"bold reverse {RED if state.state in TROUBLE else ORANGE}")
    return line


def _news(snapshot: Snapshot) -> str:
    """What the run does now, or its newest event."""
    run, state = snapshot.run, snapshot.run_state
    if run.behind():
        return "reading the run"
    status = run.status
    if state.alive and status.phase in SAMPLED:
        return f"{SAMPLED[status.phase]}: {status.stage}, {_sampled(status)}"
    if state.alive and status.done < status.completions and (mean_step(run) or SLOW_STEP_S) >= SLOW_STEP_S:
        return f"sampling step {status.step + 1}: {_sampled(status)}"
    if not run.row and state.hopeful:
        took = pace(run, state, snapshot.now).elapsed_s
        return "waiting for the first step" + (f", {duration(took)} so far" if took else "")
    return f"{time_of_day(run.events[-1].time) or '--:--:--'} {run.events[-1].message}" if run.events else ""


def _sampled(status: Status) -> str:
    """The count of completions, their speed and the time left, as far as they are known."""
    of = f" of {status.completions}" if status.completions else ""
    speed = "" if status.tok_s is None else f"{status.tok_s:,.0f} tok/s"
    left = "" if status.left_s is None else f"{duration(status.left_s)} left"
    return ", ".join(filter(None, (f"{status.done}{of} completions", speed, left)))


def _progress(snapshot: Snapshot, width: int) -> Text:
    """A bar for each stage, in proportion to its steps, with its name."""
    run, ascii = snapshot.run, snapshot.options.ascii
    stages = run.stages or ({"steps": run.total} if run.total else {})
    if not stages:
        line = Text(" steps are not known yet", style=DIM)
        line.pad_right(max(width - line.cell_len, 0))
        return line
    line, done, left = Text(" "), run.step, width - 2
    for place, (name, steps) in enumerate(stages.items()):
        own = min(max(done, 0), steps)
        done -= steps
        room = left if place == len(stages) - 1 else max(round((width - 2) * steps / max(run.total, 1)), 12)
        label = f"{clean(name)} {own}/{steps} "
        longer = f"{label}from {clean(run.reused[name])} " if name in run.reused else label
        label = next((text for text in (longer, label) if len(text) < room - 4), "")
        active = 0 < own < steps or (own == 0 and name == run.stage)
        line.append(label, style="bold" if active else "")
        line.append(bar(own / steps if steps else 1.0, max(room - len(label) - 1, 1), ascii=ascii) + " ", style=SKY)
        left -= room
    line.truncate(width, overflow="crop")
    return line


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
    start = min(snapshot.options.scroll, max(len(lines) - height, 0))
    whose = f" of {RUNS[0]}" if snapshot.others else ""
    place = f"{start + 1}-{min(start + height, len(lines))} of {len(lines)}  " if len(lines) > height else ""
    return Pane(f"config{whose}", f"{place}{snapshot.run.paths.config}", tuple(lines[start : start + height]))


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
    load = _load(run)
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
    """Return state, version lag, speed, queue and bytes of each worker, and its last error with the remedy.

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


def _load(run: Run) -> str:
    """The share of the processor in the last steps and the memory of the training process now."""
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
