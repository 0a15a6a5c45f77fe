"""What a reward signal is: a function that scores a whole step at once."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol, TypeAlias

from smolsum.config.sections import Config
from smolsum.rewards.reward_log import RewardLog
from smolsum.types import RolloutGroup

Values: TypeAlias = list[list[float | None]]
"""PxG: a list of G for each of the P groups, None for what could not be computed"""


class NotApplicable(Enum):
    """The value of a user's reward for a completion that it does not apply to: left out of the sum, as TRL does. None,
    a value that could not be computed, makes the sum missing."""

    VALUE = "does not apply"


Outcomes: TypeAlias = list[list[float | NotApplicable | None]]
"""PxG values, of which some may not apply"""
Scorer: TypeAlias = Callable[[Sequence[RolloutGroup], Config], Values]


@dataclass(frozen=True)
class Dependent:
    """A signal made of other signals' values of the same step: a bonus only where an answer is right.

    `score` gets those it `needs` by name; they are computed, and logged, whether or not the stage gives them a weight.
    """

    needs: tuple[str, ...]
    score: Callable[[Sequence[RolloutGroup], Config, Mapping[str, Values]], Values]


class Begun(Protocol):
    """The computation of a signal that has begun."""

    def values(self) -> Outcomes:
        """Wait for the PxG values."""

    def stop(self) -> None:
        """Give up what still runs."""


class Background(ABC):
    """A signal that is computed while the others of the step are."""

    @abstractmethod
    def begin(self, groups: Sequence[RolloutGroup], config: Config, log: RewardLog) -> Begun:
        """Begin to compute the values of a step; what else there is to log goes to `log`."""


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
