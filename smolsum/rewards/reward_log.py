"""What users' rewards log besides their values, in TRL's words: `log_extra`, `log_metric` and `trainer_state`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from smolsum.config.sections import Config


@dataclass(frozen=True)
class TrainerState:
    """Where the training is: updates done, and those of the whole run."""

    global_step: int
    max_steps: int


class RewardLog:
    """The columns and numbers that the rewards of one step log, of `sizes` completions for each group.

    Rewards run in threads; each call touches one entry, which is safe.
    """

    def __init__(self, sizes: Sequence[int], state: TrainerState) -> None:
        self.state = state
        self._sizes = sizes
        self._columns: dict[str, list[Any]] = {}
        self._metrics: dict[str, list[float]] = {}

    def log_extra(self, column: str, values: Iterable[Any]) -> None:
        """Keep a column of N values for the table of completions. Raises ValueError for another number of them."""
        kept = [_plain(value) for value in values]
        if len(kept) != sum(self._sizes):
            raise ValueError(f"log_extra({column!r}) got {len(kept)} values for {sum(self._sizes)} completions")
        self._columns[str(column)] = kept

    def log_metric(self, name: str, value: float) -> None:
        """Keep a number for the step's metrics; several of one name are averaged. Raises ValueError if it is not
        finite."""
        if not math.isfinite(number := float(value)):
            raise ValueError(f"log_metric({name!r}) got {number}, not a finite number")
        self._metrics.setdefault(str(name), []).append(number)

    def columns(self) -> dict[str, list[list[Any]]]:
        """Return the PxG values of each column."""
        found: dict[str, list[list[Any]]] = {}
        for name, flat in sorted(self._columns.items()):
            values = iter(flat)
            found[name] = [[next(values) for _ in range(size)] for size in self._sizes]
        return found

    def metrics(self) -> dict[str, list[float]]:
        """Return the numbers of each name."""
        return {name: list(values) for name, values in sorted(self._metrics.items())}


def at_the_end(config: Config) -> TrainerState:
    """Return the state of rewards outside of training: evaluations score as at the end, so that they compare."""
    steps = max(1, sum(stage.steps for stage in config.stages.values()))
    return TrainerState(steps, steps)


def _plain(value: Any) -> Any:
    """Return a value as JSON has it; arrays of one number become that, and anything else its text."""
    if hasattr(value, "item") and getattr(value, "size", 1) == 1:
        value = value.item()
    if value is None or isinstance(value, bool | int | str):
        return value
    return value if isinstance(value, float) and math.isfinite(value) else str(value)
