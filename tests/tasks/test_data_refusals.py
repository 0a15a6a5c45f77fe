"""What may be wrong with data, in every form: one error that names file, row and column, and a remedy."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import polars
import pytest
from support.data_files import lines, load, table
from support.refusals import refuses

USER, ANSWER = {"role": "user", "content": "A post."}, {"role": "assistant", "content": "Short."}
GOOD = {"prompt": "A post.", "completion": "Short."}

Make = Callable[[Path], Path]
"""writes data into a directory, and returns the path to load"""
Case = tuple[Make, dict[str, Any], tuple[str, ...]]
"""data, settings and the split, and what the error names"""


def case(make: Make, *named: str, **settings: Any) -> Case:
    return make, settings, named


def content(name: str, data: str | bytes) -> Make:

    def make(folder: Path) -> Path:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(data if isinstance(data, bytes) else data.encode())
        return folder / name

    return make


def rows(*given: Any, name: str = "a.jsonl") -> Make:
    return lambda folder: (
        table(folder / name, given) if name.endswith(("parquet", "arrow")) else lines(folder / name, given)
    )


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


def cut(name: str, share: float) -> Make:
    """A file of good rows of which only this share is there."""

    def make(folder: Path) -> Path:
        path = table(folder / name, [GOOD] * 3)
        path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])
        return path

    return make


def bad_line(line: bytes) -> Make:
    """The third line is at fault, after a good and a blank one."""
    good = json.dumps(GOOD).encode() + b"\n"
    return content("a.jsonl", good + b"\n" + line + b"\n" + good)


def empty_parquet(folder: Path) -> Path:
    polars.DataFrame({"prompt": [], "completion": []}).write_parquet(folder / "a.parquet")
    return folder / "a.parquet"


CSV = "prompt,completion\nAnn,A.\n"
TRAIN, SPREADSHEET = rows(GOOD, name="train.jsonl"), content("train.xlsx", b"PK")
CASES: dict[str, Case] = {
    # files and directories
    "spreadsheet": case(content("a.xlsx", b"PK"), "a.xlsx", ".xlsx"),
    "packed": case(content("a.jsonl.gz", b"\x1f\x8b"), "a.jsonl.gz", ".gz"),
    "no suffix": case(content("posts", CSV), "posts", "suffix"),
    "nothing there": case(directory(), "'train'", "no data file"),
    "spreadsheet in a directory": case(directory(SPREADSHEET), "train.xlsx", ".jsonl", ".csv", ".parquet", ".arrow"),
    "spreadsheet next to data": case(directory(SPREADSHEET, rows(GOOD, name="test.jsonl")), "train.xlsx is not read"),
    "data next to a spreadsheet": case(directory(SPREADSHEET, rows(GOOD, name="validation.jsonl")), "'test'",
                        "holds validation.jsonl", split="test"),
    "split of another name": case(directory(TRAIN, rows(GOOD, name="val.jsonl")), "train.jsonl, val.jsonl",
                        "write validation.jsonl", "--set data.validation_split=val", split="validation"),
    # to train and validate on the same rows is no remedy
    "train alone": case(directory(TRAIN), "write validation.jsonl", "--set data.validation_share=0.1",
                        split="validation"),
    "two formats": case(directory(content("train.csv", CSV), rows(GOOD, name="data/train-00000-of-00001.parquet")),
                        "'train'", "train.csv, data/train-00000-of-00001.parquet"),
    "missing shard": case(directory(content("data/train-00001-of-00002.csv", CSV)), "'train'", "data", "1 of 2"),
    "a directory as a file": case(directory(lambda folder: (folder / "train.jsonl").mkdir() or folder), "train.jsonl",
                        "Is a directory"),
    "saved: file missing": case(saved(lambda folder: next(folder.glob("train/*.arrow")).unlink()),
                        "saved/train/data-00000-of-00001.arrow", "No such file"),
    "saved: split missing": case(saved(lambda folder: (folder / "train" / "state.json").unlink()),
                        "saved/train/state.json is missing"),
    **{
        f"saved: {name} is {text}": case(saved(lambda folder, name=name, text=text: (folder / name).write_text(text)),
                        f"saved/{name} is missing or damaged", "save_to_disk")
        for name in ("dataset_dict.json", "train/state.json")
        for text in ("{", "[]", '{"splits": [1], "_data_files": [1]}')
    },
    # bytes
    **{f"empty {name}": case(content(name, ""), f"{name} is empty") for name in ("a.csv", "a.arrow", "a.parquet")},
    **{f"blank {name}": case(content(name, "\n \n"), f"{name} is empty") for name in ("a.jsonl", "a.json")},
    "names alone in CSV": case(content("a.csv", "prompt,completion\n"), "a.csv is empty"),
    "names alone in Parquet": case(empty_parquet, "a.parquet is empty"),
    "CSV in Latin-1": case(content("a.csv", CSV.encode() + b"caf\xe9,B.\n"), "a.csv:3", "UTF-8", "byte 4"),
    "CSV in UTF-16": case(content("a.csv", CSV.encode("utf-16")), "a.csv:1", "NUL"),
    "Parquet by name": case(content("a.parquet", CSV), "a.parquet is not Parquet"),
    "Arrow by name": case(content("a.arrow", CSV), "a.arrow is not Arrow"),
    **{
        f"{share} of {kind}": case(cut(f"a.{kind.lower()}", share), f"a.{kind.lower()} is not {kind}", "damaged")
        for kind in ("Parquet", "Arrow")
        for share in (0.01, 0.1, 0.5)
    },
    "Parquet without its end": case(cut("a.parquet", 0.999), "a.parquet is not Parquet", "damaged"),
    # lines of JSON
    "cut short": case(bad_line(b'{"prompt": "A pos'), "a.jsonl:3", "column 12"),
    "prose": case(bad_line(b"Ann lost a hat."), "a.jsonl:3", "JSON", "column 1"),
    **{
        f"line of {found}": case(bad_line(line), f"a.jsonl:3 is {found}, not an object")
        for line, found in [
            (b"12", "a number"), (b"null", "null"), (b'"x"', "text"), (b"true", "true or false"), (b"[{}]", "a list"),
        ]
    },
    "deep": case(bad_line(b"[" * 100_000), "a.jsonl:3", "recursion"),
    "long number": case(bad_line(b'{"prompt": ' + b"9" * 5000 + b"}"), "a.jsonl:3", "limit"),
    "NUL byte": case(bad_line(b'{"prompt": "\0"}'), "a.jsonl:3", "NUL"),
    "Latin-1": case(bad_line(b'{"prompt": "caf\xe9"}'), "a.jsonl:3", "UTF-8", "byte 16"),
    # the remedy is for that row, not for the column
    "no prompt": case(bad_line(b'{"n": 1, "post": "A."}'), "a.jsonl:3", "'prompt'", "n, post", "remove the row"),
    "no completion": case(bad_line(b'{"prompt": "A."}'), "a.jsonl:3", "'completion'", "prompt", "remove the row"),
    "nothing": case(bad_line(b"{}"), "a.jsonl:3", "'prompt'", "empty object"),
    # the usual mistake with `.json` is answered with the conversion
    "pretty-printed array": case(content("a.json", json.dumps([GOOD], indent=2)), "a.json:1", "jq -c '.[]'"),
    # tables of text
    "too few cells": case(content("a.csv", f"{CSV}Bo\n"), "a.csv:3", "1 of 2", "'completion'"),
    "too many cells": case(content("a.csv", f"{CSV}Bo,B.,more\n"), "a.csv:3", "3 columns", "2 names", "'more'"),
    "ragged TSV": case(content("a.tsv", "prompt\tcompletion\nAnn\tA.\n\nBo\n"), "a.tsv:4", "1 of 2"),
    "open quote": case(content("a.csv", f'{CSV}"Bo,B.\nCy,C.\n'), "a.csv:3", "never ends"),
    "quote inside": case(content("a.csv", f'{CSV}"Bo" said,B.\n'), "a.csv:3 is not CSV"),
    "semicolons": case(content("a.csv", "prompt;completion\nA;B\n"), "a.csv:1", "'prompt;completion'"),
    "a column twice": case(content("a.csv", "prompt,prompt\nA,B\n"), "a.csv:1", "'prompt'", "more than"),
    "no line of names": case(content("a.csv", "Ann,A.\nBo,B.\n"), "a.csv:2", "'prompt'", "Ann, A."),
    "empty cell": case(content("a.csv", f"{CSV},B.\n"), "a.csv:3: 'prompt' is null"),
    "row after a line break": case(content("a.csv", f'{CSV}"An\nn",A.\n,B.\n'), "a.csv:5: 'prompt' is null"),
    # values
    **{
        f"{found} as {column}": case(rows(GOOD, GOOD | {column: value}), f"a.jsonl:2: '{column}' {found}")
        for column in ("prompt", "completion")
        for value, found in [
            ("", "is empty"), (" \n\t ", "is empty"), (None, "is null, not text"), (3.5, "is a number, not text"),
            (USER, "is an object, not text"), ("a\0b", "holds a NUL"), ("\ud83d", "holds a NUL or half a surrogate"),
        ]
    },
    "number in Parquet": case(rows({"prompt": 3, "completion": "x"}, name="a.parquet"), "row 1: 'prompt'", "a number"),
    **{
        f"blank in {name}": case(rows(GOOD, GOOD | {"prompt": " "}, name=name), f"{name}, row 2: 'prompt' is empty")
        for name in ("a.parquet", "a.arrow")
    },
    "list of texts": case(rows({"prompt": ["A.", "B."]}), "a.jsonl:1: 'prompt' is a list"),
    # ids: 1 and "1" are the same; if one row has an id, every row needs one
    "twice the same id": case(rows(*(GOOD | {"id": n} for n in (1, 2, "1"))), "a.jsonl:3", "a.jsonl:1", "'1'"),
    "twice in CSV": case(content("a.csv", "id,prompt,completion\n1,A,B\n1,C,D\n"), "a.csv:3", "a.csv:2", "'1'"),
    "no id": case(content("a.csv", "id,prompt,completion\n1,A,B\n,C,D\n"), "a.csv:3: 'id' is null"),
    **{
        f"id that is {found}": case(rows(GOOD | {"id": "a"}, GOOD | other), f"a.jsonl:2: 'id' is {found}")
        for other, found in [
            ({}, "null"), ({"id": ""}, "empty"), ({"id": 1.5}, "a number"), ({"id": True}, "true or false"),
        ]
    },
    # references, each of which obeys the rule of a single one
    "no reference": case(rows(GOOD, {"prompt": "A.", "completion": None, "b": None}), "a.jsonl:2", "'completion', 'b'",
                        "null", completion_column="completion,b"),
    "nulls alone": case(rows(GOOD | {"completion": [None]}), "a.jsonl:1: 'completion'", "a list of nulls"),
    "no references": case(rows(GOOD | {"completion": []}), "a.jsonl:1: 'completion'", "an empty list"),
    "empty reference": case(rows(GOOD | {"completion": ["", "B."]}), "a.jsonl:1: 'completion' is empty"),
    "number as reference": case(rows(GOOD | {"completion": [1]}), "a.jsonl:1: 'completion' is a number"),
    "blank among references": case(rows(GOOD | {"b": " "}), "a.jsonl:1: 'b' is empty",
                        completion_column="completion,b"),
    "one column of several": case(rows(GOOD), "a.jsonl:1", "'summary'", completion_column="completion,summary"),
    # chats
    "no messages": case(chat(), "a.jsonl:2: 'messages'", "an empty list"),
    "text for messages": case(rows({"messages": "Hi."}), "a.jsonl:1: 'messages' is text"),
    "no turn of the user": case(chat(ANSWER), "a.jsonl:2: 'messages'", "no turn of the user"),
    "two answers": case(chat(USER, ANSWER, ANSWER), "a.jsonl:2: 'messages'", "no turn of the user before its last"),
    "unknown role": case(chat(USER | {"role": "human"}), "message 1 of a.jsonl:2: 'messages'", "'human'"),
    "keys of ShareGPT": case(chat({"from": "human", "value": "Hi."}), "message 1 of a.jsonl:2: 'messages' has no role",
                        "from, value"),
    "no object": case(chat(USER, "Hi."), "message 2 of a.jsonl:2: 'messages' is text"),
    "null content": case(chat(USER, ANSWER | {"content": None}),
                        "content of message 2 of a.jsonl:2: 'messages' is null"),
    "late system message": case(chat(USER, {"role": "system", "content": "x"}, USER),
                        "message 2 of a.jsonl:2: 'messages' has the role"),
    "empty turn": case(chat(USER | {"content": ""}, ANSWER, USER, ANSWER), "turn 1 of a.jsonl:2: 'messages' is empty"),
    "empty last turn": case(chat(USER | {"content": " "}, ANSWER), "a.jsonl:2: 'messages' is empty"),
    "not answered": case(chat(USER), "a.jsonl:2: 'messages'", "turn of the assistant"),
    "answered twice": case(rows({"messages": [USER, ANSWER], "completion": "x"}), "a.jsonl:1: 'messages'",
                        "'completion'"),
    "completion of two": case(rows({"prompt": [USER], "completion": [ANSWER, ANSWER]}), "a.jsonl:1: 'completion'",
                        "assistant, assistant"),
    # what is left
    "all dropped": case(rows({"prompt": "", "completion": "x"}), "no row", "train", empty_texts="drop"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_what_is_wrong_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    make, settings, named = CASES[name]
    path = make(Path())
    with refuses(*named):
        load(path, **settings)
