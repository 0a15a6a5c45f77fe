"""Asking the judge: so many questions at a time, each with a deadline and a budget of attempts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import stamina
from stamina.instrumentation import set_on_retry_hooks

from smolsum.errors import SmolsumError, UnreachableError
from smolsum.evaluate.endpoint import Answer, BadAnswer, Declined, NoAnswer
from smolsum.evaluate.judgements import Judgement, Question, Verdict

PATIENCE = 20
"""questions in a row without a score, each after all its attempts, at which nothing more is asked"""
LONGEST_WAIT_S = 60.0


@dataclass(frozen=True)
class Budget:
    """What one question may cost: attempts, seconds for each, and the first wait between them, which then doubles up to
    `LONGEST_WAIT_S`. A judge that hangs is asked no longer than two deadlines."""

    attempts: int = 6
    deadline_s: float = 120.0
    wait_s: float = 1.0


Ask = Callable[[Question], Awaitable[Verdict]]


async def ask_all(
    questions: Sequence[Question],
    ask: Ask,
    judge: str,
    *,
    budget: Budget,
    concurrency: int,
    record: Callable[[Judgement], None],
) -> None:
    """Ask every question once, `concurrency` at a time in their order; `record` gets each outcome as it comes.

    The first question goes alone, so that a wrong key or name costs one request. A question that has used up its budget
    is a failed judgement, not a score. UsageError and SmolsumError of the endpoint end it all; so do `PATIENCE`
    failures in a row: UnreachableError, or SmolsumError where the judge does answer but gives no scores.
    """
    set_on_retry_hooks([])  # its hook would write each retry to stderr
    waiting, failures = iter(questions), list[NoAnswer | Declined]()

    async def work(some: Iterator[Question]) -> None:
        for question in some:
            judgement, error = await _ask_one(question, ask, judge, budget)
            record(judgement)
            failures.clear() if error is None else failures.append(error)
            if len(failures) >= PATIENCE:
                raise _given_up(judge, failures)

    try:
        await work(islice(waiting, 1))
        async with asyncio.TaskGroup() as group:
            for _ in range(concurrency):
                group.create_task(work(waiting))
    except* SmolsumError as errors:
        raise _innermost(errors) from errors


async def _ask_one(
    question: Question, ask: Ask, judge: str, budget: Budget
) -> tuple[Judgement, NoAnswer | Declined | None]:
    """The outcome of one question, and what failed last where it is a failure."""
    began, attempts, tokens = time.monotonic(), 0, [0, 0]
    found: Verdict | None = None
    failure: NoAnswer | Declined | None = None

    def wait(error: Exception) -> bool | float:
        """Whether to try again, and after how many seconds where the judge says it."""
        if not isinstance(error, NoAnswer):
            return False
        return True if error.retry_after is None else min(error.retry_after, LONGEST_WAIT_S)

    def spend(answer: Answer | Verdict | None) -> None:
        if answer is not None:
            tokens[0] += answer.input_tokens
            tokens[1] += answer.output_tokens

    try:
        async for attempt in stamina.retry_context(
            on=wait, attempts=budget.attempts, timeout=2 * budget.deadline_s,
            wait_initial=budget.wait_s, wait_max=LONGEST_WAIT_S, wait_jitter=budget.wait_s,
        ):  # fmt: skip
            with attempt:
                attempts = attempt.num
                try:
                    found = await _within(budget.deadline_s, ask(question))
                except NoAnswer as error:
                    spend(error.answer)
                    raise
                spend(found)
    except (NoAnswer, Declined) as error:
        failure = error
    judgement = Judgement(
        id=question.id,
        round=question.round,
        metric=question.metric,
        judge=judge,
        key=question.key,
        score=found.score if found else None,
        reason=found.reason if found else "",
        error=str(failure) if failure else "",
        attempts=attempts,
        seconds=round(time.monotonic() - began, 3),
        input_tokens=tokens[0],
        output_tokens=tokens[1],
    )
    return judgement, failure


async def _within(seconds: float, answer: Awaitable[Verdict]) -> Verdict:
    try:
        async with asyncio.timeout(seconds):
            return await answer
    except TimeoutError as error:
        raise NoAnswer(f"no answer within {seconds:g} s") from error


def _given_up(judge: str, failures: Sequence[NoAnswer | Declined]) -> SmolsumError:
    last, count = failures[-1], len(failures)
    if all(isinstance(failure, BadAnswer) for failure in failures):
        return SmolsumError(
            f"the judge {judge} gave no score to {count} questions in a row, the last with {last}",
            hint="choose a judge that can answer in JSON; what it scored is kept",
        )
    if all(isinstance(failure, Declined) for failure in failures):
        return SmolsumError(
            f"the judge {judge} refused {count} questions in a row, the last with {last}",
            hint="choose a judge that takes them; what it scored is kept",
        )
    return UnreachableError(
        f"the judge {judge} failed {count} questions in a row, the last with {last}",
        hint="wait until it answers, then evaluate again: only what is missing is asked",
    )


def _innermost(errors: BaseExceptionGroup[SmolsumError]) -> SmolsumError:
    first = errors.exceptions[0]
    return _innermost(first) if isinstance(first, BaseExceptionGroup) else first
