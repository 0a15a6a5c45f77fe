"""Attempts, deadlines and the end of a hopeless batch, with a function in place of a model."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytest
from support.pauses import recorded
from support.refusals import refuses

from smolsum.errors import SmolsumError, UnreachableError, UsageError
from smolsum.llm.client import Answer, BadAnswer, Declined, NoAnswer
from smolsum.llm.endpoints import OPENAI, Endpoint
from smolsum.llm.request_policy import MAX_CONSECUTIVE_FAILURES, RequestOutcome, RequestPolicy, ask_all

QUICK = RequestPolicy(attempts=3, deadline_s=5.0, wait_s=0.001, concurrency=4)
Ask = Callable[[int, int], Awaitable[str]]
"""a question and how often it was asked before, to the text of an answer"""


@dataclass
class Batch:
    """The outcomes by question, and every request in order."""

    outcomes: dict[int, RequestOutcome]
    requests: list[int]


def batch(questions: Sequence[int], reply: Ask, requests: RequestPolicy = QUICK, **options: Any) -> Batch:
    found = Batch({}, [])

    async def ask(question: int) -> Answer:
        before = found.requests.count(question)
        found.requests.append(question)
        return Answer(await reply(question, before), 900, 50)

    asyncio.run(
        ask_all(
            questions, ask, Endpoint(OPENAI, "judge-a"), requests, retry="ask again",
            record=found.outcomes.__setitem__, **options,
        )
    )  # fmt: skip
    return found


def fails(error: Callable[[], Exception], times: int) -> Ask:
    """Fails so often, then answers."""

    async def reply(question: int, before: int) -> str:
        if before < times:
            raise error()
        return "yes"

    return reply


def paid(message: str) -> BadAnswer:
    """An unusable answer that had its price."""
    error = BadAnswer(message)
    error.tokens = (900, 50)
    return error


def test_a_failure_that_passes_costs_an_attempt() -> None:
    """The question is asked again; what an unusable answer cost counts, what brought no answer counted none."""
    (lost,) = batch([1], fails(lambda: NoAnswer("HTTP 500"), 2)).outcomes.values()
    assert (lost.attempts, lost.failure, lost.input_tokens) == (3, None, 900)
    (unusable,) = batch([1], fails(lambda: paid("prose"), 2)).outcomes.values()
    assert (unusable.attempts, unusable.failure, unusable.output_tokens) == (3, None, 150)


@pytest.mark.parametrize(
    ("error", "requests", "attempts"),
    [
        (lambda: NoAnswer("HTTP 500"), QUICK, 3),
        (lambda: BadAnswer("prose"), QUICK, 3),
        (lambda: BadAnswer("prose"), RequestPolicy(attempts=6, bad_answers=2), 2),
        (lambda: Declined("HTTP 400"), QUICK, 1),
    ],
)
def test_a_question_that_fails_for_good_has_a_reason_and_no_answer(
    error: Callable[[], Exception], requests: RequestPolicy, attempts: int
) -> None:
    """After as many attempts as its kind of failure is worth."""
    (outcome,) = batch([1], fails(error, 99), requests).outcomes.values()
    assert (outcome.answer, str(outcome.failure), outcome.attempts) == (None, str(error()), attempts)


def test_the_endpoint_may_ask_for_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """All attempts are made after it, as a pause is no time that answers took; a minute is the most."""
    pauses = recorded(monkeypatch)
    for asked, made in ((0.06, 0.06), (3600.0, 60.0)):
        error = partial(NoAnswer, "HTTP 429", asked)
        (outcome,) = batch([1], fails(error, 5), RequestPolicy(attempts=6)).outcomes.values()
        assert (outcome.attempts, outcome.failure) == (6, None)
        assert pauses == [made] * 5
        pauses.clear()


def test_an_endpoint_that_hangs_gets_two_deadlines() -> None:
    """It holds up no other question."""

    async def reply(question: int, before: int) -> str:
        if question == 2:
            await asyncio.sleep(3600.0)
        return "yes"

    found = batch(range(6), reply, RequestPolicy(attempts=6, deadline_s=0.1, wait_s=0.001))
    assert str(found.outcomes[2].failure) == "no answer within 0.1 s"
    assert found.outcomes[2].attempts == 2
    assert [question for question, outcome in found.outcomes.items() if outcome.failure] == [2]


@pytest.mark.parametrize(
    ("failure", "kind"),
    [
        (BadAnswer("Splendid!"), SmolsumError),
        (Declined("HTTP 400"), SmolsumError),
        (NoAnswer("HTTP 500"), UnreachableError),
    ],
)
def test_a_model_that_never_answers_is_left_soon(failure: Exception, kind: type[SmolsumError]) -> None:
    """A paid model that answers prose costs no thousands; the kind of the failures decides the error."""
    requests: list[int] = []

    async def reply(question: int, before: int) -> str:
        requests.append(question)
        raise type(failure)(str(failure))

    with refuses("the judge judge-a", "20 questions in a row", str(failure), error=kind):
        batch(range(400), reply, replace(QUICK, attempts=2))
    assert len(requests) <= 2 * (MAX_CONSECUTIVE_FAILURES + QUICK.concurrency)


def test_refusals_after_an_answer_end_nothing() -> None:
    """Each is about its question; nor does a failure that was known from before."""

    async def reply(question: int, before: int) -> str:
        if question:
            raise Declined("HTTP 400")
        return "yes"

    found = batch(range(60), reply)
    assert [question for question, outcome in found.outcomes.items() if outcome.answer] == [0]
    found = batch(range(1, 60), reply, failed_before=lambda question: True)
    assert len(found.outcomes) == 59


def test_a_wrong_name_costs_one_request() -> None:
    """The first question goes alone, and its error ends everything."""
    requests: list[int] = []

    async def reply(question: int, before: int) -> str:
        requests.append(question)
        raise UsageError("no such model")

    with pytest.raises(UsageError, match="no such model"):
        batch(range(60), reply)
    assert requests == [0]
