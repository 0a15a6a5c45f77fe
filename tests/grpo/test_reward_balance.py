"""Weights that adapt to the spread of their signals."""

import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support.refusals import refuses

from smolsum.config.resolve import resolve
from smolsum.config.sections import GrpoConfig
from smolsum.grpo.reward_balance import RewardBalance
from smolsum.tasks import TASKS

CONFIG = GrpoConfig(reward_balance="variance", balance_decay=0.5)


WEIGHTS = {"a": 1.0, "b": 3.0}


def sampled(scores: dict[str, list[list[float | None]]]) -> Any:
    """A step with these values, all of it that is read here."""
    return SimpleNamespace(scores=scores)


def spread(*deviations: float, groups: int = 400) -> dict[str, list[list[float | None]]]:
    """Groups of eight values with these deviations, around means that differ from group to group."""
    rng = np.random.default_rng(3)
    return {
        name: (rng.normal(size=(groups, 1)) * 5 + deviation * rng.normal(size=(groups, 8))).tolist()
        for name, deviation in zip("abc", deviations, strict=False)
    }


def test_each_signal_gets_the_part_that_its_weight_asks_for() -> None:
    """Weight times deviation within groups is as the weights, whatever the groups' means; the total spread stays."""
    balance = RewardBalance(CONFIG)
    assert balance.weights(WEIGHTS) == WEIGHTS  # nothing is known at the first step
    balance.observe(sampled(spread(0.4, 0.1)), WEIGHTS)
    found = balance.weights(WEIGHTS)
    parts = {"a": found["a"] * 0.4, "b": found["b"] * 0.1}
    assert parts["b"] / parts["a"] == pytest.approx(3.0, rel=0.05)
    assert sum(parts.values()) == pytest.approx(0.4 + 3 * 0.1, rel=0.05)
    metrics = balance.observe(sampled({}), found)
    assert metrics == {"rewards/a/weight": found["a"], "rewards/b/weight": found["b"]}


def test_the_mean_runs() -> None:
    """With decay 0.5 the newest step counts twice as much as the one before; the first counts whole."""
    balance = RewardBalance(CONFIG)
    balance.observe(sampled({"a": [[0.0, 2.0], [1.0, 1.0]]}), {})  # variances 2 and 0
    balance.observe(sampled({"a": [[0.0, 4.0, None], [None, None, 3.0]]}), {})  # 8; a single value has no spread
    assert balance.state() == {"a": [0.5 * 0.5 * 1.0 + 0.5 * 8.0, 0.5 * 0.5 + 0.5]}


def test_a_signal_without_spread_keeps_its_weight() -> None:
    """As one that is new, or missing everywhere, and as one of weight 0. No factor is beyond ten."""
    balance = RewardBalance(CONFIG)
    values = spread(1.0, 1e-6)
    balance.observe(sampled({**values, "c": [[1.0, 1.0]], "d": [[None, None]], "e": [[0.0, 9.0]]}), {})
    found = balance.weights({"a": 1.0, "b": 1.0, "c": 2.0, "d": 3.0, "e": 0.0, "f": 4.0})
    assert {name: found[name] for name in "cdef"} == {"c": 2.0, "d": 3.0, "e": 0.0, "f": 4.0}
    assert found["b"] == 10.0
    assert found["a"] == pytest.approx(0.5, rel=1e-4)


def test_state_survives_json() -> None:
    """To the last bit: a resumed run goes on with the same weights."""
    whole, again = RewardBalance(CONFIG), RewardBalance(CONFIG)
    for seed in range(3):
        whole.observe(sampled({"a": [[0.1 * seed, 0.7]], "b": [[1 / 3, seed]]}), {})
    again.load(json.loads(json.dumps(whole.state())))
    weights = {"a": 0.3, "b": 0.7}
    assert again.weights(weights) == whole.weights(weights) != weights


def test_off_by_default() -> None:
    """Nothing is kept, changed or logged."""
    balance = RewardBalance(GrpoConfig())
    assert balance.observe(sampled(spread(0.4, 0.1)), WEIGHTS) == {}
    assert balance.weights(WEIGHTS) is WEIGHTS
    assert balance.state() is None


@pytest.mark.parametrize(
    ("strategy", "sets", "named"),
    [
        ("included", ["reward_balance=variance", "advantage_scale=gdpo"],
         ["grpo.reward_balance", "advantage_scale=group"]),
        ("included", ["reward_balance=variance", "balance_decay=1.0"], ["grpo.balance_decay", "below 1"]),
        ("finetuned", ["reward_balance=variance"], ["grpo.reward_balance", "--strategy included"]),
        (None, ["balance_decay=0.5"], ["grpo.balance_decay", "grpo.reward_balance"]),
    ],
)  # fmt: skip
def test_settings_that_mean_nothing_are_refused(strategy: str | None, sets: list[str], named: list[str]) -> None:
    with refuses(*named):
        resolve(TASKS, strategy=strategy, sets=[f"grpo.{text}" for text in sets])
