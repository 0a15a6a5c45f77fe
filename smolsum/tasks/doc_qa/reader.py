"""Reads a summary and answers questions about its document: by rules, or with a model behind an endpoint.

The rules serve questions made from facts. The answer to a question is everything that the text states of the question's
kind (and, where the fact is about a person, of that person), by the rules of `smolsum.tasks.facts`; a text that states
nothing of the kind gives no answer. An answer is right if it contains the expected one and nothing that the document
does not state. So guessing gains nothing, and a paraphrase answers nothing.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from smolsum.config.sections import Config
from smolsum.errors import UsageError
from smolsum.tasks.doc_qa.documents import Question, Reading, Verdicts, asked_of, known_forms
from smolsum.tasks.doc_qa.settings import RULES, DocQaConfig, settings
from smolsum.tasks.facts import FactVocabulary, Statement, spelling, statements
from smolsum.types import Prompt


def reading(text: str, prompt: Prompt) -> Reading:
    """Return a text with the document of its prompt and what is asked about it."""
    return Reading(text, prompt.source, asked_of(prompt.metadata))


def answered(readings: Sequence[Reading], config: Config) -> list[Verdicts]:
    """Return which questions the reader of `config` answers rightly from each text; a model is asked about all at once.

    Raises UsageError for rules where the questions are not made from facts, and what `BatchClient.ask` raises.
    """
    task = settings(config)
    if task.reader == RULES:
        return [_by_rules(item, config) for item in readings]
    from smolsum.tasks.doc_qa.reader_model import ask_model  # loads an HTTP client

    return ask_model(readings, task)


def ranked(groups: Sequence[Sequence[Reading]], config: Config) -> list[list[float] | None]:
    """Return a score in [0, 1] for each summary of each document's group, made by comparing them; None for a group that
    the reader gave no score.

    The rules score a summary by its place among the shares of questions answered; ties get the middle of their places.
    A model sees each different text of a group once. 0.5 where all texts are the same.
    """
    if settings(config).reader == RULES:
        return [_places(group, config) for group in groups]
    from smolsum.tasks.doc_qa.reader_model import rank

    return rank(groups, settings(config))


def check_reader(example: Mapping[str, Any], task: DocQaConfig) -> None:
    """Check that the reader can be asked, without a request; `example` is the metadata of one of the data.

    Raises UsageError for a model without a key or URL, and for rules where the data have no facts.
    """
    if task.reader != RULES:
        from smolsum.tasks.doc_qa.reader_model import clients_of

        clients_of(task)
    elif not example["facts"]:
        raise _needs_facts()


def metric_settings(config: Config) -> dict[str, Any]:
    """Return the settings that measures depend on, and which models at which endpoints reader and grader are. Raises
    what `check_reader` raises."""
    task = settings(config)
    if task.reader == RULES:
        return task.measures
    from smolsum.tasks.doc_qa.reader_model import endpoint_names

    return task.measures | endpoint_names(task)


def share(verdicts: Verdicts) -> float | None:
    """Return the share of questions answered rightly, in [0, 1]; None where one could not be asked, as a failure is not
    a wrong answer."""
    right = [verdict for verdict in verdicts if verdict is not None]
    return sum(right) / len(verdicts) if verdicts and len(right) == len(verdicts) else None


def mid_rank(own: float, every: Sequence[float]) -> float:
    """Return how many of the others are below, plus half of those that are equal, over all others: in [0, 1]."""
    if len(every) == 1:
        return 0.5
    below, equal = sum(other < own for other in every), sum(other == own for other in every) - 1
    return (below + equal / 2) / (len(every) - 1)


def answer(question: Question, stated: Sequence[Statement]) -> tuple[str, ...]:
    """Return what a text answers to a question, in order and each form once; `stated` are its statements."""
    who = {spelling(person) for person in question.who}
    said = [s.form for s in stated if question.kind in s.kinds and (not who or s.person in who)]
    return tuple(dict.fromkeys(said))


def is_right(question: Question, said: Sequence[str], facts: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether an answer has the expected form, and none of that kind that the document does not state."""
    own = {spelling(form) for fact in facts if fact["kind"] == question.kind for form in fact["forms"]}
    expected = {spelling(form) for form in question.forms}
    return not expected.isdisjoint(said) and own.issuperset(said)


def read(
    text: str, questions: Sequence[Question], facts: Sequence[Mapping[str, Any]], vocabulary: FactVocabulary
) -> tuple[bool, ...]:
    """Return whether each question is answered rightly by a text alone."""
    stated = statements(text, vocabulary)
    return tuple(is_right(question, answer(question, stated), facts) for question in questions)


def _places(group: Sequence[Reading], config: Config) -> list[float]:
    shares = [share(_by_rules(item, config)) or 0.0 for item in group]
    return [mid_rank(own, shares) for own in shares]


def _by_rules(item: Reading, config: Config) -> Verdicts:
    if not item.asked.facts:
        raise _needs_facts()
    return read(item.text, item.asked.questions, item.asked.facts, known_forms(config.data))


def _needs_facts() -> UsageError:
    return UsageError(
        "the rule-based reader answers only questions that were made from facts",
        hint="--set task.reader=MODEL, with SMOLSUM_READER_URL or OPENAI_API_KEY",
    )
