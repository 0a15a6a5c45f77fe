"""`smolsum baseline`."""

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


def baseline(
    context: typer.Context,
    task: TaskFlag = None,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="Preset (tiny, tiny-lfm, qwen, lfm), directory or hub id.  [default: the task's, tiny]",
        ),
    ] = None,
    prompt: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PROMPT",
            help="50-words, 64-tokens (any number), or an instruction of your own; repeatable.  "
            "[default: the task's own variants]",
            show_default=False,
        ),
    ] = None,
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
    """Measure what a model does without training, told in its prompt what is wanted; print a folder for each prompt.

    \b
    Which wording is better?
      smolsum baseline --model tiny
      smolsum stats --paired runs/baseline-tiny-50-words-test runs/baseline-tiny-64-tokens-test
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
        from smolsum.subjects import baseline_subjects

        sampler = Sampler(temperature, seed)
        subjects = baseline_subjects(
            model,
            task=task,
            variants=prompt or [],
            split=split,
            sampler=sampler,
            name=name,
            runs_dir=runs_folder(runs_dir),
            config_file=config,
            sets=sets or [],
            workers=workers_named(worker),
        )
        for subject in subjects:
            if not quiet:
                console.narrate(f"prompt: {subject.config.task.system_prompt}")
            folder = run_evaluation(subject, split=split, sampler=sampler, judging=judging, quiet=quiet, remedy=remedy)
            console.data(str(folder))
