"""What studies of one seed would have concluded, each from one of the seeds of a study that has several.

    uv run python benchmarks/one_seed.py runs/tiny-{finetuned,included}-{rouge,meteor}-seed10[1-5] --metric meteor

Runs are grouped as `smolsum stats` does, and those of one place in their groups are one study. For each pair of
configurations each study has a paired t-test over the examples, two-sided at 5 % and without correction; all studies
together have the crossed test of matched runs, in which runs are a sample too. A pair contradicts itself where one
study calls one configuration better and another study the other.
"""

from __future__ import annotations

import argparse
from itertools import combinations

import numpy as np

from smolsum.results.score_columns import check_comparable, combine_seeds, load_arm
from smolsum.stats.paired import paired_ttest
from smolsum.stats.seeds import compare_runs

ALPHA = 0.05


def main() -> None:
    """Print how the studies decide."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+")
    parser.add_argument("--metric", default="meteor")
    arguments = parser.parse_args()
    arms = combine_seeds([load_arm(run) for run in arguments.runs])
    check_comparable(arms)
    tables = {arm.name: arm.values(arguments.metric, arms[0].ids) for arm in arms}
    if len({table.shape for table in tables.values()}) > 1:
        raise SystemExit("each configuration needs the same number of seeds: " + ", ".join(tables))
    signs: list[list[int]] = []
    crossed: list[int] = []
    for one, two in combinations(tables.values(), 2):
        tests = [paired_ttest(a, b) for a, b in zip(one, two, strict=True)]
        signs.append([int(np.sign(test.delta)) * (test.p is not None and test.p < ALPHA) for test in tests])
        together = compare_runs(one, two, alternative="two-sided", matched=True).result
        crossed.append(int(np.sign(together.delta)) * (together.p is not None and together.p < ALPHA))
    decided = np.array(signs)
    claimed, shown = decided != 0, np.array(crossed)[:, None]
    contradicting = (decided.max(axis=1) > 0) & (decided.min(axis=1) < 0)
    unfounded = (claimed & (decided != shown)).sum() / max(claimed.sum(), 1)
    best = [max(tables, key=lambda name: tables[name][place].mean()) for place in range(decided.shape[1])]
    print(f"{len(decided)} pairs of {len(tables)} configurations, {decided.shape[1]} studies of one seed each")
    print(f"{claimed.mean():.0%} of the pairs differ by a study, {(shown != 0).mean():.0%} by all studies together")
    print(f"{contradicting.sum()} pairs contradict themselves")
    print(f"{unfounded:.0%} of what the studies claim is not shown by all together")
    print("best by each study:", ", ".join(name.partition("-seed")[0] for name in best))


if __name__ == "__main__":
    main()
