"""A soft punishment for coming close to the token limit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from smolsum.config import Config
    from smolsum.rollout.records import RolloutGroup


def overlong_reward(tokens: int, *, limit: int, buffer: int) -> float:
    """The reward of a completion of `tokens` tokens, EOS counted: 0 up to `limit` - `buffer`, from there falling
    linearly to -1 at the limit (DAPO, arXiv:2503.14476, eq. 13)."""
    return max(-1.0, 0.0 - max(0, tokens - (limit - buffer)) / buffer)


def score_overlong(groups: Sequence[RolloutGroup], config: Config) -> list[list[float | None]]:
    """PxG punishments; a truncated rollout has -1."""
    limit, buffer = config.sampling.max_new_tokens, config.rewards.overlong_buffer
    return [
        [overlong_reward(len(rollout.token_ids), limit=limit, buffer=buffer) for rollout in group.rollouts]
        for group in groups
    ]
