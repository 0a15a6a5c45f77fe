"""The data room: splits from a directory and from the package, and every input that is refused."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars
import pytest

from smolsum.config.sections import DataConfig
from smolsum.errors import UsageError
from smolsum.tasks.data import Example, Split, check_references, generated_split, load_split, overlap

ROWS: list[dict[str, Any]] = [
    {"id": "a", "prompt": "Ann lost a hat.", "completion": "Hat lost.", "facts": [{"kind": "item", "n": 1}]},
    {"id": "b", "prompt": "Bo, 31, moved to Rye…", "completion": "Bo moved.", "facts": [], "score": 2.5},
    {"id": "c", "prompt": "Cy owes $40.", "completion": "Debt.", "facts": [{"kind": "who"}], "score": 3},
]


def write_jsonl(path: Path, rows: Sequence[object] = ROWS) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def write_parquet(path: Path, rows: Sequence[Mapping[str, Any]] = ROWS) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    polars.DataFrame(rows, infer_schema_length=None, strict=False).write_parquet(path)
    return path


def load(directory: Path, split: str = "train", **settings: Any) -> Split:
    """The split, of data that have to have all that are read."""
    whole = {"validation_share": 0.0, "test_share": 0.0}
    return load_split(DataConfig(path=str(directory), **(whole | settings)), split)


def refusal(directory: Path, split: str = "train", **settings: Any) -> UsageError:
    """The error that loading ends with, relative to `directory`."""
    with pytest.raises(UsageError) as caught:
        load(directory, split, **settings)
    error = caught.value
    assert error.hint
    return UsageError(error.message.replace(f"{directory}/", ""), hint=error.hint)


def row(**changes: Any) -> dict[str, Any]:
    return {"prompt": "A post.", "completion": "A summary."} | changes


# what is read


def test_every_other_column_is_metadata(tmp_path: Path) -> None:
    """Prompt, completion and id become fields; whatever else the row holds stays with the example."""
    write_jsonl(tmp_path / "train.jsonl")
    split = load(tmp_path)
    expected = Example("a", "Ann lost a hat.", ("Hat lost.",), {"facts": [{"kind": "item", "n": 1}]})
    assert split.name == "train"
    assert split.examples[0] == expected
    assert [example.id for example in split.examples] == ["a", "b", "c"]


def test_columns_and_splits_are_named_by_the_configuration(tmp_path: Path) -> None:
    """`prompt_column`, `completion_column` and the split names decide what is read."""
    write_jsonl(tmp_path / "dev.jsonl", [{"post": "A post.", "tldr": "Short."}])
    columns = {"prompt_column": "post", "completion_column": "tldr"}
    split = load(tmp_path, "validation", validation_split="dev", **columns)
    assert split.name == "validation"
    assert split.examples == (Example("validation-1", "A post.", ("Short.",), {}),)


def test_rows_without_ids_are_numbered_and_blank_lines_do_not_count(tmp_path: Path) -> None:
    """An id is `<split>-<row>`, whatever stands between the rows."""
    (tmp_path / "train.jsonl").write_text(f"{json.dumps(row())}\n\n  \n{json.dumps(row())}", encoding="utf-8")
    assert [example.id for example in load(tmp_path).examples] == ["train-1", "train-2"]


def test_a_completion_may_be_several_references(tmp_path: Path) -> None:
    """A list of texts becomes the references, in order."""
    write_jsonl(tmp_path / "train.jsonl", [row(completion=["One.", "Two."])])
    assert load(tmp_path).examples[0].references == ("One.", "Two.")


def test_ids_may_be_whole_numbers(tmp_path: Path) -> None:
    """A number is an id too, as text."""
    write_jsonl(tmp_path / "train.jsonl", [row(id=7)])
    assert load(tmp_path).examples[0].id == "7"


def test_a_byte_order_mark_and_carriage_returns_are_no_content(tmp_path: Path) -> None:
    """A file saved on Windows reads like any other."""
    (tmp_path / "train.jsonl").write_bytes(b"\xef\xbb\xbf" + json.dumps(row()).encode() + b"\r\n")
    assert load(tmp_path).examples[0].source == "A post."


@pytest.mark.parametrize(
    "name", ["train.json", "train.parquet", "data/train-00000-of-00001-0f3a.parquet", "train-00000-of-00001.parquet"]
)
def test_every_format_gives_the_same_fingerprint(tmp_path: Path, name: str) -> None:
    """The fingerprint is of the rows: nulls and floats that Parquet's columns add do not change it."""
    write_jsonl(tmp_path / "lines" / "train.jsonl")
    write = write_parquet if name.endswith("parquet") else write_jsonl
    write(tmp_path / "other" / name)
    assert load(tmp_path / "lines").fingerprint == load(tmp_path / "other").fingerprint


