"""Advantages of a group's rollouts relative to each other. Axes: P prompts, G rollouts of a prompt."""

from __future__ import annotations

from typing import Any, Literal

import mlx.core as mx
import numpy as np

STD_FLOOR = 1e-4
"""added to a standard deviation before it divides, as TRL does"""


def group_advantages(rewards_PG: Any, *, scale: Literal["group", "batch", "none"] = "group") -> mx.array:
    """Rewards minus their group's mean, divided by a standard deviation: float32 (P, G).

    `group`: the group's own, as in GRPO (arXiv:2402.03300, section 4.1.2); `batch`: that of all rewards of the step;
    `none`: not divided, as in Dr. GRPO (arXiv:2503.20783, eq. 3). Standard deviations are of the sample (n - 1), plus
    1e-4. A missing reward (NaN) takes no part and has the advantage 0, as has a group of equal rewards. Raises
    ValueError for another `scale`.
    """
    rewards = np.asarray(rewards_PG, dtype=np.float64)
    present = ~np.isnan(rewards)
    count = present.sum(axis=1, keepdims=True)
    filled = np.where(present, rewards, 0.0)
    centred = np.where(present, rewards - filled.sum(axis=1, keepdims=True) / np.maximum(count, 1), 0.0)
    centred[zero_spread(rewards)] = 0.0  # equal rewards leave rounding noise, which a small deviation would blow up
    if scale == "group":
        centred /= np.sqrt((centred**2).sum(axis=1, keepdims=True) / np.maximum(count - 1, 1)) + STD_FLOOR
    elif scale == "batch":
        kept = rewards[present]
        centred /= (kept.std(ddof=1) if kept.size > 1 else 0.0) + STD_FLOOR
    elif scale != "none":
        raise ValueError(f"scale must be group, batch or none, not {scale!r}")
    return mx.array(centred.astype(np.float32))


def zero_spread(rewards_PG: Any) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Whether the rewards present in each group are all equal (or none, or one): such a group teaches nothing. Boolean
    (P,)."""
    rewards = np.asarray(rewards_PG, dtype=np.float64)
    top = np.where(np.isnan(rewards), -np.inf, rewards).max(axis=1)
    bottom = np.where(np.isnan(rewards), np.inf, rewards).min(axis=1)
    return np.asarray(top <= bottom)
