"""The top of a page, with run, state, step, time and stages; and the line that says what is wrong or new."""

from __future__ import annotations

from rich.text import Text

from smolsum.console import duration
from smolsum.runs.completions import clean
from smolsum.runs.status import TROUBLE, RunState, pace
from smolsum.watch.charts import RUNS
from smolsum.watch.pane import DIM, GREEN, ORANGE, RED, SKY, bar, cut
from smolsum.watch.panes import clock
from smolsum.watch.snapshot import Snapshot

WITH_KEYS = {"pausing": "space takes it back", "paused": "space resumes"}
"""Keys that replace a command in the message, for a user who can pause and stop the run."""
STATE_STYLE = {"running": GREEN, "finished": GREEN, "paused": SKY, "pausing": ORANGE, "stopping": ORANGE}


def header(snapshot: Snapshot, width: int) -> list[Text]:
    """Returns two lines: the run with its state, step and time; and a bar of its stages."""
    run, state = snapshot.run, snapshot.run_state
    which = f" {RUNS[0]}" if snapshot.other is not None else ""
    left = Text.assemble((f"{which} {clean(run.paths.name)} ", "bold"), " ", state_text(state, snapshot.options.ascii))
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


def state_text(state: RunState, ascii: bool) -> Text:
    """Returns the mark and the word of a state."""
    style = RED if state.state in TROUBLE else STATE_STYLE.get(state.state, "")
    return Text(f"{state.mark(ascii)} {state.state.upper()}", style=f"bold {style}".strip())


def message(snapshot: Snapshot, width: int) -> Text:
    """Returns what is wrong and what helps, in a highlighted line of `width` cells; if nothing is wrong, what the run
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
    return f"{clock(run.events[-1].time)} {run.events[-1].message}" if run.events else ""


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
