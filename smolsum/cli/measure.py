"""What `smolsum eval` and `smolsum baseline` share: who judges, at what cost, and many evaluations as one command."""

from __future__ import annotations

import math
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

from smolsum import console
from smolsum.errors import InterruptedRun, SmolsumError, UnreachableError, UsageError

if TYPE_CHECKING:
    from smolsum.evaluate.judging import Estimate
    from smolsum.evaluate.run import JudgeOptions
    from smolsum.evaluate.sampling import Sampler
    from smolsum.evaluate.target import Target


def evaluate_all(
    subjects: Mapping[str, Callable[[], Target]],
    *,
    split: str,
    sampler: Sampler,
    judging: JudgeOptions | None,
    skip: bool,
    quiet: bool,
    remedy: str,
) -> None:
    """Evaluate each of them and print its folder; with `skip` not those that have all that is asked for.

    One that fails does not stop the others, unless the judge is out of reach, which is the same for all; in the end
    SmolsumError names those that did.
    """
    from smolsum.evaluate.run import evaluate

    failed: dict[str, SmolsumError] = {}
    for number, (name, make) in enumerate(subjects.items(), start=1):
        try:
            subject = make()
            if skip and is_done(subject, judging):
                folder = subject.folder
            else:
                if not quiet and len(subjects) > 1:
                    console.narrate(f"evaluation {number} of {len(subjects)}: {name}")
                if not quiet and subject.chosen:
                    console.narrate(subject.chosen)
                folder = evaluate(subject, split=split, sampler=sampler, judging=judging, quiet=quiet, remedy=remedy)
        except (UnreachableError, InterruptedRun):
            raise
        except SmolsumError as error:
            if len(subjects) == 1:
                raise
            failed[name] = error
            console.warn(f"{name}: {error.message}" + (f" ({error.hint})" if error.hint else ""))
            continue
        console.data(str(folder))
    if failed:
        many = f"{len(failed)} of {len(subjects)} evaluations failed: {', '.join(failed)}"
        first = next(iter(failed.values()))
        # what was asked wrongly fails again, however often
        wrong = all(isinstance(error, UsageError) for error in failed.values())
        raise SmolsumError(many, hint=first.hint if wrong and first.hint else f"{remedy} tries them again") from first


def is_done(subject: Target, judging: JudgeOptions | None) -> bool:
    """Whether the folder has the scores, and where a judge is asked for, all of that judge's."""
    from smolsum.evaluate.judging import bench_of
    from smolsum.runs.records import has_scores, read_summary
    from smolsum.tasks import TASKS

    if not has_scores(subject.folder):
        return False
    if judging is None:
        return True
    summary = read_summary(subject.folder)
    criteria = TASKS[subject.config.task.name].criteria
    if summary.judge != bench_of(judging.endpoint, judging.rounds, criteria).name:
        return False
    if summary.judging is not None and summary.judging.missing:
        return False
    second = (summary.judging and summary.judging.second) or {}
    wanted = judging.second
    return wanted is None or (second.get("model"), second.get("endpoint")) == (wanted.model, wanted.address)


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
        retry=RetryPolicy(attempts=attempts, deadline_s=deadline),
        approve=_Approval(yes, quiet),
        fresh=fresh,
    )


def drawn(temperature: float, seed: int, samples: int) -> Sampler:
    """How completions are drawn. UsageError for several that would all be the same."""
    from smolsum.evaluate.sampling import Sampler

    if samples > 1 and not temperature:
        raise UsageError(f"{samples} greedy samples of a prompt are all the same", hint="--temperature 0.7")
    return Sampler(temperature, seed, samples)


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
        from smolsum.llm.retry import WaitHook, use_hook

        sampler = drawn(temperature, seed, samples)
        with use_hook(WaitHook(progress=(lambda text: None) if quiet else console.narrate)):
            evaluate_all(
                found(sampler), split=split, sampler=sampler, judging=judging, skip=skip, quiet=quiet, remedy=remedy
            )