@pytest.mark.parametrize(
    "change", [{"id": "z"}, {"prompt": "Z"}, {"completion": "Z"}, {"completion": ["Y", "Z"]}, {"score": 4}]
)
def test_any_change_of_content_changes_the_fingerprint(tmp_path: Path, change: dict[str, Any]) -> None:
    """Ids, posts, references and metadata all count."""
    write_jsonl(tmp_path / "a" / "train.jsonl")
    write_jsonl(tmp_path / "b" / "train.jsonl", [*ROWS[:-1], ROWS[-1] | change])
    assert load(tmp_path / "a").fingerprint != load(tmp_path / "b").fingerprint


def test_the_fingerprint_of_known_rows_never_changes(tmp_path: Path) -> None:
    """Stored runs name their data by it, so a release must not compute another one."""
    write_jsonl(tmp_path / "train.jsonl")
    assert load(tmp_path).fingerprint == "0ea20698f0b1bccdb773968d4c9f73f1"


def test_shards_are_read_in_their_order(tmp_path: Path) -> None:
    """A hub snapshot's shards make one split, and only the split's own."""
    for number, one in enumerate(ROWS):
        write_parquet(tmp_path / "data" / f"train-{number:05}-of-00003.parquet", [one])
    write_parquet(tmp_path / "data" / "train-extra-00000-of-00001.parquet")
    assert [example.id for example in load(tmp_path).examples] == ["a", "b", "c"]


def test_a_path_may_start_at_the_home_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`~` is expanded."""
    write_jsonl(tmp_path / "posts" / "train.jsonl")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert len(load(Path("~/posts")).examples) == 3


def test_an_existing_directory_wins_over_a_hub_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`owner/name` that exists here is never looked up on the hub."""
    write_jsonl(tmp_path / "owner" / "name" / "train.jsonl")
    monkeypatch.chdir(tmp_path)
    assert len(load(Path("owner/name")).examples) == 3


def test_overlap_lists_shared_posts_once(tmp_path: Path) -> None:
    """A post that two splits share is named once, in the first split's order."""
    write_jsonl(tmp_path / "train.jsonl", [row(prompt=text) for text in ("c", "a", "b", "a")])
    write_jsonl(tmp_path / "test.jsonl", [row(prompt=text) for text in ("a", "c", "x")])
    assert overlap(load(tmp_path), load(tmp_path, "test")) == ["c", "a"]


# what is refused: where to look


def test_an_unknown_split_is_refused(tmp_path: Path) -> None:
    """Only the three roles can be asked for."""
    error = refusal(tmp_path, "dev")
    assert str(error) == "unknown split 'dev'"
    assert error.hint == "choose from train, validation, test"


def test_an_unknown_built_in_name_is_answered_with_the_nearest() -> None:
    """A misspelt built-in data set names the one that was meant."""
    with pytest.raises(UsageError, match="no built-in data set 'tldr-min'") as caught:
        load_split(DataConfig(path="builtin:tldr-min"), "train")
    assert caught.value.hint == "--set data.path=builtin:tldr-mini"


@pytest.mark.parametrize("path", ["posts", "a/b/c", "./ann/posts", "/no/such", "ann/posts.jsonl", "~ann/x"])
def test_a_missing_path_is_refused(path: str) -> None:
    """What is no hub id, or looks like a path, is never sent to a hub."""
    with pytest.raises(UsageError, match=r"no data at .*: no such file or directory") as caught:
        load_split(DataConfig(path=path), "train")
    assert "--set data.path=PATH" in str(caught.value.hint)


