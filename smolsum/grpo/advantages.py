"""Advantages of a group's rollouts relative to each other, by their rewards and by constraints. Axes: P prompts, G
rollouts of a prompt."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal

import mlx.core as mx
import numpy as np

from smolsum.config.constraints import LENGTH
from smolsum.config.fields import AdvantageScale, AdvantageStd
from smolsum.config.sections import GrpoConfig
from smolsum.grpo.constraints import Bounded, Floats


def step_advantages(
    totals_PG: Any,
    scores: Mapping[str, Any],
    weights: Mapping[str, float],
    measured: Sequence[Bounded],
    multipliers: Sequence[float],
    grpo: GrpoConfig,
    at_ends: Collection[str] = (),
) -> tuple[mx.array, mx.array]:
    """Return advantages of a step's rollouts from rewards and constraints, and the part of them that signals in
    `at_ends` and constraints on the length have, 0 where `at_ends` is empty: each float32 (P, G).

    `sum` adds multiplier x progress to the total reward, `gate` multiplies the total by the progress of every
    constraint (counted from the group's lowest total where that is negative, as a factor below 1 would help it). The
    others add the advantages of the rewards (`advantage_scale`) to those of each constraint, standardised within its
    group (arXiv:2601.05242), and divide by the batch's deviation: a multiplier then weighs the same whatever the units,
    and the KL term weighs the same whatever the multipliers. Without constraints these are the advantages of the
    rewards. A missing reward has the advantage 0; a missing value counts as its group's mean, and makes no difference.
    """
    std, eps, scale = grpo.advantage_std, grpo.advantage_eps, grpo.advantage_scale
    totals, parts = np.asarray(totals_PG, dtype=np.float64), [one.progress for one in measured]
    bounded = [bool(at_ends) and one.constraint.measured == LENGTH for one in measured]
    ended = np.zeros_like(totals)
    for name in at_ends:
        ended += weights.get(name, 0.0) * np.nan_to_num(np.array(scores.get(name, ended), dtype=np.float64))
    if measured and grpo.constraint_method in ("sum", "gate"):
        scale = "group" if scale == "gdpo" else scale
        if grpo.constraint_method == "sum":
            for multiplier, part, of_length in zip(multipliers, parts, bounded, strict=True):
                added = multiplier * _with_means(part, 0.0)
                totals, ended = totals + added, ended + of_length * added
        else:  # a product has no parts
            lowest = np.where(np.isnan(totals), np.inf, totals).min(axis=1, keepdims=True)
            totals = (totals - np.minimum(lowest, 0.0)) * np.prod([_with_means(part, 1.0) for part in parts], 0)
    if scale == "gdpo":
        missing, own = np.isnan(totals), {name: weight for name, weight in weights.items() if name in at_ends}
        summed, of_ends = (_gdpo_sum(scores, some, missing, std, eps) for some in (weights, own))
        divisor = _deviation(summed[~missing], std) + eps
        found, found_ends = _array(_divided(summed, divisor)), _divided(of_ends, divisor)
    else:
        found = group_advantages(totals, scale=scale, std=std, eps=eps)
        found_ends = _share(ended, totals, scale, std, eps)
    if not measured or grpo.constraint_method in ("sum", "gate"):
        return found, _array(found_ends)
    summed = np.array(found, dtype=np.float64)
    for multiplier, part, of_length in zip(multipliers, parts, bounded, strict=True):
        added = multiplier * _standardised(np.where(np.isnan(totals), np.nan, part), std, eps)
        summed, found_ends = summed + added, found_ends + of_length * added
    kept = summed[~np.isnan(totals)]
    spread = float(kept.std(ddof=std == "sample")) if kept.size > 1 else 0.0
    divisor = spread + eps if spread else 1.0
    return _array(summed / divisor), _array(found_ends / divisor)


def group_advantages(
    rewards_PG: Any,
    *,
    scale: Literal["group", "batch", "none"] = "group",
    std: AdvantageStd = "sample",
    eps: float = 1e-4,
) -> mx.array:
    """Return rewards minus their group's mean, divided by a standard deviation: float32 (P, G).

    `group`: the group's own, as in GRPO (arXiv:2402.03300, section 4.1.2); `batch`: that of all rewards of the step;
    `none`: not divided, as in Dr. GRPO (arXiv:2503.20783, eq. 3). The deviation is that of a `sample` (over n - 1), as
    in TRL, or of the `population` (over n), plus `eps`. A missing reward (NaN) is left out and has the advantage 0; so
    has every rollout of a group whose rewards are all equal. Raises ValueError for another `scale`.
    """
    rewards = np.asarray(rewards_PG, dtype=np.float64)
    return _array(_share(rewards, rewards, scale, std, eps))


def gdpo_advantages(
    scores: Mapping[str, Any],
    weights: Mapping[str, float],
    *,
    totals_PG: Any = None,
    std: AdvantageStd = "sample",
    eps: float = 1e-4,
) -> mx.array:
    """Return each signal's advantage in its group, summed by weight, divided by the batch's deviation: float32 (P, G).

    GDPO (arXiv:2601.05242): a signal counts by its weight, however widely its values spread. `scores` holds PxG values
    by signal. A rollout without a value (NaN or None) for a signal of non-zero weight is left out and has the advantage
    0; with the totals of `combine`, one without a total is, and a signal that does not apply adds nothing. The
    deviations are those of `group_advantages`.
    """
    signals = [np.array(scores[name], dtype=np.float64) for name, weight in weights.items() if weight != 0]
    missing = np.isnan(signals).any(axis=0) if totals_PG is None else np.isnan(np.array(totals_PG, dtype=np.float64))
    summed = _gdpo_sum(scores, weights, missing, std, eps)
    # every group's advantages sum to 0, so the batch's mean is 0 too, and a group that teaches nothing stays at 0
    return _array(_divided(summed, _deviation(summed[~missing], std) + eps))


def teaches_nothing(
    totals_PG: Any, scores: Mapping[str, Any], weights: Mapping[str, float], *, scale: AdvantageScale
) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Return whether all advantages of a group will be 0: boolean (P,). With `gdpo` a group whose totals tie still
    teaches where one of its signals differs between rollouts."""
    if scale != "gdpo":
        return zero_spread(totals_PG)
    missing = np.isnan(np.asarray(totals_PG, dtype=np.float64))
    found = np.ones(len(missing), dtype=np.bool_)
    for name, weight in weights.items():
        if weight != 0:
            found &= zero_spread(np.where(missing, np.nan, np.array(scores[name], dtype=np.float64)))
    return found


def likelihood_advantages(untaught: Any) -> mx.array:
    """Return the advantages with which the loss of one text a group is its negative log-likelihood, 0 where the group
    teaches nothing (boolean (P,)): float32 (P, 1)."""
    return _array(np.where(untaught, 0.0, 1.0)[:, None])


def most_spread(advantages_PG: Any, count: int) -> list[list[int]]:
    """Return the places of the `count` rollouts of each group whose advantages have the largest variance, ascending: P
    lists. They are some of the highest and the rest of the lowest, so that few splits are compared (max-variance
    down-sampling of PODS, arXiv:2504.13818)."""
    kept = []
    for row in np.asarray(advantages_PG, dtype=np.float64):
        order = np.argsort(row, kind="stable")
        splits = [[*order[:low], *order[len(row) - count + low :]] for low in range(count + 1)]
        kept.append(sorted(int(place) for place in max(splits, key=lambda places: float(row[places].var()))))
    return kept


def zero_spread(rewards_PG: Any) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Return whether a group has fewer than two different rewards, missing ones aside, and so teaches nothing: boolean
    (P,)."""
    rewards = np.asarray(rewards_PG, dtype=np.float64)
    top = np.where(np.isnan(rewards), -np.inf, rewards).max(axis=1)
    bottom = np.where(np.isnan(rewards), np.inf, rewards).min(axis=1)
    return np.asarray(top <= bottom)


def _gdpo_sum(
    scores: Mapping[str, Any], weights: Mapping[str, float], missing: Any, std: AdvantageStd, eps: float
) -> Floats:
    """Return the signals' advantages in their groups, summed by weight."""
    summed = np.zeros(np.shape(missing))
    for name, weight in weights.items():
        if weight != 0:
            signal = np.array(scores[name], dtype=np.float64)
            summed = summed + weight * _standardised(np.where(missing, np.nan, signal), std, eps)
    return summed


def _share(part: Floats, rewards: Floats, scale: str, std: AdvantageStd, eps: float) -> Floats:
    """Return the part of the rewards' advantages that comes from one of their addends, or all from the rewards."""
    centred = _centred(np.where(np.isnan(rewards), np.nan, part))
    centred[zero_spread(rewards)] = 0.0
    if scale == "group":
        count = (~np.isnan(rewards)).sum(axis=1, keepdims=True)
        spread = np.sqrt((_centred(rewards) ** 2).sum(axis=1, keepdims=True) / np.maximum(count - (std == "sample"), 1))
        return _divided(centred, spread + eps)
    if scale == "batch":
        kept = rewards[~np.isnan(rewards)]
        return _divided(centred, _deviation(kept - kept.mean() if kept.size else kept, std) + eps)
    if scale != "none":
        raise ValueError(f"scale must be group, batch or none, not {scale!r}")
    return centred


def _centred(rewards: Floats) -> Floats:
    """Return rewards minus their group's mean, 0 where they are missing."""
    present = ~np.isnan(rewards)
    count = present.sum(axis=1, keepdims=True)
    mean = np.where(present, rewards, 0.0).sum(axis=1, keepdims=True) / np.maximum(count, 1)
    centred = np.where(present, rewards - mean, 0.0)
    centred[zero_spread(rewards)] = 0.0  # equal rewards leave noise, which a small deviation would amplify
    return centred


def _standardised(rewards: Floats, std: AdvantageStd, eps: float) -> Floats:
    """Centred rewards, divided by their group's deviation plus `eps`."""
    return _share(rewards, rewards, "group", std, eps)


def _deviation(centred: Floats, std: AdvantageStd) -> float:
    """Return the deviation of values whose mean is 0."""
    return float(np.sqrt((centred**2).sum() / max(centred.size - (std == "sample"), 1)))


def _with_means(part: Floats, nothing: float) -> Floats:
    """Return the values, missing ones as the mean of their group; `nothing` in a group that has none."""
    there = ~np.isnan(part)
    means = np.where(there, part, 0.0).sum(axis=1, keepdims=True) / np.maximum(there.sum(axis=1, keepdims=True), 1)
    return np.where(there, part, np.where(there.any(axis=1, keepdims=True), means, nothing))


def _divided(centred: Floats, divisor: Any) -> Floats:
    """Return the quotient; a divisor of 0 divides zeros only, and leaves them."""
    quotient: Floats = centred / np.where(divisor > 0, divisor, 1.0)
    return quotient


def _array(values: Any) -> mx.array:
    return mx.array(np.asarray(values).astype(np.float32))
