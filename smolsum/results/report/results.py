"""What each configuration scored, and whether it differs from its model's length-only baseline."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t as student

from smolsum.config.differences import group_seeds
from smolsum.config.run_labels import LENGTH_ONLY, PREFIX, REWARD_SETS
from smolsum.results.report.collect import EvaluationResult, ReportInputs, TrainedRun
from smolsum.results.report.document import DASH, Cell, number, p_value, plain, signed
from smolsum.results.score_columns import Arm
from smolsum.stats.paired import ALPHA, CONFIDENCE, McNemar, PairedResult, mcnemar
from smolsum.stats.seeds import compare_runs
from smolsum.stats.several import holm
from smolsum.tasks.success_rates import interval_of_means
from smolsum.types import COMPOSITE, PASSED

Values: TypeAlias = NDArray[np.float64]
METRICS = "Metrics"
"""the title of the column of tallies"""
FLIPPED = {"Rescued": "higher", "Regressed": "lower"}
"""which counts of changed examples are better"""
UNCOMMON = "no example has both scores"
"""why two evaluations that both have a score are not compared"""


@dataclass(frozen=True)
class ColumnTest:
    """The difference of two arms in a column of their scores: the later minus the earlier."""

    result: PairedResult
    flips: McNemar | None
    """examples that changed between no and yes; None for other values and for several seeds"""

    @property
    def p(self) -> float:
        """The two-sided p: McNemar's, which is exact, where each score is 0 or 1."""
        return self.result.p if self.flips is None else self.flips.p


def paired_values(
    column: str, a: Sequence[EvaluationResult], b: Sequence[EvaluationResult]
) -> tuple[Values, Values] | None:
    """Return a column of the scores of both arms (evaluations x examples), in the order of the examples of `a`; None
    if an evaluation lacks it, or if no example has it in all of them."""
    if not all(column in e.scores.metrics for e in (*a, *b)):
        return None
    arms = [Arm("", tuple(e.scores for e in arm)) for arm in (a, b)]
    before, after = (arm.values(column, arms[0].ids) for arm in arms)
    return (before, after) if np.isfinite([*before, *after]).all(axis=0).any() else None


def compare(column: str, a: Sequence[EvaluationResult], b: Sequence[EvaluationResult]) -> ColumnTest | None:
    """Return the test of b - a in a column; None where there are no `paired_values`."""
    if (pair := paired_values(column, a, b)) is None:
        return None
    flips = mcnemar(pair[0][0], pair[1][0], alternative="two-sided") if len(a) == len(b) == 1 else None
    return ColumnTest(compare_runs(*pair, alternative="two-sided").result, flips)


@dataclass(frozen=True)
class Interval:
    """A mean over `n` examples with its 95 % interval; both ends are NaN for fewer than two examples."""

    n: int
    mean: float
    low: float
    high: float

    @property
    def text(self) -> str:
        """The interval in brackets; a dash if it is undefined."""
        return f"[{self.low:.3f}, {self.high:.3f}]" if math.isfinite(self.low) else "\N{EN DASH}"


def mean_interval(values: Values) -> Interval:
    """Return the mean of the values that are not NaN. Its interval is that of a share if all are in [0, 1] and some
    are 0 or 1 (Student's would call 20 of 20 certain), else Student's."""
    known = values[~np.isnan(values)]
    n, mean = len(known), float(known.mean()) if len(known) else math.nan
    if n < 2:
        return Interval(n, mean, math.nan, math.nan)
    if ((known >= 0) & (known <= 1)).all() and np.isin(known, (0, 1)).any():
        return Interval(n, mean, *interval_of_means(known.tolist()))
    half = float(student.ppf((1 + CONFIDENCE) / 2, n - 1) * known.std(ddof=1) / math.sqrt(n))
    return Interval(n, mean, mean - half, mean + half)


def interval_of(evaluation: EvaluationResult, column: str) -> Interval | None:
    """Return the mean of a column of the scores with its interval; None if they lack it."""
    scores = evaluation.scores
    return mean_interval(scores.frame[column].cast(float).to_numpy()) if column in scores.metrics else None


