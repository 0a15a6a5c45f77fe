"""What training achieved: each configuration after each of its stages, compared with the untrained model in quality, in
the constraint and in the task's other headlines."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from smolsum.config.run_labels import LENGTH_ONLY
from smolsum.results.report.collect import EvaluationResult, ReportInputs, TrainedRun
from smolsum.results.report.document import ARROWS, MINUS, percent, signed
from smolsum.results.report.results import (
    ConfigurationResult,
    baseline_of,
    compare,
    mean_interval,
    mean_metric,
    paired_values,
)
from smolsum.runs.main_evaluation import SAMPLER, SPLIT
from smolsum.stats.paired import ALPHA
from smolsum.stats.seeds import compare_runs
from smolsum.stats.several import holm
from smolsum.tasks.base import Metric
from smolsum.types import COMPOSITE

NO_DIFFERENCE = "no significant difference"


def titled(metric: Metric) -> str:
    """Return a metric's title with an arrow towards its better values."""
    return f"{metric.title}{ARROWS[metric.better]}"


def is_share(metric: Metric) -> bool:
    """Return whether a metric is shown in per cent."""
    return metric.form.endswith("%")


def show(metric: Metric, value: float) -> str:
    """Return a value as text; a share as a percentage with one decimal, as everywhere in a report."""
    return percent(value) if is_share(metric) else metric.show(value).replace("-", MINUS)


def difference(metric: Metric, value: float) -> str:
    """Return a difference as text; that of two shares in percentage points."""
    return signed(1)(100 * value) if is_share(metric) else signed(3)(value)


@dataclass(frozen=True)
class ComparedMetrics:
    """The metrics that outcomes are compared by."""

    quality: Metric
    constraint: Metric | None
    others: tuple[Metric, ...]
    judged: int = 0
    """evaluations that a judge scored, of those of the untrained models and of the ends of training"""
    unjudged: tuple[EvaluationResult, ...] = ()
    """the rest of these"""
    unmeasured: Metric | None = None
    """the quality that nothing here can have; the constraint is then compared in its place"""

    @property
    def every(self) -> tuple[Metric, ...]:
        """All of them, the quality first."""
        return (self.quality, *filter(None, [self.constraint]), *self.others)


@dataclass
class Change:
    """A metric of an outcome, and its difference from the untrained model's. What is not known is NaN."""

    metric: Metric
    value: float
    low: float = math.nan
    """95 % interval of the value over examples, and over seeds where there are several"""
    high: float = math.nan
    before: float = math.nan
    delta: float = math.nan
    delta_low: float = math.nan
    delta_high: float = math.nan
    p: float = math.nan
    """two-sided: McNemar's where each score is 0 or 1, else Student's"""
    p_holm: float = math.nan
    """adjusted over all outcomes of the report"""

    @property
    def text(self) -> str:
        return show(self.metric, self.value)

    @property
    def direction(self) -> str:
        """Return better, worse or no significant difference; empty without a test."""
        if math.isnan(self.p_holm):
            return ""
        if not self.p_holm < ALPHA:
            return NO_DIFFERENCE
        return "better" if (self.delta > 0) == (self.metric.better == "higher") else "worse"


@dataclass(frozen=True)
class Outcome:
    """A model at one point: before training, or a configuration after one of its stages."""

    stage: str
    """untrained, or the stage that ended here"""
    evaluations: tuple[EvaluationResult, ...]
    """one for each seed"""
    minutes: float | None = None
    """of training up to here, the mean over seeds"""
    changes: Mapping[str, Change] = field(default_factory=dict)
    """by metric; those that the evaluations have"""

    @property
    def key(self) -> tuple[str, ...]:
        """What equal outcomes of several configurations share: the weights."""
        return tuple(e.summary.weights or str(e.folder) for e in self.evaluations)


@dataclass(frozen=True)
class StageOutcomes:
    """A configuration from the untrained model to its end."""

    configuration: ConfigurationResult
    start: Outcome | None
    stages: tuple[Outcome, ...]
    """after each stage that was evaluated; the last is the end of the training"""

    @property
    def model(self) -> str:
        return self.configuration.model

    @property
    def name(self) -> str:
        return self.configuration.name

    @property
    def end(self) -> Outcome:
        """The outcome of the training."""
        return self.stages[-1]

    @property
    def path(self) -> tuple[Outcome, ...]:
        """All outcomes, the untrained model's first."""
        return (*([self.start] if self.start else []), *self.stages)


