"""Rewards of users, for tests."""

from collections.abc import Callable, Sequence
from typing import Any

from smolsum.config.sections import Config
from smolsum.rewards.combine import score_all
from smolsum.rewards.custom import make_reward
from smolsum.rewards.signal import Values
from smolsum.types import RolloutGroup


def score(function: Callable[..., Any], groups: Sequence[RolloutGroup], config: Config = Config()) -> Values:  # noqa: B008
    """The values of one function."""
    made = make_reward(function, file=function.__code__.co_filename, sha256="")
    return score_all(groups, {made.name: 1.0}, config, {made.name: made})[made.name]
