"""Group-relative advantages, computed by hand."""

from itertools import combinations

import numpy as np
import pytest

from smolsum.config.fields import AdvantageScale, AdvantageStd
from smolsum.config.sections import GrpoConfig
from smolsum.grpo.advantages import (
    gdpo_advantages,
    group_advantages,
    most_spread,
    step_advantages,
    teaches_nothing,
    zero_spread,
)

# isort: split
import mlx.core as mx

NAN = float("nan")
SCALES = pytest.mark.parametrize("scale", ["group", "batch", "none"])
REWARDS = [[1.0, 2.0, 3.0, 4.0], [0.0, 0.0, 0.0, 1.0]]


@pytest.mark.parametrize(
    ("scale", "std", "expected"),
    [
        # deviations 1.2909944 and 0.5, each plus 1e-4
        ("group", "sample", [[-1.161805, -0.387268, 0.387268, 1.161805], [-0.49990, -0.49990, -0.49990, 1.49970]]),
        # sum of squares about the mean 1.375: 15.875; deviation 1.5059406 of eight rewards
        ("batch", "sample", [[-0.995989, -0.331996, 0.331996, 0.995989], [-0.165998, -0.165998, -0.165998, 0.497994]]),
        ("none", "sample", [[-1.5, -0.5, 0.5, 1.5], [-0.25, -0.25, -0.25, 0.75]]),
        # as in the study's code, over n: 1.1180340 and 0.4330127, each plus 1e-6
        ("group", "population",
         [[-1.341640, -0.447213, 0.447213, 1.341640], [-0.577349, -0.577349, -0.577349, 1.732047]]),
        # 15.875 over eight rewards: 1.4086785
        ("batch", "population",
         [[-1.064827, -0.354942, 0.354942, 1.064827], [-0.177471, -0.177471, -0.177471, 0.532413]]),
        ("none", "population", [[-1.5, -0.5, 0.5, 1.5], [-0.25, -0.25, -0.25, 0.75]]),
    ],
)  # fmt: skip
def test_hand_computed(scale: str, std: AdvantageStd, expected: list[list[float]]) -> None:
    """Rewards minus their group's mean, by the deviation of the group, of the batch, or as they are. The caller's array
    is left alone."""
    rewards = np.array(REWARDS)
    got = group_advantages(rewards, scale=scale, std=std, eps={"sample": 1e-4, "population": 1e-6}[std])
    assert got.dtype == mx.float32
    np.testing.assert_allclose(np.array(got), expected, rtol=2e-6)
    np.testing.assert_array_equal(rewards, REWARDS)


@SCALES
def test_a_missing_reward_takes_no_part(scale: str) -> None:
    """The others have the advantages they would have without it; it has 0."""
    got = np.array(group_advantages([[1.0, NAN, 4.0], [2.0, 3.0, NAN]], scale=scale))
    without = np.array(group_advantages([[1.0, 4.0], [2.0, 3.0]], scale=scale))
    np.testing.assert_allclose([got[0, [0, 2]], got[1, :2]], without)
    assert got[0, 1] == got[1, 2] == 0.0


@SCALES
@pytest.mark.parametrize("eps", [1e-4, 0.0])
@pytest.mark.parametrize(
    "row",
    [[NAN] * 3, [NAN, 5.0, NAN], [7.0, 7.0, NAN], *([reward] * 3 for reward in (0.1 + 0.2, 0.1, -1 / 3, 1e9 + 0.1))],
)
def test_nothing_to_compare_is_nothing_to_learn(scale: str, row: list[float], eps: float) -> None:
    """No reward, one, or equal ones, also where the mean of equal numbers is not that number: exactly 0, also next to a
    group that has some, and without a number that guards the division."""
    got = np.array(group_advantages([row, [0.0, 1.0, 2.0]], scale=scale, eps=eps))
    assert got[0].tolist() == [0.0, 0.0, 0.0]
    assert got[1, 2] > 0
    assert not np.array(group_advantages([row], scale=scale, eps=eps)).any()
    assert not np.array(group_advantages([row * 3], scale=scale, eps=eps)).any()
    assert zero_spread([row, [NAN, 1.0, 2.0], row]).tolist() == [True, False, True]


