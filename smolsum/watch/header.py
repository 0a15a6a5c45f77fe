"""The lines around the panes of every page: the run with its state above, and what it does or what helps below."""

from statistics import median

from rich.text import Text

from smolsum.console import duration
from smolsum.runs.records import Status
from smolsum.runs.samples import clean
from smolsum.runs.state import TROUBLE, mean_step, pace
from smolsum.watch.curves import RUNS
from smolsum.watch.pane_text import DIM, GREEN, ORANGE, RED, SKY, bar, cut, time_of_day
from smolsum.watch.panes import MEAN_OVER, load_of
from smolsum.watch.results import compared_in_head, gained
from smolsum.watch.snapshot import Snapshot

WITH_KEYS = {"pausing": "space takes it back", "paused": "space resumes"}
"""Keys that replace a command in the message, for a user who can pause and stop the run."""
STATE_STYLE = {"running": GREEN, "finished": GREEN, "paused": SKY, "pausing": ORANGE, "stopping": ORANGE}
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


def header(snapshot: Snapshot, width: int) -> list[Text]:
    """Return two lines: the run with its state, step and time; and a bar of its stages, with the grid at work."""
    run, state = snapshot.run, snapshot.run_state
    which = f" {RUNS[0]}" if snapshot.others else ""
    style = RED if state.state in TROUBLE else STATE_STYLE.get(state.state, "")
    mark = f"{state.mark(snapshot.options.ascii)} {state.state.upper()}"
    left = Text.assemble((f"{which} {clean(run.paths.name)} ", "bold"), " ", (mark, f"bold {style}".strip()))
    reading, total = run.read_share < 1, f"/{run.total}" if run.total else ""
    left.append(f"  reading metrics {run.read_share:.0%}" if reading else f"  step {run.step}{total}")
    if state.alive and run.status.phase in SAMPLED:
        left.append(f"  {run.status.phase} {run.status.done}/{run.status.completions or '?'}", style="bold")
    if (since := _overdue(snapshot)) is not None:
        left.append(f"  last step {duration(since)} ago", style=f"bold {ORANGE}")
    left.append_text(compared_in_head(snapshot, width - left.cell_len - 2))
    took = pace(run, state, snapshot.now)
    found = [
        duration(took.elapsed_s) if took.elapsed_s is not None else "",
        f"eta {duration(took.eta_s)}" if took.eta_s is not None and not reading else "",
        "" if snapshot.others else " ".join(gained(run, ascii=snapshot.options.ascii)),
        f"on {clean(run.status.host)}" if run.status.host else "",
        load_of(run),
    ]
    parts = [part for part in found if part]
    while parts and left.cell_len + len("  ".join(parts)) + 3 > width:
        parts.pop()  # state and step matter more
    right = "  ".join(parts)
    left = cut(left, max(width - len(right) - 2, 0), ascii=snapshot.options.ascii)
    left.pad_right(max(width - len(right) - 2 - left.cell_len, 0))
    grid = Text(f" {snapshot.grid.text} " if snapshot.grid else "", style="bold")
    grid = cut(grid, width, ascii=snapshot.options.ascii)
    return [left.append(f" {right} "), _progress(snapshot, width - grid.cell_len).append_text(grid)]


def _overdue(snapshot: Snapshot) -> float | None:
    """The seconds since the last step of a run at work, once that is far longer than its steps take."""
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
