"""`smolsum data`."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from smolsum import console
from smolsum.cli.options import PluginFlag, PresetFlag, set_option
from smolsum.config.hub import download_command
from smolsum.errors import UsageError
from smolsum.tasks import NAMES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from smolsum.config.sections import Config
    from smolsum.tasks.data import Example, Split


def data(
    task: Annotated[
        str,
        typer.Argument(metavar="TASK", help=f"Task: {', '.join(NAMES)}, or the file of a task.", show_default=False),
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Write train.jsonl, validation.jsonl and test.jsonl to this folder.", show_default=False
        ),
    ] = None,
    preview: Annotated[int, typer.Option(metavar="N", min=1, help="Examples of each split to print.")] = 3,
    plugin: PluginFlag = None,
    preset: PresetFlag = None,
    sets: Annotated[list[str] | None, set_option("task.train_prompts=5000")] = None,
    config: Annotated[Path | None, typer.Option(metavar="FILE", help="Settings in TOML.", show_default=False)] = None,
) -> None:
    """Show the prompts that a task trains and is tested on, as data and as the model gets them, or write them to files.

    \b
    Show hard prompts; write a data set to edit and use with --set data.path=DIR:
      smolsum data strict-json --set task.simple=0 --set task.medium=0 --set task.hard=1
      smolsum data strict-json --set task.train_prompts=5000 --output my-json
    """
    from smolsum.config.resolve import resolve
    from smolsum.tasks import TASKS
    from smolsum.tasks.data import check_references
    from smolsum.tasks.data_files import SPLITS
    from smolsum.tasks.hub_data import commit_of
    from smolsum.tasks.plugins import use_named_plugins

    task = use_named_plugins(plugin or [], task, config).task or task
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
    taken = sorted({name for split in splits.values() for one in split.examples for name in one.metadata} & {*ROW})
    if taken:
        console.warn(f"left out, as the rows have others of these names: the data's columns {', '.join(taken)}")
    for warning in filter(None, [*(split.left_out for split in splits.values()), check_references(splits, {})]):
        console.warn(warning)
    rows = [[name, str(len(split.examples)), split.fingerprint] for name, split in splits.items()]
    console.table(["split", "examples", "fingerprint"], rows)
    for name, split in splits.items():
        console.narrate(f"{name} is {split.origin or f'made by the task {task}'}")
    if commit := commit_of(resolved.config.data.path):
        console.narrate(f"{resolved.config.data.path} is at commit {commit}")
    if resolved.config.difficulty.by != "none":
        from smolsum.grpo.difficulty import planned_kinds

        _show_kinds({"train": planned_kinds(resolved.config, chosen, splits["train"].examples)})
    elif chosen.prompts.category:
        _show_kinds({name: chosen.prompts.categories(split.examples) for name, split in splits.items()})
    if output is None:
        _show_prompt(resolved.config, splits)
    else:
        console.data(str(output))


ROW = ("id", "prompt", "completion")
"""the names of a row's own columns"""


def _line(example: Example) -> str:
    """Return the example as a row of a file that `--set data.path` takes."""
    references: dict[str, Any] = {}
    if example.references:
        one = len(example.references) == 1
        references = {"completion": example.references[0] if one else list(example.references)}
    prompt: Any = example.source
    if example.turns:
        prompt = [*example.turns, {"role": "user", "content": example.source}]
    row = {"id": example.id, "prompt": prompt, **references}
    row |= {name: value for name, value in example.metadata.items() if name not in ROW}
    return json.dumps(row, ensure_ascii=False, default=str)


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


def _show_prompt(config: Config, splits: Mapping[str, Split]) -> None:
    """Print the system prompt, and what the model gets of the first training prompt, with the lengths of all."""
    from smolsum.grpo.setup.data_preview import COLUMNS, preview
    from smolsum.tasks import TASKS

    first = TASKS[config.task.name].prompts.messages(splits["train"].examples[0], config)
    console.narrate(f"system prompt: {' '.join(one['content'] for one in first if one['role'] == 'system') or 'none'}")
    path, found = config.model.path, preview(splits, config)
    if found is None:
        here = f"known once {path} is on this machine ({download_command(path)})"
        console.narrate(f"rendered prompt and token lengths: {here}")
        return
    console.narrate(f"first training prompt as {path} gets it:\n{found.prompt}")
    console.table(["split", "tokens of", *COLUMNS], found.lengths)
    if found.advice:
        console.narrate(found.advice)


def _show_kinds(kinds: dict[str, tuple[str, ...]]) -> None:
    names = sorted({kind for own in kinds.values() for kind in own})
    console.table(
        ["split", *names], [[split, *(str(own.count(name)) for name in names)] for split, own in kinds.items()]
    )
