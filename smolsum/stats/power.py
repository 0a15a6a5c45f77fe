"""How large a study has to be: the power of the test of `seeds.py` between two arms of equally many runs.

The difference of the means is independent of the mean squares that its error is estimated from, so the power is the
mean, over draws of these, of a normal probability. The draws are chi-squared variables from one fixed Sobol sequence:
the same question has the same answer, to about 0.2 % of power. Studies of scores that are 0 or 1 are simulated
(`share_studies.py`): near 1 their means are not normal, and vary less the higher the share is.
`benchmarks/evidence.py` compares both with studies of other kinds.
"""

import math
from dataclasses import dataclass, replace

import numpy as np
from scipy import special
from scipy.stats import qmc

from smolsum.errors import UsageError
from smolsum.stats.design import Design, PlannedTest, Spread
from smolsum.stats.paired import POWER
from smolsum.stats.seeds import Array, crossed_variance
from smolsum.stats.share_studies import MAX_SCORES, simulated_power

_DRAWS = 2**11
_SIZES = 12
MAX_EXAMPLES, MAX_SHARE_EXAMPLES = 100_000, 1000
SHARE_STEP = 50
"""examples of a study of 0 and 1 are the fewest to one part in so many: it takes seconds to simulate"""
SEED_CHOICES = (2, 3, 4, 5, 6, 8, 10, 15, 20, 30)
ROUND_CHOICES = (1, 2, 3, 5, 7, 11)


def power(effect: float, spread: Spread, design: Design, question: PlannedTest) -> float:
    """Return the probability that the test is significant if the true difference b - a is `effect`."""
    if spread.shares is not None:
        return simulated_power(effect, spread, design, question)
    return _normal_power(effect, spread, design, question)


def _reaches(wanted: float, effect: float, spread: Spread, design: Design, question: PlannedTest) -> bool:
    if spread.shares is not None:
        return simulated_power(effect, spread, design, question, near=wanted) >= wanted
    return _normal_power(effect, spread, design, question) >= wanted


def _normal_power(effect: float, spread: Spread, design: Design, question: PlannedTest) -> float:
    seeds, n = design.seeds, design.examples
    noise = (spread.noise**2 + spread.judge**2 / design.rounds) / (seeds * n)
    run = spread.seed**2 / seeds
    # the true E, R of each arm and O of the formula in `seeds.py`; matched runs make one arm of differences
    factors = [2.0] if design.matched else [1.0, 1.0]
    example_part = spread.example**2 / n + 2 * noise
    error = math.sqrt(example_part + 2 * run)
    if not error:
        raise UsageError("scores that do not vary need no plan", hint="--assume example-sd=X with X above 0")
    chi = _chi_squared(n, seeds, len(factors))
    variance, df = crossed_variance(
        example_part * chi[0],
        (run + noise) * np.stack([f * c for f, c in zip(factors, chi[1:], strict=False)], axis=-1),
        np.repeat((2 * noise * chi[-1])[:, None] / len(factors), len(factors), axis=-1),
        n,
        [seeds] * len(factors),
    )
    two_sided = question.alternative == "two-sided"
    tail = question.alpha / (2 if two_sided and question.margin is None else 1)
    reach = special.stdtrit(df, 1 - tail) * np.sqrt(variance)
    margin, sign = question.margin, -1 if question.alternative == "less" else 1
    if margin is not None and two_sided:
        inside = special.ndtr((margin - reach - effect) / error) - special.ndtr((reach - margin - effect) / error)
        found = np.maximum(0.0, inside)
    else:
        found = special.ndtr((sign * effect + (margin or 0.0) - reach) / error)
        if two_sided:
            found = found + special.ndtr((-effect - reach) / error)
    return float(found.mean())


def _chi_squared(n: int, seeds: int, arms: int) -> list[Array]:
    """Draws of mean squares of 1: of the examples, of the runs of each arm, and of the rest."""
    points = qmc.Sobol(2 + arms, scramble=True, rng=0).random(_DRAWS).T
    dfs = [n - 1, *[seeds - 1] * arms, arms * (seeds - 1) * (n - 1)]
    return [2 * special.gammaincinv(df / 2, u) / df for df, u in zip(dfs, points, strict=True)]


