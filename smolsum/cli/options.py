"""The flags that `smolsum eval` and `smolsum baseline` share, and what they make of them."""

from __future__ import annotations

import math
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from smolsum import console
from smolsum.errors import InterruptedRun, UsageError
from smolsum.tasks import DEFAULT_TASK, NAMES

if TYPE_CHECKING:
    from smolsum.evaluate.judging import Estimate
    from smolsum.evaluate.run import JudgeOptions
    from smolsum.evaluate.sampling import Sampler
    from smolsum.evaluate.target import Target

SplitFlag = Annotated[Literal["train", "validation", "test"], typer.Option("--split", help="Split of the data.")]
JudgeFlag = Annotated[
    str | None,
    typer.Option(
        "--judge",
        metavar="MODEL",
        help="Model that judges, at $OPENAI_BASE_URL or OpenAI; none: nobody.  [default: $SMOLSUM_JUDGE_MODEL; "
        "gpt-5-mini-2025-08-07 where OPENAI_BASE_URL is set; else nobody]",
        show_default=False,
    ),
]
SecondFlag = Annotated[
    str | None,
    typer.Option("--second-judge", metavar="MODEL", help="Another judge, for how far the two agree."),
]
RoundsFlag = Annotated[int, typer.Option("--rounds", metavar="N", min=1, help="Times that each example is judged.")]
ConcurrencyFlag = Annotated[
    int, typer.Option("--concurrency", metavar="N", min=1, help="Questions to the judge at a time.")
]
DeadlineFlag = Annotated[
    float, typer.Option("--deadline", metavar="S", min=0.1, help="Seconds that an answer of the judge may take.")
]
AttemptsFlag = Annotated[
    int, typer.Option("--attempts", metavar="N", min=1, help="Times that a question is asked before it is missing.")
]
TemperatureFlag = Annotated[
    float, typer.Option("--temperature", metavar="T", min=0.0, help="Sampling temperature; 0 is greedy.")
]
SeedFlag = Annotated[int, typer.Option("--seed", metavar="N", min=0, help="Seed of sampling above temperature 0.")]
TaskFlag = Annotated[
    str | None,
    typer.Option(
        "--task",
        metavar="TASK",
        help=f"What is asked of the model: {', '.join(NAMES)}.  [default: {DEFAULT_TASK}]",
    ),
]
SamplesFlag = Annotated[
    int,
    typer.Option("--samples", metavar="N", min=1, help="Completions of each prompt, for pass@k; above temperature 0."),
]
NameFlag = Annotated[
    str | None, typer.Option("--name", metavar="NAME", help="Folder of the results.", show_default=False)
]
ConfigFlag = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="Settings of a model that is no run, in TOML.")
]
SetsFlag = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="One setting, e.g. data.path=DIR; repeatable.")
]
RunsFlag = Annotated[
    str | None,
    typer.Option("--runs-dir", metavar="DIR", help="Directory of all runs.  [default: $SMOLSUM_RUNS_DIR or runs]"),
]
WorkerFlag = Annotated[
    list[str] | None,
    typer.Option(
        "--worker",
        metavar="URL",
        help="Let this `smolsum serve-worker` sample; repeatable.  [default: $SMOLSUM_WORKERS, by comma]",
        show_default=False,
    ),
]
ModelFlag = Annotated[
    list[str] | None,
    typer.Option(
        "--model",
        metavar="MODEL",
        help="Preset (tiny, tiny-lfm, qwen, lfm), directory or hub id; repeatable; all: the study's qwen and lfm.",
        show_default=False,
    ),
]
FreshFlag = Annotated[
    bool, typer.Option("--fresh", help="Ask the judge also what it has told another evaluation: use no cache.")
]
YesFlag = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before the judge is paid.")]


