"""Constraints next to a reward: how far rollouts meet them, the multipliers that adapt, and what they cost.

The problem is to maximise the mean reward subject to g_k >= level_k, where g_k is the share of rollouts within a range,
or a mean. `lagrange` ascends in the policy and descends in the multipliers of its Lagrangian (PPO-Lagrangian: Ray et
al., "Benchmarking safe exploration in deep reinforcement learning", 2019, section 5); `pid` sets the multipliers by PID
control (arXiv:2007.03964, algorithm 2), which damps their oscillation; `sum`, `gdpo` and `gate` have fixed weights.
Axes: P prompts, G rollouts of a prompt.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

import numpy as np

from smolsum.config.constraints import Constraint
from smolsum.config.sections import GrpoConfig
from smolsum.grpo.stateful import Sampled, Stateful

Floats = np.ndarray[Any, np.dtype[np.float64]]

DENSE = 0.5
"""part of a value that falls with the distance from the range, so that rollouts far away have a direction too; the rest
is for being inside"""
BEGIN = 5
"""steps at the beginning of a stage whose mean is what a constraint calls `start`"""
PROPORTIONAL, DERIVATIVE = 2.0, 2.0
"""gains of `pid`; the integral's is `grpo.constraint_rate`"""


@dataclass(frozen=True)
class Bounded:
    """What a constraint bounds, of each rollout."""

    constraint: Constraint
    values: Floats
    """float64 (P, G), NaN where a value is missing"""
    unit: Floats
    """the unit of distances from the range: float64 (P, 1)"""

    @property
    def is_met(self) -> Floats:
        """1 where a value is in the range, 0 where it is not, NaN where it is missing: float64 (P, G)."""
        low, high = self.constraint.low, self.constraint.high
        inside = ((self.values >= low) & (self.values <= high)).astype(np.float64)
        inside[np.isnan(self.values)] = np.nan
        return inside

    @property
    def progress(self) -> Floats:
        """What is rewarded, higher is better: float64 (P, G), NaN where the value is missing.

        For a share 1 in the range; outside, at most 1/2, and less by the distance from the range, in units. For a mean
        the value itself, negative where it has to be small.
        """
        low, high = self.constraint.low, self.constraint.high
        if self.constraint.level is None:
            return self.values if np.isinf(high) else np.negative(self.values)
        miss = np.maximum(np.maximum(low - self.values, self.values - high), 0.0) / self.unit
        return np.asarray((1.0 - DENSE) * self.is_met + DENSE * (1.0 - np.minimum(1.0, miss)))

    @property
    def found(self) -> float:
        """The share of rollouts in the range, or the mean; NaN without any value."""
        of = self.values if self.constraint.level is None else self.is_met
        return float(np.nanmean(of)) if not np.isnan(of).all() else float("nan")

    def __add__(self, more: "Bounded") -> "Bounded":
        units, values = ([getattr(one, name) for one in (self, more)] for name in ("unit", "values"))
        return Bounded(self.constraint, np.concatenate(values), np.concatenate(units))

    def keep(self, places: Sequence[Sequence[int]]) -> "Bounded":
        """Return the same of these rollouts of each group."""
        return Bounded(self.constraint, np.take_along_axis(self.values, np.array(places), axis=1), self.unit)

    def take(self, places: Sequence[int]) -> "Bounded":
        """Return the same of the groups at these places."""
        return Bounded(self.constraint, self.values[list(places)], self.unit[list(places)])


class Multipliers(Stateful):
    """The weight of each constraint, and what moves it from step to step."""

    name = "multipliers"

    def __init__(self, constraints: Sequence[Constraint], grpo: GrpoConfig) -> None:
        self.constraints, self._grpo = constraints, grpo
        self.values, self._integrals = ([grpo.constraint_weight for _ in constraints] for _ in range(2))
        self._errors = [0.0 for _ in constraints]
        self._starts: list[list[float]] = [[] for _ in constraints]
        """of the first steps, what a constraint that is relative to the start bounds"""

    def bound(self, measured: Sequence[Bounded]) -> tuple[Bounded, ...]:
        """Return a step's values with the bounds that follow from the start of the stage: the mean of the first steps
        up to this one."""
        found = []
        for starts, one in zip(self._starts, measured, strict=True):
            seen = starts if len(starts) == BEGIN or np.isnan(one.found) else [*starts, one.found]
            if one.constraint.of_start and seen:
                relative = one.constraint.relative_to(fmean(seen))
                one = replace(one, constraint=relative, unit=np.full_like(one.unit, relative.unit))
            found.append(one)
        return tuple(found)

    def observe(self, sampled: Sampled, weights: Mapping[str, float]) -> Mapping[str, float]:
        """Move the multipliers by a step's values, which come from `bound`, and return the step's metrics: the share or
        mean of each constraint, its violation (0 where it holds), the bound if it is relative to the start, the
        multiplier that the step used, and the `cost` of all in reward."""
        metrics = {}
        if sampled.measured and (price := cost(sampled.totals, sampled.measured)) is not None:
            metrics["constraint/cost"] = price
        for k, one in enumerate(sampled.measured):
            if np.isnan(one.found):
                continue
            name = f"constraint/{one.constraint.slug}"
            if self.constraints[k].of_start:
                self._starts[k] = [*self._starts[k], one.found][:BEGIN]
                metrics[f"{name}/bound"] = one.constraint.end
            metrics[f"{name}/{'mean' if one.constraint.level is None else 'share'}"] = one.found
            metrics[f"{name}/violation"] = max(0.0, one.constraint.shortfall(one.found))
            if self._grpo.constraint_method != "gate":
                metrics[f"{name}/multiplier"] = self.values[k]
            self._move(k, one.constraint.error(one.found))
        return metrics

    def state(self) -> Any:
        """By constraint the multiplier, its integral and the last error, and what it has of the start."""
        rows = zip(self.constraints, self.values, self._integrals, self._errors, self._starts, strict=True)
        return {one.text: [*row, *starts] for one, *row, starts in rows} or None

    def load(self, state: Any) -> None:
        rows = [state[one.text] for one in self.constraints]
        self.values, self._integrals, self._errors = ([row[place] for row in rows] for place in range(3))
        self._starts = [row[3:] for row in rows]

    def _move(self, k: int, error: float) -> None:
        grpo = self._grpo
        if grpo.constraint_method not in ("lagrange", "pid"):
            return
        self._integrals[k] = min(max(self._integrals[k] + grpo.constraint_rate * error, 0.0), grpo.constraint_limit)
        self.values[k] = self._integrals[k]
        if grpo.constraint_method == "pid":
            rising = max(0.0, error - self._errors[k])
            self.values[k] += PROPORTIONAL * error + DERIVATIVE * rising
            self.values[k] = min(max(self.values[k], 0.0), grpo.constraint_limit)
        self._errors[k] = error


def cost(totals_PG: Any, measured: Sequence[Bounded]) -> float | None:
    """Return what the constraints cost: the best reward of a group, less the best among rollouts that meet every
    constraint on single rollouts; the mean over groups that have such a rollout, None where no group has."""
    totals = np.asarray(totals_PG, dtype=np.float64)
    allowed = ~np.isnan(totals)
    for one in measured:
        if one.constraint.level is not None:
            allowed = allowed & (one.is_met == 1.0)
    lost = [row[~np.isnan(row)].max() - row[ok].max() for row, ok in zip(totals, allowed, strict=True) if ok.any()]
    return float(np.mean(lost)) if lost else None
