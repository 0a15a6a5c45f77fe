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
from smolsum.results.evaluate.corrections import corrections
from smolsum.results.evaluate.judge_cost import JudgeCost
from smolsum.results.evaluate.judgements import Judged, JudgeSpec, Ledger, judge_facts, judge_spec
from smolsum.results.evaluate.labels import is_labels, labels_spec, read_labels
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
    runs_dir: Path | None = None
    """where validations of a judge may be"""


@dataclass(frozen=True)
class JudgeOptions:
    """The judge, perhaps others to compare it with, and what a question may cost."""

    endpoint: Endpoint
    others: Sequence[Endpoint | Path]
    """models, and files of a person's labels"""
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

    def spec(self, criteria: Sequence[Criterion]) -> JudgeSpec:
        """Return the first judge's specification, before any round."""
        return judge_spec(self.endpoint, self.rounds, criteria, weighted=self.weighted, until=self.until)


def find_judges(
    name: str | None,
    others: Sequence[str],
    environ: Mapping[str, str],
    *,
    cost: JudgeCost,
    rounds: int,
    attempts: int,
    deadline_s: float,
    concurrency: int,
    fresh: bool,
    weighted: bool = False,
    until: float | None = None,
) -> JudgeOptions | None:
    """Return the judge by name, else by $SMOLSUM_JUDGE_MODEL or a base URL that is set, with the other ones; None
    without a judge. Raises UsageError for a judge without a key or a URL, for others without a first, and for one that
    is there twice."""
    default = DEFAULT_JUDGE if has_url(JUDGE, environ) else None
    model = environ.get("SMOLSUM_JUDGE_MODEL") or default if name is None else name
    if not model or model == "none":
        for flag, given in (("--second-judge", others), ("--weighted", weighted), ("--until", until is not None)):
            if given:
                what = "needs a first one" if flag == "--second-judge" else "needs a judge"
                raise UsageError(f"{flag} {what}", hint="--judge MODEL")
        return None
    if is_labels(model):
        raise UsageError(
            f"{model} cannot be the first judge, as it has one round and no answers", hint=f"--second-judge {model}"
        )
    if model in others and not environ.get(SECOND_JUDGE.url_variable, "").strip():
        raise _itself(model)
    judge = find_endpoint(model, environ, JUDGE)
    found = [Path(one) if is_labels(one) else find_endpoint(one, environ, SECOND_JUDGE) for one in others]
    names = [one.name for one in found]
    if judge.name in names:
        raise _itself(model)
    if twice := next((one for one in names if names.count(one) > 1), None):
        raise UsageError(f"{twice} is a second judge twice", hint="name each judge once")
    requests = RequestPolicy(attempts, deadline_s, concurrency=concurrency)
    return JudgeOptions(
        judge, found, rounds, requests, cost, fresh, weighted, until, by_flag=bool(name or others or weighted)
    )


def _itself(model: str) -> UsageError:
    return UsageError(f"{model} cannot be its own second judge", hint="--second-judge with another model")


@dataclass(frozen=True)
class JudgeResult:
    """The judge whose scores count (None without any), what the summary says of it, and the error that ended it."""

    judged: Judged | None
    facts: dict[str, Any]
    failure: SmolsumError | None = None


def judge(job: JudgeJob, options: JudgeOptions | None) -> JudgeResult:
    """Ask the judge and the second judge; without options, or without any score, take what a judge said before in this
    folder. Raises UnreachableError and UsageError if the endpoint does not answer or refuses the key, and for labels
    that cannot be read."""
    if options is None:
        return _recall_last(job)
    for one in options.others:
        if isinstance(one, Path):  # raises for a file that is no use, before a question is paid for
            read_labels(one, job.groups, job.criteria)
    judged, failure = ask_judge(job, options.endpoint, options)
    if not any(j.score is not None for found in judged.judgements.values() for j in found):
        if failure is None and judged.missing:
            failure = SmolsumError(
                f"the judge {judged.spec.model} gave no score at all: {judged.missing[0].error}",
                hint=f"{job.retry} asks again",
            )
        return replace(_recall_last(job), failure=failure)
    others = [] if options.others else _recall_others(job, _facts_before(job))
    for one in options.others:
        try:
            other, other_failure = _hear(job, one, options)
            others.append(other)
        except SmolsumError as error:  # the first judge's scores stay
            other_failure = error
        failure = failure or other_failure
    return JudgeResult(judged, _facts(job, judged, others), failure)


