"""`smolsum runs`."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from smolsum import console

TITLES = {"length/within_tol": "on target", "rouge": "ROUGE-L", "meteor": "METEOR", "bleu": "BLEU"}

STOPPED = ("failed", "interrupted", "STALE", "damaged")
"""states in which somebody has to do something"""


def runs(
    context: typer.Context,
    runs_dir: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="Directory of all runs.  [default: $SMOLSUM_RUNS_DIR or runs]"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print all that is known as JSON.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """List runs with their state and newest scores, the newest last, then the evaluations beside them."""
    context.obj["debug"] = debug

    from smolsum.listing import SHOWN, inventory

    folder = Path(runs_dir or os.environ.get("SMOLSUM_RUNS_DIR") or "runs")
    found = inventory(folder)
    if as_json:
        console.data(json.dumps({"schema_version": 1, "runs": [asdict(one) for one in found]}, indent=2))
        return
    if not found:
        console.narrate(f"no runs in {folder}; smolsum train --model tiny makes one")
        return
    shown = list(dict.fromkeys([*SHOWN, *(key for one in found for key in one.metrics)]))
    shown = [key for key in shown if any(key in one.metrics for one in found)]
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
    console.data_table(["name", "state", "step", *(TITLES.get(key, key) for key in shown), "rewards", "model"], rows)
    for one in found:
        if one.hint and one.state in STOPPED:
            console.narrate(f"{one.name}: {one.hint}")
