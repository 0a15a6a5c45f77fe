"""A client that sends many questions at once while the caller continues: each is paid for once, outages are waited for,
and progress is shown."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from smolsum.console import current_hook
from smolsum.errors import UnreachableError
from smolsum.llm.cache import AnswerCache, KeptAnswer, content_key
from smolsum.llm.client import Answer, BadAnswer, Call, ChatClient, NoAnswer
from smolsum.llm.endpoints import Endpoint
from smolsum.llm.request_policy import RequestBudget, RequestOutcome, RequestPolicy, ask_all

PROGRESS_S = 10.0
"""between two progress messages"""
FIRST_PAUSE_S, MAX_PAUSE_S = 1.0, 30.0
"""between two rounds while nothing answers; by hand, as stamina's pauses cannot be interrupted"""
FAILED_FOR_S = 60.0
"""after which a failed question is asked again if it comes up"""
RETRY = "run this again: answers are kept"


@dataclass
class _Round:
    """What became of several questions that were asked once: whether any has an answer; those that were refused or got
    an unusable answer, and those without any answer, each with the reason; the error that ended the round early."""

    answered: bool = False
    refused: dict[str, str] = field(default_factory=dict)
    unanswered: dict[str, str] = field(default_factory=dict)
    error: UnreachableError | None = None


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
        requests: RequestPolicy,
        *,
        wait_s: float,
        budget: RequestBudget | None = None,
        store_refusals: bool = False,
        fresh: bool = False,
    ) -> None:
        """An outage is waited for `wait_s` seconds; `budget` limits the requests, perhaps together with those of other
        clients.

        `store_refusals`: store a refusal as the final answer, so that reruns give the same result, and wait for every
        other answer. Only a model that has answered other questions is believed: one that refuses all of them has a
        wrong name or gets broken requests, and is asked again. `fresh`: ask again what was answered before.
        """
        self.endpoint, self._requests, self._wait_s, self._store_refusals = endpoint, requests, wait_s, store_refusals
        self.budget = budget or RequestBudget()
        self._name = f"{endpoint.role} {endpoint.model}"
        self._answers = AnswerCache(endpoint.role, endpoint.name, KeptAnswer, RETRY, known={} if fresh else None)
        self._failed_at: dict[str, float] = {}
        self._reached = False
        self._down_since: float | None = None

    def ask(self, calls: Sequence[Call]) -> list[Any | None]:
        """Return the answers in order; None, which is missing and never some other answer, for a question that failed
        for good: refused, or without a usable answer as often as `requests` allow.

        If nothing answers, this waits, then raises UnreachableError. Raises UsageError and SmolsumError if the endpoint
        refuses every question.
        """
        earlier = ([call.earlier] if call.earlier else [] for call in calls)
        parts = zip(calls, earlier, strict=True)
        keys = [content_key(self.endpoint.name, call.system, call.prompt, *more) for call, more in parts]
        pause, answered, progress = FIRST_PAUSE_S, False, None
        while todo := {key: call for key, call in zip(keys, calls, strict=True) if self._is_open(key)}:
            was_down = self._down_since is not None
            affordable = self.budget.affordable(todo)
            progress = progress or BatchProgress(self._name, len(todo))
            found = self._ask_once(affordable, progress)
            error = found.error
            if error is None:
                answered = found.answered or (answered and not was_down)
                spent = self.budget.is_spent
                if found.unanswered and not spent and (self._store_refusals or not answered):
                    error = self._no_answers(found.unanswered)
                if error is None or self._store_refusals:
                    # the end of an outage and of a budget leave questions unanswered: these are asked once more
                    again = spent or was_down or error is not None
                    self._give_up(found.refused if again else found.refused | found.unanswered, len(todo))
            if error is not None:
                self._wait_for_endpoint(error, pause)
                pause = min(2 * pause, MAX_PAUSE_S)
        known = self._answers.known
        return [known[key].answer if key in known else None for key in keys]

    def _is_open(self, key: str) -> bool:
        """Return whether the question has no answer yet and did not fail just now."""
        failed_at = self._failed_at.get(key)
        return key not in self._answers.known and (failed_at is None or time.monotonic() - failed_at > FAILED_FOR_S)

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
            f"the {self._name} gave no answer to {count} {'question' if count == 1 else 'questions'}; the last "
            f"failure: {last}",
            hint=f"wait until {self.endpoint.address} answers, then {RETRY}",
        )

    def _give_up(self, failures: Mapping[str, str], count: int) -> None:
        """Do not ask these questions again for a while."""
        now = time.monotonic()
        self._failed_at = {key: at for key, at in self._failed_at.items() if now - at < FAILED_FOR_S}
        self._failed_at |= dict.fromkeys(failures, now)
        if failures:
            failed = f"the {self._name} failed {len(failures)} of {count} questions"
            current_hook().notify("unanswered", f"{failed}; the last failure: {list(failures.values())[-1]}")

    def _ask_once(self, todo: Mapping[str, Call], progress: BatchProgress) -> _Round:
        """Ask each question, and store answers as they come and refusals in the end, so that they are kept however
        this ends."""
        found, ended = _Round(), False
        with self._answers:
            try:
                asyncio.run(self._run(todo, progress, found))
                ended = True
            except UnreachableError as error:
                found.error = error
            finally:
                ever_answered = any(kept.answer is not None for kept in self._answers.known.values())
                if self._store_refusals and (found.answered or (ended and ever_answered)):
                    for key in found.refused:
                        self._answers.add(KeptAnswer(key, None))
        return found

    async def _run(self, todo: Mapping[str, Call], progress: BatchProgress, found: _Round) -> None:
        async with ChatClient(self.endpoint, connections=self._requests.concurrency) as client:
            if not self._reached or self._down_since is not None:  # a quick check that the endpoint is there
                await client.models()
                self._reached = True

            async def ask(key: str) -> Answer:
                if self.budget.is_spent:
                    raise NoAnswer("no request is left")  # for another attempt
                self.budget.spent += 1
                try:
                    return await client.ask(todo[key])
                except NoAnswer as error:
                    if not isinstance(error, BadAnswer):
                        progress.no_answer(error)
                    raise

            def record(key: str, outcome: RequestOutcome) -> None:
                self.budget.pay(outcome.input_tokens, outcome.output_tokens)
                if isinstance(outcome.failure, NoAnswer) and not isinstance(outcome.failure, BadAnswer):
                    found.unanswered[key] = str(outcome.failure)
                    return
                if outcome.answer is None:
                    found.refused[key] = str(outcome.failure)
                else:
                    found.answered = True
                    self._answers.add(KeptAnswer(key, outcome.answer.value))
                    if self._down_since is not None:
                        self._down_since = None
                        current_hook().notify(f"{self.endpoint.role}_back", f"the {self._name} answers again")
                progress.done(failed=outcome.answer is None)

            await ask_all(list(todo), ask, self.endpoint, self._requests, retry=RETRY, record=record)
