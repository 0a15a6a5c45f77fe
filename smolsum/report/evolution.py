"""What became of a model from stage to stage and from validation to validation: rescued examples, and errors."""

from __future__ import annotations

from collections.abc import Sequence

from smolsum.report.figures import curves, panel
from smolsum.report.page import Cell, Figure, Table, letter, number, p_value, percent, plain, sentence, words
from smolsum.report.study import Evaluation, Study, Trained
from smolsum.report.tables_task import ERRORS
from smolsum.stats.paired import McNemar, mcnemar
from smolsum.stats.sides import Side

PASSED = "passed"
"""the column of a task that tells right examples from wrong ones"""
VALIDATION = f"validation/{ERRORS}"


def stages_table(study: Study) -> list[Table]:
    """Returns each run's model at its start and after every stage: the share of right examples, which of them the
    stages rescued and regressed against the start, and its errors. Nothing for tasks without right and wrong."""
    runs = [run for run in study.trained if all(e.metric(PASSED) is not None for e in run.evaluations)]
    if not runs:
        return []
    errors = list(dict.fromkeys(key for run in runs for e in run.evaluations for key in _errors(e)))
    rows = [_row(run, e, errors) for run in runs for e in run.evaluations]
    titles = [sentence(key.removeprefix(ERRORS)) for key in errors]
    note = "Rescued: right now and not at the start; regressed: the reverse; p by McNemar's exact test, two-sided."
    columns = ("Run", "Evaluation", "Right", "Rescued", "Regressed", "p (McNemar)", *titles)
    return [Table("S14", "From stage to stage", columns, tuple(rows), (note,))]


def _errors(evaluation: Evaluation) -> list[str]:
    return [key for key, value in evaluation.summary["metrics"].items() if key.startswith(ERRORS) and value is not None]


def _row(run: Trained, evaluation: Evaluation, errors: Sequence[str]) -> tuple[Cell, ...]:
    first = run.evaluations[0]
    flips = None if evaluation is first else _flips(first, evaluation)
    told = (
        (words(""), words(""), words(""))
        if flips is None
        else (number(flips.gained, plain(0)), number(flips.lost, plain(0)), number(flips.p, p_value))
    )
    return (
        words(run.paths.name),
        words(evaluation.folder.name),
        number(evaluation.metric(PASSED), percent, evaluation.source(PASSED)),
        *told,
        *(number(evaluation.metric(key), percent, evaluation.source(key), command=evaluation.again) for key in errors),
    )


def _flips(before: Evaluation, after: Evaluation) -> McNemar | None:
    sides = [Side(e.folder.name, (e.scores,)) for e in (before, after)]
    return mcnemar(*(side.values(PASSED, sides[0].ids)[0] for side in sides), alternative="two-sided")


def errors_figures(study: Study) -> list[Figure]:
    """Returns, for each model, the share of each error at every validation of its runs."""
    figures: list[Figure] = []
    for model in study.models:
        runs = [run for run in study.trained if run.model == model]
        keys = dict.fromkeys(key for run in runs for row in run.metrics for key in row if key.startswith(VALIDATION))
        panels = [panel(runs, key, key.removeprefix(VALIDATION)) for key in keys]
        panels = [p for p in panels if any(y for one in p.series for _, y in one.values)]
        if panels:
            alt = (
                f"Errors of {model} by step, in shares of the validation prompts: {', '.join(p.title for p in panels)}"
            )
            label, names = f"S4{letter(len(figures))}", [run.paths.name for run in runs]
            figures.append(curves(label, f"Errors by step, {model}", panels, names, alt))
    return figures
