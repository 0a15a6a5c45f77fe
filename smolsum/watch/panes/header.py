"""The top of a page: the run, its state, step, time and stages; and the line that tells what is wrong or new."""

from __future__ import annotations

from rich.text import Text

from smolsum.console import duration
from smolsum.runs.completions import clean
from smolsum.runs.status import TROUBLE, RunState, pace
from smolsum.watch.charts import RUNS
from smolsum.watch.pane import DIM, GREEN, ORANGE, RED, SKY, bar, cut
from smolsum.watch.panes.advice import clock
from smolsum.watch.snapshot import Snapshot

WITH_KEYS = {"pausing": "space takes it back", "paused": "space resumes"}
"""What a reader with keys presses, in the place of the command that does the same."""
STATE_STYLE = {"running": GREEN, "finished": GREEN, "paused": SKY, "pausing": ORANGE, "stopping": ORANGE}


def header(board: Snapshot, width: int) -> list[Text]:
    """Returns two lines: the run, its state, step, time; and a bar of its stages."""
    run, state = board.run, board.run_state
    which = f" {RUNS[0]}" if board.other is not None else ""
    left = Text.assemble((f"{which} {clean(run.paths.name)} ", "bold"), " ", state_text(state, board.look.ascii))
    total = f"/{run.total}" if run.total else ""
    left.append(f"  step {run.step}{total}")
    if board.other is not None:
        left.append(f"  {RUNS[1]} {clean(board.other.paths.name)} step {board.other.step}", style=ORANGE)
    took = pace(run, state, board.now)
    parts = [
        duration(took.elapsed_s) if took.elapsed_s is not None else "",
        f"eta {duration(took.eta_s)}" if took.eta_s is not None else "",
        clean(run.status.host),
    ]
    parts = [part for part in parts if part]
    while parts and left.cell_len + len("  ".join(parts)) + 3 > width:
        parts.pop()  # state and step are needed more
    right = "  ".join(parts)
    left = cut(left, max(width - len(right) - 2, 0), ascii=board.look.ascii)
    left.pad_right(max(width - len(right) - 2 - left.cell_len, 0))
    return [left.append(f" {right} "), _progress(board, width)]


def state_text(state: RunState, ascii: bool) -> Text:
    """Returns mark and word of a state."""
    style = RED if state.state in TROUBLE else STATE_STYLE.get(state.state, "")
    return Text(f"{state.mark(ascii)} {state.state.upper()}", style=f"bold {style}".strip())


def message(board: Snapshot, width: int) -> Text:
    """Returns how the run stands and what helps, in a line of `width` cells that stands out; where there is nothing to
    say of it, what it does now or what was last."""
    state = board.run_state
    if not state.detail:
        return cut(Text(f" {clean(_news(board))}", style=DIM), width, ascii=board.look.ascii)
    hint = WITH_KEYS.get(state.state, state.hint) if board.look.asks else state.hint
    line = Text(f" {clean(state.detail)}{f'  -> {clean(hint)}' if hint else ''}")
    line = cut(line, width, ascii=board.look.ascii)
    line.pad_right(width - line.cell_len)
    line.stylize(f"bold reverse {RED if state.state in TROUBLE else ORANGE}")
    return line


def _news(board: Snapshot) -> str:
    """What the run does while nothing is wrong, else its newest event."""
    run, state = board.run, board.run_state
    if run.behind():
        return "reading the run"
    if state.alive and run.status.phase == "evaluating":
        return f"evaluating on the test split: {run.stage if run.row else run.status.stage}"
    if not run.row and state.hopeful:
        return "waiting for the first step"
    return f"{clock(run.events[-1].time)} {run.events[-1].message}" if run.events else ""


def _progress(board: Snapshot, width: int) -> Text:
    """The stages in proportion to their steps, each a bar with its name."""
    run, ascii = board.run, board.look.ascii
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
