"""`smolsum runs`."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from smolsum import console
from smolsum.cli.options import RunsFlag, runs_folder

if TYPE_CHECKING:
    from smolsum.runs.listing import Listed

STOPPED = ("failed", "interrupted", "STALE", "damaged")
"""States whose hint is worth showing."""


def runs(
    runs_dir: RunsFlag = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """List runs with their state and newest scores, the newest last, then other evaluations."""
    from smolsum.runs.listing import inventory

    folder = runs_folder(runs_dir)
    found = inventory(folder)
    if as_json:
        console.data(json.dumps({"schema_version": 1, "runs": [asdict(one) for one in found]}, indent=2))
        return
    if not found:
        console.narrate(f"no runs in {folder}; smolsum train --model tiny makes one")
        return
    tasks = list(dict.fromkeys(one.task for one in found if one.task)) or [""]
    for task in tasks:
        _table([one for one in found if (one.task or tasks[0]) == task], "name" if len(tasks) == 1 else task)
    for one in found:
        if one.hint and one.state in STOPPED:
            console.narrate(f"{one.name}: {one.hint}")


def _table(found: list[Listed], head: str) -> None:
    """Print the runs and evaluations of one task; `head` is the title of their names."""
    from smolsum.runs.listing import SHOWN

    titles = {key: title for one in found for key, title in one.titles.items()}
    shown = [*(key for key in SHOWN if key in titles), *(key for key in titles if key not in SHOWN)]
    rows = [
        [
            one.name,
            one.state,
            "-" if one.step is None else f"{one.step}/{one.steps}" if one.steps else str(one.step),
            *("-" if (value := one.metrics.get(key)) is None else f"{value:.3f}" for key in shown),
            one.rewards or "-",
            one.model or "-",
        ]
        for one in found
    ]
    console.data_table([head, "state", "step", *(titles[key] for key in shown), "rewards", "model"], rows)
