"""The data room: splits from a directory and from the package, their fingerprints, and where references are missed."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.data_files import lines, load, table
from support.refusals import refuses

from smolsum.config.sections import DataConfig
from smolsum.tasks.data import Example, Split, check_references, generated_split, load_split, overlap

ROWS: list[dict[str, Any]] = [
    {"id": "a", "prompt": "Ann lost a hat.", "completion": "Hat lost.", "facts": [{"kind": "item", "n": 1}]},
    {"id": "b", "prompt": "Bo, 31, moved to Rye…", "completion": "Bo moved.", "facts": [], "score": 2.5},
    {"id": "c", "prompt": "Cy owes $40.", "completion": "Debt.", "facts": [{"kind": "who"}], "score": 3},
]


def row(**changes: Any) -> dict[str, Any]:
    return {"prompt": "A post.", "completion": "A summary."} | changes


def test_every_other_column_is_metadata(tmp_path: Path) -> None:
    """Prompt, completion and id become fields; whatever else the row holds stays with the example."""
    lines(tmp_path / "train.jsonl", ROWS)
    split = load(tmp_path)
    expected = Example("a", "Ann lost a hat.", ("Hat lost.",), {"facts": [{"kind": "item", "n": 1}]})
    assert (split.name, split.examples[0]) == ("train", expected)
    assert [example.id for example in split.examples] == ["a", "b", "c"]


def test_columns_and_splits_are_named_by_the_configuration(tmp_path: Path) -> None:
    """`prompt_column`, `completion_column` and the split names decide what is read."""
    lines(tmp_path / "dev.jsonl", [{"post": "A post.", "tldr": "Short."}])
    columns = {"prompt_column": "post", "completion_column": "tldr"}
    split = load(tmp_path, "validation", validation_split="dev", **columns)
    assert split.name == "validation"
    assert split.examples == (Example("validation-1", "A post.", ("Short.",), {}),)


@pytest.mark.parametrize(
    ("content", "examples"),
    [
        # an id is `<split>-<row>`, whatever stands between the rows
        ("{}\n\n  \n{}".format(*[json.dumps(row())] * 2), [("train-1", ("A summary.",)), ("train-2", ("A summary.",))]),
        (json.dumps(row(completion=["One.", "Two."])), [("train-1", ("One.", "Two."))]),
        (json.dumps(row(id=7)), [("7", ("A summary.",))]),
        # a file saved on Windows: a byte order mark and carriage returns are no content
        (f"\ufeff{json.dumps(row())}\r\n", [("train-1", ("A summary.",))]),
    ],
    ids=["blank lines", "several references", "whole number as id", "Windows"],
)  # fmt: skip
def test_lines_are_rows(tmp_path: Path, content: str, examples: list[tuple[str, tuple[str, ...]]]) -> None:
    (tmp_path / "train.jsonl").write_bytes(content.encode())
    found = load(tmp_path).examples
    assert [(example.id, example.references) for example in found] == examples
    assert {example.source for example in found} == {"A post."}


@pytest.mark.parametrize(
    "name", [f"train{end}" for end in (".jsonl", ".json", ".parquet", "-00000-of-00001.parquet")]
    + ["data/train-00000-of-00001-0f3a.parquet"]
)  # fmt: skip
def test_every_format_gives_the_same_fingerprint(tmp_path: Path, name: str) -> None:
    """The fingerprint is of the rows: nulls and floats that Parquet's columns add do not change it. Stored runs name
    their data by it, so a release must not compute another one."""
    table(tmp_path / name, ROWS)
    assert load(tmp_path).fingerprint == "0ea20698f0b1bccdb773968d4c9f73f1"


@pytest.mark.parametrize(
    "change", [{"id": "z"}, {"prompt": "Z"}, {"completion": "Z"}, {"completion": ["Y", "Z"]}, {"score": 4}]
)
def test_any_change_of_content_changes_the_fingerprint(tmp_path: Path, change: dict[str, Any]) -> None:
    """Ids, posts, references and metadata all count."""
    lines(tmp_path / "a" / "train.jsonl", ROWS)
    lines(tmp_path / "b" / "train.jsonl", [*ROWS[:-1], ROWS[-1] | change])
    assert load(tmp_path / "a").fingerprint != load(tmp_path / "b").fingerprint


def test_shards_are_read_in_their_order(tmp_path: Path) -> None:
    """A hub snapshot's shards make one split, and only the split's own."""
    for number, one in enumerate(ROWS):
        table(tmp_path / "data" / f"train-{number:05}-of-00003.parquet", [one])
    table(tmp_path / "data" / "train-extra-00000-of-00001.parquet", ROWS)
    assert [example.id for example in load(tmp_path).examples] == ["a", "b", "c"]


@pytest.mark.parametrize("path", ["~/owner/name", "owner/name"])
def test_a_path_may_look_like_something_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    """`~` is expanded, and `owner/name` that exists here is never looked up on the hub."""
    lines(tmp_path / "owner" / "name" / "train.jsonl", ROWS)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert len(load(path).examples) == 3


def test_overlap_lists_shared_posts_once(tmp_path: Path) -> None:
    """A post that two splits share is named once, in the first split's order."""
    lines(tmp_path / "train.jsonl", [row(prompt=text) for text in ("c", "a", "b", "a")])
    lines(tmp_path / "test.jsonl", [row(prompt=text) for text in ("a", "c", "x")])
    assert overlap(load(tmp_path), load(tmp_path, "test")) == ["c", "a"]


