"""A reader that needs no model, for questions made from facts: what a text says of the kind that is asked about.

Its answer to a question is everything that the text states of the question's kind (and, where the fact is about
somebody, of that person), by the rules of `smolsum.tasks.facts`; nothing, where the text is silent. The answer is right
if the expected one is among it and nothing in it is foreign to the document: so a text cannot guess, and a paraphrase
answers nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from smolsum.tasks.doc_qa.questions import Question
from smolsum.tasks.facts import FactVocabulary, Statement, spelling, statements


def answer(question: Question, stated: Sequence[Statement]) -> tuple[str, ...]:
    """What a text says to a question, in order and each form once; `stated` are its statements."""
    who = {spelling(person) for person in question.who}
    said = [s.form for s in stated if question.kind in s.kinds and (not who or s.person in who)]
    return tuple(dict.fromkeys(said))


def is_right(question: Question, said: Sequence[str], facts: Sequence[Mapping[str, Any]]) -> bool:
    """Whether an answer has the expected form, and none that the document does not state of that kind."""
    own = {spelling(form) for fact in facts if fact["kind"] == question.kind for form in fact["forms"]}
    expected = {spelling(form) for form in question.forms}
    return not expected.isdisjoint(said) and own.issuperset(said)


def read(
    text: str, questions: Sequence[Question], facts: Sequence[Mapping[str, Any]], vocabulary: FactVocabulary
) -> tuple[bool, ...]:
    """Whether each question is answered rightly by a text alone."""
    stated = statements(text, vocabulary)
    return tuple(is_right(question, answer(question, stated), facts) for question in questions)
