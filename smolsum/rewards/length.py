"""Rewards of length in sampled tokens: distance from a target, and a soft punishment close to the token limit."""

import math
from collections.abc import Callable, Sequence
from typing import cast

from smolsum.config.sections import Config
from smolsum.config.targets import LengthSettings, target_of, tolerance_of
from smolsum.errors import UsageError
from smolsum.rewards.signal import Values, described
from smolsum.types import Rollout, RolloutGroup


def length_reward(length: int, *, target: int, shape: str, floor: float, tolerance: int) -> float:
    """Return the reward of `length` tokens (EOS not counted) for a target of `target` tokens; 0 is the best.

    linear     -|length - target| / target, the study's reward. The range (-1, 0] it states is wrong: there
               is no lower bound (512 tokens for a target of 64 are worth -7).
    clipped    max(floor, linear)
    dead_band  0 within `tolerance` tokens of the target, beyond it
               max(floor, -(|length - target| - tolerance) / target)
    exponential  exp(-|length - target| / (2 tolerance + 1)) - 1: steep near the target, flat far away
    logarithmic  -log(1 + |length - target| / (2 tolerance + 1)): as steep near the target, and flat nowhere

    Raises UsageError for another shape.
    """
    miss = abs(length - target)
    # 0.0 - x, since -x of an exact hit would be -0.0 and print as such
    match shape:
        case "linear":
            return 0.0 - miss / target
        case "clipped":
            return max(floor, 0.0 - miss / target)
        case "dead_band":
            return max(floor, 0.0 - max(0, miss - tolerance) / target)
        case "exponential":
            return math.expm1(0.0 - miss / (2 * tolerance + 1))
        case "logarithmic":
            return 0.0 - math.log1p(miss / (2 * tolerance + 1))
        case _:
            raise UsageError(
                f"unknown length reward shape {shape!r}",
                hint="set rewards.length_shape to linear, clipped, dead_band, exponential or logarithmic",
            )


@described("(-∞, 0]", "distance from the target, in targets, negative", by_length=True, by_end=True)
def score_length(
    groups: Sequence[RolloutGroup], config: Config, count: Callable[[Rollout], int] | None = None
) -> Values:
    """Return PxG length rewards, each against what its prompt asks for, from the sampled ids without EOS, or from a
    task's own `count`.

    Raises UsageError for another `rewards.length_counts` without a `count`, since only a task has a tokenizer.
    """
    if count is None and config.rewards.length_counts != "sampled":
        raise UsageError(
            f"rewards.length_counts = {config.rewards.length_counts}, but only the signal length of task tldr has a "
            "tokenizer to count with",
            hint="--set rewards.length_counts=sampled",
        )
    count = count or (lambda rollout: rollout.length)
    shape, floor, task = config.rewards.length_shape, config.rewards.length_floor, cast(LengthSettings, config.task)
    found: Values = []
    for group in groups:
        target = target_of(group.prompt.metadata, task)
        tolerance = tolerance_of(target, task)
        found.append(
            [
                length_reward(count(rollout), target=target, shape=shape, floor=floor, tolerance=tolerance)
                for rollout in group.rollouts
            ]
        )
    return found


def overlong_reward(tokens: int, *, limit: int, buffer: int) -> float:
    """Return the reward of a completion of `tokens` tokens, EOS counted: 0 up to `limit` - `buffer`, from there falling
    linearly to -1 at the limit (DAPO, arXiv:2503.14476, eq. 13)."""
    return max(-1.0, 0.0 - max(0, tokens - (limit - buffer)) / buffer)


@described("[-1, 0]", "soft punishment for the last tokens before the limit", by_length=True, by_end=True)
def score_overlong(groups: Sequence[RolloutGroup], config: Config) -> Values:
    """Return PxG punishments; a truncated rollout has -1."""
    limit, buffer = config.sampling.max_new_tokens, config.rewards.overlong_buffer
    return [
        [overlong_reward(len(rollout.token_ids), limit=limit, buffer=buffer) for rollout in group.rollouts]
        for group in groups
    ]
