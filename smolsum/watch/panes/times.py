"""Where a step's time goes."""

from __future__ import annotations

from statistics import fmean

from rich.text import Text

from smolsum.watch.block import DIM, SKY, Block, bar
from smolsum.watch.board import Board

TIMES = {
    "rollout_s": "sampling",
    "rollout_wait_s": "waiting for rollouts",
    "score_s": "rewards",
    "fwd_bwd_s": "forward, backward",
    "optimizer_s": "optimizer",
    "weight_sync_s": "weight sync",
    "validate_s": "validation",
}
MEAN_OVER = 20


def times(board: Board, width: int, height: int) -> Block:
    """Returns the parts of a step in the mean of the last steps, each with a bar, the longest first."""
    run = board.run
    steps = run.recent("perf/step_s", MEAN_OVER)
    if not steps:
        return Block("step time", "", (Text("waiting for the first step", style=DIM),))
    mean = fmean(steps)
    parts = {}
    for name in run.named("perf/", "_s"):
        part = name.removeprefix("perf/")
        # a part that not every step has, a validation say, counts with its share of the steps
        seconds = sum(run.series[name].recent(len(steps), run.step - len(steps) + 1)) / len(steps)
        if part != "step_s" and "tok_s" not in part and seconds:
            parts[TIMES.get(part, part.removesuffix("_s").replace("_", " "))] = seconds
    rest = mean - sum(parts.values())
    if rest > 0.01 * mean:
        parts["other"] = rest
    lines = []
    for label, seconds in sorted(parts.items(), key=lambda part: -part[1])[:height]:
        head = f"{label[:17]:<17} {seconds:>7.2f}s "
        lines.append(Text(head).append(bar(seconds / mean, max(width - len(head) - 1, 1), ascii=board.look.ascii), SKY))
    return Block("step time", f"{mean:.2f} s, mean of {len(steps)}", tuple(lines))
