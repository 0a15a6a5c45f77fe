"""What may be wrong with data, in every form: one error that names file, row and column, and a remedy."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import polars
import pytest

from smolsum.config.sections import DataConfig
from smolsum.errors import UsageError
from smolsum.tasks.data import load_split

USER, ANSWER = {"role": "user", "content": "A post."}, {"role": "assistant", "content": "Short."}
GOOD = {"prompt": "A post.", "completion": "Short."}

Make = Callable[[Path], Path]
"""writes data into a directory, and returns the path to load"""


def content(name: str, data: str | bytes) -> Make:
    """A file with this content."""

    def make(folder: Path) -> Path:
        (folder / name).write_bytes(data if isinstance(data, bytes) else data.encode())
        return folder / name

    return make


def rows(*given: object, name: str = "a.jsonl") -> Make:
    """A file with these rows."""
    if name.endswith(".jsonl"):
        return content(name, "".join(json.dumps(row) + "\n" for row in given))

    def make(folder: Path) -> Path:
        frame = polars.DataFrame(given, infer_schema_length=None, strict=False)
        frame.write_parquet(folder / name) if name.endswith("parquet") else frame.write_ipc_stream(folder / name)
        return folder / name

    return make


def chat(*messages: object) -> Make:
    """A good row, and a row with these messages."""
    return rows({"messages": [USER, ANSWER]}, {"messages": list(messages)})


def directory(*makers: Make) -> Make:
    """A directory with all these files."""

    def make(folder: Path) -> Path:
        for maker in makers:
            maker(folder)
        return folder

    return make


def saved(damage: Callable[[Path], object]) -> Make:
    """What `datasets` saved, and something that happened to it."""

    def make(folder: Path) -> Path:
        datasets.DatasetDict(train=datasets.Dataset.from_list([GOOD])).save_to_disk(folder / "saved")
        damage(folder / "saved")
        return folder / "saved"

    return make


CSV = "prompt,completion\nAnn,A.\n"
CASES: dict[str, tuple[Make, dict[str, Any], str]] = {
    # files and directories
    "spreadsheet": (content("a.xlsx", b"PK"), {}, "a.xlsx: the format .xlsx is not read"),
    "packed": (content("a.jsonl.gz", b"\x1f\x8b"), {}, "a.jsonl.gz: the format .gz is not read"),
    "no suffix": (content("posts", CSV), {}, "posts: its name has no suffix that tells the format"),
    "empty CSV": (content("a.csv", ""), {}, "a.csv is empty"),
    "CSV of names alone": (content("a.csv", "prompt,completion\n"), {}, "a.csv is empty"),
    "empty Arrow": (content("a.arrow", ""), {}, "a.arrow is empty"),
    "two formats": (
        directory(content("train.csv", CSV), rows(GOOD, name="train.parquet")), {},
        "split 'train' is more than once in .: train.csv, train.parquet",
    ),
    "missing shard": (
        directory(content("train-00000-of-00002.csv", CSV)), {}, "split 'train' in . has 1 of 2 shards",
    ),
    "one file, named split": (content("a.csv", CSV), {"train_split": "dev"}, "a.csv is one file, without a split"),
    "saved: file missing": (
        saved(lambda folder: next(folder.glob("train/*.arrow")).unlink()), {},
        "saved/train/data-00000-of-00001.arrow is missing, although saved/train/state.json names it",
    ),
    "saved: split missing": (
        saved(lambda folder: (folder / "train" / "state.json").unlink()), {}, "saved/train has no state.json",
    ),
    "saved: damaged list": (
        saved(lambda folder: (folder / "dataset_dict.json").write_text("{")), {}, "dataset_dict.json is not JSON: ",
    ),
    "saved: no list": (
        saved(lambda folder: (folder / "dataset_dict.json").write_text("[]")), {}, "dataset_dict.json names no splits",
    ),
    # bytes
    "CSV in Latin-1": (content("a.csv", CSV.encode() + b"caf\xe9,B.\n"), {}, "a.csv:3 is not UTF-8 at its byte 4"),
    "CSV in UTF-16": (content("a.csv", CSV.encode("utf-16")), {}, "a.csv:1 holds a NUL byte"),
    "Parquet by name": (content("a.parquet", CSV), {}, "a.parquet is not Parquet, or is damaged: "),
    "Arrow by name": (content("a.arrow", CSV), {}, "a.arrow is not Arrow, or is damaged: "),
    # tables of text
    "too few cells": (
        content("a.csv", f"{CSV}Bo\n"), {},
        "a.csv:3 has 1 of 2 columns: no 'completion'",
    ),
    "too many cells": (
        content("a.csv", f"{CSV}Bo,B.,more\n"), {}, "a.csv:3 has 3 columns, and 2 names: 'more' is left over",
    ),
    "ragged TSV": (
        content("a.tsv", "prompt\tcompletion\nAnn\tA.\n\nBo\n"), {}, "a.tsv:4 has 1 of 2 columns",
    ),
    "open quote": (content("a.csv", f'{CSV}"Bo,B.\nCy,C.\n'), {}, "a.csv:3 has a quoted text that never ends"),
    "quote inside": (content("a.csv", f'{CSV}"Bo" said,B.\n'), {}, "a.csv:3 is not CSV: "),
    "semicolons": (content("a.csv", "prompt;completion\nA;B\n"), {}, "a.csv:1 names one column, 'prompt;completion'"),
    "a column twice": (content("a.csv", "prompt,prompt\nA,B\n"), {}, "a.csv:1 names the column 'prompt' more than"),
    "no line of names": (content("a.csv", "Ann,A.\nBo,B.\n"), {}, "a.csv:2 has no column 'prompt', only Ann, A."),
    "empty cell": (content("a.csv", f"{CSV},B.\n"), {}, "a.csv:3: 'prompt' is null, not text"),
    "row after a line break": (
        content("a.csv", 'prompt,completion\n"An\nn",A.\n,B.\n'), {}, "a.csv:4: 'prompt' is null, not text",
    ),
    # values
    "number in Parquet": (rows({"prompt": 3, "completion": "x"}, name="a.parquet"), {}, "row 1: 'prompt' is a number"),
    "blank in Arrow": (rows(GOOD, GOOD | {"prompt": " "}, name="a.arrow"), {}, "a.arrow, row 2: 'prompt' is empty"),
    "list of texts": (rows({"prompt": ["A.", "B."]}), {}, "a.jsonl:1: 'prompt' is a list, not text"),
    "twice the same id": (
        content("a.csv", "id,prompt,completion\n1,A,B\n1,C,D\n"), {}, "a.csv:3 has the id '1' of a.csv:2",
    ),
    "no id": (content("a.csv", "id,prompt,completion\n1,A,B\n,C,D\n"), {}, "a.csv:3: 'id' is null"),
    # references
    "no reference": (
        rows(GOOD, {"prompt": "A.", "completion": None, "b": None}), {"completion_column": "completion,b"},
        "a.jsonl:2: each of 'completion', 'b' is null, not text",
    ),
    "nulls alone": (rows(GOOD | {"completion": [None]}), {}, "a.jsonl:1: 'completion' is a list of nulls"),
    "blank among references": (
        rows(GOOD | {"b": " "}), {"completion_column": "completion,b"}, "a.jsonl:1: 'b' is empty",
    ),
    "one column of several": (
        rows(GOOD), {"completion_column": "completion,summary"}, "a.jsonl:1 has no column 'summary'",
    ),
    # chats
    "no messages": (chat(), {}, "a.jsonl:2: 'messages' is an empty list"),
    "text for messages": (rows({"messages": "Hi."}), {}, "a.jsonl:1: 'messages' is text, not a list of messages"),
    "no turn of the user": (chat(ANSWER), {}, "a.jsonl:2: 'messages' has no turn of the user"),
    "two answers": (chat(USER, ANSWER, ANSWER), {}, "a.jsonl:2: 'messages' has no turn of the user before its last"),
    "unknown role": (chat(USER | {"role": "human"}), {}, "message 1 of a.jsonl:2: 'messages' has the role 'human'"),
    "keys of ShareGPT": (
        chat({"from": "human", "value": "Hi."}), {}, "message 1 of a.jsonl:2: 'messages' has no role, only from, value",
    ),
    "no object": (chat(USER, "Hi."), {}, "message 2 of a.jsonl:2: 'messages' is text, not an object"),
    "null content": (
        chat(USER, ANSWER | {"content": None}), {}, "content of message 2 of a.jsonl:2: 'messages' is null",
    ),
    "late system message": (
        chat(USER, {"role": "system", "content": "x"}, USER), {}, "message 2 of a.jsonl:2: 'messages' has the role",
    ),
    "empty turn": (chat(USER | {"content": ""}, ANSWER, USER, ANSWER), {}, "turn 1 of a.jsonl:2: 'messages' is empty"),
    "empty last turn": (chat(USER | {"content": " "}, ANSWER), {}, "a.jsonl:2: 'messages' is empty"),
    "not answered": (chat(USER), {}, "a.jsonl:2: 'messages' does not end with a turn of the assistant"),
    "answered twice": (
        rows({"messages": [USER, ANSWER], "completion": "x"}), {},
        "a.jsonl:1: 'messages' ends with the assistant's turn, and the row has 'completion' too",
    ),
    "completion of two": (
        rows({"prompt": [USER], "completion": [ANSWER, ANSWER]}), {},
        "a.jsonl:1: 'completion' has messages of assistant, assistant, not one of the assistant",
    ),
    # what is left
    "all dropped": (rows({"prompt": "", "completion": "x"}), {"empty_texts": "drop"}, "no row is left of the train"),
    "nothing to train on": (
        rows(GOOD), {"validation_share": 0.5, "test_share": 0.49}, "validation and test leave no post to train on",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_what_is_wrong_is_named(tmp_path: Path, case: str) -> None:
    """By file, row and column, with a remedy."""
    make, settings, message = CASES[case]
    whole = {"validation_share": 0.0, "test_share": 0.0}
    with pytest.raises(UsageError) as caught:
        load_split(DataConfig(path=str(make(tmp_path)), **(whole | settings)), "train")
    said = caught.value.message.replace(f"{tmp_path}/", "").replace(str(tmp_path), ".")
    assert message in said
    assert caught.value.hint
