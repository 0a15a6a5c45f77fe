"""What the stages did to the model: the headline metrics of the run's task at its start and after each stage."""

from __future__ import annotations

from rich.text import Text

from smolsum.watch import typed
from smolsum.watch.block import DIM, Block, number, wrapped
from smolsum.watch.board import Board
from smolsum.watch.completions import clean

NAME, VALUE = 16, 9


def results(board: Board, width: int, height: int) -> Block:
    """Returns a row for each metric, a column for the model at the start, after each stage, and at the newest
    validation; the columns that have no room are left out from the left."""
    run = board.run
    measured = {label: typed.table(summary.value.get("metrics")) for label, summary in run.results.items()}
    columns = {
        label if label == "start" else f"after {label}": {metric: typed.number(value) for metric, value in row.items()}
        for label, row in measured.items()
        if row
    }
    validated = {metric: run.last(f"validation/{metric}") for metric in ("reward", *run.headlines)}
    if any(value is not None for value in validated.values()):
        columns["validation"] = validated
    if not columns:
        return Block("results", "", tuple(wrapped(_nothing(board), width, DIM)))
    titles = {metric: clean(title) for metric, title in {"reward": "reward", **run.headlines}.items()}
    known = [metric for metric in titles if any(row.get(metric) is not None for row in columns.values())]
    sizes = {label: max(len(label), VALUE - 2) + 2 for label in columns}
    while len(columns) > 1 and NAME + sum(sizes[label] for label in columns) > width:
        del columns[next(iter(columns))]
    head = f"{'':<{NAME}}" + "".join(f"{clean(label):>{sizes[label]}}" for label in columns)
    lines = [Text(head, style=DIM)]
    for metric in known:
        cells = "".join(f"{number(row.get(metric)):>{sizes[label]}}" for label, row in columns.items())
        lines.append(Text(f"{titles[metric][:NAME]:<{NAME}}{cells}"))
    step = run.series["validation/reward"].last_step if "validation/reward" in run.series else None
    note = "greedy, test split" + (f"; validation of step {step}" if "validation" in columns and step else "")
    return Block("results", note, tuple(lines[:height]))


def _nothing(board: Board) -> str:
    return "the model as it starts is being measured" if board.standing.hopeful else "this run measured nothing"
