"""The length reward, and the punishment for coming close to the token limit."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.refusals import refuses

from smolsum.config.sections import Config, RewardsConfig, SamplingConfig
from smolsum.rewards.length import length_reward, overlong_reward, score_length, score_overlong
from smolsum.tasks.tldr.settings import TldrConfig
from smolsum.types import RolloutGroup


@pytest.mark.parametrize(
    ("shape", "length", "expected"),
    [
        # -|n - 64| / 64 without a lower bound: 32/64, 64/64, 448/64
        *(("linear", n, x) for n, x in [(32, -0.5), (96, -0.5), (0, -1.0), (128, -1.0), (512, -7.0), (63, -1 / 64)]),
        # the same down to the floor
        *(("clipped", n, x) for n, x in [(48, -0.25), (128, -1.0), (129, -1.0), (512, -1.0)]),
        # only the tokens beyond the tolerance: 70 misses by 6, one beyond the band; 85 by 21; 200 by 136, cut to -1
        *(("dead_band", n, x) for n, x in [(59, 0.0), (69, 0.0), (70, -1 / 64), (58, -1 / 64), (85, -0.25)]),
        ("dead_band", 200, -1.0),
        # exp(-11/11) - 1 and exp(-2) - 1
        *(("exponential", n, pytest.approx(x)) for n, x in [(75, -0.63212056), (53, -0.63212056), (86, -0.86466472)]),
        # -log 2 and -log 3, and far away -log(1 + 448/11)
        *(("logarithmic", n, pytest.approx(x)) for n, x in [(75, -0.69314718), (86, -1.09861229), (512, -3.73115494)]),
    ],
)
def test_shapes_by_hand(shape: str, length: int, expected: float) -> None:
    assert length_reward(length, target=64, shape=shape, floor=-1.0, tolerance=5) == expected


@pytest.mark.parametrize("shape", ["linear", "clipped", "dead_band", "exponential", "logarithmic"])
def test_an_exact_hit_is_plain_zero(shape: str) -> None:
    """No -0.0, which would print as one. A shape that slipped past the config is a usage error with a remedy."""
    assert str(length_reward(64, target=64, shape=shape, floor=-1.0, tolerance=5)) == "0.0"
    with refuses("'cubic'", "dead_band"):
        length_reward(64, target=64, shape="cubic", floor=-1.0, tolerance=5)


@given(
    length=st.integers(0, 10_000), target=st.integers(1, 1000), floor=st.floats(-5.0, 0.0), tolerance=st.integers(0, 50)
)
def test_the_bounded_shapes_stay_between_floor_and_zero(length: int, target: int, floor: float, tolerance: int) -> None:
    """clipped and dead_band lie in [floor, 0] for every length."""
    for shape in ("clipped", "dead_band"):
        value = length_reward(length, target=target, shape=shape, floor=floor, tolerance=tolerance)
        assert floor <= value <= 0


def test_a_count_of_its_own_replaces_the_sampled_tokens(group: Callable[..., RolloutGroup]) -> None:
    """Of characters here: 4 and 2 for a target of 4. Without one the setting is refused, with a remedy."""
    config = Config(task=TldrConfig(target_tokens=4), rewards=RewardsConfig(length_counts="retokenized"))
    assert score_length([group(["abcd", "ab"])], config, lambda rollout: len(rollout.text)) == [[0.0, -0.5]]
    with refuses("length_counts = retokenized", "rewards.length_counts=sampled"):
        score_length([group(["abcd"])], config)


def test_the_scorer_counts_sampled_tokens_without_eos_under_the_config(group: Callable[..., RolloutGroup]) -> None:
    """P lists of G values by the config; a truncated rollout has no EOS to drop."""
    config = Config(
        task=TldrConfig(target_tokens=4, tolerance_tokens=1),
        rewards=RewardsConfig(length_shape="dead_band", length_floor=-0.5),
    )
    stopped = group(["a b c d", "a b", "a b c d e f g h"])
    cut = replace(stopped, rollouts=(replace(stopped.rollouts[1], finish_reason="length"),))
    assert score_length([stopped, cut], config) == [[0.0, -0.25, -0.5], [0.0]]


@pytest.mark.parametrize(
    ("tokens", "expected"), [(0, 0.0), (80, 0.0), (81, -0.05), (90, -0.5), (100, -1.0), (130, -1.0)]
)
def test_overlong_falls_over_the_last_tokens(tokens: int, expected: float) -> None:
    """Limit 100, buffer 20: nothing up to 80, then a twentieth a token, -1 at the limit and beyond."""
    assert overlong_reward(tokens, limit=100, buffer=20) == pytest.approx(expected)
    assert str(overlong_reward(5, limit=100, buffer=20)) == "0.0"  # no -0.0, which would print as one


def test_overlong_counts_every_sampled_token(group: Callable[..., RolloutGroup]) -> None:
    """EOS counts, as it does against the limit; a rollout that reached the limit has -1."""
    config = Config(sampling=SamplingConfig(max_new_tokens=6), rewards=RewardsConfig(overlong_buffer=4))
    ended = group(["a", "a b c", "a b c d e"])
    cut = replace(ended, rollouts=(replace(ended.rollouts[2], finish_reason="length"),))
    assert score_overlong([ended, cut], config) == [[0.0, -0.5, -1.0], [-1.0]]
