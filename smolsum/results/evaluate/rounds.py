"""How many rounds of a judge are enough: they are added until the interval of the mean is as narrow as is wanted."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy import stats

from smolsum import console
from smolsum.errors import SmolsumError
from smolsum.results.evaluate.judgements import Judged, JudgeSpec
from smolsum.stats.paired import CONFIDENCE
from smolsum.types import COMPOSITE, Criterion

LEAST_ROUNDS = 2
"""that show how far rounds differ"""
LEAST_GAIN = 0.05
"""of the width, for which it is worth while to add rounds where the width that is wanted is out of reach"""
AskRounds = Callable[[int], tuple[Judged, SmolsumError | None]]
"""asks up to so many rounds in all; returns what is known of them, and the error if the judge failed for good"""


@dataclass(frozen=True)
class Width:
    """Half the width of a mean's 95 % interval over examples: after the rounds so far, and with more of them."""

    now: float
    examples: int
    between: float
    """variance between the true means of examples"""
    within: float
    """variance of one round around its example's mean"""

    def is_enough(self, until: float, most: int) -> bool:
        """Return whether to stop: it is at most `until`, or all rounds up to `most` would not get it there and would
        narrow it by less than `LEAST_GAIN`."""
        later = self.after(most)
        return self.now <= until or (later > until and later > (1 - LEAST_GAIN) * self.now)

    def after(self, rounds: int) -> float:
        """Return what it would be after so many rounds."""
        return self._half(self.between + self.within / rounds)

    def _half(self, variance: float) -> float:
        t = float(stats.t.ppf((1 + CONFIDENCE) / 2, self.examples - 1))
        return t * math.sqrt(variance / self.examples)


def width_of(rounds_NR: Sequence[Sequence[float | None]]) -> Width | None:
    """Return the width of the mean over examples (Student's t), from each example's score in each round; examples that
    lack one are left out. None with fewer than two examples or rounds."""
    whole = [[score for score in row if score is not None] for row in rounds_NR]
    k = max(map(len, whole), default=0)
    scores_NR = np.array([row for row in whole if len(row) == k], dtype=np.float64)
    n = len(scores_NR)
    if n < 2 or k < LEAST_ROUNDS:
        return None
    variance = float(scores_NR.mean(axis=1).var(ddof=1))
    within = float(scores_NR.var(axis=1, ddof=1).mean())
    found = Width(0.0, n, max(0.0, variance - within / k), within)
    return replace(found, now=found._half(variance))


def rounds_until(
    spec: JudgeSpec, criteria: Sequence[Criterion], ask: AskRounds, *, quiet: bool
) -> tuple[JudgeSpec, SmolsumError | None]:
    """Ask two rounds, then one after another until half the width of the composite's interval is at most `spec.until`,
    until `spec.most` rounds are there, or until these would neither do nor gain much. Returns the specification with
    the rounds that were asked, and the error if the judge failed for good.

    Stopping by the width keeps the interval's coverage: of normal scores the mean is independent of all deviations from
    it, by which alone the rule decides (as in Stein 1945; for growing samples Chow and Robbins 1965). That the width is
    small when the rule stops takes half a point of the 95 % at most (`benchmarks/judges.py`).
    """
    assert spec.until is not None
    rounds = min(LEAST_ROUNDS, spec.most)
    while True:
        judged, failure = ask(rounds)
        found = width_of([row["rounds"][COMPOSITE] for row in judged.columns(criteria).values()])
        enough = found is None or found.is_enough(spec.until, spec.most)
        if failure is not None or rounds >= spec.most or enough:
            break
        rounds += 1
    if found is not None and not quiet:
        console.narrate(f"judge {spec.model}: ±{found.now:.3f} after {rounds} rounds of up to {spec.most}")
    if found is not None and failure is None and found.now > spec.until:
        console.warn(
            f"the composite's interval is ±{found.now:.3f}, wider than ±{spec.until:g}, and would be "
            f"±{found.after(10**6):.3f} without any noise of the judge: more examples narrow it, or more --rounds"
        )
    return replace(spec, rounds=rounds), failure
