"""The questions of a document: rows of a data set that has them, or made from the facts of the built-in posts.

A fact (`smolsum.tasks.facts`) says what a post states; its key `slot` says as what, and that is what is asked here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

ASKED = {
    "N": "What is the name of the person whom the writer is upset about?",
    "rel": "What is the person whom the writer is upset about to the writer?",
    "page": "How old is the person whom the writer is upset about?",
    "D": "For how long have the writer and that person known each other?",
    "M": "What is the name of the other person in the story?",
    "mrel": "What is the other person in the story to the writer?",
    "age": "How old is the writer?",
    "job": "What does the writer work as?",
    "L": "In which town does the writer live, or did it happen?",
}
"""what is asked about a fact of this slot: who the people of a post are. What happened is asked by nobody, which the
policy has to find out"""
EACH = 5
"""questions a document, as many as in Repliqa"""


@dataclass(frozen=True)
class Question:
    """What is asked about a document, and the answer that it has there.

    `kind`, `forms` and `who` are those of the fact that a built-in question was made from; else they are empty.
    """

    text: str
    answer: str
    kind: str = ""
    forms: tuple[str, ...] = ()
    who: tuple[str, ...] = ()


@dataclass(frozen=True)
class Asked:
    """The questions of one document, with what the rule-based reader knows of it: its facts, if it has any."""

    questions: tuple[Question, ...]
    facts: tuple[Mapping[str, Any], ...] = field(default=())

    def as_metadata(self) -> dict[str, Any]:
        """As plain values, for an example's metadata."""
        return {"questions": [asdict(question) for question in self.questions], "facts": list(self.facts)}


def asked_of(metadata: Mapping[str, Any]) -> Asked:
    """The reverse of `as_metadata`."""
    questions = tuple(
        Question(q["text"], q["answer"], q["kind"], tuple(q["forms"]), tuple(q["who"])) for q in metadata["questions"]
    )
    return Asked(questions, tuple(metadata["facts"]))


def from_facts(name: str, facts: Sequence[Mapping[str, Any]]) -> tuple[Question, ...]:
    """Five questions about a post's facts, fewer where it has fewer; which ones follows from its id alone."""
    open_to_question = [fact for fact in facts if fact.get("slot") in ASKED]

    def lot(fact: Mapping[str, Any]) -> bytes:
        return hashlib.sha256(f"{name}\n{fact['slot']}".encode()).digest()

    drawn = sorted(sorted(open_to_question, key=lot)[:EACH], key=lambda fact: list(ASKED).index(fact["slot"]))
    return tuple(
        Question(ASKED[f["slot"]], f["forms"][0], f["kind"], tuple(f["forms"]), tuple(f["who"])) for f in drawn
    )