def needed(split: Split, hint: str) -> None:
    """Of data without the column of references: a reward that compares with them is refused with this hint, and what
    only measures by them is warned of."""
    assert [example.references for example in split.examples] == [()] * len(split.examples)
    warning = check_references({"train": split}, {"length": {"length": 1.0, "meteor": 0.0}})
    assert split.no_references in warning
    assert warning.endswith("not measured on train: rouge, meteor, bleu")
    with refuses("stage quality", "meteor and bleu", split.no_references, hint, "--reward length"):
        check_references({"train": split}, {"length": {"length": 1.0}, "quality": {"meteor": 0.5, "bleu": 1.0}})


def test_a_missing_column_is_answered_with_the_nearest(tmp_path: Path) -> None:
    """The hint is the setting that fixes it. References are missed only where a reward reads them, or on request."""
    path = table(tmp_path / "train.parquet", [{"post": "A post.", "completion": "A summary."}])
    with refuses("train.parquet, row 1", "'prompt'", "--set data.prompt_column=post"):
        load(tmp_path)
    table(path, [{"prompt": "A post.", "completions": "A summary."}])
    assert "train.parquet, row 1 has no column 'completion', only " in load(tmp_path).no_references
    needed(load(tmp_path), "--set data.completion_column=completions")
    with refuses("train.parquet, row 1", "'completed'", "--set data.completion_column=completions"):
        load(tmp_path, completion_column="completed")


@pytest.mark.parametrize(
    ("rest", "hint"),
    [
        ({"summary": "B."}, "--set data.completion_column=summary"),
        ({}, "add the column 'completion'"),
        ({"id": "a"}, "add the column 'completion'"),
        ({"year": 2024, "source": "web"}, "--set data.completion_column=NAME"),
    ],
)
def test_a_post_is_never_offered_as_its_own_reference(tmp_path: Path, rest: dict[str, Any], hint: str) -> None:
    """The hint leaves out the columns that serve already."""
    lines(tmp_path / "train.jsonl", [{"prompt": "A.", **rest}])
    needed(load(tmp_path), hint)


def test_references_are_not_missed_on_test() -> None:
    """Training reads those of the train and the validation split alone."""
    split = generated_split("test", [Example("1", "A post.")])
    lacking = replace(split, no_references="it has no column 'completion'")
    assert "not measured on test" in check_references({"train": split, "test": lacking}, {"quality": {"meteor": 1.0}})
    with refuses("stage quality", "meteor"):
        check_references({"train": split, "validation": lacking}, {"quality": {"meteor": 1.0}})
    assert not check_references({"train": split}, {"quality": {"meteor": 1.0}})


@pytest.mark.parametrize("path", ["posts", "a/b/c", "./ann/posts", "/no/such", "ann/posts.jsonl", "~ann/x"])
def test_a_missing_path_is_refused(path: str) -> None:
    """What is no hub id, or looks like a path, is never sent to a hub."""
    with refuses(path.removeprefix("./"), "no such file", "--set data.path=PATH"):
        load_split(DataConfig(path=path), "train")


@pytest.mark.parametrize(
    ("data", "split", "named"),
    [
        ({"path": "builtin:tldr-min"}, "train", "--set data.path=builtin:tldr-mini"),
        ({"validation_split": "dev"}, "validation", "--set data.validation_split=validation"),
        ({}, "dev", "train, validation, test"),
    ],
)
def test_a_name_that_does_not_exist_is_answered_with_those_that_do(
    data: dict[str, str], split: str, named: str
) -> None:
    """Nothing is to be written into the package, so the nearest name is the remedy."""
    with refuses(named):
        load_split(DataConfig(**data), split)
