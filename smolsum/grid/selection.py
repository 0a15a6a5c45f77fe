"""What `--model`, `--strategy` and `--reward` select when they are repeated or say `all`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from smolsum.errors import UsageError
from smolsum.tasks import DEFAULT_TASK, TASKS
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
    """Returns what the flags mean; `all` stands for what the task says. UsageError for a task that is none."""
    name = task or DEFAULT_TASK
    if name not in TASKS:
        raise UsageError(f"flag --task: unknown task {name!r}", hint=nearest(name, TASKS))
    found = TASKS[name]
    return Selection(
        _expand(models, found.grid.models or tuple(found.models)),
        _expand(strategies, found.grid.strategies or tuple(found.strategies)),
        _expand(rewards, found.grid.rewards),
    )


def _expand(values: Sequence[str] | None, every: Sequence[str]) -> tuple[str | None, ...]:
    """Each value once, `all` as what it stands for; where that is nothing it stays, for the flag's own error."""
    if not values:
        return (None,)
    return tuple(dict.fromkeys(one for value in values for one in (every if value == ALL and every else (value,))))
