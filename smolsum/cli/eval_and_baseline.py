"""What `smolsum eval` and `smolsum baseline` share: their flags, the judge and its cost, and evaluations in a row."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
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
    WorkerFlag,
    runs_folder,
    set_option,
    worker_list,
)
from smolsum.errors import InterruptedRun, SmolsumError, UnreachableError, UsageError
from smolsum.evaluate.judge_cost import CostLimitError, JudgeCost
from smolsum.types import DEFAULT_ROUNDS

if TYPE_CHECKING:
    from smolsum.evaluate.evaluated_model import Target, TargetOptions
    from smolsum.evaluate.judging import JudgeOptions
    from smolsum.evaluate.sampling import DecodingSettings

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
        str | None,
        typer.Option(
            metavar="MODEL",
            help="Another judge, for how far the two agree; at $SMOLSUM_SECOND_JUDGE_URL, else where the first one is.",
        ),
    ] = None
    rounds: Annotated[int, typer.Option(metavar="N", min=1, help="Times that each example is judged.")] = DEFAULT_ROUNDS
    concurrency: Annotated[int, typer.Option(metavar="N", min=1, help="Questions to the judge at a time.")] = 16
    deadline: Annotated[
        float, typer.Option(metavar="S", min=0.1, help="Seconds that an answer of the judge may take.")
    ] = 120.0
    attempts: Annotated[
        int, typer.Option(metavar="N", min=1, help="Times that a question is asked before it is missing.")
    ] = 6
    fresh: Annotated[
        bool,
        typer.Option(
            "--fresh",
            help="Make anew what other evaluations have: completions of the same model, and answers of the judge.",
        ),
    ] = False
    temperature: Annotated[float, typer.Option(metavar="T", min=0.0, help="Sampling temperature; 0 is greedy.")] = 0.0
    seed: Annotated[int, typer.Option(metavar="N", min=0, help="Seed of sampling above temperature 0.")] = 0
    seeds: Annotated[
        int,
        typer.Option(metavar="N", min=1, help="Evaluate with N seeds, from that of --seed on; above temperature 0."),
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
            metavar="DOLLARS", min=0.0, help="Stop before the judges of all evaluations cost more.", show_default=False
        ),
    ] = None

    def for_targets(self, task: str | None) -> list[TargetOptions]:
        """Return the options of the targets, for each seed."""
        from smolsum.evaluate.sampling import DecodingSettings

        seeds = range(self.seed, self.seed + self.seeds)
        return [self._options(task, DecodingSettings(self.temperature, seed, self.samples)) for seed in seeds]

    def _options(self, task: str | None, decoding: DecodingSettings) -> TargetOptions:
        from smolsum.evaluate.evaluated_model import TargetOptions

        return TargetOptions(
            split=self.split,
            decoding=decoding,
            runs_dir=runs_folder(self.runs_dir),
            task=task,
            name=self.name,
            presets=self.preset or [],
            config_file=self.config,
            sets=self.sets or [],
            fresh=self.fresh,
            workers=worker_list(self.worker) or os.environ.get("SMOLSUM_WORKERS", ""),
        )


def judge_options(flags: MeasureFlags, *, quiet: bool, environ: Mapping[str, str]) -> JudgeOptions | None:
    """Return the judge by flag, $SMOLSUM_JUDGE_MODEL or a base URL that is set; None without a judge. Raises UsageError
    for a judge without a key or a URL, and for a second one without a first."""
    from smolsum.llm.endpoints import DEFAULT_JUDGE, JUDGE, SECOND_JUDGE, find_endpoint, has_url

    default = DEFAULT_JUDGE if has_url(JUDGE, environ) else None
    model = environ.get("SMOLSUM_JUDGE_MODEL") or default if flags.judge is None else flags.judge
    second = flags.second_judge
    if not math.isfinite(flags.deadline):
        raise UsageError(f"--deadline {flags.deadline} is not a finite number of seconds", hint="--deadline 600")
    if not model or model == "none":
        if second:
            raise UsageError("--second-judge needs a first one", hint="--judge MODEL")
        return None
    itself = UsageError(f"{model} cannot be its own second judge", hint="--second-judge with another model")
    if model == second and not environ.get(SECOND_JUDGE.url_variable, "").strip():
        raise itself
    judge = find_endpoint(model, environ, JUDGE)
    other = find_endpoint(second, environ, SECOND_JUDGE) if second else None
    if other is not None and other.name == judge.name:
        raise itself

    from smolsum.evaluate.judging import JudgeOptions
    from smolsum.llm.request_policy import RequestPolicy

    return JudgeOptions(
        endpoint=judge,
        second=other,
        rounds=flags.rounds,
        requests=RequestPolicy(flags.attempts, flags.deadline, concurrency=flags.concurrency),
        cost=JudgeCost(flags.max_cost, agreed=flags.yes, quiet=quiet),
        fresh=flags.fresh,
        by_flag=bool(flags.judge or second),
    )


def measure(
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
    remedy = invocation.command_line
    try:
        if not output.quiet:
            console.narrate("starting")  # the imports below take seconds on a cold disk
        from smolsum.llm.request_policy import WaitHook, use_hook

        with use_hook(WaitHook(progress=(lambda text: None) if output.quiet else console.narrate)):
            evaluate_all(find(), split=flags.split, judging=judging, skip=skip, quiet=output.quiet, remedy=remedy)
    except KeyboardInterrupt as error:
        raise InterruptedRun("interrupted; what was generated and judged is kept", hint=remedy) from error


def evaluate_all(
    targets: Mapping[str, Callable[[], Target]],
    *,
    split: str,
    judging: JudgeOptions | None,
    skip: bool,
    quiet: bool,
    remedy: str,
) -> None:
    """Evaluate each target and print its folder; with `skip` not those that have all scores.

    A failure does not stop the others, unless the judge is out of reach, too dear or has nothing to judge, which is the
    same for all. Raises SmolsumError with the names of the failed ones in the end.
    """
    from smolsum.evaluate.run import evaluate

    failed: dict[str, SmolsumError] = {}
    by_flag = judging is not None and judging.by_flag
    for number, (name, make) in enumerate(targets.items(), start=1):
        try:
            target = make()
            if by_flag:
                _check_criteria(target)
            if skip and is_done(target, judging):
                folder = target.folder
            else:
                if judging is not None:
                    judging.cost.evaluations_left = len(targets) - number + 1
                if not quiet and len(targets) > 1:
                    console.narrate(f"evaluation {number} of {len(targets)}: {name}")
                if not quiet and target.chosen:
                    console.narrate(target.chosen)
                folder = evaluate(target, split=split, judging=judging, quiet=quiet, remedy=remedy)
        except (UnreachableError, InterruptedRun, CostLimitError, _NoCriteriaError):
            raise
        except SmolsumError as error:
            if len(targets) == 1:
                raise
            failed[name] = error
            console.warn(f"{name}: {error.message}" + (f" ({error.hint})" if error.hint else ""))
            continue
        console.data(str(folder))
    if failed:
        summary = f"{len(failed)} of {len(targets)} evaluations failed: {', '.join(failed)}"
        first = next(iter(failed.values()))
        # a wrong request fails every time
        wrong = all(isinstance(error, UsageError) for error in failed.values())
        hint = first.hint if wrong and first.hint else f"{remedy} tries them again"
        raise SmolsumError(summary, hint=hint) from first


class _NoCriteriaError(UsageError):
    """A judge by flag for a task that has nothing to judge."""


def _check_criteria(target: Target) -> None:
    from smolsum.tasks import TASKS

    task = TASKS[target.config.task.name]
    if not task.evaluation.criteria:
        raise _NoCriteriaError(
            f"task {task.name} has no criteria for a judge", hint="leave --judge and --second-judge out"
        )


def is_done(target: Target, judging: JudgeOptions | None) -> bool:
    """Return whether the folder has all scores, and with `judging` all judgements of that judge."""
    from smolsum.evaluate.judgements import judge_spec
    from smolsum.runs.record_io import has_scores, read_summary
    from smolsum.tasks import TASKS

    if not has_scores(target.folder):
        return False
    criteria = TASKS[target.config.task.name].evaluation.criteria
    if judging is None or not criteria:
        return True
    summary = read_summary(target.folder)
    if summary.judge != judge_spec(judging.endpoint, judging.rounds, criteria).name:
        return False
    if summary.judging is not None and summary.judging.missing:
        return False
    second = (summary.judging and summary.judging.second) or {}
    wanted = judging.second
    return wanted is None or (second.get("model"), second.get("endpoint")) == (wanted.model, wanted.address)
