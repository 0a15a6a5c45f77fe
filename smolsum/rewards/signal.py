"""What a reward signal is, a function that scores a whole step at once, and what users' rewards log besides, in TRL's
words: `log_extra`, `log_metric` and `trainer_state`."""

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeAlias, TypeVar

from smolsum.config.sections import Config
from smolsum.types import RolloutGroup

_END = re.compile(r"-?(?:\d+\.?\d*|∞)")
Values: TypeAlias = list[list[float | None]]
"""PxG: a list of G for each of the P groups, None for what could not be computed"""


class NotApplicable(Enum):
    """The value of a user's reward for a completion that it does not apply to: left out of the sum, as TRL does. None,
    a value that could not be computed, makes the sum missing."""

    VALUE = "does not apply"


Outcomes: TypeAlias = list[list[float | NotApplicable | None]]
"""PxG values, of which some may not apply"""
F = TypeVar("F", bound=Callable[..., Values])
Scorer: TypeAlias = Callable[[Sequence[RolloutGroup], Config], Values]


@dataclass(frozen=True)
class Facts:
    """What is known of a signal without computing it."""

    title: str = ""
    """in reports; empty: its name"""
    range: str = ""
    """of its values, such as `[0, 1]`"""
    meaning: str = ""
    """in words, for reports"""
    by_length: bool = False
    """whether a text is worth less because it is long or cut: stages that train such a signal learn from truncated
    completions too (`grpo.mask_truncated`)"""
    by_end: bool = False
    """whether nothing but the place where a text ends decides it (`grpo.length_credit`)"""
    by_reference: bool = False
    """whether it compares with references, so that it is missing for a prompt without any"""

    @property
    def ends(self) -> tuple[float, float]:
        """The least and the largest value that `range` names; without any an infinite range."""
        found = [float(text.replace("∞", "inf")) for text in _END.findall(self.range)]
        return (min(found), max(found)) if self.range[:1] in "[({" and len(found) > 1 else (-math.inf, math.inf)


def facts_of(signal: Any) -> Facts:
    """Return the facts that a signal carries; empty ones for a plain function."""
    return getattr(signal, "facts", None) or Facts()


def described(range: str, meaning: str, **more: Any) -> Callable[[F], F]:
    """Return the decorator that gives a scorer its `Facts`."""

    def describe(scorer: F) -> F:
        setattr(scorer, "facts", Facts(range=range, meaning=meaning, **more))  # noqa: B010
        return scorer

    return describe


@dataclass(frozen=True)
class Dependent:
    """A signal made of other signals' values of the same step: a bonus only where an answer is right.

    `score` gets those it `needs` by name; they are computed, and logged, whether or not the stage gives them a weight.
    """

    needs: tuple[str, ...]
    score: Callable[[Sequence[RolloutGroup], Config, Mapping[str, Values]], Values]
    facts: Facts = Facts()


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


class Background(ABC):
    """A signal that is computed while the others of the step are."""

    @abstractmethod
    def begin(
        self, groups: Sequence[RolloutGroup], config: Config, log: RewardLog
    ) -> AbstractContextManager[Callable[[], Outcomes]]:
        """Begin to compute the values of a step, and give what waits for them; what still runs at the end is given up.
        What else there is to log goes to `log`."""


Signal: TypeAlias = Scorer | Dependent | Background


def score_each(score: Callable[[str], float | None]) -> Scorer:
    """Return the signal that scores each completion's text by itself."""

    def score_texts(groups: Sequence[RolloutGroup], config: Config) -> Values:
        return [[score(rollout.text) for rollout in group.rollouts] for group in groups]

    return score_texts


def score_against_references(score: Callable[[str, Sequence[str]], float]) -> Scorer:
    """Return the signal that compares each text with its prompt's references; None for a prompt without any."""

    def score_texts(groups: Sequence[RolloutGroup], config: Config) -> Values:
        return [
            [score(rollout.text, refs) if (refs := group.prompt.references) else None for rollout in group.rollouts]
            for group in groups
        ]

    return score_texts
