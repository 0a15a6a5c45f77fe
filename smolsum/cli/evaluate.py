"""`smolsum eval`."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from smolsum import console
from smolsum.cli.eval_and_baseline import MeasureFlags, ModelFlag, judge_options, measure
from smolsum.cli.options import Invocation, OutputFlags, TaskFlag, runs_folder
from smolsum.errors import UsageError

if TYPE_CHECKING:
    from smolsum.evaluate.evaluated_model import Target
    from smolsum.runs.paths import RunPaths
    from smolsum.training.grid import Selection


def evaluate(
    invocation: Invocation,
    flags: MeasureFlags,
    output: OutputFlags,
    subject: Annotated[
        str | None,
        typer.Argument(
            metavar="RUN|CHECKPOINT|MODEL",
            help="A run (its last checkpoint), a checkpoint's directory, or a model: preset, directory, GGUF file or "
            "hub id.",
            show_default=False,
        ),
    ] = None,
    best: Annotated[
        bool,
        typer.Option(
            "--best",
            help="The run's checkpoint that did best on the validation split, by the task's score or else by reward.",
        ),
    ] = False,
    task: TaskFlag = None,
    model: ModelFlag = None,
    strategy: Annotated[
        list[str] | None,
        typer.Option(metavar="STRATEGY", help="Runs of this strategy (finetuned, included); repeatable; all: both."),
    ] = None,
    reward: Annotated[
        list[str] | None,
        typer.Option(metavar="SIGNALS", help="Runs of these quality signals; repeatable; all: the study's six."),
    ] = None,
) -> None:
    """Measure a model on a split, ask a judge about it, and print the folder of the scores.

    \b
    Without a judge, then with one (what is there is not made again):
      smolsum eval runs/mine
      smolsum eval runs/mine --judge gpt-5-mini-2025-08-07 --rounds 5
    Any OpenAI-compatible server can judge:
      OPENAI_BASE_URL=http://localhost:8080/v1 smolsum eval runs/mine --judge my-judge

    \b
    Every run of a grid, as `smolsum train` takes it, except those that are done:
      smolsum eval --model all --strategy all --reward all

    Judgements that fail are missing, never 0; the same command asks for them again.
    """
    output.apply()
    from smolsum.tasks.plugins import name_plugins

    task, _ = name_plugins(flags.plugin or [], task, flags.config)
    judging = judge_options(flags, quiet=output.quiet, environ=os.environ)
    selected = bool(model or strategy or reward)
    if selected == (subject is not None):
        raise UsageError(
            "give either a run, a checkpoint or a model, or select runs by --model, --strategy and --reward",
            hint="smolsum eval runs/mine, or smolsum eval --model all --strategy all --reward all",
        )
    if selected and (flags.name or flags.config):
        raise UsageError("--name and --config are for one evaluation", hint="give one run, by name or path")

    def find() -> dict[str, Callable[[], Target]]:
        from smolsum.evaluate.evaluated_model import find_target
        from smolsum.training.grid import select

        if subject is not None:
            found = {subject: subject}
        else:
            runs = _finished_runs(select(model, strategy, reward, task), runs_folder(flags.runs_dir))
            found = {run.name: str(run.root) for run in runs}
        every = flags.for_targets(task)
        return {
            f"{name}, seed {options.decoding.seed}" if len(every) > 1 else name: partial(
                find_target, reference, options, best=best
            )
            for name, reference in found.items()
            for options in every
        }

    measure(find, flags, output, invocation, judging=judging, skip=selected and not flags.sets)


def _finished_runs(selection: Selection, folder: Path) -> Sequence[RunPaths]:
    """Return the finished runs of a selection, with a warning for what is absent or unfinished. Raises UsageError
    without any."""
    from smolsum.training.grid import choose

    finished, unfinished, absent = choose(selection, folder)
    for run in unfinished:
        console.warn(f"{run.name} has not finished and is skipped ({run.resume_command})")
    if absent:
        console.warn(f"not trained yet: {', '.join(absent)} (smolsum train with the same flags)")
    if not finished:
        raise UsageError(f"no finished run in {folder} is of this selection", hint="smolsum runs lists what there is")
    return finished
