"""The judge of an evaluation: its cost, asking it, and recalling what it said before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from smolsum import console
from smolsum.console import Meter
from smolsum.errors import SmolsumError, UsageError
from smolsum.llm.endpoints import DEFAULT_JUDGE, JUDGE, SECOND_JUDGE, Endpoint, find_endpoint, has_url
from smolsum.llm.request_policy import RequestPolicy
from smolsum.results.evaluate.asking import Asking
from smolsum.results.evaluate.judge_cost import JudgeCost
from smolsum.results.evaluate.judgements import Judged, JudgeSpec, Ledger, judge_facts, judge_spec
from smolsum.results.evaluate.rounds import rounds_until
from smolsum.runs.evaluation_records import SUMMARY, Judgement
from smolsum.runs.typed_json import has_scores, read_object
from smolsum.types import Criterion, RolloutGroup


@dataclass(frozen=True)
class JudgeJob:
    """What is judged, the first completion of each prompt, and where the judgements go; `retry` is the command that
    continues."""

    folder: Path
    groups: Sequence[RolloutGroup]
    criteria: Sequence[Criterion]
    retry: str
    quiet: bool = True


@dataclass(frozen=True)
class JudgeOptions:
    """The judge, perhaps a second one to compare it with, and what a question may cost."""

    endpoint: Endpoint
    second: Endpoint | None
    rounds: int
    requests: RequestPolicy
    cost: JudgeCost
    fresh: bool = False
    """whether to ask again what other evaluations have paid for"""
    weighted: bool = False
    """whether scores are weighted by the probabilities of their tokens (G-Eval)"""
    until: float | None = None
    """half the width of the composite's 95 % interval at which no more rounds are added; None: all `rounds`"""
    by_flag: bool = False
    """whether a flag asks for a judge, and not only the environment: a task without criteria then refuses it"""


def find_judges(
    name: str | None,
    second: str | None,
    environ: Mapping[str, str],
    *,
    cost: JudgeCost,
    rounds: int,
    attempts: int,
    deadline_s: float,
    concurrency: int,
    fresh: bool,
) -> JudgeOptions | None:
    """Return the judge by name, else by $SMOLSUM_JUDGE_MODEL or a base URL that is set, with the second one; None
    without a judge. Raises UsageError for a judge without a key or a URL, and for a second one without a first."""
    default = DEFAULT_JUDGE if has_url(JUDGE, environ) else None
    model = environ.get("SMOLSUM_JUDGE_MODEL") or default if name is None else name
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
    requests = RequestPolicy(attempts, deadline_s, concurrency=concurrency)
    return JudgeOptions(judge, other, rounds, requests, cost, fresh=fresh, by_flag=bool(name or second))


@dataclass(frozen=True)
class JudgeResult:
    """The judge whose scores count (None without any), what the summary says of it, and the error that ended it."""

    judged: Judged | None
    facts: dict[str, Any]
    failure: SmolsumError | None = None


def judge(job: JudgeJob, options: JudgeOptions | None) -> JudgeResult:
    """Ask the judge and the second judge; without options, or without any score, take what a judge said before in this
    folder. Raises UnreachableError and UsageError if the endpoint does not answer or refuses the key."""
    if options is None:
        return _recall_last(job)
    judged, failure = ask_judge(job, options.endpoint, options)
    if not any(j.score is not None for found in judged.judgements.values() for j in found):
        if failure is None and judged.missing:
            failure = SmolsumError(
                f"the judge {judged.spec.model} gave no score at all: {judged.missing[0].error}",
                hint=f"{job.retry} asks again",
            )
        return replace(_recall_last(job), failure=failure)
    second = None
    if options.second is None:
        second = _recall_judge(job, _facts_before(job).get("second") or {})
    else:
        try:
            second, second_failure = ask_judge(job, options.second, options)
        except SmolsumError as error:  # the first judge's scores stay
            second_failure = error
        failure = failure or second_failure
    return JudgeResult(judged, judge_facts(job.criteria, judged, second), failure)


