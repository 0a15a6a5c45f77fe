"""Who reads a summary and answers questions about the document: rules, or models behind an endpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from smolsum.config import Config
from smolsum.errors import UsageError
from smolsum.tasks.doc_qa import rules
from smolsum.tasks.doc_qa.documents import known_forms
from smolsum.tasks.doc_qa.questions import Asked, asked_of
from smolsum.tasks.doc_qa.settings import RULES, DocQaConfig, settings

Verdicts = tuple[bool | None, ...]
"""whether each question of a document is answered rightly; None where that could not be found out"""


@dataclass(frozen=True)
class Reading:
    """A text to answer a document's questions from."""

    text: str
    document: str
    asked: Asked


@dataclass(frozen=True)
class Compared:
    """The summaries of one document, which are compared with each other."""

    document: str
    asked: Asked
    texts: tuple[str, ...]


def reading(text: str, document: str, metadata: Mapping[str, Any]) -> Reading:
    """A text, with the document and its example's metadata."""
    return Reading(text, document, asked_of(metadata))


def answered(readings: Sequence[Reading], config: Config) -> list[Verdicts]:
    """What the reader of `config` answers rightly from each text, all of them at once.

    UsageError for rules where the questions are not made from facts, and errors as of `Panel.ask`.
    """
    task = settings(config)
    if task.reader == RULES:
        return [_by_rules(item, config) for item in readings]
    from smolsum.tasks.doc_qa import models  # loads an HTTP client

    return models.answer(readings, task)


def check_reader(example: Mapping[str, Any], task: DocQaConfig) -> None:
    """UsageError where a model is to read and there is no key or URL for it, or where rules are and the data, of which
    this is an example's metadata, have no facts. Nobody is asked."""
    if task.reader != RULES:
        from smolsum.tasks.doc_qa import models

        models.panels_of(task)
    elif not example["facts"]:
        raise _needs_facts()


def measures(config: Config) -> dict[str, Any]:
    """What measures depend on: the settings, with models named as what they are, where they are. UsageError as of
    `check_reader`."""
    task = settings(config)
    if task.reader == RULES:
        return task.measures
    from smolsum.tasks.doc_qa import models

    return task.measures | models.named(task)


def share(verdicts: Verdicts) -> float | None:
    """Questions answered rightly over all, in [0, 1]; None where one could not be asked: a failure is no wrong
    answer."""
    right = [verdict for verdict in verdicts if verdict is not None]
    return sum(right) / len(verdicts) if verdicts and len(right) == len(verdicts) else None


def ranked(groups: Sequence[Compared], config: Config) -> list[list[float] | None]:
    """A score in [0, 1] for each summary of each group, made by comparing them; None for a group that the reader gave
    none for.

    By rules the score is the place among the shares of questions answered, ties in the middle of their places; a model
    sees each different text of a group once. 0.5 where all texts are the same.
    """
    if settings(config).reader == RULES:
        return [_places(group, config) for group in groups]
    from smolsum.tasks.doc_qa import models  # loads an HTTP client

    return models.rank(groups, settings(config))


def _places(group: Compared, config: Config) -> list[float]:
    readings = [Reading(text, group.document, group.asked) for text in group.texts]
    shares = [share(_by_rules(item, config)) or 0.0 for item in readings]
    return [mid_rank(own, shares) for own in shares]


def mid_rank(own: float, every: Sequence[float]) -> float:
    """How many of the others are below, and half of those that are equal, over all others: in [0, 1]."""
    if len(every) == 1:
        return 0.5
    below, equal = sum(other < own for other in every), sum(other == own for other in every) - 1
    return (below + equal / 2) / (len(every) - 1)


def _by_rules(item: Reading, config: Config) -> Verdicts:
    if not item.asked.facts:
        raise _needs_facts()
    return rules.read(item.text, item.asked.questions, item.asked.facts, known_forms(config.data))


def _needs_facts() -> UsageError:
    return UsageError(
        "the rule-based reader answers only questions that were made from facts",
        hint="--set task.reader=MODEL, with OPENAI_BASE_URL or OPENAI_API_KEY",
    )
