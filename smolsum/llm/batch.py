"""A client that sends many questions at once while the caller goes on: each is paid for once, outages are waited for,
and progress is shown."""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from smolsum.errors import UnreachableError, UsageError
from smolsum.llm.cache import AnswerCache, content_key
from smolsum.llm.client import BadAnswer, ChatClient, Declined, NoAnswer, parse_object, unknown_model
from smolsum.llm.endpoints import Endpoint
from smolsum.llm.request_policy import RequestBudget, Requester, RequestOutcome, RetryPolicy, ask_all, current_hook

PROGRESS_S = 10.0
"""between two progress messages"""
FIRST_PAUSE_S, MAX_PAUSE_S = 1.0, 30.0
"""between two rounds while nothing answers; by hand, as stamina's pauses cannot be interrupted"""
FAILED_FOR_S = 60.0
"""after which a failed question is asked again if it comes up"""
REMEDY = "run this again: answers are kept"


@dataclass(frozen=True)
class Call:
    """One question: its prompt, the JSON schema of the answer, and a function that reads the answer from the object
    (BadAnswer if it cannot). Without a schema the answer is any text, read from `{"text": …}`."""

    prompt: str
    schema: Mapping[str, Any] | None
    read: Callable[[Mapping[str, Any]], Any]
    system: str = ""


@dataclass(frozen=True)
class CallAnswer:
    """An answer as `Call.read` returned it, and its tokens."""

    value: Any
    input_tokens: int
    output_tokens: int


@dataclass(frozen=True)
class _Round:
    """The result of asking several questions once: the number of answers; questions that were refused or got an
    unusable answer, and those without any answer, each with the reason; the error that ended the round early."""

    answered: int
    refused: Mapping[str, str]
    unanswered: Mapping[str, str]
    error: UnreachableError | None


class BatchProgress:
    """Progress messages of a batch: at its start, every few seconds, when the endpoint stops answering, at its end."""

    def __init__(self, name: str, total: int) -> None:
        self._name, self._total = name, total
        self._done = self._failed = 0
        self._trouble = ""
        self._show()

    def done(self, *, failed: bool) -> None:
        """Count a question that has an answer or has failed for good."""
        self._done, self._failed, self._trouble = self._done + 1, self._failed + failed, ""
        if time.monotonic() - self._shown_at > PROGRESS_S or self._done == self._total:
            self._show()

    def no_answer(self, why: Exception) -> None:
        """Show a request without any answer; at once if there has been no answer yet."""
        first, self._trouble = not (self._done or self._trouble), str(why)
        if first or time.monotonic() - self._shown_at > PROGRESS_S:
            self._show()

    def _show(self) -> None:
        self._shown_at = time.monotonic()
        failed = f", {self._failed} failed" if self._failed else ""
        trouble = f"; does not answer: {self._trouble}; trying again" if self._trouble else ""
        current_hook().progress(f"{self._name}: {self._done}/{self._total}{failed}{trouble}")


