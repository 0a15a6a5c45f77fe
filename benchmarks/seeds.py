"""How often the test between arms of few runs finds a difference that does not exist (p < 0.05).

    uv run python benchmarks/seeds.py [--times 1000] [--examples 100]

Made-up scores: every run answers every example; examples, runs and answers vary at random, and both arms have the same
mean. `run sd` is the standard deviation between runs, in those between examples.
"""

from __future__ import annotations

import argparse

import numpy as np

from smolsum.stats.paired import compare_runs

ARMS = [(n, n, True) for n in (2, 3, 6)] + [(1, n, False) for n in (2, 3, 6)] + [(n, n, False) for n in (2, 3, 6)]
RUN_SDS = (0.0, 0.1, 0.3, 1.0)


def share(a: int, b: int, matched: bool, run_sd: float, times: int, examples: int) -> float:
    """The share of comparisons of arms of `a` and `b` runs with p below 0.05."""
    rng = np.random.default_rng([a, b, matched, round(100 * run_sd)])
    found = 0
    for _ in range(times):
        common = rng.normal(size=(1, examples))
        arms = [
            common + rng.normal(scale=0.5, size=(1, examples)) + rng.normal(scale=run_sd, size=(runs, 1))
            + rng.normal(scale=0.5, size=(runs, examples))
            for runs in (a, b)
        ]  # fmt: skip
        found += compare_runs(*arms, alternative="two-sided", matched=matched).result.p < 0.05
    return found / times


def main() -> None:
    """Print a row for each size of the arms."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=1000)
    parser.add_argument("--examples", type=int, default=100)
    given = parser.parse_args()
    print("arms", *(f"run sd {sd}" for sd in RUN_SDS), sep="\t")
    for a, b, matched in ARMS:
        rates = (share(a, b, matched, sd, given.times, given.examples) for sd in RUN_SDS)
        print(f"{a} v {b}{' matched' if matched else ''}", *(f"{100 * rate:.1f} %" for rate in rates), sep="\t")


if __name__ == "__main__":
    main()
