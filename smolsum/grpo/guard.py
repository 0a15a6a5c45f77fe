"""An alarm for rewards that are paid for with something else: wrong facts, repetition, a lost length.

Of a completion more can be measured than is rewarded. A step of a policy gradient moves the mean of any such measure by
its covariance with the advantage among completions of one prompt (Price, "Selection and covariance", Nature 227, 1970).
That covariance is the *pull* on the measure: it says which way the update pushes before the mean has moved far, and
whether the reward is what pushes it. An alarm needs both, a mean that got worse since the stage began and a pull in
that direction; `docs/guard.md` says how early it comes and how often for nothing.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean, variance
from typing import Any

import numpy as np

from smolsum.config.constraints import parse_constraints
from smolsum.config.sections import Config
from smolsum.config.stage import StageConfig
from smolsum.grpo.stateful import Stateful
from smolsum.tasks.base import Metric, MetricRow, TaskEvaluation

FIRST, LAST = 20, 20
"""steps at the start of a stage, and at its newest end, whose means are compared"""
PULL_DECAY = 0.95
"""part of the running sums of the pull that stays from step to step"""
RISE, PULL = 3.0, 3.0
"""standard errors by which a measure must have got worse, and be pulled that way"""


NOTHING_UNDONE = (0, 0)
"""`Guard.undone` of a stage without a rollback"""
RETRY = "a lower learning rate, a higher grpo.beta, another reward, or a --constraint on what got worse"


def open_guard(config: Config, stage: StageConfig, evaluation: TaskEvaluation) -> "Guard":
    """Return the guard of a stage. It watches nothing where it is off, where the task has no quick measure, and where
    the stage learns from texts that the policy has not written as they are."""
    unsampled = stage.learn in ("references", "recombined")
    idle = config.train.guard == "off" or evaluation.quick_measurer is None or unsampled
    return Guard([] if idle else watched_metrics(evaluation, stage))


def watched_metrics(evaluation: TaskEvaluation, stage: StageConfig) -> list[Metric]:
    """Return what the guard watches in a stage: the task's measures that have a better direction, without those that
    the stage rewards or bounds."""
    own = {name for name, weight in stage.trained_rewards.items() if weight}
    own |= {one.measured for one in parse_constraints(stage.constraints)}
    if "length" in own:
        own.add("within_tol")
    # other forms of a headline, such as a length's mean error, would say the same thing again
    tables = [metric for table in evaluation.tables for metric in table.metrics if not metric.column]
    every = [*evaluation.headlines, *tables]
    found = {metric.column or metric.name: metric for metric in reversed(every) if metric.better}
    return [metric for column, metric in reversed(found.items()) if own.isdisjoint((column, metric.name))]


@dataclass(frozen=True)
class Alarm:
    """A measure that got worse because the reward pulls it."""

    metric: Metric
    before: float
    """mean of the first steps"""
    now: float
    """mean of the newest steps"""

    def __str__(self) -> str:
        return f"{self.metric.title} ({self.before:.3g}, now {self.now:.3g})"


class _History:
    """What was seen of one measure, with higher values for worse."""

    def __init__(self) -> None:
        self.first: list[float] = []
        self.last: deque[float] = deque(maxlen=LAST)
        self.pull = [0.0, 0.0, 0.0, 0.0]
        """decayed sums of pulls, their squares, of weights and of squared weights"""
        self.is_raised = False

    def add(self, level: float, pull: float) -> None:
        if len(self.first) < FIRST:
            self.first.append(level)
        self.last.append(level)
        kept, square = PULL_DECAY, PULL_DECAY**2
        total, squares, weights, weights_2 = self.pull
        self.pull = [kept * total + pull, kept * squares + pull**2, kept * weights + 1.0, square * weights_2 + 1.0]

    @property
    def rise(self) -> float:
        """How far the mean of the last steps is above that of the first, in standard errors; 0 with too few steps."""
        if len(self.first) < FIRST or len(self.last) < LAST:
            return 0.0
        error = sqrt(variance(self.first) / FIRST + variance(self.last) / LAST)
        return (fmean(self.last) - fmean(self.first)) / error if error else 0.0

    @property
    def pulled(self) -> float:
        """The mean pull, in standard errors; 0 with too few steps."""
        total, squares, weights, weights_2 = self.pull
        if len(self.first) < FIRST // 2 or not squares:
            return 0.0
        mean = total / weights
        spread = max(squares / weights - mean**2, 0.0)
        error = sqrt(spread * weights_2) / weights
        return mean / error if error else 0.0


class Guard(Stateful):
    """Watches what a stage neither rewards nor bounds."""

    name = "guard"

    def __init__(self, watched: Sequence[Metric]) -> None:
        self.watched = watched
        self.alarms: list[Alarm] = []
        """those that are new with the last step"""
        self.rate = 1.0
        """factor of the learning rate"""
        self.undone = NOTHING_UNDONE
        """the steps that the last rollback went back to, and from: the checkpoints between them are not to be gone back
        to"""
        self._seen: dict[str, _History] = {}

    def look(self, rows: Sequence[Sequence[MetricRow]], advantages: Sequence[Mapping[int, float]]) -> dict[str, float]:
        """Take in the measures of the groups that a step learned from (P lists of G) and the advantages, by a rollout's
        place in its group, of those that it learned from. Return the step's metrics."""
        metrics, self.alarms = dict[str, float](), []
        for metric in self.watched:
            column = metric.column or metric.name
            levels, pulls = [], []
            for group, learned in zip(rows, advantages, strict=True):
                values = np.array([row.get(column) for row in group], dtype=np.float64)
                if np.isnan(values).all():
                    continue
                mean = float(np.nanmean(values))
                centred = np.nan_to_num(values - mean)
                levels.append(mean)
                pulls.append(fmean(advantage * centred[g] for g, advantage in learned.items()))
            if not levels:
                continue
            sign = -1.0 if metric.better == "higher" else 1.0
            seen = self._seen.setdefault(column, _History())
            seen.add(sign * fmean(levels), sign * fmean(pulls))
            metrics[f"guard/{column}/mean"] = fmean(levels)
            is_worse = seen.rise >= RISE and seen.pulled >= PULL
            metrics[f"guard/{column}/rise"], metrics[f"guard/{column}/pull"] = seen.rise, seen.pulled
            metrics[f"guard/{column}/alarm"] = float(is_worse)
            if is_worse and not seen.is_raised:
                seen.is_raised = True
                self.alarms.append(Alarm(metric, sign * fmean(seen.first), sign * fmean(seen.last)))
        return metrics

    def begin_again(self, at: int, step: int) -> None:
        """Forget the newest steps, which are undone as the run goes back from step `at` to `step`, and halve the
        learning rate."""
        self.rate /= 2.0
        self.undone = (step, at)
        for column, seen in self._seen.items():
            self._seen[column] = _History()
            self._seen[column].first = seen.first

    def state(self) -> Any:
        if not self._seen:
            return None
        rows = {column: [seen.first, list(seen.last), seen.pull, seen.is_raised] for column, seen in self._seen.items()}
        return {"rate": self.rate, "undone": list(self.undone), "seen": rows}

    def load(self, state: Any) -> None:
        self.rate = state["rate"]
        step, at = state.get("undone", self.undone)  # checkpoints of before have none
        self.undone = (step, at)
        for column, (first, last, pull, is_raised) in state["seen"].items():
            seen = self._seen[column] = _History()
            seen.first, seen.pull, seen.is_raised = list(first), list(pull), is_raised
            seen.last.extend(last)
