"""`smolsum doctor`."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from smolsum import console
from smolsum.errors import MachineError


def doctor(
    context: typer.Context,
    online: Annotated[bool, typer.Option("--online", help="Also ask the judge's server for its models.")] = False,
    vllm_python: Annotated[
        str | None,
        typer.Option(metavar="PATH", help="Python of the environment that has vLLM.  [default: this one]"),
    ] = None,
    runs_dir: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="Directory of all runs.  [default: $SMOLSUM_RUNS_DIR or runs]"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON, for an issue.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Say what this machine can do and, for what it cannot, the command that mends it.

    Loads no model and shows no key. The exit code is 4 where something fails that training needs or that you set up.
    """
    context.obj["debug"] = debug

    from smolsum.cli.machine import examine

    findings = examine(
        os.environ,
        runs_dir=Path(runs_dir or os.environ.get("SMOLSUM_RUNS_DIR") or "runs"),
        vllm_python=vllm_python or sys.executable,
        online=online,
    )
    if as_json:
        console.data(json.dumps({"schema_version": 1, "findings": [asdict(one) for one in findings]}, indent=2))
    else:
        for one in findings:
            name = one.name if one.name == one.group else f"{one.group}: {one.name}"
            console.data(f"{one.level:<4}  {name}: {one.detail}")
            if one.command:
                console.data(f"      to mend it: {one.command}")
    failed = [one for one in findings if one.level == "fail"]
    if failed:
        raise MachineError(
            f"{len(failed)} of {len(findings)} checks failed: {', '.join(one.name for one in failed)}",
            hint=failed[0].command or None,
        )
