"""Table S19: what the study published, next to what this report measured."""

import csv
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.resources import files

from smolsum.config.run_labels import LENGTH_ONLY, PREFIX
from smolsum.report.collect import EvaluationResult, ReportInputs
from smolsum.report.document import DASH, Cell, Table, letter, number, percent, plain, words
from smolsum.report.results import ConfigurationResult, baseline_of
from smolsum.report.sections.paper import ON_TARGET, VARIANTS, target_of
from smolsum.types import COMPOSITE, PASS_RATE

BASELINE = "baseline"
"""the strategy of an untrained model in `published.csv`; its reward is the prompt"""
STUDY_TARGET = 64, 5
"""target and tolerance in tokens"""
MEASURES: tuple[tuple[str, str, str, Callable[[float], str]], ...] = (
    ("Within ±5 of 64 tokens", "within_5", ON_TARGET, percent),
    ("Mean length in tokens", "mean_length", "completions/mean_length", plain(1)),
    ("Average of the judge", "composite", COMPOSITE, plain(3)),
    ("Pass rate", "pass_rate", PASS_RATE, percent),
)
"""title, column of `published.csv`, metric of an evaluation, format"""
NOTE = (
    "Published: the study's Tables 4, 10-13 and 10a-13a (200 posts of mlabonne/smoltldr; gpt-5-mini, five rounds, its "
    "own criteria). Here: the runs of this report. Data, judge, prompts and numerics differ, so a difference between "
    "the two is not the effect of anything."
)


def published_tables(inputs: ReportInputs, results: Sequence[ConfigurationResult]) -> list[Table]:
    """Return Tables S19a, S19b …, one for each measure that the study and these runs have, for the configurations that
    both have; none where summaries have another target than the study's."""
    if target_of(inputs) != STUDY_TARGET or any(run.config["task"].get("targets") for run in inputs.trained):
        return []
    published = _published()
    models = list(dict.fromkeys(model for model, _, _ in published))
    columns = ("Configuration", *(f"{one}, published" for one in models), *(f"{one}, here" for one in inputs.models))
    here = dict(_measured(inputs, results))
    tables = list[Table]()
    for title, column, metric, show in MEASURES:
        rows = []
        for strategy, reward in dict.fromkeys((strategy, reward) for _, strategy, reward in published):
            theirs = [_printed(published.get((one, strategy, reward), {}).get(column), show) for one in models]
            ours = [_found(here.get((one, strategy, reward)), metric, show) for one in inputs.models]
            if any(cell is not DASH for cell in theirs) and any(cell is not DASH for cell in ours):
                name = reward if strategy == LENGTH_ONLY else PREFIX.get(strategy, f"{strategy}-") + reward
                rows.append((words(name), *theirs, *ours))
        if rows:
            label = f"S19{letter(len(tables))}"
            tables.append(Table(label, f"{title}, published and here", columns, tuple(rows), (NOTE,)))
    return tables


def _published() -> dict[tuple[str, str, str], Mapping[str, str]]:
    """The study's figures, by model, strategy and reward."""
    text = files("smolsum.report").joinpath("published.csv").read_text()
    return {(row["model"], row["strategy"], row["reward"]): row for row in csv.DictReader(text.splitlines())}


def _measured(
    inputs: ReportInputs, results: Sequence[ConfigurationResult]
) -> Iterator[tuple[tuple[str, str, str], ConfigurationResult | EvaluationResult]]:
    """What this report has, by model, strategy and reward."""
    for one in inputs.baselines:
        if one.variant in VARIANTS:
            yield (one.model, BASELINE, one.variant), one
    for result in [*results, *filter(None, (baseline_of(inputs, model) for model in inputs.models))]:
        yield (result.model, result.strategy, result.reward), result


def _printed(text: str | None, show: Callable[[float], str]) -> Cell:
    return number(float(text), show) if text else DASH


def _found(one: ConfigurationResult | EvaluationResult | None, metric: str, show: Callable[[float], str]) -> Cell:
    return DASH if one is None or one.metric(metric) is None else one.cell(metric, show)