def test_rounding_noise_stays_noise() -> None:
    """Rewards that differ in their last bit do not become advantages of 1."""
    assert np.abs(np.array(group_advantages([[0.1 + 0.2, 0.3, 0.3]]))).max() < 1e-9


@pytest.mark.parametrize("scale", ["group", "batch", "none", "gdpo"])
def test_a_group_teaches_where_it_has_advantages(scale: AdvantageScale) -> None:
    """With `gdpo` tied totals of different signals teach; a missing rollout's values do not count."""
    scores = {"x": [[1.0, 0.0, 0.0, 0.0], [1.0] * 4, [1.0, 1.0, 1.0, 0.0]], "y": [[0.0, 0.5, 0.5, 0.5]] * 3}
    weights = {"x": 1.0, "y": 2.0, "unused": 0.0}
    scores["y"][1:] = [[3.0] * 4, [2.0, 2.0, 2.0, NAN]]
    totals = np.array(scores["x"]) + 2 * np.array(scores["y"])
    found = np.array(step_advantages(totals, scores, weights, (), (), GrpoConfig(advantage_scale=scale))[0])
    expected = [not row.any() for row in found]
    assert expected == [scale != "gdpo", True, True]
    assert teaches_nothing(totals, scores, weights, scale=scale).tolist() == expected
    assert teaches_nothing(0 * totals, scores, {"unused": 0.0}, scale=scale).tolist() == [True, True, True]


def test_an_unknown_scale_is_refused() -> None:
    """By its name."""
    with pytest.raises(ValueError, match="not 'std'"):
        group_advantages(REWARDS, scale="std")


SIGNALS = {"length": [[-4.0, 0.0, 4.0], [-8.0, 8.0, 0.0]], "meteor": [[0.2, 0.3, 0.1], [0.5, 0.5, 0.5]]}


def test_gdpo_by_hand() -> None:
    """Length standardised is -1, 0, 1 and -1, 1, 0; METEOR 0, 1, -1 and nothing; summed, over the batch's deviation."""
    got = np.array(gdpo_advantages(SIGNALS, {"length": 1.0, "meteor": 0.5}))
    # 4 / 4.0001, 8 / 8.0001 and 0.1 / 0.1001
    length, meteor = np.array([[-1, 0, 1], [-1, 1, 0]]), np.array([[0, 1, -1], [0, 0, 0]]) / 1.001
    summed = length / np.array([[1.000025], [1.0000125]]) + 0.5 * meteor
    expected = summed / (np.sqrt((summed**2).sum() / 5) + 1e-4)
    np.testing.assert_allclose(got, expected, rtol=1e-6)


def test_gdpo_of_the_population_by_hand() -> None:
    """Length -2, 2 standardised is -1, 1, METEOR 0.1, 0.3 too; their weighted sum 1.5 is its own deviation."""
    scores = {"length": [[-2.0, 2.0]], "meteor": [[0.1, 0.3]]}
    got = np.array(gdpo_advantages(scores, {"length": 1.0, "meteor": 0.5}, std="population", eps=0.0))
    np.testing.assert_allclose(got, [[-1.0, 1.0]], rtol=1e-6)


def test_gdpo_hears_a_signal_however_small() -> None:
    """A hundredfold spread of the other signal changes nothing, where the plain sum would hear no more of this one."""
    weights = {"length": 1.0, "meteor": 1.0}
    louder = SIGNALS | {"length": (100 * np.array(SIGNALS["length"])).tolist()}
    np.testing.assert_allclose(
        np.array(gdpo_advantages(louder, weights)), np.array(gdpo_advantages(SIGNALS, weights)), rtol=1e-3, atol=1e-4
    )


