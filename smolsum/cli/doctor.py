"""`smolsum doctor`."""

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from smolsum import console
from smolsum.cli.options import RunsFlag, VllmPythonFlag, runs_folder
from smolsum.errors import MachineError, UsageError


def doctor(
    model: Annotated[
        str,
        typer.Option(
            "--model",
            metavar="MODEL",
            help="Also try this model: preset, local directory, GGUF file, or hub id that is downloaded already.",
        ),
    ] = "",
    chat_template: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The chat template of --model, as model.chat_template.")
    ] = None,
    online: Annotated[
        bool, typer.Option("--online", help="Also ask the server of each endpoint for its models.")
    ] = False,
    vllm_python: VllmPythonFlag = None,
    runs_dir: RunsFlag = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON, for an issue.")] = False,
) -> None:
    """Check what this machine can do, and print a command for each shortcoming.

    Prints no keys, and loads a model only with --model. The exit code is 4 if something fails that training needs or
    that you set up.
    """
    if chat_template and not model:
        raise UsageError("--chat-template is for a model", hint="name it with --model")
    from smolsum.config.resolve import model_settings
    from smolsum.grpo.setup.machine_check import examine
    from smolsum.tasks import TASKS

    own = model_settings(model, TASKS) if model else {}
    if chat_template:
        own["chat_template"] = str(chat_template)
    findings = examine(
        os.environ,
        runs_dir=runs_folder(runs_dir),
        vllm_python=vllm_python or sys.executable,
        online=online,
        model=model,
        settings=own,
    )
    if as_json:
        console.data(json.dumps({"schema_version": 1, "findings": [asdict(one) for one in findings]}, indent=2))
    else:
        for one in findings:
            name = one.name if one.name == one.group else f"{one.group}: {one.name}"
            console.data(f"{one.level:<4}  {name}: {one.detail}")
            if one.command:
                console.data(f"      fix: {one.command}")
    failed = [one for one in findings if one.level == "fail"]
    if failed:
        raise MachineError(
            f"{len(failed)} of {len(findings)} checks failed: {', '.join(one.name for one in failed)}",
            hint=failed[0].command or None,
        )
