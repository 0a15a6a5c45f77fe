"""Weights that adapt, so that each signal has the part in the reward that its weight asks for.

A weight says nothing about how widely a signal's values spread: a length reward that varies by 0.3 drowns a METEOR that
varies by 0.03. With `grpo.reward_balance = "variance"` each weight is divided by the signal's deviation within groups,
in the running mean over the steps before. Two methods inspired this: GDPO (arXiv:2601.05242) divides each signal by
each group's own deviation, which also blows up a group in which a signal barely varies; a running deviation does not.
GradNorm (arXiv:1711.02257) makes the norms of the tasks' gradients equal, at the cost of a backward pass for each
signal. In a policy gradient a signal enters through its advantages alone, so that the norm of its gradient grows with
their deviation: that is balanced here, at no cost.
"""

from collections.abc import Mapping
from statistics import fmean, variance
from typing import Any

from smolsum.config.sections import GrpoConfig
from smolsum.grpo.stateful import Sampled, Stateful

MOST = 10.0
"""the largest factor of a weight, and the inverse of the smallest: a signal that hardly varies any more is noise"""


class RewardBalance(Stateful):
    """The running variance of each signal within groups, and the weights that follow from it."""

    name = "balance"

    def __init__(self, config: GrpoConfig) -> None:
        self._active, self._decay = config.reward_balance == "variance", config.balance_decay
        self._sums: dict[str, tuple[float, float]] = {}
        """by signal, the decayed sum of variances and of their weights; the quotient is the running mean"""

    def weights(self, rewards: Mapping[str, float]) -> Mapping[str, float]:
        """Return the weights of a step: w * mean deviation / own deviation, where the mean over the signals is by
        weight, so that the spread of the total stays what it is. A signal without spread so far keeps its weight.
        """
        known = {
            name: (total / count) ** 0.5
            for name, (total, count) in self._sums.items()
            if rewards.get(name) and total > 0
        }
        if not self._active or not known:
            return rewards
        size = sum(abs(rewards[name]) for name in known)
        mean = sum(abs(rewards[name]) * deviation for name, deviation in known.items()) / size
        factors = {name: min(max(mean / deviation, 1 / MOST), MOST) for name, deviation in known.items()}
        return {name: weight * factors.get(name, 1.0) for name, weight in rewards.items()}

    def observe(self, sampled: Sampled, weights: Mapping[str, float]) -> Mapping[str, float]:
        """Take the values of a step into the running variances; they count from the next step on."""
        if not self._active:
            return {}
        for name, rows in sampled.scores.items():
            groups = [[value for value in row if value is not None] for row in rows]
            found = [variance(values) for values in groups if len(values) > 1]
            if found:
                total, count = self._sums.get(name, (0.0, 0.0))
                new = 1.0 - self._decay
                self._sums[name] = self._decay * total + new * fmean(found), self._decay * count + new
        return {f"rewards/{name}/weight": weight for name, weight in weights.items()}

    def state(self) -> Any:
        return {name: list(pair) for name, pair in self._sums.items()} or None

    def load(self, state: Any) -> None:
        self._sums = {name: (total, count) for name, (total, count) in state.items()}