def test_a_missing_file_is_answered_with_what_there_is(tmp_path: Path) -> None:
    """The split's name, the files of the directory and the likeliest setting."""
    write_jsonl(tmp_path / "train.jsonl")
    write_jsonl(tmp_path / "val.jsonl")
    error = refusal(tmp_path, "validation")
    assert str(error) == f"no file for split 'validation' in {tmp_path}, which holds train.jsonl, val.jsonl"
    assert error.hint == f"write {tmp_path}/validation.jsonl, or --set data.validation_split=val"


def test_a_split_that_must_not_be_cut_from_train(tmp_path: Path) -> None:
    """To train and validate on the same rows is no remedy."""
    write_jsonl(tmp_path / "train.jsonl")
    here = f"write {tmp_path}/validation.jsonl"
    assert refusal(tmp_path, "validation").hint == (
        f"{here}, or take it from the posts of train: --set data.validation_share=0.1"
    )


def test_a_split_that_built_in_data_lack() -> None:
    """Nothing is to be written into the package."""
    with pytest.raises(UsageError, match="'tldr-mini' has no split 'dev', only test, train, validation") as caught:
        load_split(DataConfig(path="builtin:tldr-mini", validation_split="dev"), "validation")
    assert caught.value.hint == "--set data.validation_split=validation"


def test_an_empty_directory_is_refused(tmp_path: Path) -> None:
    """A directory without data says so."""
    assert str(refusal(tmp_path)) == f"no file for split 'train' in {tmp_path}, which holds no data file"


def test_data_in_another_format_are_named(tmp_path: Path) -> None:
    """A directory of spreadsheets is not said to be empty; the formats that are read are the remedy."""
    (tmp_path / "train.xlsx").write_bytes(b"PK")
    error = refusal(tmp_path)
    assert str(error) == f"no file for split 'train' in {tmp_path}: train.xlsx is not read"
    assert error.hint == "write train as .jsonl, .json (one object a line), .csv, .tsv, .parquet or .arrow"
    write_jsonl(tmp_path / "validation.jsonl")
    assert "train.xlsx is not read" in str(refusal(tmp_path))
    assert str(refusal(tmp_path, "test")).endswith("which holds validation.jsonl")


def test_two_files_for_one_split_are_refused(tmp_path: Path) -> None:
    """Which of two candidates is meant is not guessed."""
    write_jsonl(tmp_path / "train.jsonl")
    write_parquet(tmp_path / "data" / "train-00000-of-00001.parquet")
    message = f"split 'train' is more than once in {tmp_path}: train.jsonl, data/train-00000-of-00001.parquet"
    assert str(refusal(tmp_path)) == message


def test_missing_shards_are_refused(tmp_path: Path) -> None:
    """Half of a download is not a split."""
    write_parquet(tmp_path / "data" / "train-00001-of-00002.parquet")
    assert str(refusal(tmp_path)) == "split 'train' in data has 1 of 2 shards"


def test_a_directory_in_place_of_a_file_is_refused(tmp_path: Path) -> None:
    """What cannot be opened is reported with the system's reason."""
    (tmp_path / "train.jsonl").mkdir()
    assert str(refusal(tmp_path)) == "cannot read train.jsonl: Is a directory"


# what is refused: what a file holds


@pytest.mark.parametrize("content", [b"", b"\n \n"])
@pytest.mark.parametrize("name", ["train.jsonl", "train.json"])
def test_an_empty_file_is_refused(tmp_path: Path, name: str, content: bytes) -> None:
    """No rows, no split."""
    (tmp_path / name).write_bytes(content)
    assert str(refusal(tmp_path)) == f"{name} is empty"


@pytest.mark.parametrize("empty", [True, False])
def test_an_empty_parquet_file_is_refused(tmp_path: Path, empty: bool) -> None:
    """Neither zero bytes nor zero rows are a split."""
    if empty:
        (tmp_path / "train.parquet").touch()
    else:
        polars.DataFrame({"prompt": [], "completion": []}).write_parquet(tmp_path / "train.parquet")
    assert str(refusal(tmp_path)) == "train.parquet is empty"


