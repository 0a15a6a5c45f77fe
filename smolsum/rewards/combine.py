"""What a reward signal is, a function that scores a whole step at once; and one reward from several signals."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from smolsum.config.sections import Config
from smolsum.types import RolloutGroup

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


def score_all(
    groups: Sequence[RolloutGroup], weights: Mapping[str, float], config: Config, signals: Mapping[str, Signal]
) -> dict[str, Values]:
    """Return PxG values of each signal in `weights` and of those they need, by name, looked up in the task's `signals`;
    a signal of weight 0 is computed too, to be logged."""
    found: dict[str, Values] = {}

    def compute(name: str) -> Values:
        if name not in found:
            signal = signals[name]
            if isinstance(signal, Dependent):
                found[name] = signal.score(groups, config, {need: compute(need) for need in signal.needs})
            else:
                found[name] = signal(groups, config)
        return found[name]

    for name in weights:
        compute(name)
    return found


def combine(
    groups: Sequence[RolloutGroup], scores: Mapping[str, Sequence[Sequence[float | None]]], weights: Mapping[str, float]
) -> list[list[float | None]]:
    """Return PxG totals, the sum over signals of weight x value; None where a signal of non-zero weight is None.

    A rollout whose total is None has no part in the advantages and gets the advantage 0; it still counts in the loss's
    denominators, and in the KL term if its group is trained on. Raises ValueError for a signal that is not PxG.
    """
    for name in weights:
        if [len(row) for row in scores[name]] != [len(group.rollouts) for group in groups]:
            raise ValueError(f"signal {name!r} does not score each rollout of each group once")
    return [
        [_total([(weight, scores[name][p][g]) for name, weight in weights.items()]) for g in range(len(group.rollouts))]
        for p, group in enumerate(groups)
    ]


def _total(terms: Sequence[tuple[float, float | None]]) -> float | None:
    """Return the weighted sum, exactly rounded, so that the order of the signals in a config is no matter."""
    products: list[float] = []
    for weight, value in terms:
        if weight == 0:
            continue
        if value is None:
            return None
        products.append(weight * value)
    return math.fsum(products)
