"""What a reward signal is: a function that scores a whole step at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from smolsum.config import Config
from smolsum.rollout.records import RolloutGroup

Values: TypeAlias = list[list[float | None]]
"""PxG: a list of G for each of the P groups, None for what could not be computed"""
Scorer: TypeAlias = Callable[[Sequence[RolloutGroup], Config], Values]


@dataclass(frozen=True)
class Dependent:
    """A signal made of other signals' values of the same step: a bonus only where an answer is right.

    `score` gets those it `needs` by name; they are computed, and logged, whether or not the stage gives them a weight.
    """

    needs: tuple[str, ...]
    score: Callable[[Sequence[RolloutGroup], Config, Mapping[str, Values]], Values]


Signal: TypeAlias = Scorer | Dependent
