"""The reader as a model behind an endpoint: what reader, grader and ranker are asked, and how answers are read."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from smolsum.errors import UsageError
from smolsum.llm.batch import BatchClient
from smolsum.llm.client import BadAnswer, Call
from smolsum.llm.endpoints import GRADER, READER, Endpoint, find_endpoint
from smolsum.llm.ranking import object_schema, ranked, ranking_call
from smolsum.llm.request_policy import RequestBudget, RequestPolicy
from smolsum.tasks.doc_qa.documents import UNANSWERABLE, Reading, Verdicts
from smolsum.tasks.doc_qa.settings import DocQaConfig

READ = """Answer a question from the text below and from nothing else: neither from what you know nor by guessing.

<text>
{text}
</text>

Question: {question}

Reply with JSON: {{"answer": "one short sentence"}}, or {{"answer": null}} if the text does not say it."""

GRADE = """Somebody was asked about a document. Compare the answer with the one that is expected.

<document>
{document}
</document>

Question: {question}
Expected answer: {expected}
Given answer: {given}

The given answer is right if it says what matters in the expected one and nothing that contradicts it; other words and
further details of the document do no harm. Reply with JSON: {{"right": true}} or {{"right": false}}."""

RANK = """Below are a document and {count} summaries of it, of at most {limit} words each.

<document>
{document}
</document>

{summaries}

Compare the summaries with each other. The better one lets somebody who reads nothing else answer more questions about
the document, states nothing that the document does not, and keeps to the limit. Give each a score from 0 to 1, so that
a better one has a higher score, and equal ones the same. Reply with JSON:
{{"scores": [{{"summary": 1, "score": 0.5}}, …]}}, with every number from 1 to {count} once."""


def read_call(text: str, question: str) -> Call:
    """Ask what a text says to a question; the answer is a text, or "" where the text is silent."""
    schema = object_schema(answer={"type": ["string", "null"]})
    return Call(READ.format(text=text, question=question), schema, _answer)


def grade_call(document: str, question: str, expected: str, given: str) -> Call:
    """Ask whether an answer is right; the answer is a bool."""
    prompt = GRADE.format(document=document, question=question, expected=expected, given=given)
    return Call(prompt, object_schema(right={"type": "boolean"}), _right)


def rank_call(document: str, summaries: Sequence[str], limit: int) -> Call:
    """Ask for a score of each summary, in [0, 1]; the answer is the list of them in order."""
    count = len(summaries)
    shown = "\n\n".join(f"<summary number={n}>\n{text}\n</summary>" for n, text in enumerate(summaries, start=1))
    prompt = RANK.format(count=count, limit=limit, document=document, summaries=shown)
    return ranking_call(prompt, "summary", count)


def _answer(found: Mapping[str, Any]) -> str:
    answer = found.get("answer", 0)
    if answer is None:
        return ""
    if not isinstance(answer, str):
        raise BadAnswer(f"no answer, but {found!r:.80}")
    return answer.strip()


def _right(found: Mapping[str, Any]) -> bool:
    right = found.get("right")
    if not isinstance(right, bool):
        raise BadAnswer(f"neither right nor wrong, but {right!r:.80}")
    return right


def ask_model(readings: Sequence[Reading], task: DocQaConfig) -> list[Verdicts]:
    """Ask for all answers first, then for grades of those that say anything."""
    asked = [(item, question) for item in readings for question in item.asked.questions]
    spoken = [(item, question) for item, question in asked if item.text.strip()]
    calls = [read_call(item.text, question.text) for item, question in spoken]
    reader, grader = clients_of(task)
    said = iter(reader.ask(calls))
    answers: list[str | None] = [next(said) if item.text.strip() else "" for item, _ in asked]
    pairs = zip(asked, answers, strict=True)
    to_grade = [grade_call(i.document, q.text, q.answer, answer) for (i, q), answer in pairs if answer]
    grades = iter(grader.ask(to_grade))
    verdicts: list[bool | None] = []
    for (_, question), answer in zip(asked, answers, strict=True):
        if answer is None:
            verdicts.append(None)
        elif not answer:  # no answer is right where the document has none
            verdicts.append(question.answer.strip().upper() == UNANSWERABLE)
        else:
            verdicts.append(next(grades))
    found = iter(verdicts)
    return [tuple(next(found) for _ in item.asked.questions) for item in readings]


def rank(groups: Sequence[Sequence[Reading]], task: DocQaConfig) -> list[list[float] | None]:
    """Return scores in [0, 1] of each group's summaries, as `ranked` does."""

    def question(n: int, order: Sequence[str]) -> Call:
        return rank_call(groups[n][0].document, order, task.max_words)

    return ranked(clients_of(task)[0], [[item.text for item in group] for group in groups], question)


def endpoint_names(task: DocQaConfig) -> dict[str, str]:
    """Return the models of reader and grader, and their endpoints: the same name elsewhere may be another model."""
    return {role: client.endpoint.name for role, client in zip(("reader", "grader"), clients_of(task), strict=True)}


@lru_cache(maxsize=4)
def clients_of(task: DocQaConfig) -> tuple[BatchClient, BatchClient]:
    """Return reader and grader of a run, which share one request budget in this process. Raises UsageError without a
    key or URL for them, and for a grader's endpoint without a grader."""
    budget = RequestBudget(task.max_calls, "task.max_calls")
    reader = find_endpoint(task.reader, os.environ, READER)
    if task.grader:
        grader = find_endpoint(task.grader, os.environ, GRADER)
    elif os.environ.get(GRADER.url_variable, "").strip():
        raise UsageError(
            f"{GRADER.url_variable} is set, but the reader grades, at its own endpoint: task.grader is empty",
            hint=f"--set task.grader=MODEL, or unset {GRADER.url_variable}",
        )
    else:
        grader = replace(reader, role=GRADER.name)
    return _client(reader, task, budget), _client(grader, task, budget)


def _client(endpoint: Endpoint, task: DocQaConfig, budget: RequestBudget) -> BatchClient:
    return BatchClient(
        endpoint,
        RequestPolicy(task.attempts, task.deadline_s, concurrency=task.concurrency),
        wait_s=task.wait_s,
        budget=budget,
    )