def _facts(job: JudgeJob, judged: Judged, others: Sequence[Judged]) -> dict[str, Any]:
    found = corrections(job.criteria, judged, others, job.runs_dir) if job.runs_dir else []
    return judge_facts(job.criteria, judged, *others) | {"corrected": found}


def _hear(job: JudgeJob, other: Endpoint | Path, options: JudgeOptions) -> tuple[Judged, SmolsumError | None]:
    """Ask another judge, or read a person's labels."""
    if isinstance(other, Endpoint):
        return ask_judge(job, other, options)
    spec = labels_spec(other, job.criteria)
    labels = read_labels(other, job.groups, job.criteria)
    with Ledger(job.folder, spec.judge, job.retry) as ledger:
        for label in labels:
            last = ledger.last(label)
            if (last and last.score) != label.score:
                ledger.record(label)
    return _recall(job, spec, ledger, None), None


def ask_judge(job: JudgeJob, endpoint: Endpoint, options: JudgeOptions) -> tuple[Judged, SmolsumError | None]:
    """Ask for every unknown judgement, once the user has approved the cost; with `options.until` round by round, until
    the interval of the mean is that narrow.

    Returns all judgements, and the error if the endpoint failed for good on the way. Raises UnreachableError and
    UsageError if it does not answer at all, or refuses the key, and InterruptedRun where the user declines.
    """
    if not job.quiet:
        console.narrate(f"judge {endpoint.model}: starting")  # DeepEval takes seconds to import
    from smolsum.results.evaluate import geval

    spec = replace(options, endpoint=endpoint).spec(job.criteria)
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
    missing = [] if spec.by_person else [j for j in every if j.score is None]
    return Judged(spec, judgements, missing, usage)


def _recall_last(job: JudgeJob) -> JudgeResult:
    """Return the judge of an earlier evaluation in this folder."""
    then = _facts_before(job)
    judged = _recall_judge(job, then)
    if judged is None:
        return JudgeResult(None, {})
    if not job.quiet:
        console.narrate(f"keeping the scores that {judged.spec.model} gave before")
    return JudgeResult(judged, then | _facts(job, judged, _recall_others(job, then)))


def _recall_others(job: JudgeJob, then: Mapping[str, Any]) -> list[Judged]:
    """Return the other judges of an earlier evaluation."""
    recalled = (_recall_judge(job, one) for one in (then.get("second"), *(then.get("others") or ())) if one)
    return [one for one in recalled if one is not None]


def _recall_judge(job: JudgeJob, facts: Mapping[str, Any]) -> Judged | None:
    """Return a judge's known judgements, by what a summary says of it; None if it was asked by other criteria."""
    if set(facts.get("prompts", ())) != {c.name for c in job.criteria}:
        return None
    until, most = facts.get("until"), facts.get("most_rounds", 0)
    weighted = bool(facts.get("weighted"))
    spec = JudgeSpec(
        facts["model"], facts["rounds"], facts["prompts"], facts.get("endpoint", ""), weighted, until, most
    )
    return _recall(job, spec, Ledger(job.folder, spec.judge, job.retry), facts["usage"].get("dollars"))


def _facts_before(job: JudgeJob) -> dict[str, Any]:
    path = job.folder / SUMMARY
    if not has_scores(job.folder):
        return {}
    return read_object(path, hint=f"remove {path} and evaluate again").get("judging") or {}
