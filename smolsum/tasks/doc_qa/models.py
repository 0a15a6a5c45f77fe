"""A reader and a grader behind an endpoint."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from smolsum.asking.allowance import Allowance
from smolsum.asking.attempts import Budget
from smolsum.asking.endpoint import find_endpoint
from smolsum.asking.panel import Panel
from smolsum.tasks.doc_qa.documents import UNANSWERABLE
from smolsum.tasks.doc_qa.prompts import grade_call, rank_call, read_call
from smolsum.tasks.doc_qa.reader import Compared, Reading, Verdicts
from smolsum.tasks.doc_qa.settings import DocQaConfig


def answer(readings: Sequence[Reading], task: DocQaConfig) -> list[Verdicts]:
    """First all answers, then grades for those that say anything."""
    asked = [(item, question) for item in readings for question in item.asked.questions]
    spoken = [(item, question) for item, question in asked if item.text.strip()]
    calls = [read_call(item.text, question.text) for item, question in spoken]
    reader, grader = panels_of(task)
    said = iter(reader.ask(calls))
    answers: list[str | None] = [next(said) if item.text.strip() else "" for item, _ in asked]
    pairs = zip(asked, answers, strict=True)
    to_grade = [grade_call(i.document, q.text, q.answer, answer) for (i, q), answer in pairs if answer]
    grades = iter(grader.ask(to_grade))
    verdicts: list[bool | None] = []
    for (_, question), answer in zip(asked, answers, strict=True):
        if answer is None:
            verdicts.append(None)
        elif not answer:  # silence is right where the document is silent too
            verdicts.append(question.answer.strip().upper() == UNANSWERABLE)
        else:
            verdicts.append(next(grades))
    found = iter(verdicts)
    return [tuple(next(found) for _ in item.asked.questions) for item in readings]


def rank(groups: Sequence[Compared], task: DocQaConfig) -> list[list[float] | None]:
    """Scores in [0, 1]: a group's different texts are shown once each, in an order drawn from the texts."""
    shown = [_shuffled(group.texts) for group in groups]
    pairs = list(zip(groups, shown, strict=True))
    calls = [rank_call(group.document, order, task.max_words) for group, order in pairs if len(order) > 1]
    scores = iter(panels_of(task)[0].ask(calls))
    found: list[list[float] | None] = []
    for group, order in pairs:
        given = next(scores) if len(order) > 1 else [0.5]
        by_text = None if given is None else dict(zip(order, given, strict=True))
        found.append(None if by_text is None else [float(by_text[text]) for text in group.texts])
    return found


def _shuffled(texts: Sequence[str]) -> list[str]:
    """Each different text once, in an order that tells nothing and is the same every time."""
    distinct = sorted(set(texts))
    order = np.random.default_rng([len(text) for text in distinct]).permutation(len(distinct))
    return [distinct[int(place)] for place in order]


def named(task: DocQaConfig) -> dict[str, str]:
    """Who reader and grader are, endpoints included: another of the same name elsewhere answers as it likes."""
    return {role: panel.endpoint.name for role, panel in zip(("reader", "grader"), panels_of(task), strict=True)}


@lru_cache(maxsize=4)
def panels_of(task: DocQaConfig) -> tuple[Panel, Panel]:
    """Reader and grader of a run, who share its allowance for as long as this process lives. UsageError without a key
    or a URL for them."""
    allowance = Allowance(task.max_calls, "task.max_calls")
    reader = _panel(task.reader, "reader", task, allowance)
    return reader, _panel(task.grader or task.reader, "grader", task, allowance)


def _panel(model: str, role: str, task: DocQaConfig, allowance: Allowance) -> Panel:
    endpoint = find_endpoint(model, os.environ, role=role, option=f"--set task.{role}=MODEL:")
    return Panel(
        endpoint,
        budget=Budget(task.attempts, task.deadline_s),
        concurrency=task.concurrency,
        wait_s=task.wait_s,
        allowance=allowance,
    )
