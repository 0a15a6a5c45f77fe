"""`smolsum baseline`."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from smolsum.cli.eval_and_baseline import MeasureFlags, ModelFlag, judge_options, measure
from smolsum.cli.options import Invocation, OutputFlags, TaskFlag
from smolsum.errors import UsageError

if TYPE_CHECKING:
    from smolsum.config.sections import Config
    from smolsum.evaluate.evaluated_model import Target


def baseline(
    invocation: Invocation,
    flags: MeasureFlags,
    output: OutputFlags,
    task: TaskFlag = None,
    model: ModelFlag = None,
    prompt: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PROMPT",
            help="50-words, 64-tokens (any number), or an instruction of your own; repeatable.  "
            "[default: the task's own variants]",
        ),
    ] = None,
    api: Annotated[
        list[str] | None,
        typer.Option(
            metavar="MODEL",
            help="A model at $SMOLSUM_POLICY_URL, $OPENAI_BASE_URL or OpenAI completes the same prompts; repeatable. "
            "--model then counts tokens.",
        ),
    ] = None,
) -> None:
    """Measure what a model does without training, with the task described in its prompt; print a folder for each
    prompt.

    \b
    Which wording is better?
      smolsum baseline --model tiny
      smolsum stats --paired runs/baseline-tiny-50-words-test runs/baseline-tiny-64-tokens-test
    """
    output.apply()
    from smolsum.tasks.plugins import name_plugins

    task, _ = name_plugins(flags.plugin or [], task, flags.config)
    judging = judge_options(flags, quiet=output.quiet, environ=os.environ)
    from smolsum.training.grid import select

    models = select(model, None, None, task).models
    if flags.name and len(models) > 1:
        raise UsageError(f"--name is for one model, and there are {len(models)}", hint="give one --model")

    def find() -> dict[str, Callable[[], Target]]:
        from smolsum.evaluate.evaluated_model import baseline_targets
        from smolsum.evaluate.sampling import ApiModel
        from smolsum.llm.endpoints import POLICY, find_endpoint
        from smolsum.llm.request_policy import RequestPolicy

        endpoints = [find_endpoint(one, os.environ, POLICY) for one in api or []]
        requests = RequestPolicy(flags.attempts, flags.deadline, concurrency=flags.concurrency)
        apis = [ApiModel(endpoint, requests) for endpoint in endpoints]
        targets = [
            target
            for options in flags.for_targets(task)
            for one in models
            for target in baseline_targets(one, options, variants=prompt or [], apis=apis)
        ]
        return {f"{target.label}: {_prompt(target.config)}": partial(_ready, target) for target in targets}

    skip = len(models) > 1 and not (flags.sets or flags.config)
    measure(find, flags, output, invocation, judging=judging, skip=skip)


def _ready(target: Target) -> Target:
    return target


def _prompt(config: Config) -> str:
    """Return the system message as the model gets it, with the numbers of the settings in it."""
    from smolsum.tasks import TASKS
    from smolsum.tasks.data import Example

    messages = TASKS[config.task.name].prompts.messages(Example("", "", (), {}), config)
    return next((message["content"] for message in messages if message["role"] == "system"), "")
