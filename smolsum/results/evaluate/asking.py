"""Questions on their way to a judge: their cost, agreed to before the first one, and each outcome into the ledger."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from smolsum.console import Meter
from smolsum.errors import SmolsumError
from smolsum.llm.client import Answer, Call, ChatClient
from smolsum.llm.endpoints import Endpoint
from smolsum.llm.request_policy import RequestOutcome, RequestPolicy, ask_all
from smolsum.results.evaluate.judge_cost import Estimate, JudgeCost
from smolsum.results.evaluate.judgements import JudgeQuestion, Ledger
from smolsum.runs.evaluation_records import Judgement
from smolsum.types import Criterion

CHARACTERS_A_TOKEN = 4
OUTPUT_TOKENS = 750
"""of an answer: at gpt-5-mini's prices this makes the $7 that the study paid for 4000 of them"""


@dataclass(frozen=True)
class Asking:
    """Who is asked, by which criteria, and what a question may cost."""

    endpoint: Endpoint
    criteria: Sequence[Criterion]
    requests: RequestPolicy
    cost: JudgeCost
    weighted: bool = False
    """whether scores are weighted by the probabilities of their tokens"""

    def approve(self, questions: Sequence[JudgeQuestion], ledger: Ledger) -> None:
        """Have the user approve the cost of the questions without an answer; nothing without any. Raises
        UnreachableError and UsageError if the endpoint does not answer or refuses the key, CostLimitError and
        InterruptedRun as `JudgeCost.approve` does."""
        if todo := unanswered(questions, ledger):
            estimate = asyncio.run(self._estimate(todo))
            self.cost.approve(self.endpoint.model, estimate)  # outside of the event loop, which would delay Ctrl-C

    def ask(self, questions: Sequence[JudgeQuestion], ledger: Ledger, meter: Meter) -> SmolsumError | None:
        """Ask each question without an answer on one client, and record each outcome; return the error if the endpoint
        failed for good on the way."""
        failure = None
        if todo := unanswered(questions, ledger):
            try:
                asyncio.run(self._ask(todo, ledger, meter, len(questions) - len(todo)))
            except SmolsumError as error:
                failure = error
            ledger.take_from_cache(questions)  # the same texts in another example
        return failure

    async def _estimate(self, todo: Sequence[JudgeQuestion]) -> Estimate:
        """Return the cost of the questions, once the endpoint has taken the key."""
        from smolsum.results.evaluate import geval

        async with ChatClient(self.endpoint, connections=1) as client:
            await client.models()
        empty = {c.name: len((await geval.judge_call(c, dict.fromkeys(c.sees, "x"))).prompt) for c in self.criteria}
        characters = sum(
            len(q.call.prompt) if q.call else empty[q.wanted.metric] + sum(map(len, q.texts.values())) for q in todo
        )
        tokens = characters // CHARACTERS_A_TOKEN, OUTPUT_TOKENS * len(todo)
        return Estimate(len(todo), *tokens, geval.dollars(self.endpoint.model, *tokens))

    async def _ask(self, todo: Sequence[JudgeQuestion], ledger: Ledger, meter: Meter, done: int) -> None:
        from smolsum.results.evaluate import geval

        by_name, failed = {c.name: c for c in self.criteria}, 0
        async with ChatClient(self.endpoint, connections=self.requests.concurrency) as client:

            async def call_of(question: JudgeQuestion) -> Call:
                if question.call is not None:
                    return question.call
                criterion = by_name[question.wanted.metric]
                return await geval.judge_call(criterion, question.texts, weighted=self.weighted)

            async def ask(question: JudgeQuestion) -> Answer:
                return await client.ask(await call_of(question))

            def record(question: JudgeQuestion, outcome: RequestOutcome) -> None:
                nonlocal done, failed
                ledger.record(_judged(question.wanted, outcome))
                done, failed = done + 1, failed + (outcome.answer is None)
                meter.to(done, f"failed {failed}" if failed else "")
                paid = geval.dollars(self.endpoint.model, outcome.input_tokens, outcome.output_tokens)
                self.cost.pay(paid or 0.0)

            meter.to(done)
            await ask_all(
                todo, ask, self.endpoint, self.requests, record=record, failed_before=ledger.failed,
                retry="evaluate again: only what is missing is asked",
            )  # fmt: skip


def unanswered(questions: Sequence[JudgeQuestion], ledger: Ledger) -> list[JudgeQuestion]:
    """Return the questions without an answer, each text once."""
    return list({q.wanted.key: q for q in questions if ledger.find(q.wanted) is None}.values())


def _judged(wanted: Judgement, outcome: RequestOutcome) -> Judgement:
    score, reason = outcome.answer.value if outcome.answer else (None, "")
    return msgspec.structs.replace(
        wanted,
        score=score,
        reason=reason,
        error=str(outcome.failure) if outcome.failure else "",
        attempts=outcome.attempts,
        seconds=outcome.seconds,
        input_tokens=outcome.input_tokens,
        output_tokens=outcome.output_tokens,
    )
