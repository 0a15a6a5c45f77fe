"""How long completions are: the study's table of output lengths, with how far they are from the target."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, pstdev

PERCENTILES = (50, 90, 95, 99)


def length_table(tokens: Sequence[int]) -> dict[str, float]:
    """Returns mean, standard deviation (population), extremes and percentiles of lengths in tokens, at least one.

    A percentile is a length that occurs: the smallest that at least so many per cent of the completions do not exceed.
    """
    ordered = sorted(tokens)
    percentiles = {
        f"completions/p{percent}_length": float(ordered[-(-percent * len(ordered) // 100) - 1])
        for percent in PERCENTILES
    }
    return {
        "completions/mean_length": fmean(ordered),
        "completions/std_length": pstdev(ordered),
        "completions/min_length": float(ordered[0]),
        **percentiles,
        "completions/max_length": float(ordered[-1]),
    }


def length_row(tokens: int, target: int, tolerance: int) -> dict[str, float]:
    """Returns one completion's length in tokens; whether it is within `tolerance` of the target; whether it is over the
    budget, which is the target itself; and its distance from the target in tokens."""
    distance = abs(tokens - target)
    return {
        "tokens": tokens,
        "within_tol": float(distance <= tolerance),
        "over_budget": float(tokens > target),
        "off_target": float(distance),
    }
