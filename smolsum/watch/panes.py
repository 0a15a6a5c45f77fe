"""The text of a page: header and message, and the panes alerts, events, settings, results, step times and workers.

A pane is a function from a snapshot and a size in characters to a `Pane`; `layout.PANES` lists them all.
"""

import json
from collections.abc import Mapping
from datetime import datetime
from statistics import fmean

from rich.text import Text

from smolsum.config.presets import leaves
from smolsum.console import duration
from smolsum.runs.completion_groups import clean
from smolsum.runs.reader import Run
from smolsum.runs.run_state import TROUBLE, pace
from smolsum.watch.alerts import Alert, find_alerts
from smolsum.watch.charts import RUNS
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
    number,
    wrapped,
)
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
MEAN_OVER = 20
"""Newest steps whose mean is shown."""
WORKER_STATES = {"worker_up": "ok", "worker_down": "DOWN"}
WORKER_COLUMNS = {"state": 7, "lag": 4, "tok/s": 8, "queue": 6, "synced": 9}
SPARE_COLUMNS = ("queue", "synced")
"""Columns that are dropped for full names, in this order."""


def header(snapshot: Snapshot, width: int) -> list[Text]:
    """Return two lines: the run with its state, step and time; and a bar of its stages."""
    run, state = snapshot.run, snapshot.run_state
    which = f" {RUNS[0]}" if snapshot.other is not None else ""
    style = RED if state.state in TROUBLE else STATE_STYLE.get(state.state, "")
    mark = f"{state.mark(snapshot.options.ascii)} {state.state.upper()}"
    left = Text.assemble((f"{which} {clean(run.paths.name)} ", "bold"), " ", (mark, f"bold {style}".strip()))
    total = f"/{run.total}" if run.total else ""
    left.append(f"  step {run.step}{total}")
    if snapshot.other is not None:
        left.append(f"  {RUNS[1]} {clean(snapshot.other.paths.name)} step {snapshot.other.step}", style=ORANGE)
    took = pace(run, state, snapshot.now)
    parts = [
        duration(took.elapsed_s) if took.elapsed_s is not None else "",
        f"eta {duration(took.eta_s)}" if took.eta_s is not None else "",
        clean(run.status.host),
    ]
    parts = [part for part in parts if part]
    while parts and left.cell_len + len("  ".join(parts)) + 3 > width:
        parts.pop()  # state and step matter more
    right = "  ".join(parts)
    left = cut(left, max(width - len(right) - 2, 0), ascii=snapshot.options.ascii)
    left.pad_right(max(width - len(right) - 2 - left.cell_len, 0))
    return [left.append(f" {right} "), _progress(snapshot, width)]


def message(snapshot: Snapshot, width: int) -> Text:
    """Return what is wrong and what helps, in a highlighted line of `width` cells; if nothing is wrong, what the run
    does now, or its newest event."""
    state = snapshot.run_state
    if not state.detail:
        return cut(Text(f" {clean(_news(snapshot))}", style=DIM), width, ascii=snapshot.options.ascii)
    hint = WITH_KEYS.get(state.state, state.hint) if snapshot.options.asks else state.hint
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
    if state.alive and run.status.phase == "evaluating":
        return f"evaluating on the test split: {run.stage if run.row else run.status.stage}"
    if not run.row and state.hopeful:
        return "waiting for the first step"
    return f"{_clock(run.events[-1].time)} {run.events[-1].message}" if run.events else ""


def _progress(snapshot: Snapshot, width: int) -> Text:
    """A bar for each stage, in proportion to its steps, with its name."""
    run, ascii = snapshot.run, snapshot.options.ascii
    stages = run.stages or ({"steps": run.total} if run.total else {})
    if not stages:
        return Text(" steps are not known yet", style=DIM)
    line, done, left = Text(" "), run.step, width - 2
    for place, (name, steps) in enumerate(stages.items()):
        own = min(max(done, 0), steps)
        done -= steps
        room = left if place == len(stages) - 1 else max(round((width - 2) * steps / max(run.total, 1)), 12)
        label = f"{clean(name)} {own}/{steps} "
        label = label if len(label) < room - 4 else ""
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
        return Pane("alerts", "0", (Text(nothing, style=DIM),))
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


def events(snapshot: Snapshot, width: int, height: int) -> Pane:
    """Return the events, the newest last; scrolling shows older ones."""
    lines: list[Text] = []
    for event in snapshot.run.events:
        noted = event.kind in ("warning", "interrupted") or "worker" in event.kind
        style = RED if event.kind == "failed" else ORANGE if noted else ""
        hint = f" -> {event.hint}" if event.hint else ""
        text = wrapped(clean(f"{event.message}{hint}"), width - 10, style)
        lines += [Text(f"{_clock(event.time)}  ", style=DIM).append_text(text[0])]
        lines += [Text(" " * 10).append_text(line) for line in text[1:]]
    end = max(len(lines) - snapshot.options.scroll, min(height, len(lines)))
    shown = lines[max(end - height, 0) : end]
    return Pane("events", f"{len(snapshot.run.events)}", tuple(shown or [Text("none yet", style=DIM)]))


def settings(snapshot: Snapshot, width: int, height: int) -> Pane:
    """Return the resolved configuration, from the scrolled line on."""
    lines = [
        Text(clean(f"{key} = {json.dumps(value, ensure_ascii=False, default=str)}"))
        for key, value in leaves(snapshot.run.config).items()
    ]
    start = min(snapshot.options.scroll, max(len(lines) - height, 0))
    return Pane("config", str(snapshot.run.paths.config), tuple(lines[start : start + height]))


