"""`smolsum baseline`."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

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
    from smolsum.config.sections import Config
    from smolsum.evaluate.sampling import Sampler
    from smolsum.evaluate.target import Target


def baseline(
    context: typer.Context,
    task: TaskFlag = None,
    model: ModelFlag = None,
    prompt: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PROMPT",
            help="50-words, 64-tokens (any number), or an instruction of your own; repeatable.  "
            "[default: the task's own variants]",
            show_default=False,
        ),
    ] = None,
    api: Annotated[
        list[str] | None,
        typer.Option(
            metavar="MODEL",
            help="A model at $OPENAI_BASE_URL or OpenAI completes the same prompts; repeatable. --model then counts "
            "tokens.",
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
        fresh=fresh,
        yes=yes,
        quiet=quiet,
        environ=os.environ,
    )
    from smolsum.cli.grid import select

    models = select(model, None, None, task).models
    if name and len(models) > 1:
        raise UsageError(f"--name is for one model, and there are {len(models)}", hint="give one --model")

    def found(sampler: Sampler) -> dict[str, Callable[[], Target]]:
        from smolsum.evaluate.sampling import ApiModel
        from smolsum.evaluate.target import baseline_targets
        from smolsum.llm.client import find_endpoint
        from smolsum.llm.retry import RetryPolicy

        others = [find_endpoint(one, os.environ, role="model", option="--api") for one in api or []]
        behind = [ApiModel(one, RetryPolicy(attempts, deadline), concurrency) for one in others]
        subjects = [
            subject
            for one in models
            for subject in baseline_targets(
                one,
                task=task,
                variants=prompt or [],
                split=split,
                sampler=sampler,
                name=name,
                runs_dir=runs_folder(runs_dir),
                config_file=config,
                sets=sets or [],
                workers=workers_named(worker),
                behind=behind,
            )
        ]
        return {f"{s.label}: {_prompt(s.config)}": _ready(s) for s in subjects}

    measure(
        context,
        found,
        judging,
        split=split,
        temperature=temperature,
        seed=seed,
        samples=samples,
        skip=len(models) > 1 and not (sets or config),
        quiet=quiet,
    )


def _prompt(config: Config) -> str:
    """What the model is told, as it is told it: with the numbers of the settings in it."""
    from smolsum.tasks import TASKS
    from smolsum.tasks.data import Example

    messages = TASKS[config.task.name].messages(Example("", "", (), {}), config)
    return next((message["content"] for message in messages if message["role"] == "system"), "")


def _ready(subject: Target) -> Callable[[], Target]:
    return lambda: subject