def compared(inputs: ReportInputs) -> ComparedMetrics:
    """Return the metrics that the task compares by: as its evaluations state them, or else as the task does now. A task
    without roles is compared by its score. A judge's composite replaces the quality if all that is compared has one.
    Where nothing can have the quality, as without references, the constraint alone is compared."""
    metrics = inputs.rated_headlines
    entries = _compared_evaluations(inputs)
    unjudged = tuple(e for e in entries if e.metric(COMPOSITE) is None)
    quality = next((metric for metric in metrics if metric.role == "quality"), None)
    if inputs.criteria and not unjudged:
        quality = Metric(COMPOSITE, COMPOSITE, ".3f", better="higher", role="quality")
    if quality is None:
        titles = {h.metric: h.title for e in inputs.evaluations for h in e.summary.headlines}
        quality = Metric(inputs.score, titles.get(inputs.score, inputs.score), ".3f", better="higher", role="quality")
    constraint = next((metric for metric in metrics if metric.role == "constraint"), None)
    unmeasured = None
    # an evaluation that measured a metric on no example has it as null
    if constraint is not None and all(e.summary.metrics.get(quality.name, 0.0) is None for e in entries):
        unmeasured, quality, constraint = quality, constraint, None
    others = (metric for metric in metrics if metric.name not in (quality.name, constraint and constraint.name))
    return ComparedMetrics(quality, constraint, tuple(others), len(entries) - len(unjudged), unjudged, unmeasured)


def _compared_evaluations(inputs: ReportInputs) -> list[EvaluationResult]:
    """The ends of all runs and the untrained models that are known, each once; without runs, the baselines."""
    # runs of one model on the same prompts share its evaluation
    starts = {
        (run.model, run.info.model.weights, str(run.last.summary.data.get(SPLIT))): start
        for run in reversed(inputs.trained)
        if (start := untrained(inputs, run)) is not None
    }
    found = [*starts.values(), *(run.last for run in inputs.trained)]
    return found or list(inputs.baselines)


def stage_outcomes(
    inputs: ReportInputs, results: Sequence[ConfigurationResult], metrics: ComparedMetrics
) -> list[StageOutcomes]:
    """Return the outcomes of every trained configuration, those of a model together and the length-only ones first."""
    baselines = (one for model in inputs.models if (one := baseline_of(inputs, model)) is not None)
    lengths = [one for one in baselines if one.runs[0].strategy == LENGTH_ONLY]
    found = []
    for model in inputs.models:
        for one in (one for one in (*lengths, *results) if one.model == model):
            start = untrained(inputs, one.runs[0])
            before = None if start is None else Outcome("untrained", (start,), 0.0, _changes(metrics, None, (start,)))
            found.append(StageOutcomes(one, before, tuple(_stages(one, start, metrics, inputs.trained))))
    _adjust(found, metrics)
    return found


def untrained(inputs: ReportInputs, run: TrainedRun) -> EvaluationResult | None:
    """Return the evaluation of the model that a run began with, judged if one was: the run's own, or another's of the
    same model on the same prompts."""
    found = [e for e in run.evaluations if e.step == 0]
    found += [e for other in inputs.trained for e in other.evaluations if _is_start(e, run)]
    found += [e for e in inputs.baselines if _is_start(e, run)]
    return next((e for e in found if e.judge), found[0] if found else None)


def _is_start(evaluation: EvaluationResult, run: TrainedRun) -> bool:
    ours, theirs = (e.summary.data.get(SPLIT) for e in (run.last, evaluation))
    same = ours is not None and theirs is not None and ours.prompts == theirs.prompts != ""
    alone = evaluation.step is None and evaluation.summary.sampler == SAMPLER
    before = evaluation.step == 0 or (alone and not evaluation.asks_for_length)
    return same and before and evaluation.summary.model.weights == run.info.model.weights


def _stages(
    one: ConfigurationResult, start: EvaluationResult | None, metrics: ComparedMetrics, runs: Sequence[TrainedRun]
) -> list[Outcome]:
    """The outcomes after each stage that was evaluated in every seed; `runs` are all of the report."""
    found = []
    for stage in (stages := list(one.runs[0].info.steps)):
        last = stages.index(stage) + 1
        steps = [sum(list(run.info.steps.values())[:last]) for run in one.runs]
        # of a step that a judge scored too, the evaluation that it scored
        at = [[e for e in run.evaluations if e.step == step][-1:] for run, step in zip(one.runs, steps, strict=True)]
        evaluations = one.evaluations if last == len(stages) else tuple(e for each in at for e in each)
        if len(evaluations) < len(one.evaluations):
            continue
        minutes = [_minutes(run, step, runs) for run, step in zip(one.runs, steps, strict=True)]
        known = [value for value in minutes if value is not None]
        mean = math.fsum(known) / len(known) if len(known) == len(minutes) else None
        found.append(Outcome(stage, evaluations, mean, _changes(metrics, start, evaluations)))
    return found


