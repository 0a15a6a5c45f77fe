"""Documents with their questions, from data with one row for each question, or made from the facts of posts.

A fact (`smolsum.tasks.facts`) is something that a post states; its key `slot` names what a question can ask.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from itertools import pairwise
from typing import Any

from smolsum.config.sections import Config, DataConfig
from smolsum.errors import UsageError
from smolsum.tasks.data import ID_COLUMN, Example, Split, column_of, generated_split, load_split, post_of
from smolsum.tasks.data_files import SPLITS, kind_of, nearest_name
from smolsum.tasks.data_splits import PlacedRow, read_split
from smolsum.tasks.doc_qa.settings import DocQaConfig, settings
from smolsum.tasks.facts import FactVocabulary, vocabulary

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
"""the question about a fact of each slot: who the people of a post are. Nothing asks what happened, which the policy
has to find out"""
EACH = 5
"""questions for each document, as in Repliqa"""


@dataclass(frozen=True)
class Question:
    """A question about a document, and its answer there.

    `kind`, `forms` and `who` are those of the fact that a built-in question was made from; else they are empty.
    """

    text: str
    answer: str
    kind: str = ""
    forms: tuple[str, ...] = ()
    who: tuple[str, ...] = ()


@dataclass(frozen=True)
class QuestionSet:
    """The questions of one document, and the facts that the rule-based reader needs, if it has any."""

    questions: tuple[Question, ...]
    facts: tuple[Mapping[str, Any], ...] = field(default=())

    def as_metadata(self) -> dict[str, Any]:
        """Return plain values, for an example's metadata."""
        return {"questions": [asdict(question) for question in self.questions], "facts": list(self.facts)}


Verdicts = tuple[bool | None, ...]
"""whether each question of a document is answered rightly; None where that could not be found out"""


@dataclass(frozen=True)
class Reading:
    """A text to answer a document's questions from."""

    text: str
    document: str
    asked: QuestionSet


def asked_of(metadata: Mapping[str, Any]) -> QuestionSet:
    """Return the questions of an example's metadata: the reverse of `as_metadata`."""
    questions = tuple(
        Question(q["text"], q["answer"], q["kind"], tuple(q["forms"]), tuple(q["who"])) for q in metadata["questions"]
    )
    return QuestionSet(questions, tuple(metadata["facts"]))


def from_facts(name: str, facts: Sequence[Mapping[str, Any]]) -> tuple[Question, ...]:
    """Return up to five questions about a post's facts, chosen by its id alone."""
    open_to_question = [fact for fact in facts if fact.get("slot") in ASKED]

    def lot(fact: Mapping[str, Any]) -> bytes:
        return hashlib.sha256(f"{name}\n{fact['slot']}".encode()).digest()

    drawn = sorted(sorted(open_to_question, key=lot)[:EACH], key=lambda fact: list(ASKED).index(fact["slot"]))
    return tuple(
        Question(ASKED[f["slot"]], f["forms"][0], f["kind"], tuple(f["forms"]), tuple(f["who"])) for f in drawn
    )


UNANSWERABLE = "UNANSWERABLE"
"""Repliqa's answer to a question that the document does not answer"""
FACTS = "facts"


def load(config: Config, split: str) -> Split:
    """Return the documents of a split, in file order; each example's metadata has its questions (`asked_of`).

    Where train, validation and test are one split of the data, all its documents are divided by `task.split_seed`, and
    `data.train_rows` and the like are then the number of documents that are used of each part. Raises UsageError for
    data or a document without questions, and for other wrong input.
    """
    data, task = config.data, settings(config)
    if not data.train_split == data.validation_split == data.test_split:
        found = _documents(data, task, split)
        return generated_split(split, found.examples, found.left_out, found.origin)
    found = _documents(replace(data, train_rows=0, validation_rows=0, test_rows=0), task, "train")
    examples = divide(found.examples, task)[split]
    origin = f"{found.origin}, of which {len(examples):,} documents by task.split_seed = {task.split_seed}"
    if 0 < (wanted := getattr(data, f"{split}_rows")) < len(examples):
        examples = examples[:wanted]
        origin += f", of which data.{split}_rows = {wanted:,}"
    return generated_split(split, examples, found.left_out, origin)


