"""`smolsum data`."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from smolsum import console
from smolsum.cli.options import PresetFlag, set_option
from smolsum.errors import UsageError
from smolsum.tasks import NAMES

if TYPE_CHECKING:
    from smolsum.tasks.data import Example


def data(
    task: Annotated[str, typer.Argument(metavar="TASK", help=f"Task: {', '.join(NAMES)}.", show_default=False)],
    output: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Write train.jsonl, validation.jsonl and test.jsonl to this folder.", show_default=False
        ),
    ] = None,
    preview: Annotated[int, typer.Option(metavar="N", min=1, help="Examples of each split to print.")] = 3,
    preset: PresetFlag = None,
    sets: Annotated[list[str] | None, set_option("task.train_prompts=5000")] = None,
    config: Annotated[Path | None, typer.Option(metavar="FILE", help="Settings in TOML.", show_default=False)] = None,
) -> None:
    """Show the prompts that a task trains and is tested on, or write them to files.

    \b
    Show hard prompts; write a data set to edit and use with --set data.path=DIR:
      smolsum data strict-json --set task.simple=0 --set task.medium=0 --set task.hard=1
      smolsum data strict-json --set task.train_prompts=5000 --output my-json
    """
    from smolsum.config.resolve import resolve
    from smolsum.tasks import TASKS
    from smolsum.tasks.data import SPLITS

    flags = {"task.name": task}
    resolved = resolve(TASKS, presets=preset or [], config_file=config, sets=sets or [], flags=flags)
    chosen = TASKS[task]
    splits = {name: chosen.prompts.load(resolved.config, name) for name in SPLITS}
    if output is None:
        for split in splits.values():
            for example in split.examples[:preview]:
                console.data(_line(example))
    else:
        _write(output, {name: "".join(f"{_line(e)}\n" for e in split.examples) for name, split in splits.items()})
    rows = [[name, str(len(split.examples)), split.fingerprint] for name, split in splits.items()]
    console.table(["split", "examples", "fingerprint"], rows)
    if chosen.prompts.category:
        _show_kinds({name: chosen.prompts.categories(split.examples) for name, split in splits.items()})
    if output is not None:
        console.data(str(output))


def _line(example: Example) -> str:
    """Return the example as a row of a file that `--set data.path` takes."""
    references: dict[str, Any] = {}
    if example.references:
        one = len(example.references) == 1
        references = {"completion": example.references[0] if one else list(example.references)}
    row = {"id": example.id, "prompt": example.source, **references, **example.metadata}
    return json.dumps(row, ensure_ascii=False)


def _write(folder: Path, contents: dict[str, str]) -> None:
    """Write a file for each split. Raises UsageError where one exists."""
    for name in contents:
        if (path := folder / f"{name}.jsonl").exists():
            raise UsageError(f"{path} exists already", hint="--output with another directory")
    from smolsum.files import replace

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot make {folder}: {error.strerror}", hint="--output with another directory") from error
    for name, content in contents.items():
        replace(folder / f"{name}.jsonl", content.encode(), f"--output {os.fspath(folder)}")


def _show_kinds(kinds: dict[str, tuple[str, ...]]) -> None:
    names = sorted({kind for own in kinds.values() for kind in own})
    console.table(
        ["split", *names], [[split, *(str(own.count(name)) for name in names)] for split, own in kinds.items()]
    )