def _minutes(run: TrainedRun, step: int, runs: Sequence[TrainedRun]) -> float | None:
    """Minutes of all steps up to a step; those of stages that were taken from another run are that run's. None if the
    times of some are not known."""
    seconds = _seconds(run)
    ends = zip(run.info.steps, accumulate(run.info.steps.values()), strict=True)
    reused = [(stage, end) for stage, end in ends if end < min(seconds, default=0)]
    for stage, end in reused[-1:]:
        same = [one for one in runs if one.info.fingerprints.get(stage) == run.info.fingerprints.get(stage) != ""]
        donor = next((found for one in same if set(found := _seconds(one)) >= set(range(1, end + 1))), {})
        seconds = {n: found for n, found in donor.items() if n <= end} | seconds
    known = [seconds[n] for n in range(1, step + 1) if n in seconds]
    return math.fsum(known) / 60 if known and len(known) == step else None


def _seconds(run: TrainedRun) -> dict[int, float]:
    """The seconds of a run's own steps."""
    return {row["step"]: float(row["perf/step_s"]) for row in run.rows_with("step", "perf/step_s")}


def _changes(
    metrics: ComparedMetrics, start: EvaluationResult | None, evaluations: Sequence[EvaluationResult]
) -> dict[str, Change]:
    found = {metric.name: _change(metric, start, evaluations) for metric in metrics.every}
    return {name: change for name, change in found.items() if change is not None}


def _change(metric: Metric, start: EvaluationResult | None, evaluations: Sequence[EvaluationResult]) -> Change | None:
    """A metric's mean over seeds with its interval, and its test against the untrained model; None if a seed lacks
    it."""
    if (value := mean_metric(evaluations, metric.name)) is None:
        return None
    one, column = Change(metric, value), metric.column or metric.name
    if (own := paired_values(column, evaluations, evaluations)) is not None:
        one.low, one.high = _interval(own[0], value, is_share(metric))
    if start is None or (before := start.metric(metric.name)) is None:
        return one
    one.before = before
    # the untrained model is the same for all seeds, so only they vary
    if (test := compare(column, [start] * len(evaluations), evaluations)) is None:
        return one
    one.delta, one.p, result = value - before, test.p, test.result
    # a ratio of sums has a test and no interval of its own
    if math.isclose(result.delta, one.delta, abs_tol=1e-9):
        one.delta_low, one.delta_high = result.ci_low, result.ci_high
        if is_share(metric):  # nor can a share become less than 0 or more than 1
            one.delta_low, one.delta_high = max(one.delta_low, -before), min(one.delta_high, 1.0 - before)
    return one


def _interval(values_SN: NDArray[np.float64], mean: float, within: bool) -> tuple[float, float]:
    """The interval of the mean of all seeds, NaN if it is not the mean of the column; `within` 0 and 1."""
    if not math.isclose(float(np.nanmean(values_SN)), mean, abs_tol=1e-9):
        return math.nan, math.nan
    if len(values_SN) == 1:
        found = mean_interval(values_SN[0])
        return found.low, found.high
    result = compare_runs(np.zeros_like(values_SN), values_SN, alternative="two-sided").result
    low, high = result.ci_low, result.ci_high
    return (max(0.0, low), min(1.0, high)) if within else (low, high)


def _adjust(found: Sequence[StageOutcomes], metrics: ComparedMetrics) -> None:
    """Adjust the p values by Holm, each metric over all outcomes; what several configurations share counts once."""
    for metric in metrics.every:
        alike: dict[tuple[str, tuple[str, ...]], list[Change]] = {}
        for one in found:
            for stage in one.stages:
                if (change := stage.changes.get(metric.name)) is not None:
                    alike.setdefault((one.model, stage.key), []).append(change)
        for changes, p in zip(alike.values(), holm([same[-1].p for same in alike.values()]), strict=True):
            for change in changes:
                change.p_holm = p


def best_configuration(found: Sequence[StageOutcomes], metric: Metric) -> StageOutcomes | None:
    """Return the outcomes that end with the best value of a metric; the first of equals, None if none has it."""
    have = [one for one in found if metric.name in one.end.changes]
    sign = -1.0 if metric.better == "lower" else 1.0
    return max(have, key=lambda one: sign * one.end.changes[metric.name].value, default=None)


def keeps_constraint(trained: StageOutcomes, constraint: Metric) -> bool:
    """Return whether a configuration ends with its constraint kept in at least half of the examples."""
    change = trained.end.changes.get(constraint.name)
    return change is not None and (change.value <= 0.5 if constraint.better == "lower" else change.value >= 0.5)
