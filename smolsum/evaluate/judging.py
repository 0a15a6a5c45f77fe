"""Asking the judge, and what becomes of its answers: judgements, failures too."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from smolsum.asking.attempts import Asked, Budget, Outcome, ask_all
from smolsum.evaluate.judgements import Judgement, Question, Verdict


async def judge_all(
    questions: Sequence[Question],
    ask: Callable[[Question], Awaitable[Verdict]],
    judge: str,
    endpoint: str,
    *,
    budget: Budget,
    concurrency: int,
    record: Callable[[Judgement], None],
    expected: Callable[[Question], bool],
) -> None:
    """Ask every question once, as `attempts.ask_all` does; `record` gets each judgement as it comes. A question that
    has used up its budget is a failed judgement, not a score."""

    def note(question: Question, outcome: Outcome[Verdict]) -> None:
        record(replace(_judgement(question, judge, outcome), endpoint=endpoint))

    who = Asked("judge", judge, "score", "evaluate again: only what is missing is asked")
    await ask_all(questions, ask, who, budget=budget, concurrency=concurrency, record=note, expected=expected)


def _judgement(question: Question, judge: str, outcome: Outcome[Verdict]) -> Judgement:
    found = outcome.found
    return Judgement(
        id=question.id,
        round=question.round,
        metric=question.metric,
        judge=judge,
        key=question.key,
        score=found.score if found else None,
        reason=found.reason if found else "",
        error=str(outcome.failure) if outcome.failure else "",
        attempts=outcome.attempts,
        seconds=outcome.seconds,
        input_tokens=outcome.input_tokens,
        output_tokens=outcome.output_tokens,
    )