def flip_cells(flips: McNemar) -> tuple[Cell, Cell, Cell]:
    """Return cells for the examples gained, those lost, and p."""
    return number(flips.gained, plain(0)), number(flips.lost, plain(0)), number(flips.p, p_value)


def cells_of_test(
    result: PairedResult, p_holm: float | None, *tallied: Cell, labels: tuple[str, str] = ("better", "worse")
) -> tuple[Cell, ...]:
    """Return cells for t, p, significance, the adjusted p unless it is None, the interval, what is `tallied`, and in
    words which way a significant difference goes. What is undefined (NaN) is a dash."""
    mark = DASH
    if not math.isnan(result.p):
        mark = Cell("✓", "yes") if result.p < ALPHA else Cell("✗", "no")
    tested = [number(result.t, plain(4)), number(result.p, p_value), mark]
    if p_holm is not None:
        tested.append(number(p_holm, p_value))
    low, high = map(signed(3), (result.ci_low, result.ci_high))
    interval = DASH if math.isnan(result.ci_low) else Cell(f"[{low}, {high}]")
    return (*tested, interval, *tallied, direction_cell(result, labels))


def direction_cell(result: PairedResult, labels: tuple[str, str]) -> Cell:
    """Return in words which way a significant difference goes; a dash for one that is not, or undefined (NaN)."""
    return Cell(labels[result.delta <= 0]) if result.p < ALPHA else DASH


@dataclass(frozen=True)
class ConfigurationResult:
    """A configuration: one evaluation, or those of several seeds, compared with the length-only baseline."""

    model: str
    strategy: str
    reward: str
    name: str
    """as in the study's tables"""
    evaluations: tuple[EvaluationResult, ...]
    runs: tuple[TrainedRun, ...]
    tests: Mapping[str, PairedResult] = field(default_factory=dict)
    """against the baseline, in the composite and each of the judge's criteria that both have"""
    p_holm: float = math.nan
    """that of the composite, adjusted over all comparisons with a baseline in this report"""
    tally: Cell = DASH
    """how many of the tests are significant, each adjusted likewise"""
    flips: McNemar | None = None
    """examples that pass now and did not in the baseline, and the reverse"""

    @property
    def test(self) -> PairedResult | None:
        """The test against the baseline in the composite; None unless both were judged."""
        return self.tests.get(COMPOSITE)

    @property
    def first(self) -> EvaluationResult:
        return self.evaluations[0]

    @property
    def seeds(self) -> str:
        """` x3` for three seeds, to append to a name; empty for one."""
        return f" x{len(self.evaluations)}" if len(self.evaluations) > 1 else ""

    def metric(self, name: str) -> float | None:
        """Return the mean of a metric over examples and seeds; None if a seed lacks it."""
        return mean_metric(self.evaluations, name)

    def cell(self, name: str, show: Callable[[float], str], command: str = "") -> Cell:
        """Return a metric as a cell that links to the first seed; without a value, one with the command, or a dash."""
        return number(self.metric(name), show, self.first.source(name), command=command)


def mean_metric(evaluations: Sequence[EvaluationResult], name: str) -> float | None:
    """Return the mean of a metric over evaluations; None if one lacks it."""
    values = [value for one in evaluations if (value := one.metric(name)) is not None]
    return math.fsum(values) / len(values) if values and len(values) == len(evaluations) else None


def baseline_of(inputs: ReportInputs, model: str) -> ConfigurationResult | None:
    """Return the length-only checkpoint that a model's configurations are compared with: a run (with all its seeds),
    or else the evaluation of a fine-tuned run between its stages. Of several, the first that was judged."""
    runs = [run for run in inputs.trained if run.model == model]
    found: list[tuple[tuple[EvaluationResult, ...], tuple[TrainedRun, ...]]] = [
        (tuple(run.last for run in group), tuple(group))
        for group in group_seeds((run, run.config) for run in runs if run.strategy == LENGTH_ONLY)
    ]
    found += [((between,), (run,)) for run in runs if (between := run.after_length) is not None]
    if not found:
        return None
    evaluations, of = next((one for one in found if all(e.judge == inputs.judge for e in one[0])), found[0])
    one = ConfigurationResult(model, LENGTH_ONLY, LENGTH_ONLY, LENGTH_ONLY, evaluations, of)
    return replace(one, name=LENGTH_ONLY + one.seeds)


