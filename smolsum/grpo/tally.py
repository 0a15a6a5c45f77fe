"""Sums, lows and highs of a batch's parts, which add up to the metrics of the whole whatever the parts are."""

from __future__ import annotations

import mlx.core as mx

from smolsum.policy import ranks

Tally = dict[str, dict[str, mx.array]]
"""`sum`: by metric, an array of the weighted sum and the weights' sum; `min` and `max`: by metric, the extreme so far.
A plain tree of arrays, so that a differentiated function may return it."""

WEIGHT = "sampling/importance_sampling_ratio/mean"
SQUARE = "sampling/importance_sampling_ratio/square"
"""mean squared weight, kept only to make the effective sample size"""


def weighted(values: mx.array, mask: mx.array) -> mx.array:
    """The entry of a mean: (2,) sum of the values under the mask and sum of the mask, values broadcast to it."""
    return mx.stack([(values * mask).sum(), mask.sum()])


def lowest(values: mx.array, mask: mx.array) -> mx.array:
    """The least value under the mask, infinity where there is none."""
    return mx.where(mask > 0, values, mx.inf).min()


def highest(values: mx.array, mask: mx.array) -> mx.array:
    """The greatest value under the mask, minus infinity where there is none."""
    return mx.where(mask > 0, values, -mx.inf).max()


def merged(a: Tally, b: Tally) -> Tally:
    """The tally of two parts, which must have the same metrics."""
    join = {"sum": mx.add, "min": mx.minimum, "max": mx.maximum}
    return {kind: {name: join[kind](value, b[kind][name]) for name, value in a[kind].items()} for kind in a}


def over_ranks(tally: Tally) -> Tally:
    """The tally of all ranks' parts together."""
    join = {"sum": ranks.total, "min": ranks.lowest, "max": ranks.highest}
    return {kind: join[kind](entries) for kind, entries in tally.items()}


def means(tally: Tally) -> dict[str, mx.array]:
    """Every metric as a scalar, 0 where nothing was counted, and `sampling/ess`.

    The effective sample size of weights w, as a share of their number: mean(w)^2 / mean(w^2), 1 for equal weights
    (Kish, Survey Sampling, 1965).
    """
    found = {name: entry[0] / mx.maximum(entry[1], 1.0) for name, entry in tally["sum"].items()}
    extremes = tally["min"] | tally["max"]
    found |= {name: mx.where(mx.isinf(value), 0.0, value) for name, value in extremes.items()}
    square = found.pop(SQUARE)
    found["sampling/ess"] = mx.where(square > 0, found[WEIGHT] ** 2 / mx.where(square > 0, square, 1.0), 0.0)
    return found