def detectable(spread: Spread, design: Design, question: PlannedTest, *, wanted: float = POWER) -> float:
    """Return the smallest true difference, as a distance from 0, that is found with the power `wanted`; with a margin,
    the smallest margin that a true difference of 0 is shown to be within. For shares it is a rise (a fall with the
    alternative `less`), to 2 % of itself, and NaN where none is found."""
    sign = -1.0 if question.alternative == "less" else 1.0

    def enough(size: float) -> bool:
        if question.margin is None:
            return _reaches(wanted, sign * size, spread, design, question)
        return _reaches(wanted, 0.0, spread, design, replace(question, margin=size))

    if spread.shares is None:
        high = spread.example + spread.seed + spread.noise + spread.judge
        while not enough(high):
            high *= 2
        low, exact = 0.0, 1e-6
    else:
        first = spread.shares[0]
        most = 1.0 if question.margin is not None else first if sign < 0 else 1 - first
        # an arm that passes always has no spread between its runs, so that power may fall again before the largest
        sizes = most * np.linspace(0, 1, _SIZES + 1)[1:] ** 2
        high = next((float(size) for size in sizes if enough(float(size))), math.nan)
        low, exact = float(max((size for size in sizes if size < high), default=0.0)), 0.02
    while high - low > exact * high:
        middle = (low + high) / 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


@dataclass(frozen=True)
class Prices:
    """What a run and a question to the judge cost; None where it is not known."""

    run_hours: float | None = None
    hour_dollars: float | None = None
    call_dollars: float | None = None
    calls: int = 0
    """to the judge for a completion and a round: its criteria; 0 without a judge"""


@dataclass(frozen=True)
class PlannedStudy:
    """A design with its power and its price."""

    design: Design
    power: float
    judge_calls: int
    hours: float | None
    dollars: float | None


def price(design: Design, reached: float, prices: Prices) -> PlannedStudy:
    """Return what a design costs: the hours of all runs, and the dollars of these and of all questions to the judge.
    What has no price is not known, and neither is a sum that it belongs to."""
    calls = design.completions * design.rounds * prices.calls
    hours = None if prices.run_hours is None else 2 * design.seeds * prices.run_hours
    machine = None if hours is None or prices.hour_dollars is None else hours * prices.hour_dollars
    judge = calls * prices.call_dollars if calls and prices.call_dollars is not None else None if calls else 0.0
    return PlannedStudy(design, reached, calls, hours, None if machine is None or judge is None else machine + judge)


def studies_with_power(
    effect: float,
    spread: Spread,
    question: PlannedTest,
    prices: Prices,
    *,
    wanted: float = POWER,
    matched: bool = False,
    examples: int | None = None,
) -> list[PlannedStudy]:
    """Return, for each number of seeds with which `wanted` can be reached, the study of the fewest examples (or of
    `examples`), with the rounds of the judge that ask it least. Raises UsageError if no number of seeds will do."""
    found, simulated = [], spread.shares is not None
    most = MAX_SHARE_EXAMPLES if simulated else MAX_EXAMPLES
    least = examples or 2
    # the fewest seeds are tried in any case, and refused if they are too many
    tried = [n for n in SEED_CHOICES if not simulated or n == SEED_CHOICES[0] or n * least <= MAX_SCORES]
    for seeds in tried:
        choices = []
        for rounds in ROUND_CHOICES if spread.judge and prices.calls else ROUND_CHOICES[:1]:
            smallest = Design(seeds, least, rounds, matched)
            design = _fewest_examples(effect, spread, question, smallest, examples or most, wanted)
            if design is not None:
                choices.append(price(design, power(effect, spread, design, question), prices))
        if choices:
            found.append(min(choices, key=lambda one: (one.judge_calls, one.design.examples)))
    if not found:
        size = f"{tried[-1]} seeds and {examples or most} examples"
        raise UsageError(
            f"an effect of {effect:g} is not found with a power of {wanted:g} by {size}",
            hint="state a larger --effect, or lower the variance: matched runs"
            + ("; --examples N tries more" if simulated and not examples else ", more rounds of the judge"),
        )
    return found


def _fewest_examples(
    effect: float, spread: Spread, question: PlannedTest, design: Design, most: int, wanted: float
) -> Design | None:
    """The design with as many examples as give it the power `wanted`, from its own to `most`; None if more are."""

    def enough(examples: int) -> bool:
        return _reaches(wanted, effect, spread, replace(design, examples=examples), question)

    high = design.examples
    low = high - 1
    while not enough(high):
        if high == most:
            return None
        low, high = high, min(2 * high, most)
    while high - low > (1 if spread.shares is None else max(1, high // SHARE_STEP)):
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return replace(design, examples=high)
