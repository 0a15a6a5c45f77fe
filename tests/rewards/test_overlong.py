"""The punishment for coming close to the token limit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from smolsum.config.sections import Config, RewardsConfig, SamplingConfig
from smolsum.rewards.length import overlong_reward, score_overlong
from smolsum.types import RolloutGroup


@pytest.mark.parametrize(
    ("tokens", "expected"), [(0, 0.0), (80, 0.0), (81, -0.05), (90, -0.5), (100, -1.0), (130, -1.0)]
)
def test_it_falls_over_the_last_tokens(tokens: int, expected: float) -> None:
    """Limit 100, buffer 20: nothing up to 80, then a twentieth a token, -1 at the limit and beyond."""
    assert overlong_reward(tokens, limit=100, buffer=20) == pytest.approx(expected)


def test_no_punishment_is_plain_zero() -> None:
    """No -0.0, which would print as one."""
    assert str(overlong_reward(5, limit=100, buffer=20)) == "0.0"


def test_the_scorer_counts_every_sampled_token(group: Callable[..., RolloutGroup]) -> None:
    """EOS counts, as it does against the limit; a rollout that reached the limit has -1."""
    config = Config(sampling=SamplingConfig(max_new_tokens=6), rewards=RewardsConfig(overlong_buffer=4))
    ended = group(["a", "a b c", "a b c d e"])
    cut = replace(ended, rollouts=(replace(ended.rollouts[2], finish_reason="length"),))
    assert score_overlong([ended, cut], config) == [[0.0, -0.5, -1.0], [-1.0]]
