"""The pane of the stage's constraints: how each one stands, what it weighs, and what all of them cost."""

from statistics import fmean

from rich.text import Text

from smolsum.config.constraints import Constraint, parse_constraints
from smolsum.errors import UsageError
from smolsum.runs.completion_groups import clean
from smolsum.runs.reader import Run
from smolsum.watch.pane_text import DIM, GREEN, ORANGE, Pane, cut, number
from smolsum.watch.snapshot import Snapshot

MEAN_OVER = 20
"""Newest steps whose mean is shown."""


def constraints(snapshot: Snapshot, width: int, height: int) -> Pane:
    """Return how each constraint of the stage stands, as the mean of the last steps: the share of rollouts that meet it
    (or the value), what it has to be, and the multiplier. The note is the reward that the constraints cost."""
    run = snapshot.run
    lines = [line for one in _of_stage(run) for line in _lines(run, one, width, ascii=snapshot.options.ascii)]
    if not lines:
        return Pane("constraints", "", (Text("this stage has none", style=DIM),), news=False)
    costs = run.recent("constraint/cost", MEAN_OVER)
    return Pane("constraints", f"cost {number(fmean(costs))} of reward" if costs else "", tuple(lines[:height]))


def _of_stage(run: Run) -> tuple[Constraint, ...]:
    """The constraints of the run's current stage, or of its last one; none where they cannot be read."""
    stages = run.config.get("stages")
    named = stages if isinstance(stages, dict) else {}
    stage = named.get(run.stage) or next(reversed(named.values()), None)
    text = stage.get("constraints") if isinstance(stage, dict) else None
    try:
        return parse_constraints(text if isinstance(text, str) else "")
    except UsageError:
        return ()


def _lines(run: Run, one: Constraint, width: int, *, ascii: bool) -> list[Text]:
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
