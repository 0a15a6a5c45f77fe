"""How large a study has to be: the power of the test of `seeds.py` between two arms of equally many runs.

The difference of the means is independent of the mean squares that its error is estimated from, so the power is the
mean, over draws of these, of a normal probability. The draws are chi-squared variables from one fixed Sobol sequence:
the same question has the same answer, to about 0.2 % of power. For 0 and 1 the scores are not normal, but the means of
20 examples nearly are (`benchmarks/evidence.py` compares).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, special
from scipy.stats import qmc

from smolsum.errors import UsageError
from smolsum.stats.paired import ALPHA, POWER, Alternative
from smolsum.stats.seeds import crossed_variance, run_parts

Array: TypeAlias = NDArray[np.float64]
_DRAWS = 2**11
MAX_EXAMPLES = 100_000
SEED_CHOICES = (2, 3, 4, 5, 6, 8, 10, 15, 20, 30)
ROUND_CHOICES = (1, 2, 3, 5, 7, 11)


@dataclass(frozen=True)
class Spread:
    """Standard deviations in units of the metric, the same in both arms."""

    seed: float
    """of the true means of runs that differ in their seed"""
    example: float
    """of the true differences b - a between examples"""
    noise: float
    """of one completion's score around its run's and its example's means: the decoding, and seed x example"""
    judge: float = 0.0
    """of one round of the judge on one completion; 0 without a judge"""


@dataclass(frozen=True)
class Design:
    """The size of a study: two arms of `seeds` runs each on the same examples."""

    seeds: int
    examples: int
    rounds: int = 1
    """of the judge on each completion"""
    matched: bool = False

    @property
    def completions(self) -> int:
        """Completions of both arms."""
        return 2 * self.seeds * self.examples

    def __post_init__(self) -> None:
        for name, least in {"seeds": 2, "examples": 2, "rounds": 1}.items():
            if getattr(self, name) < least:
                why = ": one seed cannot show how much seeds vary" if name == "seeds" else ""
                raise UsageError(
                    f"a plan needs at least {least} {name}, not {getattr(self, name)}{why}",
                    hint=f"--{name} {least} or more" if name != "rounds" else "--assume rounds=1 or more",
                )


@dataclass(frozen=True)
class PlannedTest:
    """The test that is planned: the alternative, the error that is accepted, and a margin instead of 0."""

    alternative: Alternative = "two-sided"
    alpha: float = ALPHA
    margin: float | None = None
    """equivalence within the margin, or non-inferiority by it, as in `margin_p`; None: a difference"""


def power(effect: float, spread: Spread, design: Design, question: PlannedTest) -> float:
    """Return the probability that the test is significant if the true difference b - a is `effect`."""
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
        2 * noise * chi[-1],
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
    the smallest margin that a true difference of 0 is shown to be within."""
    sign = -1.0 if question.alternative == "less" else 1.0

    def lacking(size: float) -> float:
        if question.margin is None:
            return power(sign * size, spread, design, question) - wanted
        return power(0.0, spread, design, replace(question, margin=size)) - wanted

    high = spread.example + spread.seed + spread.noise + spread.judge
    while lacking(high) < 0:
        high *= 2
    return float(optimize.brentq(lacking, 0.0, high, rtol=1e-6))


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
    found = []
    for seeds in SEED_CHOICES:
        choices = []
        for rounds in ROUND_CHOICES if spread.judge and prices.calls else ROUND_CHOICES[:1]:
            design = Design(seeds, examples or MAX_EXAMPLES, rounds, matched)
            if power(effect, spread, design, question) < wanted:
                continue
            if examples is None:
                design = _fewest_examples(effect, spread, question, design, wanted)
            choices.append(price(design, power(effect, spread, design, question), prices))
        if choices:
            found.append(min(choices, key=lambda one: (one.judge_calls, one.design.examples)))
    if not found:
        most = f"{SEED_CHOICES[-1]} seeds and {examples or MAX_EXAMPLES} examples"
        raise UsageError(
            f"an effect of {effect:g} is not found with a power of {wanted:g} by {most}",
            hint="state a larger --effect, or lower the variance: matched runs, more rounds of the judge",
        )
    return found


def _fewest_examples(effect: float, spread: Spread, question: PlannedTest, most: Design, wanted: float) -> Design:
    low, high = 1, 2
    while high < most.examples and power(effect, spread, replace(most, examples=high), question) < wanted:
        low, high = high, min(2 * high, most.examples)
    while high - low > 1:
        middle = (low + high) // 2
        enough = power(effect, spread, replace(most, examples=middle), question) >= wanted
        low, high = (low, middle) if enough else (middle, high)
    return replace(most, examples=high)


def pilot_spread(a_SN: Array, b_SN: Array, judge_variance: float | None, rounds: int, *, matched: bool) -> Spread:
    """Return the spread of a pilot (complete tables of runs x examples), with that of a round of its judge, if it has
    one; that of seeds is NaN for single runs, whose noise counts as a difference between examples."""
    judge = judge_variance or 0.0
    n, arms = a_SN.shape[1], [b_SN - a_SN] if matched else [x for x in (a_SN, b_SN) if len(x) > 1]
    if n < 2:
        raise UsageError(
            f"a pilot of {n} complete examples shows no spread", hint="give pilots with two examples or more"
        )
    if len(arms[0] if arms else a_SN[:1]) < 2:
        difference = float((b_SN.mean(axis=0) - a_SN.mean(axis=0)).var(ddof=1)) - 2 * judge / rounds
        return Spread(math.nan, math.sqrt(max(0.0, difference)), 0.0, math.sqrt(judge))
    seeds, rests = [], []
    for arm in arms:
        runs, overlap = run_parts([arm])
        halves = 2 if matched else 1
        rests.append(float(overlap) * arm.shape[0] * n / halves)
        seeds.append(float(runs.sum() - overlap) * arm.shape[0] / halves)
    rest = math.fsum(rests) / len(rests)
    shared = rest * (1 / len(a_SN) + 1 / len(b_SN))
    example = float((b_SN.mean(axis=0) - a_SN.mean(axis=0)).var(ddof=1)) - shared
    variances: Sequence[float] = (math.fsum(seeds) / len(seeds), example, rest - judge / rounds, judge)
    return Spread(*(math.sqrt(max(0.0, value)) for value in variances))
