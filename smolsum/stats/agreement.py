"""How far raters agree beyond chance: Cohen's kappa with its interval for two, Krippendorff's alpha for any number.

Raw agreement overstates a judge: one that passes everything agrees with 90 % of labels of which 90 % pass.
"""

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from smolsum.stats.paired import CONFIDENCE

Array = NDArray[np.float64]
DRAWS = 2000
SEED = 0


@dataclass(frozen=True)
class Kappa:
    """Cohen's kappa of two raters with its 95 % interval; NaN where both only ever say the same one thing, so that
    chance explains all."""

    n: int
    agreed: float
    """share of the items on which both say the same"""
    kappa: float
    low: float
    high: float


def cohens_kappa(first: Sequence[bool], second: Sequence[bool], clusters: Sequence[Hashable] | None = None) -> Kappa:
    """Return the agreement of two raters' verdicts on the same items, (agreed - chance) / (1 - chance), where chance is
    that of raters who say yes as often as they do (Cohen 1960).

    The interval is the middle of the kappas of `DRAWS` bootstrap samples, of whole `clusters` (such as the variants of
    one text) if they are given; always the same for the same verdicts.
    """
    pairs = np.array([first, second], dtype=bool)
    n = pairs.shape[1]
    if n == 0:
        return Kappa(0, math.nan, math.nan, math.nan, math.nan)
    names = list(range(n)) if clusters is None else list(clusters)
    places = {name: place for place, name in enumerate(dict.fromkeys(names))}
    counts_C4 = np.zeros((len(places), 4))
    np.add.at(counts_C4, ([places[name] for name in names], 2 * pairs[0] + pairs[1]), 1)
    agreed, kappa = _kappas(counts_C4.sum(axis=0)[None])
    drawn = np.random.default_rng(SEED).multinomial(len(places), np.full(len(places), 1 / len(places)), DRAWS)
    _, kappas = _kappas(drawn @ counts_C4)
    known = kappas[np.isfinite(kappas)]
    tail = 50 * (1 - CONFIDENCE)
    low, high = np.percentile(known, (tail, 100 - tail)) if len(known) and len(places) > 1 else (math.nan, math.nan)
    return Kappa(n, float(agreed[0]), float(kappa[0]), float(low), float(high))


def _kappas(counts_D4: Array) -> tuple[Array, Array]:
    """Agreement and kappa of tables with the counts of (no, no), (no, yes), (yes, no), (yes, yes)."""
    shares = counts_D4 / counts_D4.sum(axis=1, keepdims=True)
    agreed = shares[:, 0] + shares[:, 3]
    one, two = shares[:, 2] + shares[:, 3], shares[:, 1] + shares[:, 3]
    chance = one * two + (1 - one) * (1 - two)
    with np.errstate(invalid="ignore", divide="ignore"):
        return agreed, np.where(chance < 1, (agreed - chance) / (1 - chance), np.nan)


def krippendorff_alpha(scores_RN: Array) -> float:
    """Return Krippendorff's alpha of raters x items for interval scores, NaN where a rater has none: 1 minus the mean
    squared difference within an item over that between any two scores (Krippendorff 2011, "Computing Krippendorff's
    alpha-reliability"). 1: raters agree; 0: as by chance; NaN where fewer than two items have two scores, or all scores
    are the same."""
    kept = np.isfinite(scores_RN).sum(axis=0) > 1
    scores = scores_RN[:, kept]
    if scores.shape[1] < 2:
        return math.nan
    known = np.isfinite(scores)
    raters = known.sum(axis=0)
    # the sum of squared differences over ordered pairs of m values is 2 m times that of their deviations
    within = np.nansum((scores - np.nanmean(scores, axis=0)) ** 2, axis=0) * 2 * raters / (raters - 1)
    every = scores[known]
    between = 2 * len(every) * float(((every - every.mean()) ** 2).sum()) / (len(every) - 1)
    return 1 - float(within.sum()) / between if between > 0 else math.nan
