"""A model that is asked in the middle of a training: many questions at once, each paid for once, over outages too.

How far an asking is, for whoever follows it: as it begins, every few seconds, as nobody answers, and at its end.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from smolsum.errors import UnreachableError, UsageError
from smolsum.llm.cache import Answers, cache_file, content_key
from smolsum.llm.client import BadAnswer, ChatClient, Declined, Endpoint, NoAnswer, parse_object, unknown_model
from smolsum.llm.retry import RequestBudget, Requester, RequestOutcome, RetryPolicy, ask_all, follow, tell, wait

EVERY_S = 10.0


class BatchProgress:
    """Counts the questions of one asking that are done with."""

    def __init__(self, who: str, total: int) -> None:
        self._who, self._total = who, total
        self._done = self._failed = 0
        self._silent = ""
        self._say()

    def done(self, *, failed: bool) -> None:
        """One more has an answer, or has failed for good."""
        self._done, self._failed, self._silent = self._done + 1, self._failed + failed, ""
        if time.monotonic() - self._spoke > EVERY_S or self._done == self._total:
            self._say()

    def silent(self, why: Exception) -> None:
        """A request brought no answer at all: said at once where none has brought one yet."""
        first, self._silent = not (self._done or self._silent), str(why)
        if first or time.monotonic() - self._spoke > EVERY_S:
            self._say()

    def _say(self) -> None:
        self._spoke = time.monotonic()
        failed = f", {self._failed} failed" if self._failed else ""
        silent = f"; does not answer: {self._silent}; trying again" if self._silent else ""
        follow(f"{self._who}: {self._done}/{self._total}{failed}{silent}")


FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 30.0
"""between two tries while nothing answers"""
FORGIVEN_S = 60.0
"""after which a question that brought no answer is asked again, should it come up"""
GO_ON = "this can be run again: what was answered is kept"


@dataclass(frozen=True)
class Call:
    """One question: its prompt, the JSON schema of the answer, and what reads the answer from the object (BadAnswer
    where it is none). Without a schema the answer is any text, read from `{"text": …}`."""

    prompt: str
    schema: Mapping[str, Any] | None
    read: Callable[[Mapping[str, Any]], Any]
    system: str = ""


@dataclass(frozen=True)
class Answered:
    """An answer as `Call.read` returned it, and its tokens."""

    value: Any
    input_tokens: int
    output_tokens: int


@dataclass(frozen=True)
class _Round:
    """What asking several brought: answers, questions that were refused or answered with nonsense, those that nobody
    answered, and what ended it early."""

    answered: int
    refused: Mapping[str, str]
    lost: Mapping[str, str]
    trouble: UnreachableError | None


class BatchClient:
    """One model behind an endpoint. Answers are kept on disk, by model and prompt."""

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        budget: RetryPolicy,
        concurrency: int,
        wait_s: float,
        allowance: RequestBudget | None = None,
        decided: bool = False,
    ) -> None:
        """`wait_s` seconds without any answer are waited for; `allowance` limits the requests, perhaps together with
        those of other panels.

        `decided`: that a question has no answer is one too, and kept as such, so that the next time is as this one; and
        one that nobody answers is an error rather than missing. Only who answers others decides so: a model that
        refuses whatever it is asked has a wrong name, or gets broken requests, and is asked again.
        """
        self.endpoint, self._budget, self._concurrency = endpoint, budget, concurrency
        self._wait_s, self._decided = wait_s, decided
        self._allowance = allowance or RequestBudget()
        self._listed: list[str] | None = None
        self._answers = Answers(cache_file(endpoint.role, endpoint.name), GO_ON)
        self._failed: dict[str, float] = {}
        self._down_since: float | None = None

    def ask(self, calls: Sequence[Call]) -> list[Any | None]:
        """The answers in order, None for a question that failed for good (refused, or answered with nonsense, as often
        as the budget allows): missing, and never some other answer.

        While nothing answers at all this waits, then raises UnreachableError. UsageError and SmolsumError where the
        endpoint refuses whatever it is asked.
        """
        keyed = {self._key(call): call for call in calls}
        pause, alive, standing = FIRST_PAUSE_S, False, None
        while todo := {key: call for key, call in keyed.items() if self._open(key)}:
            down = self._down_since is not None
            affordable = self._allowance.affords(todo)
            standing = standing or BatchProgress(f"{self.endpoint.role} {self.endpoint.model}", len(todo))
            asked = self._ask_once(affordable, standing)
            if asked.trouble is None and asked.lost and (self._decided or self._allowance.is_spent):
                self._close(asked.refused, len(todo))
                if not self._allowance.is_spent:
                    self._wait(self._silent(asked.lost), pause)
                    pause = min(2 * pause, LONGEST_PAUSE_S)
            elif asked.trouble is None and (asked.answered or alive):
                # what the end of an outage left without an answer is asked once more
                self._close({**asked.refused, **({} if down else asked.lost)}, len(todo))
                alive = True
            elif asked.trouble is None and not asked.lost:
                self._close(asked.refused, len(todo))
            else:
                self._wait(asked.trouble or self._silent(asked.lost), pause)
                pause = min(2 * pause, LONGEST_PAUSE_S)
        return [self._answers.get(self._key(call)) for call in calls]

    def _key(self, call: Call) -> str:
        return content_key(self.endpoint.name, call.system, call.prompt)

    def _wait(self, trouble: UnreachableError, pause: float) -> None:
        """Wait for a while, unless it has been too long already, or somebody wants to leave: then UnreachableError."""
        if not self._wait_s:
            raise trouble
        if self._down_since is None:
            self._down_since = time.monotonic()
            tell(f"{self.endpoint.role}_lost", f"{trouble.message}; waiting up to {self._wait_s:g} s for it")
        down_s = time.monotonic() - self._down_since
        left_s = self._wait_s - down_s
        if left_s <= 0 or not wait(min(pause, left_s)):
            raise UnreachableError(f"{trouble.message}; none for {down_s:.0f} s", hint=trouble.hint) from trouble

    def _silent(self, lost: Mapping[str, str]) -> UnreachableError:
        last = list(lost.values())[-1]
        return UnreachableError(
            f"the {self.endpoint.role} {self.endpoint.model} gave no answer to "
            f"{len(lost)} {'question' if len(lost) == 1 else 'questions'}, the last with {last}",
            hint=f"wait until {self.endpoint.address} answers, then ask again: what was answered is kept",
        )

    def _close(self, failures: Mapping[str, str], count: int) -> None:
        """Ask these no more for now."""
        now = time.monotonic()
        self._failed = {key: at for key, at in self._failed.items() if now - at < FORGIVEN_S}
        if self._answers.any:
            with self._answers:
                self._decide(failures)
        self._failed |= dict.fromkeys(failures, now)
        if failures:
            who, last = f"the {self.endpoint.role} {self.endpoint.model}", list(failures.values())[-1]
            tell("unanswered", f"{who} failed {len(failures)} of {count} questions, the last with {last}")

    def _decide(self, refused: Iterable[str]) -> None:
        """Keep it that these have no answer."""
        if self._decided:
            for key in refused:
                if key not in self._answers:
                    self._answers.add(key, None)

    def _open(self, key: str) -> bool:
        """Whether this has no answer yet, and none was sought just now."""
        failed = self._failed.get(key)
        return key not in self._answers and (failed is None or time.monotonic() - failed > FORGIVEN_S)

    def _ask_once(self, todo: Mapping[str, Call], standing: BatchProgress) -> _Round:
        """Ask each, and keep the answers, as they come: whatever ends this, they are there."""
        who = Requester(
            self.endpoint.role, self.endpoint.model, "usable answer", "ask again: what was answered is kept"
        )
        refused: dict[str, str] = {}
        lost: dict[str, str] = {}
        answered = 0

        def record(key: str, outcome: RequestOutcome[Answered]) -> None:
            nonlocal answered
            if outcome.found is not None:
                answered += 1
                self._answers.add(key, outcome.found.value)
                if answered == 1:
                    self._decide(refused)
                if self._down_since is not None:
                    self._down_since = None
                    tell(f"{self.endpoint.role}_back", f"the {who.role} {who.name} answers again")
            elif isinstance(outcome.failure, BadAnswer | Declined):
                refused[key] = str(outcome.failure)
                if answered:
                    self._decide([key])
            else:
                lost[key] = str(outcome.failure)
            if key not in lost:
                standing.done(failed=key in refused)

        trouble = None
        with self._answers:
            try:
                asyncio.run(self._run(todo, who, record, standing))
            except UnreachableError as error:
                trouble = error
        return _Round(answered, refused, lost, trouble)

    async def _run(
        self,
        todo: Mapping[str, Call],
        who: Requester,
        record: Callable[[str, RequestOutcome[Answered]], None],
        standing: BatchProgress,
    ) -> None:
        async with ChatClient(self.endpoint, connections=self._concurrency) as client:
            if self._listed is None or self._down_since is not None:  # whether anybody is there is soon known
                self._listed = await client.models()

            async def ask(key: str) -> Answered:
                if self._allowance.is_spent:
                    raise NoAnswer("no request is left")  # for a further attempt
                self._allowance.spent += 1
                call = todo[key]
                try:
                    answer = await client.ask(call.prompt, call.schema, system=call.system)
                except NoAnswer as error:
                    if not isinstance(error, BadAnswer):
                        standing.silent(error)
                    raise
                try:
                    value = call.read({"text": answer.text} if call.schema is None else parse_object(answer.text))
                except BadAnswer as error:
                    error.answer = answer
                    raise
                return Answered(value, answer.input_tokens, answer.output_tokens)

            try:
                await ask_all(list(todo), ask, who, budget=self._budget, concurrency=self._concurrency, record=record)
            except UsageError as error:
                raise unknown_model(self.endpoint, self._listed, error) from error
