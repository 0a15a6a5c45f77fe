"""What constraints bound, measured on a step's rollouts: tokens, signals, and what the task measures in evaluations."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from smolsum.config.constraints import LENGTH, Constraint, parse_constraints
from smolsum.config.sections import Config
from smolsum.config.targets import target_of, tolerance_of
from smolsum.errors import UsageError, nearest
from smolsum.grpo.constraints import Bounded
from smolsum.rewards.signal import Signal, Values, facts_of
from smolsum.tasks import TASKS
from smolsum.tasks.base import Measure, MetricRow
from smolsum.types import Prompt, Rollout, RolloutGroup


def signals_needed(constraints: Sequence[Constraint], signals: Mapping[str, Signal]) -> list[str]:
    """Return the signals that constraints bound, which have to be computed whether or not they are rewarded."""
    return [one.measured for one in constraints if one.measured in signals and one.measured != LENGTH]


def columns_needed(constraints: Sequence[Constraint], signals: Mapping[str, Signal]) -> bool:
    """Return whether a constraint bounds a column of what the task measures."""
    return any(one.measured != LENGTH and one.measured not in signals for one in constraints)


def measure(
    constraints: Sequence[Constraint],
    groups: Sequence[RolloutGroup],
    scores: Mapping[str, Values],
    rows: Sequence[Sequence[MetricRow]],
    config: Config,
) -> tuple[Bounded, ...]:
    """Return what each constraint bounds, of the groups' rollouts: their length, a signal in `scores`, or a column of
    what the task measures of them, in `rows`."""
    count = TASKS[config.task.name].targets.length(config)
    found = []
    for one in constraints:
        if one.measured == LENGTH:
            values: Any = [[count(rollout) for rollout in group.rollouts] for group in groups]
        else:
            values = scores.get(one.measured) or [[row.get(one.measured) for row in group] for group in rows]
        values_PG, unit = np.array(values, dtype=np.float64), np.full((len(groups), 1), one.unit)
        if one.from_target:
            task: Any = config.task
            targets = [target_of(group.prompt.metadata, task) for group in groups]
            tolerances = [tolerance_of(target, task) if one.by_tolerance else 1 for target in targets]
            # lengths are whole numbers: half a token is a tolerance of none
            steps = [tolerance or 0.5 for tolerance in tolerances]
            targets_P1, steps_P1 = (np.array(column, dtype=np.float64)[:, None] for column in (targets, steps))
            values_PG, unit = np.abs(values_PG - targets_P1) / steps_P1, targets_P1 / steps_P1
        found.append(Bounded(one, values_PG, unit))
    return tuple(found)


def check_constraints(config: Config, signals: Mapping[str, Signal], prompt: Prompt, measure_one: Measure) -> None:
    """Raise UsageError for a constraint on something that the task neither scores nor measures, for a target that the
    task lacks, and for a gate that would turn the reward around. `prompt` is any prompt of the run; its text is
    not measured."""
    stages = [parse_constraints(stage.constraints) for stage in config.stages.values()]
    constraints = [one for stage in stages for one in stage]
    named = {one.measured for one in constraints} - {LENGTH} - signals.keys()
    # without a text and a source a reader of documents has nothing to read
    empty = replace(prompt, messages=({"role": "user", "content": prompt.request},))
    columns = _numbers(measure_one(empty, Rollout((), (), "stop", 0, "", 0, ""))) if named else []
    for one in constraints:
        if one.measured not in {LENGTH, *signals, *columns}:
            raise UsageError(
                f"constraint {one.text!r}: task {config.task.name} neither scores nor measures {one.measured!r}",
                hint=nearest(one.measured, dict.fromkeys([LENGTH, *signals, *columns])),
            )
        falls, (least, most) = math.isinf(one.low), _ends(one.measured, config, signals)
        share = "A..B" if one.of_start else f"0..{one.high:g}" if falls else f"{one.low:g}..{most:g}"
        if (
            config.grpo.constraint_method == "gate"
            and one.level is None
            and (falls or -math.inf < least < 0 or most <= 0)
        ):
            worse = f"the higher {one.measured} is the worse" if falls else f"{one.measured} is below 0 at times"
            raise UsageError(
                f"constraint {one.text!r}: a gate multiplies the reward by it, and {worse}",
                hint=f'--set grpo.constraint_method=lagrange, or a share, such as "{one.measured} in {share}: 0.95"',
            )
        if one.from_target and (one.measured != LENGTH or not getattr(config.task, "target_tokens", 0)):
            raise UsageError(
                f"constraint {one.text!r}: {one.measured} has no target in task {config.task.name}",
                hint=f"name a range: {one.measured} in A..B: 0.95",
            )
    for stage in stages:
        _check_reach(stage, config, signals)
        if config.grpo.constraint_method in ("sum", "gdpo"):
            _check_sides(stage, config.grpo.constraint_method)


def _check_sides(constraints: Sequence[Constraint], method: str) -> None:
    """Raise UsageError for a mean with bounds on both sides: equal weights of rising and of falling cancel out."""
    means = [one for one in constraints if one.level is None]
    for low in means:
        for high in means:
            if low.measured == high.measured and low.low > -math.inf and high.high < math.inf:
                raise UsageError(
                    f"constraints {low.text!r} and {high.text!r}: with grpo.constraint_method = {method} both weigh "
                    "the same at all times, so together they do nothing",
                    hint=f"a share: {low.measured} in {low.low:g}..{high.high:g}: 0.95, or "
                    "--set grpo.constraint_method=lagrange",
                )


def _check_reach(constraints: Sequence[Constraint], config: Config, signals: Mapping[str, Signal]) -> None:
    """Raise UsageError for a range of a stage that no value is in, and where every value is in all ranges on the same
    measure."""
    absolute = [one for one in constraints if not (one.from_target or one.of_start)]
    ends = {one.measured: _ends(one.measured, config, signals) for one in absolute}
    for one in absolute:
        low, high = ends[one.measured]
        name, begin, hint = one.measured, f"constraint {one.text!r}", "a range that values can be in"
        if name == LENGTH and one.low > high:
            raise UsageError(
                f"{begin} can never hold: sampling.max_new_tokens = {high:.0f} cuts every completion before",
                hint=f"--set sampling.max_new_tokens={2 * one.low:.0f}, or a smaller length",
            )
        if name == LENGTH and one.high < low:
            raise UsageError(f"{begin} can never hold: every completion that says something is longer", hint=hint)
        if (low, high) == (0, 1) and one.end >= 2:
            hint = f"shares are between 0 and 1: {one.end / 100:g} is {one.end:g} percent"
        if one.low > high or one.high < low:
            raise UsageError(f"{begin} can never hold: {name} is from {low:g} to {high:g}", hint=hint)
        alike = [other for other in constraints if other.measured == name]
        low = 0.0 if name == LENGTH else low  # nothing at all, which `length >= 1` forbids
        if all(other in absolute and other.low <= low and high <= other.high for other in alike):
            why = f"{name} is from {low:g} to {high:g}{' (sampling.max_new_tokens)' * (name == LENGTH)}"
            hint = hint if "percent" in hint else "a range that leaves some values out"
            raise UsageError(f"{begin} holds for every completion: {why}", hint=hint)


def _ends(name: str, config: Config, signals: Mapping[str, Signal]) -> tuple[float, float]:
    """Return the least and the largest value of a length (a unit of which has a token at least), a signal, or what the
    task measures: of a share, which reports show in percent, 0 and 1."""
    if name == LENGTH:
        return 1.0, float(config.sampling.max_new_tokens)
    if name in signals:
        return facts_of(signals[name]).ends
    tables = TASKS[config.task.name].evaluation.tables
    listed = [metric for table in tables for metric in table.metrics if metric.form[-1:] == "%"]
    # what a split has as a share may be a number of each completion (wrong facts), unless it is what reports open with
    shares = {metric.column or metric.name for metric in listed if metric.role or not metric.column}
    return (0.0, 1.0) if name in shares else (-math.inf, math.inf)


def _numbers(row: Mapping[str, Any]) -> list[str]:
    return [name for name, value in row.items() if value is None or isinstance(value, int | float)]
