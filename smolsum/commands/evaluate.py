"""`smolsum eval`."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from smolsum import console
from smolsum.commands.judging import (
    AttemptsFlag,
    ConcurrencyFlag,
    ConfigFlag,
    DeadlineFlag,
    JudgeFlag,
    NameFlag,
    RoundsFlag,
    RunsFlag,
    SecondFlag,
    SeedFlag,
    SetsFlag,
    SplitFlag,
    TaskFlag,
    TemperatureFlag,
    WorkerFlag,
    YesFlag,
    again,
    interruptible,
    judge_options,
    runs_folder,
    silence_hub_bars,
    workers_named,
)


def evaluate(
    context: typer.Context,
    subject: Annotated[
        str,
        typer.Argument(
            metavar="RUN|CHECKPOINT|MODEL",
            help="A run (its last checkpoint), a checkpoint's directory, or a model: preset, directory or hub id.",
            show_default=False,
        ),
    ],
    task: TaskFlag = None,
    split: SplitFlag = "test",
    judge: JudgeFlag = None,
    second_judge: SecondFlag = None,
    rounds: RoundsFlag = 5,
    concurrency: ConcurrencyFlag = 16,
    deadline: DeadlineFlag = 120.0,
    attempts: AttemptsFlag = 6,
    temperature: TemperatureFlag = 0.0,
    seed: SeedFlag = 0,
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
        yes=yes,
        quiet=quiet,
        environ=os.environ,
    )
    remedy = again(context)
    with interruptible(remedy):
        if not quiet:
            console.narrate("starting")  # the imports below take seconds on a cold disk
        from smolsum.evaluate.generate import Sampler
        from smolsum.evaluation import evaluate as run_evaluation
        from smolsum.subjects import find_subject

        sampler = Sampler(temperature, seed)
        found = find_subject(
            subject,
            task=task,
            split=split,
            sampler=sampler,
            name=name,
            runs_dir=runs_folder(runs_dir),
            config_file=config,
            sets=sets or [],
            workers=workers_named(worker),
        )
        folder = run_evaluation(found, split=split, sampler=sampler, judging=judging, quiet=quiet, remedy=remedy)
    console.data(str(folder))