class BatchClient:
    """One model behind an endpoint. Answers are kept on disk, by model and prompt."""

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        retry: RetryPolicy,
        concurrency: int,
        wait_s: float,
        budget: RequestBudget | None = None,
        store_refusals: bool = False,
    ) -> None:
        """An outage is waited for `wait_s` seconds; `budget` limits the requests, perhaps together with those of other
        clients.

        `store_refusals`: store a refusal as the final answer, so that reruns give the same result, and wait for every
        other answer. Only a model that has answered other questions is believed: one that refuses all of them has a
        wrong name or gets broken requests, and is asked again.
        """
        self.endpoint, self._retry, self._concurrency = endpoint, retry, concurrency
        self._wait_s, self._store_refusals = wait_s, store_refusals
        self._budget = budget or RequestBudget()
        self._listed: list[str] | None = None
        self._answers: AnswerCache[Any] = AnswerCache(endpoint.role, endpoint.name, REMEDY)
        self._failed_at: dict[str, float] = {}
        self._down_since: float | None = None

    def ask(self, calls: Sequence[Call]) -> list[Any | None]:
        """Return the answers in order; None, which is missing and never some other answer, for a question that failed
        for good: refused, or without a usable answer as often as the retry policy allows.

        If nothing answers, this waits, then raises UnreachableError. Raises UsageError and SmolsumError if the endpoint
        refuses every question.
        """
        keyed = {self._key(call): call for call in calls}
        pause, answered, progress = FIRST_PAUSE_S, False, None
        while todo := {key: call for key, call in keyed.items() if self._is_open(key)}:
            was_down = self._down_since is not None
            affordable = self._budget.affordable(todo)
            progress = progress or BatchProgress(f"{self.endpoint.role} {self.endpoint.model}", len(todo))
            result = self._ask_once(affordable, progress)
            if result.error is None:
                answered = answered or result.answered > 0
                # the end of an outage and of a budget leave questions unanswered: these are asked once more
                keep_open = self._store_refusals or self._budget.is_spent
                if answered or keep_open or not result.unanswered:
                    unanswered = {} if keep_open or was_down else result.unanswered
                    self._give_up({**result.refused, **unanswered}, len(todo))
                    if not self._store_refusals or not result.unanswered or self._budget.is_spent:
                        continue
            self._wait_for_endpoint(result.error or self._no_answers(result.unanswered), pause)
            pause = min(2 * pause, MAX_PAUSE_S)
        return [self._answers.get(self._key(call)) for call in calls]

    def _key(self, call: Call) -> str:
        return content_key(self.endpoint.name, call.system, call.prompt)

    def _is_open(self, key: str) -> bool:
        """Return whether the question has no answer yet and did not fail just now."""
        failed_at = self._failed_at.get(key)
        return key not in self._answers and (failed_at is None or time.monotonic() - failed_at > FAILED_FOR_S)

    def _wait_for_endpoint(self, error: UnreachableError, pause: float) -> None:
        """Wait a while. UnreachableError after `wait_s` seconds of outage, or if the user wants to stop."""
        if not self._wait_s:
            raise error
        if self._down_since is None:
            self._down_since = time.monotonic()
            waiting = f"{error.message}; waiting up to {self._wait_s:g} s for it"
            current_hook().notify(f"{self.endpoint.role}_lost", waiting)
        down_s = time.monotonic() - self._down_since
        left_s = self._wait_s - down_s
        if left_s <= 0 or not current_hook().wait(min(pause, left_s)):
            raise UnreachableError(f"{error.message}; none for {down_s:.0f} s", hint=error.hint) from error

    def _no_answers(self, unanswered: Mapping[str, str]) -> UnreachableError:
        count, last = len(unanswered), list(unanswered.values())[-1]
        return UnreachableError(
            f"the {self.endpoint.role} {self.endpoint.model} gave no answer to "
            f"{count} {'question' if count == 1 else 'questions'}; the last failure: {last}",
            hint=f"wait until {self.endpoint.address} answers, then {REMEDY}",
        )

    def _give_up(self, failures: Mapping[str, str], count: int) -> None:
        """Do not ask these questions again for a while."""
        now = time.monotonic()
        self._failed_at = {key: at for key, at in self._failed_at.items() if now - at < FAILED_FOR_S}
        self._failed_at |= dict.fromkeys(failures, now)
        if self._store_refusals and self._answers.has_answers:
            with self._answers:
                self._store(failures)
        if failures:
            name, last = f"the {self.endpoint.role} {self.endpoint.model}", list(failures.values())[-1]
            failed = f"{name} failed {len(failures)} of {count} questions; the last failure: {last}"
            current_hook().notify("unanswered", failed)

    def _store(self, refused: Iterable[str]) -> None:
        """Store refusals as final answers, if they are to be stored."""
        for key in refused if self._store_refusals else ():
            if key not in self._answers:
                self._answers.add(key, None)

    def _ask_once(self, todo: Mapping[str, Call], progress: BatchProgress) -> _Round:
        """Ask each question, and store answers as they come, so that they are kept however this ends."""
        role, model = self.endpoint.role, self.endpoint.model
        refused: dict[str, str] = {}
        unanswered: dict[str, str] = {}
        answered = 0

        def record(key: str, outcome: RequestOutcome[CallAnswer]) -> None:
            nonlocal answered
            if outcome.found is not None:
                answered += 1
                self._answers.add(key, outcome.found.value)
                if answered == 1:
                    self._store(refused)
                if self._down_since is not None:
                    self._down_since = None
                    current_hook().notify(f"{role}_back", f"the {role} {model} answers again")
            elif isinstance(outcome.failure, BadAnswer | Declined):
                refused[key] = str(outcome.failure)
                if answered:
                    self._store([key])
            else:
                unanswered[key] = str(outcome.failure)
            if key not in unanswered:
                progress.done(failed=key in refused)

        error = None
        with self._answers:
            try:
                asyncio.run(self._run(todo, Requester(role, model, "usable answer", REMEDY), record, progress))
            except UnreachableError as unreachable:
                error = unreachable
        return _Round(answered, refused, unanswered, error)

    async def _run(
        self,
        todo: Mapping[str, Call],
        requester: Requester,
        record: Callable[[str, RequestOutcome[CallAnswer]], None],
        progress: BatchProgress,
    ) -> None:
        async with ChatClient(self.endpoint, connections=self._concurrency) as client:
            if self._listed is None or self._down_since is not None:  # a quick check that the endpoint is there
                self._listed = await client.models()

            async def ask(key: str) -> CallAnswer:
                if self._budget.is_spent:
                    raise NoAnswer("no request is left")  # for another attempt
                self._budget.spent += 1
                call = todo[key]
                try:
                    answer = await client.ask(call.prompt, call.schema, system=call.system)
                except NoAnswer as error:
                    if not isinstance(error, BadAnswer):
                        progress.no_answer(error)
                    raise
                try:
                    value = call.read({"text": answer.text} if call.schema is None else parse_object(answer.text))
                except BadAnswer as error:
                    error.answer = answer
                    raise
                return CallAnswer(value, answer.input_tokens, answer.output_tokens)

            try:
                await ask_all(
                    list(todo), ask, requester, retry=self._retry, concurrency=self._concurrency, record=record
                )
            except UsageError as error:
                raise unknown_model(self.endpoint, self._listed, error) from error
