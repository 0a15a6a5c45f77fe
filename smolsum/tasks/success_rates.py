"""How often a model succeeds: a share with its interval, and the chance of success in k samples (pass@k).

The intervals cover the true share in about 95 of 100 cases, also near 0 and 1, where Wilson's and Student's do not
(`benchmarks/shares.py`).
"""

import math
from collections.abc import Sequence
from statistics import fmean, variance

CONFIDENCE = 0.95
PRIOR_PROMPTS = 1
"""prompts that are added to the estimate of how alike the samples of a prompt are: wholly alike"""


def exact_interval(passed: int, n: int) -> tuple[float, float]:
    """Return the ends of the exact 95 % interval for a share of `passed` in `n` (Clopper and Pearson 1934; SciPy's
    `proportion_ci`)."""
    from scipy.stats import binomtest

    interval = binomtest(passed, n).proportion_ci(CONFIDENCE, method="exact")
    return float(interval.low), float(interval.high)


def share_of(name: str, values: Sequence[float]) -> dict[str, float | None]:
    """Return the share of a column of 0 and 1 as a metric, with the ends of its exact 95 % interval."""
    if not values:
        return {}
    low, high = exact_interval(int(sum(values)), len(values))
    return {name: fmean(values), f"{name}/low": low, f"{name}/high": high}


def interval_of_means(means: Sequence[float], samples: int | None = None) -> tuple[float, float]:
    """Return the ends of the 95 % interval of a share, from the share of each prompt's `samples` (None: unknown).

    It is the exact interval for `independent_samples` (Korn and Graubard 1998, "Confidence intervals for proportions
    with small expected number of positive counts"). Where each mean is 0 or 1 it is `exact_interval`.
    """
    from scipy.stats import beta

    mean, size = fmean(means), independent_samples(means, samples)
    passed, tail = mean * size, (1 - CONFIDENCE) / 2
    low = float(beta.ppf(tail, passed, size - passed + 1)) if mean > 0 else 0.0
    high = float(beta.isf(tail, passed + 1, size - passed)) if mean < 1 else 1.0
    return low, high


def independent_samples(means: Sequence[float], samples: int | None = None) -> float:
    """Return how many independent samples say as much of a share as n prompts with these `means` of their `samples`:
    n / likeness, with the likeness of a prompt's samples between 1 / samples (independent) and 1 (all the same).

        likeness = (k variance(means) / (mean (1 - mean)) + PRIOR_PROMPTS) / (k + PRIOR_PROMPTS)

    Only k prompts show how alike samples are: those that ever pass, or those that ever fail, whichever are fewer. Near
    0 and 1 these are few, so the prior counts.
    """
    n, mean = len(means), fmean(means)
    k = min(sum(value > 0 for value in means), sum(value < 1 for value in means)) if n > 1 else 0
    observed = min(1.0, variance(means) / (mean * (1 - mean))) if k else 1.0
    likeness = (k * observed + PRIOR_PROMPTS) / (k + PRIOR_PROMPTS)
    return n / max(likeness, 1 / (samples or math.inf))


def pass_at_k(n: int, passed: int, k: int) -> float:
    """Return the unbiased estimate of the chance that at least one of `k` samples passes, from `n` samples of which
    `passed` did: 1 - C(n - passed, k) / C(n, k) (Chen et al., 2021, eq. 1). Raises ValueError where k is above n."""
    if not 1 <= k <= n:
        raise ValueError(f"pass@{k} takes {k} samples, and there are {n}")
    return 1.0 - math.comb(n - passed, k) / math.comb(n, k)


def passing(counts: Sequence[tuple[int, int]]) -> dict[str, float]:
    """Return `pass@k` for k = 1, 2, 4, … up to the least number of samples, the mean over prompts of (samples,
    passed)."""
    most = min(n for n, _ in counts)
    ks = [2**power for power in range(most.bit_length()) if 2**power <= most]
    return {f"pass@{k}": math.fsum(pass_at_k(n, passed, k) for n, passed in counts) / len(counts) for k in ks}
