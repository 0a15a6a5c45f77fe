"""Judging a whole evaluation: what is asked, what that will cost, what is known already, and what is still missing.

Asking the judge, and what becomes of its answers: judgements, failures too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

import xxhash

from smolsum.errors import SmolsumError
from smolsum.evaluate.judgements import Judgement, JudgeQuestion, Ledger, Verdict, question_key, texts_of
from smolsum.llm.client import ChatClient, Endpoint, name_with_address, unknown_model
from smolsum.llm.retry import Requester, RequestOutcome, RetryPolicy, ask_all
from smolsum.types import Criterion


async def judge_all(
    questions: Sequence[JudgeQuestion],
    ask: Callable[[JudgeQuestion], Awaitable[Verdict]],
    judge: str,
    endpoint: str,
    *,
    retry: RetryPolicy,
    concurrency: int,
    record: Callable[[Judgement], None],
    failed_before: Callable[[JudgeQuestion], bool],
) -> None:
    """Ask every question once, as `retry.ask_all` does; `record` gets each judgement as it comes. A question that
    has used up its budget is a failed judgement, not a score."""

    def note(question: JudgeQuestion, outcome: RequestOutcome[Verdict]) -> None:
        record(replace(_judgement(question, judge, outcome), endpoint=endpoint))

    who = Requester("judge", judge, "score", "evaluate again: only what is missing is asked")
    await ask_all(questions, ask, who, retry=retry, concurrency=concurrency, record=note, failed_before=failed_before)


def _judgement(question: JudgeQuestion, judge: str, outcome: RequestOutcome[Verdict]) -> Judgement:
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


CHARACTERS_A_TOKEN = 4
OUTPUT_TOKENS = 750
"""of an answer: at gpt-5-mini's prices this makes the $7 that the study paid for 4000 of them"""


@dataclass(frozen=True)
class Item:
    """One completion to judge, with what it was made from."""

    id: str
    source: str
    completion: str
    references: tuple[str, ...]


@dataclass(frozen=True)
class JudgeSpec:
    """A judge by all that makes its scores comparable: its name, the number of rounds, the fingerprint of each
    criterion's prompt, and where it answers."""

    model: str
    rounds: int
    prompts: Mapping[str, str]
    endpoint: str = ""
    """URL without credentials"""

    @property
    def judge(self) -> str:
        """Who judges: a name, which means the same model only at OpenAI, and elsewhere the endpoint."""
        return name_with_address(self.model, self.endpoint)

    @property
    def name(self) -> str:
        """What a scores file states as its judge; scores of different names are not compared."""
        digest = xxhash.xxh3_64_hexdigest("".join(f"{k} {v}\n" for k, v in sorted(self.prompts.items())).encode())
        return f"{self.judge}, {self.rounds} {'round' if self.rounds == 1 else 'rounds'}, prompts {digest[:8]}"

    def questions(self, items: Sequence[Item], criteria: Sequence[Criterion]) -> list[JudgeQuestion]:
        """All that is to be known, a whole round before the next, so that what is paid for first is of use alone."""
        asked = []
        for number in range(1, self.rounds + 1):
            for item in items:
                for c in criteria:
                    texts = texts_of(item.source, item.completion, item.references, c.sees)
                    key = question_key(self.judge, self.prompts[c.name], texts, number)
                    asked.append(JudgeQuestion(item.id, number, c.name, key, texts))
        return asked


@dataclass(frozen=True)
class Estimate:
    """What the judgements that are still missing will take, at one call each; no dollars where the judge's prices are
    not known."""

    calls: int
    input_tokens: int
    output_tokens: int
    dollars: float | None


@dataclass(frozen=True)
class Judged:
    """All judgements of an evaluation by one judge, by example."""

    bench: JudgeSpec
    judgements: Mapping[str, Sequence[Judgement]]
    missing: Sequence[Judgement]
    """the questions without a score, each with the reason"""
    usage: Mapping[str, float | int | None]
    """calls and tokens of all times that it was asked, dollars where its prices are known, scores from the cache"""


