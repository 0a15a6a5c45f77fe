"""What `--model`, `--strategy` and `--reward` select when they are repeated or say `all`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from smolsum.errors import UsageError
from smolsum.tasks import DEFAULT_TASK, TASKS
from smolsum.tasks.task import Task
from smolsum.values import nearest

ALL = "all"


@dataclass(frozen=True)
class Selection:
    """The values of the three flags, each once and in the order given; None alone for a flag that was not."""

    models: tuple[str | None, ...]
    strategies: tuple[str | None, ...]
    rewards: tuple[str | None, ...]

    @property
    def is_grid(self) -> bool:
        """Whether more than one configuration is meant."""
        return len(self.models) * len(self.strategies) * len(self.rewards) > 1


def select(
    models: Sequence[str] | None, strategies: Sequence[str] | None, rewards: Sequence[str] | None, task: str | None
) -> Selection:
    """Returns what the flags mean; `all` stands for what the task says. UsageError for a task that is none, or that has
    nothing that `all` stands for."""
    name = task or DEFAULT_TASK
    if name not in TASKS:
        raise UsageError(f"flag --task: unknown task {name!r}", hint=nearest(name, TASKS))
    found = TASKS[name]
    return Selection(
        _expand("--model", models, found.grid.models or tuple(found.models), found),
        _expand("--strategy", strategies, found.grid.strategies or tuple(found.strategies), found),
        _expand("--reward", rewards, found.grid.rewards, found),
    )


def _expand(flag: str, values: Sequence[str] | None, every: Sequence[str], task: Task) -> tuple[str | None, ...]:
    """Each value once, `all` as what it stands for; UsageError where that is nothing."""
    if not values:
        return (None,)
    if ALL in values and not every:
        hint = f"leave {flag} out, or name {'signals, such as ' + next(iter(task.signals)) if task.signals else 'one'}"
        raise UsageError(f"flag {flag}: the task {task.name} has no list that 'all' stands for", hint=hint)
    return tuple(dict.fromkeys(one for value in values for one in (every if value == ALL else (value,))))