def configuration_results(inputs: ReportInputs) -> list[ConfigurationResult]:
    """Return every trained configuration except the baselines, those of the study first and in its order, each tested
    against its model's baseline; p values adjusted by Holm over all of them. A second length-only run is one too."""
    baselines = {model: baseline_of(inputs, model) for model in inputs.models}
    used = {
        run.paths.root for one in baselines.values() if one and one.runs[0].strategy == LENGTH_ONLY for run in one.runs
    }
    others = [(run, run.config) for run in inputs.trained if run.paths.root not in used]
    results = [_result(group) for group in group_seeds(others)]
    names = [(result.model, result.name) for result in results]
    named = [
        replace(result, name=f"{result.name} · {result.runs[0].name}")
        if names.count((result.model, result.name)) > 1 or result.strategy == LENGTH_ONLY
        else result
        for result in results
    ]
    order = {reward: place for place, reward in enumerate(REWARD_SETS)}
    named.sort(key=lambda one: (one.model.casefold(), one.strategy, order.get(one.reward, len(order)), one.name))
    tested = [_tested(result, baselines[result.model], inputs.criteria) for result in named]
    adjusted = holm([result.test.p if result.test else math.nan for result in tested])
    tallies = tally([result.tests for result in tested])
    return [replace(result, p_holm=p, tally=cell) for result, p, cell in zip(tested, adjusted, tallies, strict=True)]


def _result(group: Sequence[TrainedRun]) -> ConfigurationResult:
    first, evaluations = group[0], tuple(run.last for run in group)
    length_only = first.strategy == LENGTH_ONLY
    name = LENGTH_ONLY if length_only else PREFIX.get(first.strategy, f"{first.strategy} with ") + first.reward
    one = ConfigurationResult(first.model, first.strategy, first.reward, name, evaluations, tuple(group))
    return replace(one, name=name + one.seeds)


def _tested(
    one: ConfigurationResult, baseline: ConfigurationResult | None, criteria: Sequence[str]
) -> ConfigurationResult:
    if baseline is None:
        return one
    passed = compare(PASSED, baseline.evaluations, one.evaluations)
    tests = compare_each((*criteria, COMPOSITE), baseline.evaluations, one.evaluations)
    return replace(one, tests=tests, flips=passed.flips if passed else None)


def compare_each(
    columns: Sequence[str], a: Sequence[EvaluationResult], b: Sequence[EvaluationResult]
) -> dict[str, PairedResult]:
    """Return the t-test of each of the columns that examples have in both."""
    found = {column: compare(column, a, b) for column in columns}
    return {column: one.result for column, one in found.items() if one is not None}


def tally(comparisons: Sequence[Mapping[str, PairedResult]]) -> list[Cell]:
    """Return in how many of its columns each comparison differs, as `5/5 better`; a dash without a test. Higher values
    are better. The p values of a column are adjusted by Holm over all the comparisons, as those of the composite are;
    undefined ones count as not significant."""
    directions: list[list[str]] = [[] for _ in comparisons]
    for column in dict.fromkeys(column for tests in comparisons for column in tests):
        tested = [tests.get(column) for tests in comparisons]
        for direction, one, p in zip(
            directions, tested, holm([one.p if one else math.nan for one in tested]), strict=True
        ):
            if one is not None and p < ALPHA:
                direction.append("better" if one.delta > 0 else "worse")
    cells = []
    for tests, direction in zip(comparisons, directions, strict=True):
        counts = (f"{direction.count(word)}/{len(tests)} {word}" for word in ("better", "worse") if word in direction)
        cells.append(Cell(", ".join(counts) or f"0/{len(tests)}") if tests else DASH)
    return cells


def tally_note(metrics: Sequence[str], compared: str) -> str:
    """Return what the column says: of these metrics, `compared` with what."""
    return (
        f"{METRICS}: how many of {', '.join(metrics)} differ significantly {compared}; p of each adjusted by Holm over "
        "the comparisons in this report."
    )
