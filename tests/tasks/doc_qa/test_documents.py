"""Documents and their questions, from rows like Repliqa's and from facts."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.calls import Call, done
from support.data_files import table
from support.documents_of import config, with_data
from support.refusals import assert_refused, refuses

from smolsum.config.sections import Config
from smolsum.tasks.doc_qa.documents import ASKED, asked_of, from_facts, load


def row(document: int, number: int, answer: str = "", **changes: Any) -> dict[str, Any]:
    """A row as Repliqa has them."""
    name, things = f"doc{document:04d}", " ".join(f"Thing {q} is c{document}x{q}." for q in range(5))
    found = {"document_id": name, "document_topic": "News", "document_path": "x.pdf", "long_answer": "long"}
    found |= {"document_extracted": f"Document {document}. {things}", "question_id": f"{name}-q{number}"}
    return found | {"question": f"What is thing {number}?", "answer": answer or f"c{document}x{number}"} | changes


def written(folder: Path, rows: list[dict[str, Any]], **task: Any) -> Config:
    """The data as one Parquet split, called as Repliqa's first."""
    table(folder / "repliqa_0.parquet", rows)
    names = dict.fromkeys(("train_split", "validation_split", "test_split"), "repliqa_0")
    return with_data(config(**task), path=str(folder), **names)


def test_repliqa_is_grouped_and_divided(tmp_path: Path) -> None:
    """3,591 documents of 5 rows each, not next to each other: three parts without a document in common, of the sizes
    asked for, the same for the same seed, and every question with its own document."""
    rows = [row(d, q) for q in range(5) for d in range(3591)]
    made = written(tmp_path / "data", rows, test_documents=250, validation_documents=91)
    splits = {name: load(made, name).examples for name in ("train", "validation", "test")}
    assert {name: len(examples) for name, examples in splits.items()} == {"train": 3250, "validation": 91, "test": 250}
    assert len({example.id for examples in splits.values() for example in examples}) == 3591
    for example in splits["test"]:
        number = int(example.id.removeprefix("doc"))
        asked = asked_of(example.metadata)
        assert [q.answer for q in asked.questions] == [f"c{number}x{n}" for n in range(5)]
        assert example.source.startswith(f"Document {number}.")
    again, other = (written(tmp_path / "data", rows, split_seed=seed) for seed in (80, 81))
    assert load(again, "test").fingerprint == load(made, "test").fingerprint
    assert load(other, "test").fingerprint != load(made, "test").fingerprint


def test_a_part_of_the_documents_is_drawn_after_they_are_divided(tmp_path: Path) -> None:
    """No document is in two parts, and test and validation are those of a training on all documents."""
    rows = [row(d, q) for q in range(5) for d in range(60)]
    whole = written(tmp_path / "data", rows, test_documents=10, validation_documents=6)
    part = replace(whole, data=replace(whole.data, train_rows=8, test_rows=4))
    splits = {name: load(part, name).examples for name in ("train", "validation", "test")}
    assert {name: len(examples) for name, examples in splits.items()} == {"train": 8, "validation": 6, "test": 4}
    assert len({example.id for examples in splits.values() for example in examples}) == 18
    assert all(len(asked_of(example.metadata).questions) == 5 for example in splits["train"])
    assert splits["validation"] == load(whole, "validation").examples
    assert all(example in load(whole, "test").examples for example in splits["test"])


def test_dry_run_refuses_a_reader_that_cannot_read(tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rules answer questions that were made from facts only: a dry run says so, as the training would."""
    written(tmp_path / "data", [row(d, q) for d in range(4) for q in range(2)])
    sets = [f"data.{name}_split=repliqa_0" for name in ("train", "validation", "test")]
    sets += ["task.validation_documents=1", "task.test_documents=1", f"data.path={tmp_path / 'data'}"]
    command = ["train", "--task=doc-qa", "--dry-run", *(f"--set={one}" for one in sets)]
    assert_refused(call(*command), "facts", "task.reader=MODEL")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    done(call(*command, "--set=task.reader=my-reader"))


def test_questions_without_an_answer(tmp_path: Path) -> None:
    """Repliqa's unanswerable questions are left out, or kept on request; a document of nothing else is an error."""
    rows = [row(d, q, "UNANSWERABLE" if q == 0 else "") for d in range(4) for q in range(2)]
    parts = {"validation_documents": 1, "test_documents": 1}
    for kept, questions in (("drop", 1), ("keep", 2)):
        made = written(tmp_path / kept, rows, unanswerable=kept, **parts)
        assert all(len(asked_of(e.metadata).questions) == questions for e in load(made, "train").examples)
    made = written(tmp_path / "none", [*rows, row(9, 0, "UNANSWERABLE")], **parts)
    with refuses("'doc0009'", "task.unanswerable=keep"):
        load(made, "train")


@pytest.mark.parametrize(
    ("rows", "named"),
    [
        ([row(1, 0), row(1, 1, document_extracted="Another.")], "another text"),
        ([row(1, 0, question="  ")], "'question' is empty"),
        ([row(1, 0, question=None)], "'question' is null"),
        ([row(1, 0), row(2, 0)], "2 documents cannot be divided into 91"),
        ([{"text": "a", "answer": "b"}], "'question'"),
        ([{"document_id": "a", "question": "b", "answer": "c"}], "'document_extracted'"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, rows: list[dict[str, Any]], named: str) -> None:
    with refuses(named):
        load(written(tmp_path / "data", rows), "train")


def test_built_in_posts_have_questions_about_people() -> None:
    """About different facts, with their answers, and the same every time; which ones differs from post to post."""
    test = load(config(), "test")
    assert len(test.examples) == 200
    seen = set()
    for example in test.examples:
        asked = asked_of(example.metadata)
        assert 2 <= len({q.text for q in asked.questions}) == len(asked.questions) <= 5
        assert all(q.answer in q.forms and q.text in ASKED.values() for q in asked.questions)
        assert asked.questions == from_facts(example.id, example.metadata["facts"])
        seen |= {q.text for q in asked.questions}
    assert seen == set(ASKED.values())


def test_a_post_without_facts_is_an_error(tmp_path: Path) -> None:
    """Facts without a question do not count."""
    fact = {"slot": "loan", "kind": "event", "forms": ["borrowed"], "who": ["Noah"]}
    rows = [{"id": "a", "prompt": "Noah borrowed it.", "completion": "Noah.", "facts": [fact]}]
    for name in ("train", "validation", "test"):
        table(tmp_path / f"{name}.parquet", rows)
    with refuses("'a'", "facts"):
        load(with_data(config(), path=str(tmp_path)), "train")
