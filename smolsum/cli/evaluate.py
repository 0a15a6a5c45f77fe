"""`smolsum eval`."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from smolsum import console
from smolsum.cli.measure import judge_options, measure
from smolsum.cli.options import (
    AttemptsFlag,
    ConcurrencyFlag,
    ConfigFlag,
    DeadlineFlag,
    FreshFlag,
    JudgeFlag,
    ModelFlag,
    NameFlag,
    RoundsFlag,
    RunsFlag,
    SamplesFlag,
    SecondFlag,
    SeedFlag,
    SetsFlag,
    SplitFlag,
    TaskFlag,
    TemperatureFlag,
    WorkerFlag,
    YesFlag,
    runs_folder,
    silence_hub_bars,
    workers_named,
)
from smolsum.errors import UsageError

if TYPE_CHECKING:
    from smolsum.cli.grid import Selection
    from smolsum.evaluate.sampling import Sampler
    from smolsum.evaluate.target import Target
    from smolsum.runs.paths import RunPaths


def evaluate(
    context: typer.Context,
    subject: Annotated[
        str | None,
        typer.Argument(
            metavar="RUN|CHECKPOINT|MODEL",
            help="A run (its last checkpoint), a checkpoint's directory, or a model: preset, directory or hub id.",
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
    split: SplitFlag = "test",
    judge: JudgeFlag = None,
    second_judge: SecondFlag = None,
    rounds: RoundsFlag = 5,
    concurrency: ConcurrencyFlag = 16,
    deadline: DeadlineFlag = 120.0,
    attempts: AttemptsFlag = 6,
    fresh: FreshFlag = False,
    temperature: TemperatureFlag = 0.0,
    seed: SeedFlag = 0,
    samples: SamplesFlag = 1,
    name: NameFlag = None,
    config: ConfigFlag = None,
    sets: SetsFlag = None,
    worker: WorkerFlag = None,
    runs_dir: RunsFlag = None,
    yes: YesFlag = False,
    plain: Annotated[bool, typer.Option("--plain", help="No colour, no bar: one plain line a report.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only warnings and errors.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Measure a model on a split, ask a judge about it, and print the folder of the scores.

    \b
    Without a judge, then with one (what is there is not made again):
      smolsum eval runs/mine
      smolsum eval runs/mine --judge gpt-5-mini-2025-08-07 --rounds 5
    Any OpenAI-compatible server can judge:
      OPENAI_BASE_URL=http://localhost:8080/v1 smolsum eval runs/mine --judge my-judge

    \b
    Every run of a grid, as `smolsum train` takes it, but those that are done:
      smolsum eval --model all --strategy all --reward all

    Judgements that fail are missing, never 0; the same command asks for them again.
    """
    context.obj["debug"] = debug
    console.set_plain(plain)
    if quiet or not console.live():
        silence_hub_bars()
    judging = judge_options(
        judge,
        second_judge,
        rounds=rounds,
        concurrency=concurrency,
        deadline=deadline,
        attempts=attempts,
        fresh=fresh,
        yes=yes,
        quiet=quiet,
        environ=os.environ,
    )
    folder, selected = runs_folder(runs_dir), bool(model or strategy or reward)
    if selected == (subject is not None):
        raise UsageError(
            "give either a run, a checkpoint or a model, or select runs by --model, --strategy and --reward",
            hint="smolsum eval runs/mine, or smolsum eval --model all --strategy all --reward all",
        )
    if selected and (name or config):
        raise UsageError("--name and --config are for one evaluation", hint="give one run, by name or path")

    def found(sampler: Sampler) -> dict[str, Callable[[], Target]]:
        from smolsum.cli.grid import select
        from smolsum.evaluate.target import find_target

        options: dict[str, Any] = {"split": split, "sampler": sampler, "name": name, "runs_dir": folder}
        options |= {
            "best": best,
            "config_file": config,
            "sets": sets or [],
            "workers": workers_named(worker),
            "task": task,
        }
        if subject is not None:
            return {subject: partial(find_target, subject, **options)}
        chosen = _chosen(select(model, strategy, reward, task), folder)
        return {run.name: partial(find_target, str(run.root), **options) for run in chosen}

    measure(
        context,
        found,
        judging,
        split=split,
        temperature=temperature,
        seed=seed,
        samples=samples,
        skip=selected and not sets,
        quiet=quiet,
    )


def _chosen(selection: Selection, folder: Path) -> Sequence[RunPaths]:
    """The finished runs of a selection; what of it is not there, or not finished, is said. UsageError without any."""
    from smolsum.cli.grid import choose

    chosen = choose(selection, folder)
    for run in chosen.unfinished:
        console.warn(f"{run.name} has not finished, and is passed over ({run.resume_command})")
    if chosen.absent:
        console.warn(f"not trained yet: {', '.join(chosen.absent)} (smolsum train with the same flags)")
    if not chosen.finished:
        raise UsageError(f"no finished run in {folder} is of this selection", hint="smolsum runs lists what there is")
    return chosen.finished
