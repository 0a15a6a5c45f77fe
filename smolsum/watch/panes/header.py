"""The top of a page: the run, its state, step, time and stages; and the line that tells what is wrong or new."""

from __future__ import annotations

from rich.text import Text

from smolsum.progress import duration
from smolsum.watch.block import DIM, GREEN, ORANGE, RED, SKY, bar
from smolsum.watch.board import Board
from smolsum.watch.completions import clean
from smolsum.watch.panes.events import clock
from smolsum.watch.standing import TROUBLE, Standing, pace

STATE_STYLE = {"running": GREEN, "finished": GREEN, "paused": SKY, "pausing": ORANGE, "stopping": ORANGE}


def header(board: Board, width: int) -> list[Text]:
    """Returns two lines: the run, its state, step, time; and a bar of its stages."""
    run, state = board.run, board.standing
    left = Text.assemble((f" {clean(run.paths.name)} ", "bold"), " ", state_text(state, board.look.ascii))
    total = f"/{run.total}" if run.total else ""
    left.append(f"  step {run.step}{total}")
    if board.other is not None:
        left.append(f"  B {clean(board.other.paths.name)} step {board.other.step}", style=ORANGE)
    took = pace(run, state.alive, board.now)
    parts = [
        duration(took.elapsed_s) if took.elapsed_s is not None else "",
        f"eta {duration(took.eta_s)}" if took.eta_s is not None else "",
        clean(str(run.status.value.get("host") or "")),
    ]
    parts = [part for part in parts if part]
    while parts and left.cell_len + len("  ".join(parts)) + 3 > width:
        parts.pop()  # state and step are needed more
    right = "  ".join(parts)
    left.truncate(max(width - len(right) - 2, 0), overflow="crop", pad=True)
    return [left.append(f" {right} "), _progress(board, width)]


def state_text(state: Standing, ascii: bool) -> Text:
    """Returns mark and word of a state."""
    style = RED if state.state in TROUBLE else STATE_STYLE.get(state.state, "")
    return Text(f"{state.mark(ascii)} {state.state.upper()}", style=f"bold {style}".strip())


def message(board: Board) -> Text:
    """Returns what is wrong with the run and what helps, in a line; else the newest event."""
    state = board.standing
    if state.detail:
        hint = f"  -> {state.hint}" if state.hint else ""
        return Text(f" {clean(state.detail)}{clean(hint)}", style=RED if state.state in TROUBLE else ORANGE)
    if board.run.behind():
        return Text(" reading the run", style=DIM)
    if not board.run.row:
        phase = str(board.run.status.value.get("phase") or "")
        doing = f", {phase} {board.run.stage} now" if phase == "evaluating" else ""
        return Text(f" waiting for the first step{doing}", style=DIM)
    if board.run.status.value.get("phase") == "evaluating":
        return Text(f" evaluating on the test split: {board.run.status.value.get('stage')}", style=DIM)
    newest = board.run.events[-1] if board.run.events else {}
    return Text(f" {clock(newest.get('time'))} {clean(str(newest.get('message', '')))}", style=DIM)


def _progress(board: Board, width: int) -> Text:
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
