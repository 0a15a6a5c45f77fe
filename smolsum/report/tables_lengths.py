"""How long completions are, in the rows of the study's Tables 10a-13a."""

from __future__ import annotations

from smolsum.report.page import Cell, empty, number, plain, words
from smolsum.report.results import Outcome
from smolsum.report.study import Study
from smolsum.tasks.lengths import PERCENTILES

LENGTHS = (
    ("Mean", "mean", plain(1)),
    ("Std", "std", plain(1)),
    ("Min", "min", plain(0)),
    *((f"P{p}", f"p{p}", plain(0)) for p in PERCENTILES),
    ("Max", "max", plain(0)),
)
"""title, name in the metrics, and how it is shown"""


def length_row(name: str, one: Outcome) -> tuple[Cell, ...]:
    """The lengths of an outcome's completions, and how many are on target."""
    first = one.evaluations[0]
    again = first.again
    cells = [
        number(one.metric(key := f"completions/{of}_length"), show, first.source(key), command=again)
        for _, of, show in LENGTHS
    ]
    share, n = one.metric("length/within_tol"), int(first.summary["n"])
    count = round((share or 0.0) * n)
    within = (
        empty(again)
        if share is None
        else Cell(f"{count}/{n} ({100 * count // n}%)", share, first.source("length/within_tol"))
    )
    return (words(name), *cells, within)


def target_of(study: Study) -> tuple[int, int]:
    """The target length and its tolerance in tokens; the study's where no run says."""
    tasks = [run.config["task"] for run in study.trained]
    tasks += [e.summary["task"] for e in study.baselines if e.summary.get("task")]
    told = tasks[0] if tasks else {}
    return told.get("target_tokens", 64), told.get("tolerance_tokens", 5)