def judge_options(
    judge: str | None,
    second: str | None,
    *,
    rounds: int,
    concurrency: int,
    deadline: float,
    attempts: int,
    fresh: bool,
    yes: bool,
    quiet: bool,
    environ: Mapping[str, str],
) -> JudgeOptions | None:
    """Who judges, by flag, $SMOLSUM_JUDGE_MODEL or a base URL that is set; None for nobody. UsageError for a judge
    without a key or a URL, and for a second one without a first."""
    from smolsum.llm.client import DEFAULT_JUDGE, find_endpoint

    default = DEFAULT_JUDGE if environ.get("OPENAI_BASE_URL") else None
    model = environ.get("SMOLSUM_JUDGE_MODEL") or default if judge is None else judge
    if not math.isfinite(deadline):
        raise UsageError(f"--deadline {deadline} is no time", hint="give seconds, e.g. 600")
    if not model or model == "none":
        if second:
            raise UsageError("--second-judge needs a first one", hint="--judge MODEL")
        return None
    if model == second:
        raise UsageError(f"{model} cannot be its own second judge", hint="--second-judge with another model")

    from smolsum.evaluate.run import JudgeOptions
    from smolsum.llm.retry import RetryPolicy

    return JudgeOptions(
        endpoint=find_endpoint(model, environ),
        second=find_endpoint(second, environ) if second else None,
        rounds=rounds,
        concurrency=concurrency,
        budget=RetryPolicy(attempts=attempts, deadline_s=deadline),
        approve=_Approval(yes, quiet),
        fresh=fresh,
    )


def drawn(temperature: float, seed: int, samples: int) -> Sampler:
    """How completions are drawn. UsageError for several that would all be the same."""
    from smolsum.evaluate.sampling import Sampler

    if samples > 1 and not temperature:
        raise UsageError(f"{samples} greedy samples of a prompt are all the same", hint="--temperature 0.7")
    return Sampler(temperature, seed, samples)


def runs_folder(given: str | None) -> Path:
    """Where runs and evaluations lie."""
    return Path(given or os.environ.get("SMOLSUM_RUNS_DIR") or "runs")


def workers_named(given: list[str] | None) -> str:
    """The workers that sample, by comma; none: the model is run here."""
    return ",".join(given) if given else os.environ.get("SMOLSUM_WORKERS", "")


def silence_hub_bars() -> None:
    """Switches off the progress bars of the Hugging Face libraries, unless the user has set them.

    Both libraries read these variables when imported.
    """
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")


@contextmanager
def _interruptible(remedy: str) -> Iterator[None]:
    """Ctrl-C in the block is an InterruptedRun: nothing is lost, and `remedy` goes on."""
    try:
        yield
    except KeyboardInterrupt as error:
        raise InterruptedRun("interrupted; what was generated and judged is kept", hint=remedy) from error


class _Approval:
    """Says what judging an evaluation will take and, on a terminal, asks before a judge's first. InterruptedRun where
    the user does not want it."""

    def __init__(self, agreed: bool, quiet: bool) -> None:
        self.quiet, self._agreed, self._to = quiet, agreed, set[str]()

    def __call__(self, name: str, estimate: Estimate) -> bool:
        cost = "price unknown" if estimate.dollars is None else f"about ${estimate.dollars:.2f}"
        tokens = f"about {estimate.input_tokens:,} tokens in and {estimate.output_tokens:,} out"
        if not self.quiet:
            console.narrate(f"judge {name}: {estimate.calls:,} calls, {tokens}, {cost}")
        if self._agreed or name in self._to or not (sys.stdin.isatty() and sys.stderr.isatty()):
            return True
        if not console.agree("go on?"):
            raise InterruptedRun("nobody was asked; all that needs no judge is there", hint="--judge none asks nobody")
        self._to.add(name)
        return True


def measure(
    context: typer.Context,
    found: Callable[[Sampler], Mapping[str, Callable[[], Target]]],
    judging: JudgeOptions | None,
    *,
    split: str,
    temperature: float,
    seed: int,
    samples: int,
    skip: bool,
    quiet: bool,
) -> None:
    """Evaluates all that `found` returns, by name, once it is loaded; with `skip` not what is done."""
    if not math.isfinite(temperature):
        raise UsageError(f"--temperature {temperature} is no temperature", hint="0 is greedy, 1 the model's own")
    remedy = shlex.join(["smolsum", *context.obj["arguments"]])
    with _interruptible(remedy):
        if not quiet:
            console.narrate("starting")  # the imports below take seconds on a cold disk
        from smolsum.cli.grid_run import evaluate_all
        from smolsum.llm.retry import WaitHook, heard_by

        sampler = drawn(temperature, seed, samples)
        with heard_by(WaitHook(follow=(lambda text: None) if quiet else console.narrate)):
            evaluate_all(
                found(sampler), split=split, sampler=sampler, judging=judging, skip=skip, quiet=quiet, remedy=remedy
            )