def ask_judge(job: JudgeJob, endpoint: Endpoint, options: JudgeOptions) -> tuple[Judged, SmolsumError | None]:
    """Ask for every unknown judgement, once the user has approved the cost; with `options.until` round by round, until
    the interval of the mean is that narrow.

    Returns all judgements, and the error if the endpoint failed for good on the way. Raises UnreachableError and
    UsageError if it does not answer at all, or refuses the key, and InterruptedRun where the user declines.
    """
    if not job.quiet:
        console.narrate(f"judge {endpoint.model}: starting")  # DeepEval takes seconds to import
    from smolsum.results.evaluate import geval

    spec = judge_spec(endpoint, options.rounds, job.criteria, weighted=options.weighted, until=options.until)
    asking = Asking(endpoint, job.criteria, options.requests, options.cost, options.weighted)
    questions = spec.questions(job.groups, job.criteria)
    failure = None
    with (
        Ledger(job.folder, endpoint.name, job.retry, fresh=options.fresh) as ledger,
        Meter(f"judging {endpoint.model}", len(questions), quiet=job.quiet) as meter,
    ):
        ledger.take_from_cache(questions)
        asking.approve(questions, ledger)
        if options.until is None:
            failure = asking.ask(questions, ledger, meter)
        else:
            a_round = len(questions) // options.rounds

            def ask_rounds(rounds: int) -> tuple[Judged, SmolsumError | None]:
                error = asking.ask(questions[: rounds * a_round], ledger, meter)
                return _recall(job, replace(spec, rounds=rounds), ledger, None), error

            spec, failure = rounds_until(spec, job.criteria, ask_rounds, quiet=job.quiet)
    dollars = geval.dollars(endpoint.model, ledger.usage["input_tokens"], ledger.usage["output_tokens"])
    return _recall(job, spec, ledger, dollars), failure


def _recall(job: JudgeJob, spec: JudgeSpec, ledger: Ledger, dollars: float | None) -> Judged:
    """Return the known judgements, which cost so much; ask nothing."""
    judgements: dict[str, list[Judgement]] = {}
    for wanted in (question.wanted for question in spec.questions(job.groups, job.criteria)):
        judgements.setdefault(wanted.id, []).append(ledger.find(wanted) or ledger.last(wanted) or wanted)
    every = [j for found in judgements.values() for j in found]
    cached = sum(j.score is not None and j.attempts == 0 for j in every)
    usage = {**ledger.usage, "cached": cached, "dollars": dollars}
    return Judged(spec, judgements, [j for j in every if j.score is None], usage)


def _recall_last(job: JudgeJob) -> JudgeResult:
    """Return the judge of an earlier evaluation in this folder."""
    then = _facts_before(job)
    judged = _recall_judge(job, then)
    if judged is None:
        return JudgeResult(None, {})
    if not job.quiet:
        console.narrate(f"keeping the scores that {judged.spec.model} gave before")
    second = _recall_judge(job, then.get("second") or {})
    return JudgeResult(judged, then | judge_facts(job.criteria, judged, second))


def _recall_judge(job: JudgeJob, facts: Mapping[str, Any]) -> Judged | None:
    """Return a judge's known judgements, by what a summary says of it; None if it was asked by other criteria."""
    if set(facts.get("prompts", ())) != {c.name for c in job.criteria}:
        return None
    spec = JudgeSpec(facts["model"], facts["rounds"], facts["prompts"], facts.get("endpoint", ""))
    return _recall(job, spec, Ledger(job.folder, spec.judge, job.retry), facts["usage"].get("dollars"))


def _facts_before(job: JudgeJob) -> dict[str, Any]:
    path = job.folder / SUMMARY
    if not has_scores(job.folder):
        return {}
    return read_object(path, hint=f"remove {path} and evaluate again").get("judging") or {}
