"""The order of a report: verdict and provenance first, the study's tables in its order, then what the study lacks."""

from __future__ import annotations

import math
from collections.abc import Sequence

from smolsum.report.document import Item, Page, Section, p_value, percent, signed
from smolsum.report.results import ConfigurationResult, outcomes
from smolsum.report.sections import comparison, figures, more, setup, task
from smolsum.report.sections.comparison import side_by_side_figure, side_by_side_table
from smolsum.report.sections.results import result_tables, strategies_table
from smolsum.report.study import Study
from smolsum.stats.paired import ALPHA
from smolsum.types import COMPOSITE


def compose(study: Study) -> Page:
    """Returns the whole report of a study; the same study gives the same page."""
    found = outcomes(study)
    sections = [Section("Provenance", (more.provenance_table(study),))]
    if study.left_out:
        sections.append(Section("Left out", (more.left_out_table(study.left_out),)))
    sections += [
        Section("Data", tuple(setup.data_tables(study))),
        Section("Evaluation", tuple(setup.metrics_tables(study))),
        Section("Baselines", tuple(setup.baseline_tables(study))),
        Section("Method", tuple(setup.method_tables(study))),
        Section("Results", (*_results(study, found), task.headlines_table(study), *_side_by_side(study))),
        Section("Training", tuple(figures.curve_figures(study))),
        Section("Correlations", tuple(figures.correlation_figures(study, found))),
        Section(
            "Quality, length and errors",
            (
                *figures.pareto_figures(study, found),
                *figures.errors_figure(study, found),
                task.errors_table(study, found),
                *comparison.errors_figures(study),
                *([more.flips_table(study, found)] if study.repeats else comparison.stages_table(study)),
            ),
        ),
        Section("The judge", _judge(study, found) if study.criteria else ()),
        Section("Cost", (more.cost_table(study),)),
        Section("Samples", tuple(more.samples_tables(study, found))),
        Section("Settings", tuple(table for table in (more.differences_table(study),) if table.rows)),
        Section("Limits", (), tuple(more.limits(study, found))),
    ]
    kept = tuple(section for section in sections if section.items or section.text)
    return Page(f"smolsum report: {', '.join(study.models)}", verdict(study, found), kept)


def _results(study: Study, found: Sequence[ConfigurationResult]) -> Sequence[Item]:
    """The study's tables, or those of a task that is not the study's."""
    if study.repeats:
        return [*result_tables(study, found), strategies_table(study, found)]
    if not study.trained:
        return []
    flips = task.started_flips_table(study)
    return [task.started_table(study), *([flips] if flips.rows else [])]


def _side_by_side(study: Study) -> Sequence[Item]:
    """Of a task that is not the study's; the study's tables have theirs."""
    if study.repeats:
        return []
    return [side_by_side_table(study), *side_by_side_figure(study), *task.panels_tables(study)]


def _judge(study: Study, found: Sequence[ConfigurationResult]) -> tuple[Item, ...]:
    return (more.noise_table(study), *figures.reward_figures(found))


def verdict(study: Study, found: Sequence[ConfigurationResult]) -> str:
    """One sentence a model on what is best and whether that is more than chance."""
    if not study.repeats:
        return _trained_verdict(study)
    said, show = [], signed(3)
    for model in study.models:
        mine = [one for one in found if one.model == model and one.metric(COMPOSITE) is not None]
        if not mine:
            there = any(one.model == model for one in found)
            if model not in study.trainable:
                continue
            lack = "no trained configuration has been judged yet" if there else "no trained configuration yet"
            said.append(f"{model}: {lack}{_most_on_target(found, model)}.")
            continue
        best = max(mine, key=lambda one: one.metric(COMPOSITE) or 0.0)
        told = f"{model}: of {len(mine)} configurations {best.name} scores highest, {best.metric(COMPOSITE):.3f} of 4"
        if (share := best.metric("length/within_tol")) is not None:
            told += f", on target in {percent(share)} of the examples"
        # where all examples differ alike there is no spread to test
        if best.test is not None and math.isfinite((result := best.test.result).ci_low):
            sure = "significant" if best.p_holm < ALPHA else "not significant"
            told += (
                f"; length alone has {result.mean_a:.3f}, and the difference is {sure} (Δ {show(result.delta)}, "
                f"95 % [{show(result.ci_low)}, {show(result.ci_high)}], p adjusted {p_value(best.p_holm)})"
            )
        said.append(told + ".")
    return " ".join(said)


def _trained_verdict(study: Study) -> str:
    """What training did to the score, of a task that is not the study's."""
    said = []
    for model in study.models:
        tests = {run.paths.name: task.started(run, study.score) for run in study.trained if run.model == model}
        known = {name: test for name, test in tests.items() if test is not None}
        if not known and not tests:
            means = [mean for e in study.baselines if e.model == model and (mean := e.metric(study.score)) is not None]
            scored = f"{max(means):.3f} in {study.score}" if means else f"no {study.score}"
            said.append(f"{model}: {scored}, without training.")
            continue
        if not known:
            said.append(f"{model}: no run has {study.score} before and after training.")
            continue
        best = max(known, key=lambda name: known[name].result.mean_b)
        found = known[best]
        result = found.result
        verb = "raised" if result.delta > 0 else "lowered"
        change = f"training {verb} it from {result.mean_a:.3f} (p {p_value(result.p)}, {task.test_name(found)})"
        if not result.p < ALPHA:
            change = f"before training it was {result.mean_a:.3f}, which is no significant difference"
        runs = f"of {len(known)} runs {best} ends highest" if len(known) > 1 else f"{best} ends"
        said.append(f"{model}: {runs} in {study.score}, {result.mean_b:.3f}; {change}.")
    return " ".join(said)


def _most_on_target(found: Sequence[ConfigurationResult], model: str) -> str:
    """What can be said without a judge."""
    shares = {one.name: share for one in found if one.model == model and (share := one.metric("length/within_tol"))}
    if not shares:
        return ""
    best = max(shares, key=lambda name: shares[name])
    return f"; {best} is on target most often, in {percent(shares[best])} of the examples"
