"""How requests to a model are made: how many at a time, with a deadline and a number of attempts each, within a budget
of requests, and with waits that the user can interrupt."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

import stamina
from stamina.instrumentation import set_on_retry_hooks

from smolsum.errors import SmolsumError, UnreachableError
from smolsum.llm.client import Answer, BadAnswer, Declined, NoAnswer
from smolsum.llm.endpoints import Endpoint

K = TypeVar("K")
V = TypeVar("V")
Q = TypeVar("Q")

MAX_CONSECUTIVE_FAILURES = 20
"""questions in a row that may fail, each after all its attempts, before the rest is not asked"""
MAX_PAUSE_S = 60.0


@dataclass(frozen=True)
class RequestPolicy:
    """How many questions are under way at a time, and what each may cost: `attempts`, the deadline of each, and the
    first pause between them, which then doubles up to `MAX_PAUSE_S`.

    The requests for one question take two deadlines at most, so that an endpoint that hangs is soon given up; pauses,
    which the endpoint may ask for (Retry-After), do not count. After an answer of the wrong kind there is no pause, and
    `bad_answers` of them are enough (0: `attempts`).
    """

    attempts: int = 6
    deadline_s: float = 120.0
    wait_s: float = 1.0
    bad_answers: int = 0
    concurrency: int = 8


@dataclass
class RequestBudget:
    """A limit on requests (0: none) for all clients that share it; `setting` is the configuration key of the limit.
    `dollars` is a limit on what they cost (0: none), at the `price` of a token of input and of output."""

    limit: int = 0
    setting: str = ""
    spent: int = 0
    dollars: float = 0.0
    price: tuple[float, float] = (0.0, 0.0)
    paid: float = 0.0

    def pay(self, input_tokens: int, output_tokens: int) -> None:
        """Count what a question cost."""
        self.paid += self.price[0] * input_tokens + self.price[1] * output_tokens

    @property
    def is_spent(self) -> bool:
        """Whether a limit is reached."""
        return 0 < self.limit <= self.spent or 0 < self.dollars <= self.paid

    def affordable(self, questions: dict[K, V]) -> dict[K, V]:
        """Return the first questions, as many as are left. Raises UnreachableError when the budget is spent."""
        if 0 < self.dollars <= self.paid:
            raise UnreachableError(
                f"the judge has cost ${self.paid:.4g} in this command, and --max-cost is {self.dollars:g}; answers are "
                "kept",
                hint="`smolsum train --resume RUN --max-cost DOLLARS` continues with as many dollars again",
            )
        if self.is_spent:
            raise UnreachableError(
                f"the {self.limit} requests that {self.setting} allows are used up; answers are kept",
                hint=f"`smolsum train --resume` has a fresh budget, and so has an evaluation that is repeated; "
                f"{self.setting} = 0 sets no limit",
            )
        return dict(islice(questions.items(), self.limit - self.spent)) if self.limit else questions


@dataclass
class RequestOutcome:
    """What became of one question: its answer, or why it has none; the number of requests, their seconds with the
    pauses between them, and the tokens of all of them."""

    answer: Answer | None = None
    failure: NoAnswer | Declined | None = None
    attempts: int = 0
    seconds: float = 0.0
    input_tokens: int = 0
    output_tokens: int = 0

    def pay(self, input_tokens: int, output_tokens: int) -> None:
        self.input_tokens += input_tokens
        self.output_tokens += output_tokens


async def ask_all(
    questions: Sequence[Q],
    ask: Callable[[Q], Awaitable[Answer]],
    endpoint: Endpoint,
    requests: RequestPolicy,
    *,
    retry: str,
    record: Callable[[Q, RequestOutcome], None],
    failed_before: Callable[[Q], bool] = lambda question: False,
) -> None:
    """Ask every question in order; `record` gets each outcome as it comes, and `retry` says how to continue after an
    error.

    The first question is asked alone, so that a wrong key or name costs one request. A question that fails as often as
    `requests` allow is a failure, not an answer. The endpoint's UsageError and SmolsumError end everything; so do
    `MAX_CONSECUTIVE_FAILURES`: UnreachableError, or SmolsumError if it did answer, but never usably. A failure that
    `failed_before` knew does not count among these, nor does a refusal after the first answer.
    """
    set_on_retry_hooks([])  # stamina would write each retry to stderr
    waiting, failures, answered = iter(questions), list[NoAnswer | Declined](), False

    async def work(some: Iterator[Q]) -> None:
        nonlocal answered
        for question in some:
            outcome = await _ask_one(question, ask, requests)
            known = failed_before(question)
            record(question, outcome)
            if outcome.failure is None:
                answered = True
                failures.clear()
            elif not known and not (answered and isinstance(outcome.failure, BadAnswer | Declined)):
                failures.append(outcome.failure)
            if len(failures) >= MAX_CONSECUTIVE_FAILURES:
                raise _consecutive_failures(endpoint, failures, retry)

    try:
        await work(islice(waiting, 1))
        async with asyncio.TaskGroup() as group:
            for _ in range(requests.concurrency):
                group.create_task(work(waiting))
    except* SmolsumError as errors:
        # callers know SmolsumError, and not the groups that a TaskGroup raises
        raise errors.exceptions[0] from errors


async def _ask_one(question: Q, ask: Callable[[Q], Awaitable[Answer]], requests: RequestPolicy) -> RequestOutcome:
    began, requests_s, bad_answers, outcome = time.monotonic(), 0.0, 0, RequestOutcome()

    def again(error: Exception) -> bool | float:
        """Return whether to try again, or after how many seconds."""
        if not isinstance(error, NoAnswer) or requests_s >= 2 * requests.deadline_s:
            return False
        if isinstance(error, BadAnswer):
            return False if bad_answers == requests.bad_answers else 0.0
        return True if error.retry_after is None else min(error.retry_after, MAX_PAUSE_S)

    try:
        # no timeout of the whole: pauses, which the endpoint may ask for, do not count
        async for attempt in stamina.retry_context(
            on=again, attempts=requests.attempts, timeout=None,
            wait_initial=requests.wait_s, wait_max=MAX_PAUSE_S, wait_jitter=requests.wait_s,
        ):  # fmt: skip
            with attempt:
                outcome.attempts, asked = attempt.num, time.monotonic()
                try:
                    async with asyncio.timeout(requests.deadline_s):
                        outcome.answer = await ask(question)
                    outcome.pay(outcome.answer.input_tokens, outcome.answer.output_tokens)
                except TimeoutError as error:
                    raise NoAnswer(f"no answer within {requests.deadline_s:g} s") from error
                except NoAnswer as error:
                    outcome.pay(*error.tokens)
                    bad_answers += isinstance(error, BadAnswer)
                    raise
                finally:
                    requests_s += time.monotonic() - asked
    except (NoAnswer, Declined) as error:
        outcome.failure = error
    outcome.seconds = round(time.monotonic() - began, 3)
    return outcome


def _consecutive_failures(endpoint: Endpoint, failures: Sequence[NoAnswer | Declined], retry: str) -> SmolsumError:
    role, questions = endpoint.role, f"{len(failures)} questions in a row; the last failure: {failures[-1]}"
    name = f"the {role} {endpoint.name}"
    if all(isinstance(failure, BadAnswer) for failure in failures):
        hint = f"choose a {role} that can answer in JSON, then {retry}"
        return SmolsumError(f"{name} gave no usable answer to {questions}", hint=hint)
    if all(isinstance(failure, Declined) for failure in failures):
        hint = f"check the model's name, or choose a {role} that accepts them, then {retry}"
        return SmolsumError(f"{name} refused {questions}", hint=hint)
    return UnreachableError(f"{name} failed {questions}", hint=f"wait until it answers, then {retry}")
