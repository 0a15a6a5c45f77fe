"""`smolsum train` of many configurations."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING

from smolsum import console
from smolsum.errors import UsageError

if TYPE_CHECKING:
    from smolsum.grid.plan import Planned


def train_grid(planned: Sequence[Planned], arguments: Sequence[str], *, dry_run: bool, quiet: bool) -> None:
    """Shows the plan and, unless it is for show only, trains what is not done; prints the directory of each run."""
    if dry_run:
        show_plan(planned)
        return
    todo = [one for one in planned if one.state != "done"]
    if not quiet:
        console.narrate(f"{len(planned)} runs, {len(planned) - len(todo)} of them done")

    from smolsum.grid.train import train_all

    remedy = shlex.join(["smolsum", *arguments])
    train_all(planned, quiet=quiet, remedy=remedy, done=lambda root: console.data(str(root)))


def show_plan(planned: Sequence[Planned]) -> None:
    """Prints a line for each run: what it is, its steps, and how far it is."""
    from smolsum.grid.plan import status_of, steps_of

    rows, left, unknown = [], 0, False
    trained: set[tuple[object, ...]] = set()
    for one, steps in zip(planned, steps_of(planned), strict=True):
        stages, told = one.config.stages, []
        for name, stage in stages.items():
            count = steps[name] if steps else 0
            first = name == next(iter(stages))
            key = (one.config.model.path, tuple(sorted(stage.rewards.items())), count)
            shared = first and len(stages) > 1 and key in trained
            if first:
                trained.add(key)
            told.append(f"{name} {count or f'{stage.epochs:g} of the data'}{' (shared)' if shared else ''}")
            left += 0 if shared or one.state == "done" else count
            unknown = unknown or steps is None
        step = status_of(one.resume).get("step") if one.resume else None
        state = f"goes on at step {step}" if one.state == "goes on" and step else one.state
        rows.append([one.name, state, " > ".join(told), one.strategy, one.reward, one.config.model.path])
    console.data_table(["name", "state", "steps", "strategy", "reward", "model"], rows)
    states = [one.state for one in planned]
    counts = ", ".join(f"{states.count(state)} {what}" for state, what in _STATES.items() if state in states)
    console.narrate(
        f"{len(planned)} runs: {counts}; {'steps known once the data are here' if unknown else f'{left} steps at most'}"
    )


_STATES = {"done": "done", "goes on": "to go on with", "to train": "to train"}


def refuse_single(flags: Sequence[str]) -> None:
    """UsageError for flags that are about one run."""
    if flags:
        raise UsageError(
            f"{', '.join(flags)} {'is' if len(flags) == 1 else 'are'} for one run, and several are selected",
            hint="give one --model, --strategy and --reward; smolsum watch shows the run under way",
        )
