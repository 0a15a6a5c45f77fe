"""What each configuration scored, and whether it differs from its model's length-only baseline."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from smolsum.config.study import LENGTH_ONLY, PREFIX, REWARDS
from smolsum.files import digest
from smolsum.report.study import Evaluation, Study, Trained
from smolsum.stats.loading import Arm
from smolsum.stats.multiple_testing import holm
from smolsum.stats.paired import McNemar, mcnemar
from smolsum.stats.seeds import MixedResult, compare_runs
from smolsum.types import COMPOSITE


@dataclass(frozen=True)
class ConfigurationResult:
    """A configuration: one evaluation, or those of several seeds, compared with the length-only baseline."""

    model: str
    strategy: str
    reward: str
    name: str
    """as in the study's tables"""
    evaluations: tuple[Evaluation, ...]
    runs: tuple[Trained, ...]
    test: MixedResult | None = None
    """against the baseline, in the composite; None where one of both was not judged"""
    p_holm: float = math.nan
    """adjusted over all comparisons with a baseline in this report"""
    flips: McNemar | None = None
    """examples that pass now and did not, and the reverse"""

    @property
    def side(self) -> Arm:
        """What the statistics compare."""
        return Arm(self.name, tuple(evaluation.scores for evaluation in self.evaluations))

    def metric(self, name: str) -> float | None:
        """The mean of a metric over examples and seeds; None where one of them lacks it."""
        values = [evaluation.metric(name) for evaluation in self.evaluations]
        known = [value for value in values if value is not None]
        return math.fsum(known) / len(known) if known and len(known) == len(values) else None


def baseline_of(study: Study, model: str) -> ConfigurationResult | None:
    """The length-only checkpoint that a model's configurations are compared with: a run of its own, of several seeds
    where there are, or, without one, what a fine-tuned run evaluated between its stages. The judged one of several."""
    runs = [run for run in study.trained if run.model == model]
    own = _by_seeds([run for run in runs if run.strategy == LENGTH_ONLY])
    found: list[tuple[tuple[Evaluation, ...], tuple[Trained, ...]]] = [
        (tuple(run.last for run in group), tuple(group)) for group in own
    ]
    found += [((between,), (run,)) for run in runs if (between := run.after_length) is not None]
    if not found:
        return None
    evaluations, of = next((one for one in found if all(e.judge == study.judge for e in one[0])), found[0])
    name = LENGTH_ONLY + (f" x{len(of)}" if len(of) > 1 else "")
    return ConfigurationResult(model, LENGTH_ONLY, LENGTH_ONLY, name, evaluations, of)


def outcomes(study: Study) -> list[ConfigurationResult]:
    """Returns every trained configuration but the baselines (so a second length-only one too), those of the study first
    and in its order, each tested against its model's baseline; p values adjusted by Holm over all of them."""
    baselines = {model: baseline_of(study, model) for model in study.models}
    used = {
        run.paths.root for one in baselines.values() if one and one.runs[0].strategy == LENGTH_ONLY for run in one.runs
    }
    found = [_outcome(group) for group in _by_seeds([run for run in study.trained if run.paths.root not in used])]
    names = [(one.model, one.name) for one in found]
    found = [
        replace(one, name=f"{one.name} · {one.runs[0].paths.name}")
        if names.count((one.model, one.name)) > 1 or one.strategy == LENGTH_ONLY
        else one
        for one in found
    ]
    order = list(REWARDS)
    found.sort(
        key=lambda one: (
            one.model.casefold(),
            one.strategy,
            order.index(one.reward) if one.reward in order else len(order),
            one.name,
        )
    )
    tested = [_tested(one, baselines[one.model]) for one in found]
    adjusted = holm([one.test.result.p if one.test else math.nan for one in tested])
    return [replace(one, p_holm=p) for one, p in zip(tested, adjusted, strict=True)]


def compare(a: ConfigurationResult, b: ConfigurationResult) -> MixedResult | None:
    """Returns b - a in the composite over shared examples; None unless both were judged."""
    sides = a.side, b.side
    if not all(COMPOSITE in member.metrics for side in sides for member in side.members):
        return None
    ids = sides[0].ids
    values_a, values_b = (side.values(COMPOSITE, ids) for side in sides)
    found = compare_runs(values_a, values_b, alternative="two-sided")
    return found if math.isfinite(found.result.delta) else None  # no example has both


def _outcome(group: Sequence[Trained]) -> ConfigurationResult:
    first = group[0]
    length_only = first.strategy == LENGTH_ONLY
    name = LENGTH_ONLY if length_only else PREFIX.get(first.strategy, f"{first.strategy}: ") + first.reward
    if len(group) > 1:
        name += f" x{len(group)}"
    return ConfigurationResult(
        first.model, first.strategy, first.reward, name, tuple(run.last for run in group), tuple(group)
    )


def _tested(one: ConfigurationResult, baseline: ConfigurationResult | None) -> ConfigurationResult:
    if baseline is None:
        return one
    flips = None
    if all(len(o.evaluations) == 1 for o in (baseline, one)) and all(
        "passed" in o.evaluations[0].scores.metrics for o in (baseline, one)
    ):
        ids = baseline.side.ids
        flips = mcnemar(*(o.side.values("passed", ids)[0] for o in (baseline, one)), alternative="two-sided")
    return replace(one, test=compare(baseline, one), flips=flips)


def _by_seeds(runs: Sequence[Trained]) -> list[list[Trained]]:
    """The runs that differ in their seed alone together; each alone where a seed is there twice."""
    groups: dict[str, list[Trained]] = {}
    for run in runs:
        groups.setdefault(_settings(run), []).append(run)
    distinct: list[list[Trained]] = []
    for group in groups.values():
        seeds = {run.config.get("train", {}).get("seed") for run in group}
        distinct += [group] if len(seeds) == len(group) else [[run] for run in group]
    return distinct


def _settings(run: Trained) -> str:
    """All settings but name, place and seed: equal for seeds of one configuration."""
    settings: dict[str, Any] = {key: value for key, value in run.config.items() if key != "run"}
    settings["train"] = {key: value for key, value in settings.get("train", {}).items() if key != "seed"}
    return digest(settings)
