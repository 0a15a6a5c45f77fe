"""The tables that a task shows of an evaluation, with a row for every evaluation: intervals, shares by kind, pass@k."""

from __future__ import annotations

from collections.abc import Iterator

from smolsum.report.page import Cell, Table, letter, sentence, words
from smolsum.report.study import Evaluation, Study
from smolsum.report.tables_results import NOT_DONE
from smolsum.report.tables_task import as_shown


def panels_tables(study: Study) -> list[Table]:
    """Returns a table for each panel that an evaluation has a value of."""
    shown = list(_named(study))
    panels: dict[str, dict[str, str]] = {}
    for _, evaluation in shown:
        for panel in evaluation.summary.get("panels", ()):
            panels.setdefault(panel["title"], {}).update({h["metric"]: h["title"] for h in panel["headlines"]})
    return [
        _table(f"S15{letter(place)}", title, columns, shown) for place, (title, columns) in enumerate(panels.items())
    ]


def _named(study: Study) -> Iterator[tuple[str, Evaluation]]:
    """Every evaluation with what it is called: the baselines, then those of each run, the sampled ones last."""
    for baseline in study.baselines:
        yield baseline.folder.name, baseline
    for run in study.trained:
        for evaluation in (*run.evaluations, *run.sampled):
            yield f"{run.paths.name}, {evaluation.folder.name}", evaluation


def _table(label: str, title: str, columns: dict[str, str], shown: list[tuple[str, Evaluation]]) -> Table:
    rows = []
    for name, evaluation in shown:
        texts = {
            h["metric"]: h["text"]
            for panel in evaluation.summary.get("panels", ())
            if panel["title"] == title
            for h in panel["headlines"]
        }
        if texts:
            rows.append((words(name), *(_cell(evaluation, metric, texts.get(metric)) for metric in columns)))
    return Table(label, sentence(title), ("Evaluation", *columns.values()), tuple(rows))


def _cell(evaluation: Evaluation, metric: str, text: str | None) -> Cell:
    if text is None:
        return words(NOT_DONE)
    value = evaluation.metric(metric)
    return Cell(as_shown(text, value), value, evaluation.source(metric))
