"""Weights that adapt, so that each signal has the part in the reward that its weight asks for.

A weight says nothing of how widely a signal's values spread: a length reward that varies by 0.3 drowns a METEOR that
varies by 0.03. With `grpo.reward_balance = "variance"` each weight is divided by the signal's deviation within groups,
in the running mean over the steps before. Two methods inspired this: GDPO (arXiv:2601.05242) divides each signal by
each group's own deviation, which also blows up a group in which a signal barely varies; a running deviation does not.
GradNorm (arXiv:1711.02257) makes the norms of the tasks' gradients equal, at the cost of a backward pass for each
signal. In a policy gradient a signal enters through its advantages alone, so that the norm of its gradient grows with
their deviation: that is balanced here, at no cost.
"""

from collections.abc import Mapping, Sequence
from statistics import fmean, variance
from typing import Any

from smolsum.config.sections import GrpoConfig

STATE = "balance"
"""the name in a checkpoint's state"""
MOST = 10.0
"""the largest factor of a weight, and the inverse of the smallest: a signal that hardly varies any more is noise"""


class RewardBalance:
    """The running variance of each signal within groups, and the weights that follow from it."""

    def __init__(self, config: GrpoConfig, state: dict[str, Any]) -> None:
        """`state` is that of the stage, which the balance takes its own from and writes to."""
        self._active, self._decay, self._all = config.reward_balance == "variance", config.balance_decay, state
        self._state: dict[str, tuple[float, float]] = {name: (a, b) for name, (a, b) in state.get(STATE, {}).items()}
        """by signal, the decayed sum of variances and of their weights; the quotient is the running mean"""

    def weights(self, weights: Mapping[str, float]) -> Mapping[str, float]:
        """Return the weights of a step: w * mean deviation / own deviation, where the mean over the signals is by
        weight, so that the spread of the total stays what it is. A signal without spread so far keeps its weight.
        """
        known = {
            name: (total / count) ** 0.5
            for name, (total, count) in self._state.items()
            if weights.get(name) and total > 0
        }
        if not self._active or not known:
            return weights
        size = sum(abs(weights[name]) for name in known)
        mean = sum(abs(weights[name]) * deviation for name, deviation in known.items()) / size
        factors = {name: min(max(mean / deviation, 1 / MOST), MOST) for name, deviation in known.items()}
        return {name: weight * factors.get(name, 1.0) for name, weight in weights.items()}

    def update(self, scores: Mapping[str, Sequence[Sequence[float | None]]]) -> None:
        """Take the PxG values of a finished step into the running variances; they count from the next step on."""
        if not self._active:
            return
        for name, rows in scores.items():
            groups = [[value for value in row if value is not None] for row in rows]
            found = [variance(values) for values in groups if len(values) > 1]
            if found:
                total, count = self._state.get(name, (0.0, 0.0))
                new = 1.0 - self._decay
                self._state[name] = self._decay * total + new * fmean(found), self._decay * count + new
        self._all[STATE] = {name: list(pair) for name, pair in self._state.items()}

    def metrics(self, weights: Mapping[str, float]) -> dict[str, float]:
        """Return the weights of a step as metrics, where they adapt."""
        return {f"rewards/{name}/weight": weight for name, weight in weights.items()} if self._active else {}
