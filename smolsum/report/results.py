"""What each configuration scored, and whether it differs from its model's length-only baseline."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from smolsum.config.run_labels import LENGTH_ONLY, PREFIX, REWARD_SETS
from smolsum.report.collect import EvaluationResult, ReportInputs, TrainedRun
from smolsum.report.document import Cell, number, p_value, plain
from smolsum.report.significance import Tally, tally
from smolsum.stats.loading import Arm, group_seeds
from smolsum.stats.multiple_testing import holm
from smolsum.stats.paired import McNemar, mcnemar
from smolsum.stats.seeds import MixedResult, compare_runs
from smolsum.types import COMPOSITE, PASSED

Values: TypeAlias = NDArray[np.float64]


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
    tests: Mapping[str, MixedResult] = field(default_factory=dict)
    """against the baseline, in the composite and each of the judge's criteria that both have"""
    p_holm: float = math.nan
    """that of the composite, adjusted over all comparisons with a baseline in this report"""
    tally: Tally = field(default_factory=Tally)
    """how many of the tests are significant, each adjusted likewise"""
    flips: McNemar | None = None
    """examples that pass now and did not in the baseline, and the reverse"""

    @property
    def test(self) -> MixedResult | None:
        """The test against the baseline in the composite; None unless both were judged."""
        return self.tests.get(COMPOSITE)

    @property
    def first(self) -> EvaluationResult:
        """The evaluation of the first seed."""
        return self.evaluations[0]

    @property
    def seeds(self) -> str:
        """` x3` for three seeds, to append to a name; empty for one."""
        return f" x{len(self.evaluations)}" if len(self.evaluations) > 1 else ""

    def metric(self, name: str) -> float | None:
        """Return the mean of a metric over examples and seeds; None if a seed lacks it."""
        values = [value for evaluation in self.evaluations if (value := evaluation.metric(name)) is not None]
        return math.fsum(values) / len(values) if values and len(values) == len(self.evaluations) else None

    def cell(self, name: str, show: Callable[[float], str], command: str = "") -> Cell:
        """Return a metric as a cell that links to the first seed; without a value, a cell with the command."""
        return number(self.metric(name), show, self.first.source(name), command=command)


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


def count_flips(column: str, before: EvaluationResult, after: EvaluationResult) -> McNemar | None:
    """Return McNemar's test of a column of yes and no; None if an evaluation lacks it or has other values."""
    pair = paired_values(column, [before], [after])
    return mcnemar(pair[0][0], pair[1][0], alternative="two-sided") if pair else None


FLIPPED = {"Rescued": "higher", "Regressed": "lower"}
"""which counts of changed examples are better"""


def flip_cells(flips: McNemar) -> tuple[Cell, Cell, Cell]:
    """Return cells for the examples gained, those lost, and p."""
    return number(flips.gained, plain(0)), number(flips.lost, plain(0)), number(flips.p, p_value)


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
    found = [_result(group) for group in group_seeds(others)]
    names = [(one.model, one.name) for one in found]
    found = [
        replace(one, name=f"{one.name} · {one.runs[0].name}")
        if names.count((one.model, one.name)) > 1 or one.strategy == LENGTH_ONLY
        else one
        for one in found
    ]
    order = {reward: place for place, reward in enumerate(REWARD_SETS)}
    found.sort(key=lambda one: (one.model.casefold(), one.strategy, order.get(one.reward, len(order)), one.name))
    tested = [_tested(one, baselines[one.model], inputs.criteria) for one in found]
    adjusted = holm([one.test.result.p if one.test else math.nan for one in tested])
    tallies = tally([one.tests for one in tested])
    return [replace(one, p_holm=p, tally=found) for one, p, found in zip(tested, adjusted, tallies, strict=True)]


def compare(
    a: Sequence[EvaluationResult], b: Sequence[EvaluationResult], metrics: Sequence[str]
) -> dict[str, MixedResult]:
    """Return b - a over shared examples, in each of the metrics that examples have in both."""
    pairs = {metric: paired_values(metric, a, b) for metric in metrics}
    return {metric: compare_runs(*pair, alternative="two-sided") for metric, pair in pairs.items() if pair}


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
    single = len(one.evaluations) == len(baseline.evaluations) == 1
    flips = count_flips(PASSED, baseline.first, one.first) if single else None
    tests = compare(baseline.evaluations, one.evaluations, (*criteria, COMPOSITE))
    return replace(one, tests=tests, flips=flips)
