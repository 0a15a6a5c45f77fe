"""What a study is planned from: its size, the test, and how much scores vary."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from smolsum.errors import UsageError
from smolsum.stats.paired import ALPHA, Alternative
from smolsum.stats.seeds import Array, run_parts


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
    shares: tuple[float, float | None] | None = None
    """of the two arms that have these deviations, where scores are 0 or 1; None for other scores. A second share of
    None is what the effect makes of the first"""


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
        runs, overlap = (float(part.sum()) for part in run_parts([arm]))
        halves = 2 if matched else 1
        rests.append(overlap * arm.shape[0] * n / halves)
        seeds.append((runs - overlap) * arm.shape[0] / halves)
    rest = math.fsum(rests) / len(rests)
    shared = rest * (1 / len(a_SN) + 1 / len(b_SN))
    example = float((b_SN.mean(axis=0) - a_SN.mean(axis=0)).var(ddof=1)) - shared
    variances: Sequence[float] = (math.fsum(seeds) / len(seeds), example, rest - judge / rounds, judge)
    seed, example, noise, judge = (math.sqrt(max(0.0, value)) for value in variances)
    return Spread(seed, example, noise, judge)