def _clock(stamp: str) -> str:
    """Return the local time of day of a time in a run's files; dashes for anything else."""
    try:
        return datetime.fromisoformat(stamp).astimezone().strftime("%H:%M:%S")
    except ValueError:
        return "--:--:--"


def results(snapshot: Snapshot, width: int, height: int) -> Pane:
    """Return what the stages did to the model: a row for each headline metric; columns for the start, each stage and
    the newest validation, as many from the right as there is room for."""
    run = snapshot.run
    columns = {
        label if label == "start" else f"after {label}": dict(summary.metrics)
        for label, summary in run.results.items()
        if summary.metrics
    }
    validated = {metric: run.last(f"validation/{metric}") for metric in ("reward", *run.headlines)}
    if any(value is not None for value in validated.values()):
        columns["validation"] = validated
    if not columns:
        hopeful = snapshot.run_state.hopeful
        nothing = "the model as it starts is being measured" if hopeful else "this run measured nothing"
        return Pane("results", "", tuple(wrapped(nothing, width, DIM)))
    titles = {metric: clean(title) for metric, title in {"reward": "reward", **run.headlines}.items()}
    known = [metric for metric in titles if any(row.get(metric) is not None for row in columns.values())]
    sizes = {label: max(len(label), VALUE_WIDTH - 2) + 2 for label in columns}
    while len(columns) > 1 and NAME_WIDTH + sum(sizes[label] for label in columns) > width:
        del columns[next(iter(columns))]
    head = f"{'':<{NAME_WIDTH}}" + "".join(f"{clean(label):>{sizes[label]}}" for label in columns)
    lines = [Text(head, style=DIM)]
    for metric in known:
        cells = "".join(f"{number(row.get(metric)):>{sizes[label]}}" for label, row in columns.items())
        lines.append(Text(f"{titles[metric][:NAME_WIDTH]:<{NAME_WIDTH}}{cells}"))
    step = run.series["validation/reward"].last_step if "validation/reward" in run.series else None
    note = "greedy, test split" + (f"; validation of step {step}" if "validation" in columns and step else "")
    return Pane("results", note, tuple(lines[:height]))


def times(snapshot: Snapshot, width: int, height: int) -> Pane:
    """Return where the time of a step goes, as the mean of the last steps, the longest part first."""
    run = snapshot.run
    steps = run.recent("perf/step_s", MEAN_OVER)
    if not steps:
        return Pane("step time", "", (Text("waiting for the first step", style=DIM),))
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
    lines = []
    for label, seconds in sorted(parts.items(), key=lambda part: -part[1])[:height]:
        head = f"{label[:17]:<17} {seconds:>7.2f}s "
        lines.append(
            Text(head).append(bar(seconds / mean, max(width - len(head) - 1, 1), ascii=snapshot.options.ascii), SKY)
        )
    return Pane("step time", f"{mean:.2f} s, mean of {len(steps)}", tuple(lines))


def workers(snapshot: Snapshot, width: int, height: int) -> Pane:
    """Return state, version lag, speed, queue and bytes of each worker, and its last error with the remedy.

    A worker is known by its id, which completions have under `worker`. From the newest line of metrics.jsonl:
        workers/<id>/lag            policy versions that its weights are behind those of the trainer
        workers/<id>/tok_s          completion tokens a second, while it sampled
        workers/<id>/queue          prompts that it has and has not answered
        workers/<id>/bytes_synced   bytes of weights that it received since the attempt began
    The newest event with `worker: <id>` gives the state (worker_up: ok; worker_down: DOWN; any other worker_<word>: the
    word) and the last error.
    """
    run = snapshot.run
    names = run.workers()
    if not names:
        return Pane("workers", "local", tuple(_local(run, width)))
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
        up += state != "DOWN"
        lag, speed, queue, synced = (
            run.in_last_step(f"workers/{name}/{key}") for key in ("lag", "tok_s", "queue", "bytes_synced")
        )
        cells = {"state": state, "lag": _whole(lag), "tok/s": _whole(speed)}
        cells |= {"queue": _whole(queue), "synced": _bytes(synced)}
        shown = ending(clean(name), room - 1, ascii=snapshot.options.ascii)
        lines.append(Text(f"{shown:<{room}}{_row(columns, cells)}", style=RED if state == "DOWN" else ""))
        if event and event.message and state != "ok":
            hint = f" -> {event.hint}" if event.hint else ""
            lines += wrapped(clean(f"{event.message}{hint}"), width, ORANGE, "  ")
    return Pane("workers", f"{up}/{len(names)}", tuple(lines[:height]))


def _row(columns: Mapping[str, int], cells: Mapping[str, str]) -> str:
    """The cells in their columns, words to the left and numbers to the right."""
    return "".join(f"{cells[key]:{'<' if key == 'state' else '>'}{size}}" for key, size in columns.items())


def _local(run: Run, width: int) -> list[Text]:
    """The speed of a trainer that samples by itself, as the mean of the last steps."""
    tokens, seconds = run.recent("num_tokens", MEAN_OVER), run.recent("perf/rollout_s", MEAN_OVER)
    if not tokens or not sum(seconds):
        return [Text("sampled by the trainer itself", style=DIM)]
    memory = run.last("perf/peak_memory_gb")
    speed = f"sampled by the trainer: {sum(tokens) / sum(seconds):,.0f} tok/s"
    return wrapped(speed + ("" if memory is None else f", peak memory {memory:.2f} GB"), width)


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
