"""The length reward."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smolsum.config.sections import Config, RewardsConfig
from smolsum.errors import UsageError
from smolsum.rewards.length import length_reward, score_length
from smolsum.tasks.tldr.settings import TldrConfig
from smolsum.types import RolloutGroup


@pytest.mark.parametrize(
    ("length", "expected"),
    # (length - 64) / 64: 32/64, 64/64, 448/64
    [(64, 0.0), (32, -0.5), (96, -0.5), (0, -1.0), (128, -1.0), (512, -7.0), (63, -1 / 64)],
)
def test_linear_is_the_relative_miss_without_a_lower_bound(length: int, expected: float) -> None:
    """linear = -|n - 64| / 64, and 512 tokens are worth -7."""
    assert length_reward(length, target=64, shape="linear", floor=-1.0, tolerance=5) == expected


@pytest.mark.parametrize(("length", "expected"), [(64, 0.0), (48, -0.25), (128, -1.0), (129, -1.0), (512, -1.0)])
def test_clipped_stops_at_the_floor(length: int, expected: float) -> None:
    """clipped = max(floor, linear)."""
    assert length_reward(length, target=64, shape="clipped", floor=-1.0, tolerance=5) == expected


@pytest.mark.parametrize(
    ("length", "expected"),
    # 70 misses by 6, one beyond the band: -1/64; 85 by 21: -16/64; 200 by 136: -131/64, cut to -1
    [(64, 0.0), (59, 0.0), (69, 0.0), (70, -1 / 64), (58, -1 / 64), (85, -0.25), (200, -1.0)],
)
def test_dead_band_is_flat_within_the_tolerance_and_continuous_at_its_edge(length: int, expected: float) -> None:
    """dead_band counts only the tokens beyond the tolerance."""
    assert length_reward(length, target=64, shape="dead_band", floor=-1.0, tolerance=5) == expected


@pytest.mark.parametrize("shape", ["linear", "clipped", "dead_band"])
def test_an_exact_hit_is_plain_zero(shape: str) -> None:
    """No -0.0, which would print as one."""
    assert str(length_reward(64, target=64, shape=shape, floor=-1.0, tolerance=5)) == "0.0"


def test_an_unknown_shape_names_the_known_ones() -> None:
    """A shape that slipped past the config is a usage error with a remedy."""
    with pytest.raises(UsageError, match="'cubic'") as caught:
        length_reward(64, target=64, shape="cubic", floor=-1.0, tolerance=5)
    assert caught.value.hint is not None
    assert "dead_band" in caught.value.hint


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
    with pytest.raises(UsageError, match="length_counts = retokenized") as caught:
        score_length([group(["abcd"])], config)
    assert "rewards.length_counts=sampled" in (caught.value.hint or "")


def test_the_scorer_counts_sampled_tokens_without_eos_under_the_config(group: Callable[..., RolloutGroup]) -> None:
    """P lists of G values by the config; a truncated rollout has no EOS to drop."""
    config = Config(
        task=TldrConfig(target_tokens=4, tolerance_tokens=1),
        rewards=RewardsConfig(length_shape="dead_band", length_floor=-0.5),
    )
    stopped = group(["a b c d", "a b", "a b c d e f g h"])
    cut = replace(stopped, rollouts=(replace(stopped.rollouts[1], finish_reason="length"),))
    assert score_length([stopped, cut], config) == [[0.0, -0.25, -0.5], [0.0]]
