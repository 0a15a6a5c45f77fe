"""The values of all signals of a step, and one reward from several signals."""

import math
import sys
from collections.abc import Mapping, Sequence
from contextlib import chdir, nullcontext, redirect_stdout

from smolsum.config.sections import Config
from smolsum.rewards.signal import Background, Begun, Dependent, Signal, Values
from smolsum.types import RolloutGroup


def score_all(
    groups: Sequence[RolloutGroup], weights: Mapping[str, float], config: Config, signals: Mapping[str, Signal]
) -> dict[str, Values]:
    """Return PxG values of each signal in `weights` and of those they need, by name, looked up in the task's `signals`;
    a signal of weight 0 is computed too, to be logged. Those of users are computed at the same time; what they print
    goes to stderr, as stdout is for results."""
    found: dict[str, Values] = {}
    begun: dict[str, Begun] = {}

    def compute(name: str) -> Values:
        if name not in found:
            signal = signals[name]
            if isinstance(signal, Background):
                found[name] = begun[name].values()
            elif isinstance(signal, Dependent):
                found[name] = signal.score(groups, config, {need: compute(need) for need in signal.needs})
            else:
                found[name] = signal(groups, config)
        return found[name]

    own = [(name, signal) for name in weights if isinstance(signal := signals[name], Background)]
    # users' code prints and changes folders, and both belong to the whole process
    with redirect_stdout(sys.stderr) if own else nullcontext(), chdir(".") if own else nullcontext():
        try:
            begun = {name: signal.begin(groups, config) for name, signal in own}
            for name in weights:
                compute(name)
        finally:
            for one in begun.values():
                one.stop()
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
