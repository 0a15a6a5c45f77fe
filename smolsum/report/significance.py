"""In how many of several metrics configurations differ: the judge's criteria and their sum, tested one by one."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from smolsum.report.document import DASH, Cell
from smolsum.stats.multiple_testing import holm
from smolsum.stats.paired import ALPHA
from smolsum.stats.seeds import MixedResult

METRICS = "Metrics"
"""the title of the column"""


@dataclass(frozen=True)
class Tally:
    """The metrics of one comparison, by what its tests say of them."""

    better: int = 0
    worse: int = 0
    tested: int = 0
    """all of them, also those without a significant difference"""

    @property
    def cell(self) -> Cell:
        """The counts as `5/5 better`; a dash without a test."""
        counts = {"better": self.better, "worse": self.worse}
        found = [f"{count}/{self.tested} {word}" for word, count in counts.items() if count]
        return Cell(", ".join(found) or f"0/{self.tested}") if self.tested else DASH


def tally(comparisons: Sequence[Mapping[str, MixedResult]]) -> list[Tally]:
    """Return the counts of each comparison, which has its tests by metric; higher values are better. The p values of a
    metric are adjusted by Holm over all the comparisons, as those of the composite are; undefined ones count as not
    significant."""
    adjusted: list[dict[str, float]] = [{} for _ in comparisons]
    for metric in dict.fromkeys(metric for tests in comparisons for metric in tests):
        values = [tests[metric].result.p if metric in tests else math.nan for tests in comparisons]
        for found, p in zip(adjusted, holm(values), strict=True):
            found[metric] = p
    counted = []
    for tests, p_values in zip(comparisons, adjusted, strict=True):
        deltas = [test.result.delta for metric, test in tests.items() if p_values[metric] < ALPHA]
        higher = sum(delta > 0 for delta in deltas)
        counted.append(Tally(higher, len(deltas) - higher, len(tests)))
    return counted


def tally_note(metrics: Sequence[str], compared: str) -> str:
    """Return what the column says: of these metrics, `compared` with what."""
    return (
        f"{METRICS}: how many of {', '.join(metrics)} differ significantly {compared}; p of each adjusted by Holm over "
        "the comparisons in this report."
    )
