"""How often a model succeeds: a share with its interval, and the chance of success in k samples (pass@k)."""

import math
from collections.abc import Sequence
from statistics import fmean, stdev


def wilson(passed: int, n: int, confidence: float = 0.95) -> tuple[float, float]:
    """Return the ends of Wilson's interval for a share of `passed` in `n` (SciPy's `proportion_ci`)."""
    from scipy.stats import binomtest

    interval = binomtest(passed, n).proportion_ci(confidence, method="wilson")
    return float(interval.low), float(interval.high)


def interval_of_means(means: Sequence[float]) -> tuple[float, float]:
    """Return the ends of the 95 % interval of a share, from the share of each prompt's samples: by Student's t over
    prompts, as samples of one prompt are alike; Wilson's of as many prompts where those do not differ."""
    from scipy.stats import t

    n, spread = len(means), stdev(means) if len(means) > 1 else 0.0
    if not spread:
        return wilson(round(fmean(means) * n), n)
    half = float(t.ppf(0.975, n - 1)) * spread / math.sqrt(n)
    return max(0.0, fmean(means) - half), min(1.0, fmean(means) + half)


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
