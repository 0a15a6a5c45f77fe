"""Studies whose scores are 0 or 1, simulated: where few answers fail, a test has another power than with normal scores.

A completion passes where a sum of normal effects is above a threshold (Emrich and Piedmonte 1991): of its example, of
its example in this arm, of its run, and of itself. How much of the sum each effect brings is chosen so that the scores
vary between examples and runs as they should.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, special

from smolsum.errors import UsageError
from smolsum.stats.design import Design, PlannedTest, Spread
from smolsum.stats.seeds import Array, crossed_difference
from smolsum.stats.shares import difference_ends

STUDIES, BATCH, MAX_SCORES = 10_000, 250, 30_000
_ANGLES, _WEIGHTS = np.polynomial.legendre.leggauss(32)


@dataclass(frozen=True)
class Effects:
    """What each effect brings to the variance of a sum, which is 1."""

    example: float
    arm: float
    """of the example in one of the arms"""
    run: float


def covariance(share: float, other: float, correlation: float) -> float:
    """Return the covariance of two scores of 0 and 1 with these shares, whose normal sums have the correlation (from 0
    to 1): the integral of the binormal density over it (Plackett 1954), by the correlation's arc sine."""
    if not (0 < share < 1 and 0 < other < 1):
        return 0.0
    t, u, end = special.ndtri(share), special.ndtri(other), math.asin(correlation)
    angles = end * (_ANGLES + 1) / 2
    density = np.exp((2 * t * u * np.sin(angles) - t * t - u * u) / (2 * np.cos(angles) ** 2)) / (2 * math.pi)
    return float(_WEIGHTS @ density) * end / 2


def effects(spread: Spread, effect: float) -> Effects:
    """Return the effects with which scores have this spread: in the arms that it says, or in those that differ by
    `effect`. As near to it as scores of 0 and 1 can be: `realised` says what it becomes.

    Raises UsageError where a share leaves 0 to 1, and for scores that do not vary.
    """
    shares = planned = _shares(spread, effect)
    if spread.shares is not None and spread.shares[1] is not None:
        shares = (planned[0], spread.shares[1])
    pairs = [(share, share) for share in shares]
    total = sum(share * (1 - share) for share in shares) / 2
    if not total:
        raise UsageError("scores that do not vary need no plan", hint="--assume share=X with X below 1, and no pilot")
    # what matched runs share cancels in their difference, as what an example brings to both arms does
    same_example = max(0.0, total - spread.noise**2 - spread.seed**2)
    in_arm, run = (_correlation(pairs, value) for value in (same_example, spread.seed**2))
    between = min(in_arm, _correlation([shares], same_example - spread.example**2 / 2))
    scale = max(1.0, in_arm + run)
    return Effects(between / scale, (in_arm - between) / scale, run / scale)


def realised(spread: Spread, effect: float) -> Spread:
    """Return the deviations that simulated scores have: those of `spread`, as near as they can be."""
    parts, shares = effects(spread, effect), _shares(spread, effect)

    def mean_covariance(correlation: float) -> float:
        return sum(covariance(share, share, correlation) for share in shares) / 2

    run, same_example = mean_covariance(parts.run), mean_covariance(parts.example + parts.arm)
    example = 2 * (same_example - covariance(*shares, parts.example))
    noise = sum(share * (1 - share) for share in shares) / 2 - run - same_example
    seed_sd, example_sd, noise_sd = (math.sqrt(max(0.0, variance)) for variance in (run, example, noise))
    return Spread(seed_sd, example_sd, noise_sd, shares=shares)


def _shares(spread: Spread, effect: float) -> tuple[float, float]:
    """The shares of the arms that are planned."""
    assert spread.shares is not None
    first = spread.shares[0]
    if not 0 <= first + effect <= 1:
        raise UsageError(
            f"a share of {first:g} cannot change by {effect:g}", hint=f"--effect from {-first:.3g} to {1 - first:.3g}"
        )
    return first, first + effect


def _correlation(pairs: list[tuple[float, float]], wanted: float) -> float:
    """The correlation from 0 to 1 with which scores of these pairs of shares have the covariance, on average."""

    def lacking(correlation: float) -> float:
        return sum(covariance(*pair, correlation) for pair in pairs) / len(pairs) - wanted

    most = 1 - 1e-9
    if wanted <= 0 or lacking(most) <= 0:
        return 0.0 if wanted <= 0 else most
    return float(optimize.brentq(lacking, 0.0, most))


def simulated_power(
    effect: float, spread: Spread, design: Design, question: PlannedTest, *, near: float | None = None
) -> float:
    """Return the share of `STUDIES` studies that are significant if the second arm's share is `effect` above the
    first's. The same question has the same answer, with a standard error of half a point at most. With `near`, studies
    end once the power is clearly above it or below.

    Raises UsageError for more than `MAX_SCORES` scores of an arm, and as `effects` does.
    """
    if design.seeds * design.examples > MAX_SCORES:
        raise UsageError(
            f"{design.seeds} runs on {design.examples} examples are too many to simulate",
            hint=f"--seeds times --examples is {MAX_SCORES:,} at most for scores of 0 and 1",
        )
    found = 0.0
    for count, (a, b) in enumerate(studies(effects(spread, effect), _shares(spread, effect), design), 1):
        found += (float(significant(a, b, design, question).mean()) - found) / count
        if near is not None and abs(found - near) > 4 * math.sqrt(near * (1 - near) / (count * BATCH)):
            break
    return found


def studies(parts: Effects, shares: tuple[float, float], design: Design) -> Iterator[tuple[Array, Array]]:
    """Tables of both arms (`BATCH`, runs, examples) until there are `STUDIES`. Those of more examples begin with the
    same ones, so that power hardly ever falls as a study grows."""
    own = max(0.0, 1 - parts.example - parts.arm - parts.run)
    n, seeds = design.examples, design.seeds
    for batch in range(STUDIES // BATCH):
        of_both, *of_arms = np.random.default_rng(batch).spawn(3)
        common = _normal(of_both, parts.example, n, BATCH, 1)
        tables = []
        for share, rng in zip(shares, of_arms, strict=True):
            of_example, of_run, of_completion = rng.spawn(3)
            sums = common + _normal(of_example, parts.arm, n, BATCH, 1)
            sums = sums + _normal(of_run, parts.run, BATCH, seeds) + _normal(of_completion, own, n, BATCH, seeds)
            tables.append((sums > -special.ndtri(share)).astype(np.float64).transpose(1, 2, 0))
        yield tables[0], tables[1]


def _normal(rng: np.random.Generator, variance: float, *shape: int) -> NDArray[np.float32]:
    return np.float32(math.sqrt(variance)) * rng.standard_normal(shape, dtype=np.float32)


def significant(a: Array, b: Array, design: Design, question: PlannedTest) -> NDArray[np.bool_]:
    """Return which studies (…, runs, examples) find a difference, or with a margin none as large."""
    delta, variance, df = crossed_difference(a, b, matched=design.matched)
    two_sided, margin, alpha = question.alternative == "two-sided", question.margin, question.alpha
    if margin is not None:
        low, high = difference_ends(a, b, (a, b), variance, df, level=1 - 2 * alpha)
        above, below, either = low > -margin, high < margin, (low > -margin) & (high < margin)
    else:
        reach = special.stdtrit(df, 1 - alpha / (2 if two_sided else 1)) * np.sqrt(variance)
        above, below = (variance > 0) & (delta > reach), (variance > 0) & (-delta > reach)
        either = above | below
    return np.asarray({"two-sided": either, "greater": above, "less": below}[question.alternative])
