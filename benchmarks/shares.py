"""How often the 95 % interval of a share has the true share in it.

    uv run python benchmarks/shares.py [--times 2000]

One completion a prompt: by the binomial distribution, the lowest coverage over true shares from 0.001 to 0.999. Several
samples of each prompt: made up, `--times` times. A prompt's chance of success is drawn from a beta distribution, so
that its samples correlate by 0 to 0.9, or is 0 or 1/2; the lowest coverage over these and true shares of 0.003 to 0.5.
`without samples`: the same where the interval does not know how many samples there are, such as the answered share of a
document's questions. `before` is Wilson's interval; for several samples Student's t over prompts, cut at 0 and 1.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from statistics import fmean

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from smolsum.tasks.success_rates import exact_interval, interval_of_means

Interval = Callable[[tuple[float, ...]], tuple[float, float]]
COMPLETIONS = (10, 50, 200, 1000)
PROMPTS = (5, 10, 30, 100, 300)
SAMPLES = (4, 16)
SHARES = (0.003, 0.01, 0.03, 0.1, 0.3, 0.5)
CORRELATIONS = (0.0, 0.05, 0.2, 0.5, 0.9)


def wilson(passed: int, n: int) -> tuple[float, float]:
    """Wilson's interval."""
    found = stats.binomtest(passed, n).proportion_ci(0.95, method="wilson")
    return float(found.low), float(found.high)


@cache
def students(means: tuple[float, ...]) -> tuple[float, float]:
    """Student's interval over prompts, cut at 0 and 1; Wilson's of as many prompts where they do not differ."""
    n, spread = len(means), float(np.std(means, ddof=1))
    if spread == 0:
        return wilson(round(fmean(means) * n), n)
    half = float(stats.t.ppf(0.975, n - 1)) * spread / n**0.5
    return max(0.0, fmean(means) - half), min(1.0, fmean(means) + half)


def lowest_exact(interval: Callable[[int, int], tuple[float, float]], n: int) -> float:
    """The lowest coverage of `n` independent completions."""
    ends = np.array([interval(passed, n) for passed in range(n + 1)])
    shares = np.linspace(0.001, 0.999, 999)[:, None]
    inside = (ends[:, 0] <= shares + 1e-12) & (shares <= ends[:, 1] + 1e-12)
    covered: NDArray[np.float64] = (stats.binom.pmf(np.arange(n + 1), n, shares) * inside).sum(axis=1)
    return float(covered.min())


def chances(rng: np.random.Generator, shape: tuple[int, int], share: float) -> Iterator[NDArray[np.float64]]:
    """Chances of success by repetition and prompt, whose mean is `share`."""
    for r in CORRELATIONS:
        yield rng.beta(share * (1 / r - 1), (1 - share) * (1 / r - 1), shape) if r else np.full(shape, share)
    yield np.where(rng.random(shape) < 2 * share, 0.5, 0.0)


def lowest(intervals: Sequence[Interval], prompts: int, samples: int, times: int) -> list[float]:
    """The lowest coverage of each interval."""
    rng = np.random.default_rng([prompts, samples])
    covered = []
    for share in SHARES:
        for chance in chances(rng, (times, prompts), share):
            # the order of prompts does not matter, so sorted ones are computed once
            drawn = [tuple(np.sort(row)) for row in rng.binomial(samples, chance) / samples]
            ends = np.array([[interval(means) for means in drawn] for interval in intervals])
            covered.append(((ends[..., 0] <= share) & (share <= ends[..., 1])).mean(axis=1))
    return [float(low) for low in np.min(covered, axis=0)]


def main() -> None:
    """Print a row for each number of prompts and samples."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=2000)
    times = parser.parse_args().times
    print("one completion a prompt", "before", "now", sep="\t")
    for n in COMPLETIONS:
        print(n, *(f"{100 * lowest_exact(interval, n):.1f} %" for interval in (wilson, exact_interval)), sep="\t")
    print("\nprompts x samples", "before", "now", "without samples", sep="\t")
    for samples in SAMPLES:
        for prompts in PROMPTS:

            @cache
            def known(means: tuple[float, ...], samples: int = samples) -> tuple[float, float]:
                return interval_of_means(means, samples)

            found = lowest([students, known, cache(interval_of_means)], prompts, samples, times)
            print(f"{prompts} x {samples}", *(f"{100 * low:.1f} %" for low in found), sep="\t", flush=True)


if __name__ == "__main__":
    main()