@pytest.mark.parametrize("missing", ["length", "meteor"])
def test_gdpo_leaves_out_a_rollout_that_lacks_a_signal(missing: str) -> None:
    """Of all signals: the others have the advantages they would have without it, it has 0."""
    weights = {"length": 1.0, "meteor": 0.5, "logged": 0.0}
    scores = {"logged": [[NAN, NAN, NAN]], **{name: [list(rows[0])] for name, rows in SIGNALS.items()}}
    scores[missing][0][1] = None
    got = np.array(gdpo_advantages(scores, weights))
    without = {name: [[row[0], row[2]] for row in rows] for name, rows in scores.items()}
    np.testing.assert_allclose(got[:, [0, 2]], np.array(gdpo_advantages(without, weights)), rtol=1e-6)
    assert got[0, 1] == 0.0
    assert got[0, 0] != 0.0


def test_gdpo_of_equal_rewards_is_exactly_zero() -> None:
    """A group that teaches nothing, alone or next to one that does, and a step without any score."""
    weights = {"length": 1.0, "meteor": 1.0}
    flat = {"length": [[0.1 + 0.2] * 3, [0.0, 1.0, 2.0]], "meteor": [[0.1] * 3, [0.3, 0.1, 0.2]]}
    assert np.array(gdpo_advantages(flat, weights))[0].tolist() == [0.0, 0.0, 0.0]
    alone = {name: rows[:1] for name, rows in flat.items()}
    assert not np.array(gdpo_advantages(alone, weights)).any()
    assert not np.array(gdpo_advantages({name: [[NAN] * 3] for name in weights}, weights)).any()


def test_the_step_takes_totals_or_signals() -> None:
    """By its scale: `gdpo` looks at the signals, the others at their total."""
    weights = {"length": 1.0, "meteor": 0.5}
    totals = np.array(SIGNALS["length"]) + 0.5 * np.array(SIGNALS["meteor"])
    expected = {"batch": group_advantages(totals, scale="batch"), "gdpo": gdpo_advantages(SIGNALS, weights)}
    for scale, found in expected.items():
        grpo = GrpoConfig(advantage_scale=scale)  # type: ignore[arg-type]
        assert mx.array_equal(step_advantages(totals, SIGNALS, weights, (), (), grpo)[0], found)


def test_a_signal_that_does_not_apply_adds_nothing_to_gdpo() -> None:
    """By the totals a rollout has a part although one of its signals has no value; only one without a total has none.

    Worked by hand with population deviations: `a` is 0, 2 over two rollouts, so -1 and 1; `b` is 1, 3 over two others,
    so -1 and 1. Their sums -1, 1, -1, 1 have the deviation 1.
    """
    scores = {"a": [[0.0, 2.0, None, None, None]], "b": [[None, None, 1.0, 3.0, None]]}
    totals = [[0.0, 2.0, 1.0, 3.0, NAN]]
    weights = {"a": 1.0, "b": 1.0}
    got = gdpo_advantages(scores, weights, totals_PG=totals, std="population", eps=0.0)
    assert np.array(got).tolist() == [[-1.0, 1.0, -1.0, 1.0, 0.0]]
    grpo = GrpoConfig(advantage_scale="gdpo", advantage_std="population", advantage_eps=0.0)
    through, _ = step_advantages(totals, scores, weights, (), (), grpo)
    assert np.array(through).tolist() == np.array(got).tolist()


@pytest.mark.parametrize("count", [2, 3, 5, 7, 8])
def test_what_is_kept_varies_the_most(count: int) -> None:
    """Of all choices of as many rollouts: found by trying each, also with ties and missing rewards."""
    rewards = np.random.default_rng(count).normal(size=(4, 8)).round(1)
    rewards[1], rewards[2, 3] = [0, 0, 0, 1, 0, 0, 1, 0], NAN
    found = np.array(group_advantages(rewards))
    kept = most_spread(found, count)
    assert [len({*places}) for places in kept] == [count] * 4
    assert kept == [sorted(places) for places in kept]
    for row, places in zip(found, kept, strict=True):
        most = max(np.var(row[list(others)]) for others in combinations(range(8), count))
        assert np.var(row[places]) == pytest.approx(most, abs=1e-6)
