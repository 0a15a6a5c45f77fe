"""Waiting, amid something else, for what may come back: as long as nobody wants to leave, and not in silence.

How many requests somebody may pay for, whoever makes them.

Asking many questions: so many at a time, each with a deadline and a budget of attempts.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import islice
from typing import Generic, Protocol, TypeVar

import stamina
from stamina.instrumentation import set_on_retry_hooks

from smolsum import console
from smolsum.errors import SmolsumError, UnreachableError
from smolsum.llm.client import BadAnswer, Declined, NoAnswer

K = TypeVar("K")
V = TypeVar("V")


@dataclass
class RequestBudget:
    """At most `limit` requests (0: any number), of all that share this; `setting` is the key that says so."""

    limit: int = 0
    setting: str = ""
    spent: int = 0

    @property
    def is_spent(self) -> bool:
        """Whether no further request may be made."""
        return 0 < self.limit <= self.spent

    def affords(self, questions: dict[K, V]) -> dict[K, V]:
        """The first of the questions, as many as there are requests left. UnreachableError where there are none."""
        if self.is_spent:
            raise UnreachableError(
                f"the {self.limit} requests that {self.setting} allows are used up; what was answered is kept",
                hint=f"the next attempt has as many again; {self.setting} = 0 sets no limit",
            )
        return dict(islice(questions.items(), self.limit - self.spent)) if self.limit else questions


PATIENCE = 20
"""questions in a row without an answer, each after all its attempts, at which nothing more is asked"""
LONGEST_WAIT_S = 60.0


class Paid(Protocol):
    """Something with the tokens that it cost."""

    @property
    def input_tokens(self) -> int: ...

    @property
    def output_tokens(self) -> int: ...


Q = TypeVar("Q")
A = TypeVar("A", bound=Paid)


@dataclass(frozen=True)
class RetryPolicy:
    """What one question may cost: attempts, seconds for each, and the first wait between them, which then doubles up to
    `LONGEST_WAIT_S`. An endpoint that hangs is asked no longer than two deadlines: time spent on answers counts, the
    pauses between attempts, which it may ask for (Retry-After), do not. After a wrong answer there is no pause: `wrong`
    of them are enough (0: `attempts`)."""

    attempts: int = 6
    deadline_s: float = 120.0
    wait_s: float = 1.0
    wrong: int = 0


@dataclass(frozen=True)
class Requester:
    """Who is asked, in the words of an error: the judge X gave no score …; `again` is how to go on afterwards."""

    role: str
    name: str
    yields: str
    again: str


@dataclass(frozen=True)
class RequestOutcome(Generic[A]):
    """What a question brought: an answer, or why there is none; requests, their seconds with the waits between them,
    and the tokens of all."""

    found: A | None
    failure: NoAnswer | Declined | None
    attempts: int
    seconds: float
    input_tokens: int
    output_tokens: int


async def ask_all(
    questions: Sequence[Q],
    ask: Callable[[Q], Awaitable[A]],
    who: Requester,
    *,
    budget: RetryPolicy,
    concurrency: int,
    record: Callable[[Q, RequestOutcome[A]], None],
    expected: Callable[[Q], bool] = lambda question: False,
) -> None:
    """Ask every question once, `concurrency` at a time in their order; `record` gets each outcome as it comes.

    The first question goes alone, so that a wrong key or name costs one request. A question that has used up its budget
    is a failure, not an answer. UsageError and SmolsumError of the endpoint end it all; so do `PATIENCE` failures in a
    row: UnreachableError, or SmolsumError where it does answer but never as it was asked to. A failure that was
    `expected` does not count among these, nor do refusals once there has been an answer.
    """
    set_on_retry_hooks([])  # its hook would write each retry to stderr
    waiting, failures, answered = iter(questions), list[NoAnswer | Declined](), False

    async def work(some: Iterator[Q]) -> None:
        nonlocal answered
        for question in some:
            outcome = await _ask_one(question, ask, budget)
            known = expected(question)
            record(question, outcome)
            if outcome.failure is None:
                answered = True
                failures.clear()
            elif not known and not (answered and _is_refusal(outcome.failure)):
                failures.append(outcome.failure)
            if len(failures) >= PATIENCE:
                raise _given_up(who, failures)

    try:
        await work(islice(waiting, 1))
        async with asyncio.TaskGroup() as group:
            for _ in range(concurrency):
                group.create_task(work(waiting))
    except* SmolsumError as errors:
        raise _innermost(errors) from errors


async def _ask_one(question: Q, ask: Callable[[Q], Awaitable[A]], budget: RetryPolicy) -> RequestOutcome[A]:
    began, attempts, tokens, waited_s, wrong = time.monotonic(), 0, [0, 0], 0.0, 0
    found: A | None = None
    failure: NoAnswer | Declined | None = None

    def wait(error: Exception) -> bool | float:
        """Whether to try again, and after how many seconds where the endpoint says it."""
        if not isinstance(error, NoAnswer) or waited_s >= 2 * budget.deadline_s:
            return False
        if isinstance(error, BadAnswer):
            return False if wrong == budget.wrong else 0.0
        return True if error.retry_after is None else min(error.retry_after, LONGEST_WAIT_S)

    def spend(answer: Paid | None) -> None:
        if answer is not None:
            tokens[0] += answer.input_tokens
            tokens[1] += answer.output_tokens

    try:
        async for attempt in stamina.retry_context(
            on=wait, attempts=budget.attempts, timeout=None,
            wait_initial=budget.wait_s, wait_max=LONGEST_WAIT_S, wait_jitter=budget.wait_s,
        ):  # fmt: skip
            with attempt:
                attempts, asked = attempt.num, time.monotonic()
                try:
                    found = await _within(budget.deadline_s, ask(question))
                except NoAnswer as error:
                    spend(error.answer)
                    wrong += isinstance(error, BadAnswer)
                    raise
                finally:
                    waited_s += time.monotonic() - asked
                spend(found)
    except (NoAnswer, Declined) as error:
        failure = error
    return RequestOutcome(found, failure, attempts, round(time.monotonic() - began, 3), *tokens)


async def _within(seconds: float, answer: Awaitable[A]) -> A:
    try:
        async with asyncio.timeout(seconds):
            return await answer
    except TimeoutError as error:
        raise NoAnswer(f"no answer within {seconds:g} s") from error


def _is_refusal(failure: NoAnswer | Declined) -> bool:
    """Whether somebody answered, but not as asked."""
    return isinstance(failure, BadAnswer | Declined)


def _given_up(who: Requester, failures: Sequence[NoAnswer | Declined]) -> SmolsumError:
    last, count, name = failures[-1], len(failures), f"the {who.role} {who.name}"
    if all(isinstance(failure, BadAnswer) for failure in failures):
        return SmolsumError(
            f"{name} gave no {who.yields} to {count} questions in a row, the last with {last}",
            hint=f"choose a {who.role} that can answer in JSON, then {who.again}",
        )
    if all(isinstance(failure, Declined) for failure in failures):
        return SmolsumError(
            f"{name} refused {count} questions in a row, the last with {last}",
            hint=f"check the name of its model, or choose a {who.role} that takes them, then {who.again}",
        )
    return UnreachableError(
        f"{name} failed {count} questions in a row, the last with {last}",
        hint=f"wait until it answers, then {who.again}",
    )


def _innermost(errors: BaseExceptionGroup[SmolsumError]) -> SmolsumError:
    first = errors.exceptions[0]
    return _innermost(first) if isinstance(first, BaseExceptionGroup) else first


LOOK_S = 0.2
"""between two looks at whether somebody wants to leave"""


@dataclass(frozen=True)
class WaitHook:
    """Whoever runs what is under way: whether the user wants it to stop, what takes an event, by kind and sentence, and
    what is told how far things are."""

    stopping: Callable[[], bool] = lambda: False
    tell: Callable[[str, str], None] = lambda kind, message: console.warn(message)
    follow: Callable[[str], None] = lambda text: console.narrate(text)


LISTENER: ContextVar[WaitHook] = ContextVar("LISTENER", default=WaitHook())  # noqa: B039  it is frozen


@contextmanager
def heard_by(listener: WaitHook) -> Iterator[None]:
    """Lets `listener` have what is told in the block, and end its waits."""
    before = LISTENER.set(listener)
    try:
        yield
    finally:
        LISTENER.reset(before)


def tell(kind: str, message: str) -> None:
    """Say what happened."""
    LISTENER.get().tell(kind, message)


def follow(text: str) -> None:
    """Say how far things are."""
    LISTENER.get().follow(text)


def wait(seconds: float) -> bool:
    """Whether the time has passed without anybody wanting to leave."""
    stopping, until = LISTENER.get().stopping, time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        if stopping():
            return False
        time.sleep(min(LOOK_S, left))
    return not stopping()