@pytest.mark.parametrize("keep", [4, 100, -1])
def test_a_damaged_parquet_file_is_refused(tmp_path: Path, keep: int) -> None:
    """A download that was cut short is no data."""
    path = write_parquet(tmp_path / "train.parquet")
    path.write_bytes(path.read_bytes()[:keep])
    assert str(refusal(tmp_path)).startswith("train.parquet is not Parquet, or is damaged: ")


GOOD = json.dumps(row()).encode() + b"\n"
BAD_LINES = {
    "cut short": (b'{"prompt": "A pos', "is not JSON: Unterminated string starting at, column 12"),
    "prose": (b"Ann lost a hat.", "is not JSON: Expecting value, column 1"),
    "number": (b"12", "is a number, not an object"),
    "null": (b"null", "is null, not an object"),
    "text": (b'"x"', "is text, not an object"),
    "truth": (b"true", "is true or false, not an object"),
    "array": (b'[{"prompt": "A post."}]', "is a list, not an object"),
    "deep": (b"[" * 100_000, "is not JSON: maximum recursion depth exceeded"),
    "long number": (b'{"prompt": ' + b"9" * 5000 + b"}", "is not JSON: Exceeds the limit"),
    "nul": (b'{"prompt": "\0"}', "holds a NUL byte"),
    "latin-1": (b'{"prompt": "caf\xe9"}', "is not UTF-8 at its byte 16"),
    "no prompt": (b'{"n": 1, "post": "A."}', "has no column 'prompt', only n, post; other rows have it"),
    "no completion": (b'{"prompt": "A.", "completions": "B."}', "has no column 'completion', only prompt"),
    "nothing": (b"{}", "has no column 'prompt', only an empty object"),
}


@pytest.mark.parametrize("case", BAD_LINES)
def test_a_bad_line_is_refused_with_its_number(tmp_path: Path, case: str) -> None:
    """The third line is at fault, after a good and a blank one: the error says so."""
    line, problem = BAD_LINES[case]
    (tmp_path / "train.jsonl").write_bytes(GOOD + b"\n" + line + b"\n" + GOOD)
    assert str(refusal(tmp_path)).startswith(f"train.jsonl:3 {problem}")


def test_a_json_array_is_answered_with_the_conversion(tmp_path: Path) -> None:
    """A pretty-printed array is the usual mistake with `.json`."""
    (tmp_path / "train.json").write_text(json.dumps([row()], indent=2), encoding="utf-8")
    error = refusal(tmp_path)
    assert str(error).startswith("train.json:1 is not JSON: ")
    assert "jq -c '.[]'" in str(error.hint)


def needed(directory: Path) -> UsageError:
    """The error of a reward that compares with references, for data without the column of these."""
    split = load(directory)
    assert [example.references for example in split.examples] == [()] * len(split.examples)
    warning = check_references({"train": split}, {"length": {"length": 1.0, "meteor": 0.0}})
    assert warning == f"no references: {split.no_references}; not measured on train: rouge, meteor, bleu"
    with pytest.raises(UsageError) as caught:
        check_references({"train": split}, {"length": {"length": 1.0}, "quality": {"meteor": 0.5, "bleu": 1.0}})
    message = f"stage quality uses meteor and bleu, which compare with references, but {split.no_references}"
    assert caught.value.message == message
    with pytest.raises(UsageError, match="uses meteor, which compares with references, but "):
        check_references({"train": split}, {"quality": {"meteor": 1.0}})
    hint, offered, _ = str(caught.value.hint).partition("; or --reward length")
    assert offered
    return UsageError(message, hint=hint)


def test_a_missing_column_is_answered_with_the_nearest(tmp_path: Path) -> None:
    """The hint is the setting that fixes it. References are missed only where a reward reads them, or on request."""
    one = row()
    write_parquet(tmp_path / "train.parquet", [{"post" if key == "prompt" else key: one[key] for key in one}])
    error = refusal(tmp_path)
    assert str(error).startswith("train.parquet, row 1 has no column 'prompt', only ")
    assert error.hint == "--set data.prompt_column=post"
    write_parquet(tmp_path / "train.parquet", [{key.replace("completion", "completions"): one[key] for key in one}])
    error = needed(tmp_path)
    assert "train.parquet, row 1 has no column 'completion', only " in error.message
    assert error.hint == "--set data.completion_column=completions"
    error = refusal(tmp_path, completion_column="completed")
    assert str(error).startswith("train.parquet, row 1 has no column 'completed', only ")
    assert error.hint == "--set data.completion_column=completions"


