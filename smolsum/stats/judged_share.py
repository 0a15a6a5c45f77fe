"""The true share behind an imperfect judge: how many texts pass, from how many the judge passes and how often it errs.

A judge that passes q1 of what is good (sensitivity) and fails q0 of what is bad (specificity) passes
p = q1 share + (1 - q0) (1 - share) of all. Solved for the share, (p + q0 - 1) / (q0 + q1 - 1), this is Rogan and
Gladen's estimate (1978), which Lee et al. give for judges ("How to Correctly Report LLM-as-a-Judge Evaluations", arXiv
2511.21140). `benchmarks/judges.py` counts what the interval covers.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special

from smolsum.stats.paired import CONFIDENCE

Array = NDArray[np.float64]


@dataclass(frozen=True)
class JudgeErrors:
    """How often a judge is right, as counted on texts whose truth is known."""

    sensitivity: float
    """share of good texts that it passes"""
    good: float
    """texts that this was counted on"""
    specificity: float
    """share of bad texts that it fails"""
    bad: float

    @property
    def tells_apart(self) -> bool:
        """Whether it passes good texts more often than bad ones: without that its shares say nothing."""
        return self.sensitivity + self.specificity > 1


@dataclass(frozen=True)
class CorrectedShare:
    """An estimate of the true share with its 95 % interval, all within 0 and 1."""

    share: float
    low: float
    high: float


def corrected_share(passed: float, n: float, errors: JudgeErrors) -> CorrectedShare | None:
    """Return the true share where a judge passes the share `passed` of `n` texts; None for a judge that cannot tell
    good from bad.

    The texts that the judge's errors were counted on must be others than the `n`. Several rounds of a text count as
    one.
    """
    if not errors.tells_apart or n <= 0 or min(errors.good, errors.bad) <= 0:
        return None
    parts = [
        np.array([value]) for value in (passed, n, errors.specificity, errors.bad, errors.sensitivity, errors.good)
    ]
    share, low, high = (float(end[0]) for end in corrected_shares(*parts))
    return CorrectedShare(share, low, high)


def corrected_shares(
    p: Array, n: Array, q0: Array, m0: Array, q1: Array, m1: Array, *, level: float = CONFIDENCE
) -> tuple[Array, Array, Array]:
    """Return the corrected shares and both ends of their intervals, for many studies at once.

    `p` of `n` texts pass; specificity `q0` is of `m0` bad and sensitivity `q1` of `m1` good texts. The estimate is
    (p + q0 - 1) / (q0 + q1 - 1), cut at 0 and 1; NaN where q0 + q1 <= 1. The interval (Lang and
    Reiczigel 2014, which 2511.21140 takes over) adds z²/2 passes and failures to `n` and one of each to `m0` and `m1`,
    takes the delta method's standard error of all three shares, and moves its centre by
    2 z² (share v1 - (1 - share) v0), with v the variances of sensitivity and specificity.
    """
    z = float(special.ndtri((1 + level) / 2))
    tells = q0 + q1 > 1
    gap = np.where(tells, q0 + q1 - 1, np.nan)
    share = np.clip((p + q0 - 1) / gap, 0, 1)

    p, n = (n * p + z**2 / 2) / (n + z**2), n + z**2
    q0, m0 = (m0 * q0 + 1) / (m0 + 2), m0 + 2
    q1, m1 = (m1 * q1 + 1) / (m1 + 2), m1 + 2
    v0, v1 = q0 * (1 - q0) / m0, q1 * (1 - q1) / m1
    # of a few texts the added counts can leave no gap: then nothing is known
    gap = np.where(tells & (q0 + q1 > 1), q0 + q1 - 1, np.nan)
    near = (p + q0 - 1) / gap
    error = np.sqrt(p * (1 - p) / n + (1 - near) ** 2 * v0 + near**2 * v1) / gap
    centre = near + 2 * z**2 * (near * v1 - (1 - near) * v0)
    low, high = np.clip(centre - z * error, 0, 1), np.clip(centre + z * error, 0, 1)
    unknown = tells & np.isnan(gap)
    return share, np.where(unknown, 0.0, low), np.where(unknown, 1.0, high)
