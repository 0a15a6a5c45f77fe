"""Constraints next to a reward, against hand-computed numbers."""

import json
import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from smolsum.config.constraints import Constraint, parse_constraints
from smolsum.config.fields import ConstraintMethod
from smolsum.config.sections import GrpoConfig
from smolsum.grpo.advantages import group_advantages, step_advantages
from smolsum.grpo.constraints import Bounded, Multipliers, cost

BAND = parse_constraints("length in 9..10: 0.9")[0]
REWARDS = np.array([[1.0, 0.0, 0.5, 0.5], [0.2, 0.4, 0.6, 0.8]])
LENGTHS = np.array([[9.0, 20.0, 10.0, 5.0], [10.0, 10.0, 10.0, 10.0]])
SCORES = {"meteor": REWARDS.tolist()}


def measured(values: np.ndarray = LENGTHS, one: Constraint = BAND) -> Bounded:
    return Bounded(one, values, np.full((len(values), 1), one.unit))


def combined(method: ConstraintMethod, multiplier: float, *parts: Bounded, totals: np.ndarray = REWARDS) -> np.ndarray:
    grpo = GrpoConfig(constraint_method=method, advantage_eps=0.0)
    parts = parts or (measured(),)
    return np.array(step_advantages(totals, SCORES, {"meteor": 1.0}, parts, [multiplier] * len(parts), grpo)[0])


def standard(rows: np.ndarray) -> np.ndarray:
    """Rows less their means, divided by their samples' deviations; 0 where all are equal."""
    centred = rows - rows.mean(axis=1, keepdims=True)
    deviation = rows.std(axis=1, ddof=1, keepdims=True)
    return np.divide(centred, deviation, out=np.zeros_like(centred), where=deviation > 1e-12)


def test_progress_of_a_share() -> None:
    """1 inside; outside a half, less the distance in units of the larger end: 20 is 10 away from 10, a whole unit."""
    assert measured().progress[0] == pytest.approx([1.0, 0.0, 1.0, 0.5 - 0.5 * 4 / 10])
    assert measured().is_met[0].tolist() == [1.0, 0.0, 1.0, 0.0]
    assert measured().found == pytest.approx(6 / 8)


def test_progress_of_a_mean_is_its_better_side() -> None:
    """The value where it has to be large, its negative where it has to be small."""
    at_least, at_most = parse_constraints("meteor >= 0.3; bleu <= 0.1")
    values = np.array([[0.1, 0.5]])
    assert measured(values, at_least).progress.tolist() == [[0.1, 0.5]]
    assert measured(values, at_most).progress.tolist() == [[-0.1, -0.5]]
    assert measured(values, at_least).found == pytest.approx(0.3)


def test_units_of_prompts() -> None:
    """Prompts with targets of their own have distances in units of their own."""
    one = parse_constraints("length within 1: 0.9")[0]
    both = Bounded(one, np.array([[11.0], [11.0]]), np.array([[20.0], [100.0]]))
    assert both.progress[:, 0] == pytest.approx([0.5 - 0.5 * 10 / 20, 0.5 - 0.5 * 10 / 100])
    assert both.take([1]).progress[:, 0] == pytest.approx([0.45])
    assert (both.take([1]) + both.take([0])).progress[:, 0] == pytest.approx([0.45, 0.25])


def test_without_constraints_they_are_the_rewards_advantages() -> None:
    grpo = GrpoConfig()
    found, _ = step_advantages(REWARDS, SCORES, {"meteor": 1.0}, (), (), grpo)
    assert np.array(found).tolist() == np.array(group_advantages(REWARDS)).tolist()


@pytest.mark.parametrize("method", ["lagrange", "pid", "gdpo"])
def test_standardised_apart_then_summed(method: ConstraintMethod) -> None:
    """Each part is divided by its group's deviation, the sum by the batch's; a constraint that all of a group meet adds
    nothing there."""
    summed = standard(REWARDS) + 2.0 * standard(measured().progress)
    assert combined(method, 2.0) == pytest.approx(summed / summed.std(ddof=1), abs=1e-6)
    assert (standard(measured().progress)[1] == 0).all()