def divide(examples: Sequence[Example], task: DocQaConfig) -> dict[str, tuple[Example, ...]]:
    """Divide one split's documents into three, by the seed alone: shuffled, then validation, test, and the rest to
    train on. Raises UsageError if none would be left."""
    held = task.validation_documents + task.test_documents
    if len(examples) <= held:
        raise UsageError(
            f"{len(examples)} documents cannot be divided into {task.validation_documents} to validate on, "
            f"{task.test_documents} to test on and some to train on",
            hint="--set task.test_documents=N, --set task.validation_documents=N",
        )
    import numpy as np  # slow to import, and rarely needed

    shuffled = [examples[i] for i in np.random.default_rng(task.split_seed).permutation(len(examples))]
    bounds = (0, task.validation_documents, held, len(examples))
    parts = [tuple(shuffled[a:b]) for a, b in pairwise(bounds)]
    return {"validation": parts[0], "test": parts[1], "train": parts[2]}


@lru_cache(maxsize=2)
def known_forms(data: DataConfig) -> FactVocabulary:
    """Return the forms of the facts of all splits, for the rule-based reader."""
    posts = [example.metadata[FACTS] for name in SPLITS for example in load_split(data, name).examples]
    return vocabulary(posts)


@lru_cache(maxsize=3)
def _documents(data: DataConfig, task: DocQaConfig, split: str) -> Split:
    def post(row: Mapping[str, Any], where: str) -> object:
        return row[task.document_column] if task.document_column in row else post_of(row, where, data)

    texts = {task.question_column, task.answer_column, task.document_column, task.id_column, data.prompt_column}
    rows, origin = read_split(data, split, post=post, texts=texts | {data.completion_column, ID_COLUMN})
    columns = rows[0].columns
    if task.question_column in columns:
        return generated_split(split, _grouped(rows, task), origin=origin)
    if FACTS in columns:
        loaded = load_split(data, split)
        return replace(loaded, examples=tuple(_with_questions(example) for example in loaded.examples))
    near = nearest_name(task.question_column, columns)
    raise UsageError(
        f"{rows[0].where} has no questions: neither a column {task.question_column!r} nor facts to make them from, "
        f"only {', '.join(columns)}",
        hint=f"--set task.question_column={near or 'NAME'}, or data with Repliqa's columns",
    )


def _with_questions(example: Example) -> Example:
    facts = example.metadata.get(FACTS) or []
    questions = from_facts(example.id, facts)
    if not questions:
        raise _no_questions(example.id, "none of its facts can be asked about")
    return replace(example, metadata={**example.metadata, **QuestionSet(questions, tuple(facts)).as_metadata()})


def _grouped(rows: Sequence[PlacedRow], task: DocQaConfig) -> tuple[Example, ...]:
    """Return the documents in the order in which they first appear."""
    texts: dict[str, str] = {}
    asked: dict[str, list[Question]] = {}
    for where, row, _ in rows:
        name, text = (_text(row, where, column, f"task.{column_of}_column") for column, column_of in (
            (task.id_column, "id"), (task.document_column, "document")))  # fmt: skip
        if texts.setdefault(name, text) != text:
            raise UsageError(
                f"{where}: document {name!r} has another text than in its first row",
                hint="give every document its own id",
            )
        question = _text(row, where, task.question_column, "task.question_column")
        answer = _text(row, where, task.answer_column, "task.answer_column")
        questions = asked.setdefault(name, [])
        if answer.strip().upper() != UNANSWERABLE or task.unanswerable == "keep":
            questions.append(Question(question, answer))
    for name, questions in asked.items():
        if not questions:
            raise _no_questions(name, "none of its questions can be answered from it")
    return tuple(
        Example(name, text, tuple(q.answer for q in asked[name]), QuestionSet(tuple(asked[name])).as_metadata())
        for name, text in texts.items()
    )


def _text(row: Mapping[str, Any], where: str, column: str, setting: str) -> str:
    value = column_of(row, where, column, setting)
    if type(value) is int:
        return str(value)
    if not isinstance(value, str) or not value.strip():
        what = "is empty" if isinstance(value, str) else f"is {kind_of(value)}, not text"
        raise UsageError(f"{where}: {column!r} {what}", hint="put the text there, or remove the row")
    return value


def _no_questions(name: str, why: str) -> UsageError:
    return UsageError(
        f"document {name!r} has no questions: {why}",
        hint="add one or remove the document; --set task.unanswerable=keep asks those too that it does not answer",
    )