def judge_items(
    items: Sequence[Item],
    criteria: Sequence[Criterion],
    endpoint: Endpoint,
    *,
    rounds: int,
    concurrency: int,
    retry: RetryPolicy,
    ledger: Ledger,
    approve: Callable[[Estimate], bool],
    report: Callable[[int, int], None],
) -> tuple[Judged, SmolsumError | None]:
    """Ask for every judgement that is not known yet, once `approve` has agreed to the cost; `report` hears how many are
    there, and how many failed, after each.

    Returns all judgements there are, also where the endpoint failed for good on the way, with that failure beside them.
    UnreachableError and UsageError are raised where it does not answer at all, or refuses the key.
    """
    by_name = {c.name: c for c in criteria}
    bench = bench_of(endpoint, rounds, criteria)
    questions = bench.questions(items, criteria)
    ledger.take_from_cache(questions)
    todo = list({question.key: question for question in questions if ledger.find(question) is None}.values())
    failure, known = None, len(questions) - len(todo)
    if todo:
        estimate, listed = asyncio.run(_survey(todo, by_name, endpoint))
        if approve(estimate):  # outside of the event loop, which would keep Ctrl-C from whoever is asked
            asking = _ask(todo, by_name, endpoint, concurrency, retry, ledger, known, report)
            try:
                asyncio.run(asking)
            except SmolsumError as error:
                failure = unknown_model(endpoint, listed, error)
        ledger.take_from_cache(questions)  # the same texts in another example
    judged = recall(items, criteria, bench, ledger)
    dollars = _cost(ledger.spent.input_tokens, ledger.spent.output_tokens, _prices(endpoint.model))
    return replace(judged, usage={**judged.usage, "dollars": dollars}), failure


def bench_of(endpoint: Endpoint, rounds: int, criteria: Sequence[Criterion]) -> JudgeSpec:
    """What a judge's scores would bear as their judge."""
    return asyncio.run(_bench(endpoint, rounds, criteria))


async def _bench(endpoint: Endpoint, rounds: int, criteria: Sequence[Criterion]) -> JudgeSpec:
    from smolsum.evaluate import geval as geval

    prompts = {c.name: await geval.fingerprint(c) for c in criteria}
    return JudgeSpec(endpoint.model, rounds, prompts, endpoint.address)


async def _survey(
    todo: Sequence[JudgeQuestion], criteria: Mapping[str, Criterion], endpoint: Endpoint
) -> tuple[Estimate, list[str]]:
    """What the questions will take, and the models that the endpoint lists: it is there, and takes the key."""
    from smolsum.evaluate import geval as geval

    async with ChatClient(endpoint, connections=1) as client:
        listed = await client.models()
    empty = {name: len(await geval.prompt_of(c, dict.fromkeys(c.sees, "x"))) for name, c in criteria.items()}
    characters = sum(empty[q.metric] + sum(map(len, q.texts.values())) for q in todo)
    tokens = characters // CHARACTERS_A_TOKEN, OUTPUT_TOKENS * len(todo)
    return Estimate(len(todo), *tokens, _cost(*tokens, _prices(endpoint.model))), listed


async def _ask(
    todo: Sequence[JudgeQuestion],
    criteria: Mapping[str, Criterion],
    endpoint: Endpoint,
    concurrency: int,
    retry: RetryPolicy,
    ledger: Ledger,
    known: int,
    report: Callable[[int, int], None],
) -> None:
    """Ask on one client, and write down each outcome."""
    from smolsum.evaluate import geval as geval

    done, failed = known, 0
    async with ChatClient(endpoint, connections=concurrency) as client:
        judge = geval.Judge(client)

        async def ask(question: JudgeQuestion) -> Verdict:
            return await judge.score(criteria[question.metric], question.texts)

        def record(judgement: Judgement) -> None:
            nonlocal done, failed
            ledger.record(judgement)
            done, failed = done + 1, failed + (judgement.score is None)
            report(done, failed)

        report(done, failed)
        await judge_all(
            todo, ask, endpoint.name, endpoint.address,
            retry=retry, concurrency=concurrency, record=record, failed_before=ledger.failed,
        )  # fmt: skip


def recall(items: Sequence[Item], criteria: Sequence[Criterion], bench: JudgeSpec, ledger: Ledger) -> Judged:
    """The judgements of a judge that was asked before, as far as they are there; nobody is asked."""
    judgements: dict[str, list[Judgement]] = {}
    for q in bench.questions(items, criteria):
        failed = ledger.known.get(q.key + q.id)
        nothing = Judgement(q.id, q.round, q.metric, bench.judge, q.key, None, error="not asked yet")
        judgements.setdefault(q.id, []).append(ledger.find(q) or failed or nothing)
    every = [j for found in judgements.values() for j in found]
    cached = sum(j.score is not None and j.attempts == 0 for j in every)
    usage: dict[str, float | int | None] = {**asdict(ledger.spent), "cached": cached, "dollars": None}
    return Judged(bench, judgements, [j for j in every if j.score is None], usage)


def _cost(input_tokens: int, output_tokens: int, prices: tuple[float, float] | None) -> float | None:
    """US dollars; None without prices (of one token of input and of output)."""
    return None if prices is None else input_tokens * prices[0] + output_tokens * prices[1]


def _prices(model: str) -> tuple[float, float] | None:
    from smolsum.evaluate import geval as geval

    return geval.prices(model)