def test_sum_and_gate_change_the_reward() -> None:
    """`sum` adds weight times progress, `gate` multiplies by it, and both standardise the result."""
    assert combined("sum", 0.5) == pytest.approx(standard(REWARDS + 0.5 * measured().progress), abs=1e-6)
    assert combined("gate", 0.5) == pytest.approx(standard(REWARDS * measured().progress), abs=1e-6)
    # a factor below 1 must not help a negative reward
    below = combined("gate", 1.0, totals=REWARDS - 2.0)
    assert below[0].argmax() == 0
    assert below[0][1] == below[0].min()


def test_missing_rewards_and_values() -> None:
    """A rollout without a reward has the advantage 0; without a value it has that of its reward."""
    totals, values = REWARDS.copy(), LENGTHS.copy()
    totals[0, 0], values[0, 1] = math.nan, math.nan
    found = combined("lagrange", 1.0, measured(values), totals=totals)
    assert found[0, 0] == 0.0
    assert np.isfinite(found).all()
    assert found[0, 1] < 0.0


@pytest.mark.parametrize("method", ["sum", "gate", "lagrange"])
def test_a_missing_value_counts_as_its_groups_mean(method: ConstraintMethod) -> None:
    """So that it neither helps nor hurts, also where 0 or 1 would be the best that there is; a group without any value
    has the advantages of its rewards."""
    (low,) = parse_constraints("bleu <= 0.5")
    for one in (low, BAND) if method != "gate" else (BAND,):
        values = np.array([[9.0, 20.0, math.nan, 5.0], [math.nan] * 4])
        filled = measured(values, one).progress
        filled[0, 2] = np.nanmean(filled[0])
        found = combined(method, 1.0, measured(values, one))
        if method == "sum":
            assert found == pytest.approx(standard(REWARDS + np.nan_to_num(filled)), abs=1e-6)
        elif method == "gate":
            assert found == pytest.approx(standard(REWARDS * np.nan_to_num(filled, nan=1.0)), abs=1e-6)
        assert np.argsort(found[1]).tolist() == [0, 1, 2, 3]
        assert np.isfinite(found).all()


def sampled(totals: Any, one: Bounded) -> Any:
    """A step with these rewards and one constraint, all of it that is read here."""
    return SimpleNamespace(totals=totals, measured=[one])


def moved(method: ConstraintMethod, *shares: float, limit: float = 3.0) -> list[float]:
    """The multipliers before each step and after the last one, for these shares of rollouts in the range."""
    grpo = GrpoConfig(constraint_method=method, constraint_weight=1.0, constraint_rate=0.5, constraint_limit=limit)
    multipliers, found = Multipliers([BAND], grpo), list[float]()
    for share in shares:
        found.append(multipliers.values[0])
        met = round(20 * share)
        multipliers.observe(sampled(np.zeros((1, 20)), measured(np.array([[9.0] * met + [30.0] * (20 - met)]))), {})
    return [*found, multipliers.values[0]]


def test_lagrange_follows_the_violation() -> None:
    """It moves by rate x (level - share), at most to the limit and never below 0."""
    assert moved("lagrange", 0.5, 0.9, 1.0) == pytest.approx([1.0, 1.2, 1.2, 1.15])
    assert moved("lagrange", *[0.0] * 9)[-1] == 3.0
    assert moved("lagrange", *[1.0] * 30)[-1] == 0.0
    assert moved("gdpo", 0.0, 0.0) == [1.0, 1.0, 1.0]


def test_means_are_violated_in_multiples_of_their_bound() -> None:
    """Whatever their units, and by once the bound at most: 0.015 of 0.01 is 0.5, 0.5 of 0.01 is 1."""
    one = parse_constraints("repeated_trigrams <= 0.01")[0]
    grpo = GrpoConfig(constraint_weight=1.0, constraint_rate=0.5)
    multipliers = Multipliers([one], grpo)
    for mean, after in ((0.015, 1.25), (0.5, 1.75), (0.0, 1.25)):
        multipliers.observe(sampled(np.zeros((1, 2)), measured(np.full((1, 2), mean), one)), {})
        assert multipliers.values[0] == pytest.approx(after)