def test_references_are_not_missed_on_test() -> None:
    """Training reads those of the train and the validation split alone."""
    split = generated_split("test", [Example("1", "A post.")])
    lacking = replace(split, no_references="it has no column 'completion'")
    assert "not measured on test" in check_references({"train": split, "test": lacking}, {"quality": {"meteor": 1.0}})
    with pytest.raises(UsageError, match="stage quality uses meteor"):
        check_references({"train": split, "validation": lacking}, {"quality": {"meteor": 1.0}})
    assert not check_references({"train": split}, {"quality": {"meteor": 1.0}})


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
    (tmp_path / "train.jsonl").write_text(json.dumps({"prompt": "A.", **rest}) + "\n")
    assert needed(tmp_path).hint == hint


@pytest.mark.parametrize("column", ["prompt", "completion"])
def test_a_row_without_a_column_that_others_have_is_named(tmp_path: Path, column: str) -> None:
    """The remedy is for that row, not for the column."""
    one = {key: value for key, value in row().items() if key != column}
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(r) + "\n" for r in (row(), one | {"more": 1})))
    error = refusal(tmp_path)
    assert str(error).startswith(f"train.jsonl:2 has no column {column!r}, only ")
    assert error.hint == "complete or remove the row"


BAD_VALUES = {
    "empty": ("", "is empty"),
    "blank": (" \n\t ", "is empty"),
    "null": (None, "is null, not text"),
    "number": (3.5, "is a number, not text"),
    "object": ({"role": "user"}, "is an object, not text"),
    "nul": ("a\0b", "holds a NUL or half a surrogate pair"),
    "surrogate": ("\ud83d", "holds a NUL or half a surrogate pair"),
}


@pytest.mark.parametrize("case", BAD_VALUES)
@pytest.mark.parametrize("column", ["prompt", "completion"])
def test_what_is_no_text_is_refused(tmp_path: Path, column: str, case: str) -> None:
    """An empty post or reference, or anything that is not text, is reported with its line and column."""
    value, problem = BAD_VALUES[case]
    write_jsonl(tmp_path / "train.jsonl", [row(), row(**{column: value})])
    assert str(refusal(tmp_path)) == f"train.jsonl:2: {column!r} {problem}"


@pytest.mark.parametrize(
    ("value", "problem"), [([], "is an empty list"), (["", "B."], "is empty"), ([1], "is a number, not text")]
)
def test_a_bad_list_of_references_is_refused(tmp_path: Path, value: list[Any], problem: str) -> None:
    """Each of several references obeys the rule of a single one."""
    write_jsonl(tmp_path / "train.jsonl", [row(completion=value)])
    assert str(refusal(tmp_path)) == f"train.jsonl:1: 'completion' {problem}"


def test_a_bad_value_in_parquet_is_refused_with_its_row(tmp_path: Path) -> None:
    """Parquet has no lines; rows are counted from 1."""
    write_parquet(tmp_path / "train.parquet", [row(), row(prompt=" ")])
    assert str(refusal(tmp_path)) == "train.parquet, row 2: 'prompt' is empty"


def test_ids_that_occur_twice_are_refused(tmp_path: Path) -> None:
    """Both places are named; 1 and "1" are the same id."""
    write_jsonl(tmp_path / "train.jsonl", [row(id=1), row(id=2), row(id="1")])
    assert str(refusal(tmp_path)) == "train.jsonl:3 has the id '1' of train.jsonl:1"


@pytest.mark.parametrize(
    ("one", "problem"),
    [(row(), "null"), (row(id=""), "empty"), (row(id=1.5), "a number"), (row(id=True), "true or false")],
)
def test_what_is_no_id_is_refused(tmp_path: Path, one: dict[str, Any], problem: str) -> None:
    """If one row has an id, every row needs one."""
    write_jsonl(tmp_path / "train.jsonl", [row(id="a"), one])
    assert str(refusal(tmp_path)) == f"train.jsonl:2: 'id' is {problem}"