def test_pid_adds_the_violation_and_its_rise() -> None:
    """Integral + 2 x error + 2 x rise of the error (arXiv:2007.03964, algorithm 2)."""
    # errors 0.4, 0.2: integrals 1.2, 1.3; the error rises from 0 to 0.4 only
    assert moved("pid", 0.5, 0.7) == pytest.approx([1.0, 1.2 + 0.8 + 0.8, 1.3 + 0.4])


def test_state_goes_on_exactly() -> None:
    """What a checkpoint keeps makes the next multipliers the same."""
    grpo = GrpoConfig(constraint_method="pid", constraint_rate=0.37)
    first, second = Multipliers([BAND], grpo), Multipliers([BAND], grpo)
    for _ in range(3):
        first.observe(sampled(REWARDS, measured()), {})
    second.load(json.loads(json.dumps(first.state())))
    assert first.values == second.values
    step = sampled(REWARDS, measured())
    assert first.observe(step, {}) == second.observe(step, {})
    assert first.values == second.values


def test_a_bound_follows_from_the_first_steps() -> None:
    """It is their running mean, and stands after five; a step without a value is none of them. A resumed run has it."""
    one = parse_constraints("meteor >= 0.5 start")[0]
    grpo = GrpoConfig(constraint_weight=1.0, constraint_rate=0.5)
    multipliers, bounds, metrics = Multipliers([one], grpo), list[float](), dict[str, float]()
    for mean in (0.2, 0.4, math.nan, 0.6, 0.8, 0.5, 0.1):
        resumed = Multipliers([one], grpo)
        resumed.load(json.loads(json.dumps(multipliers.state())))
        values = [measured(np.full((1, 2), mean), one)]
        steps = [sampled(np.zeros((1, 2)), *part.bound(values)) for part in (multipliers, resumed)]
        metrics, again = (part.observe(step, {}) for part, step in zip((multipliers, resumed), steps, strict=True))
        assert metrics == again
        assert resumed.state() == multipliers.state()
        bounds += [value for name, value in metrics.items() if name.endswith("/bound")]
    assert bounds == pytest.approx([0.1, 0.15, 0.2, 0.25, 0.25, 0.25])
    assert metrics["constraint/meteor_at_least_0.5_start/violation"] == pytest.approx(0.15)
    assert multipliers.values == [pytest.approx(0.5 * 0.15 / 0.25)]  # at 0 before, where the mean had room to spare


def test_a_start_of_nothing_moves_multipliers_by_hundredths() -> None:
    """One wrong word in a step is not to move them as far as they go, and more of them have to count."""
    one = parse_constraints("nonwords <= start")[0]
    multipliers, found = Multipliers([one], GrpoConfig(constraint_weight=1.0, constraint_rate=0.5)), list[float]()
    for mean in (0.0, 0.0, 0.0, 0.0, 0.0, 0.002, 0.02):
        step = sampled(np.zeros((1, 2)), *multipliers.bound([measured(np.full((1, 2), mean), one)]))
        multipliers.observe(step, {})
        found.append(multipliers.values[0])
    assert found[4:] == pytest.approx([1.0, 1.1, 1.6])


def test_metrics() -> None:
    """Share, violation, multiplier and cost; a gate has no multiplier, and what nothing has cannot be violated."""
    found = Multipliers([BAND], GrpoConfig()).observe(sampled(REWARDS, measured()), {})
    expected = {"length_9-10/share": 0.75, "length_9-10/violation": 0.15, "length_9-10/multiplier": 1.0, "cost": 0.0}
    assert found == pytest.approx({f"constraint/{name}": value for name, value in expected.items()})
    gate = Multipliers([BAND], GrpoConfig(constraint_method="gate")).observe(sampled(REWARDS, measured()), {})
    assert "constraint/length_9-10/multiplier" not in gate
    assert Multipliers([BAND], GrpoConfig()).observe(sampled(REWARDS, measured(np.full((2, 4), math.nan))), {}) == {}


def test_cost_is_the_reward_given_up() -> None:
    """The best of each group, less the best that meets the constraint; a group without such a rollout is left out."""
    lengths = np.array([[20.0, 9.0, 10.0, 5.0], [1.0, 1.0, 1.0, 1.0]])
    assert cost(REWARDS, [measured(lengths)]) == pytest.approx(0.5)
    assert cost(REWARDS, [measured(np.zeros((2, 4)))]) is None
