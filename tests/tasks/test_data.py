"""Rows become examples: every form that they may have, fingerprints, and where references are missed."""

import json
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import datasets
import polars
import pytest
from support.data_files import lines, load, table
from support.refusals import refuses

from smolsum.config.resolve import resolve
from smolsum.config.sections import Config, DataConfig
from smolsum.config.stage import StageConfig
from smolsum.errors import UsageError
from smolsum.tasks import TASKS
from smolsum.tasks.data import Example, Split, check_references, generated_split, load_split, overlap
from smolsum.tasks.tldr.settings import TldrConfig

ROWS: list[dict[str, Any]] = [
    {"id": "a", "prompt": "Ann lost a hat.", "completion": "Hat lost.", "facts": [{"kind": "item", "n": 1}]},
    {"id": "b", "prompt": "Bo, 31, moved to Rye…", "completion": "Bo moved.", "facts": [], "score": 2.5},
    {"id": "c", "prompt": "Cy owes $40.", "completion": "Debt.", "facts": [{"kind": "who"}], "score": 3},
]
USER, ANSWER = {"role": "user", "content": "A post."}, {"role": "assistant", "content": "Short."}
SYSTEM = {"role": "system", "content": "Be brief."}
PLAIN = [{"id": f"n{n}", "prompt": f"Post {n}.", "completion": f"Short {n}.", "score": n / 2} for n in range(5)]


def stages(**rewards: dict[str, float]) -> dict[str, StageConfig]:
    """Stages of these names, with these weights of signals."""
    one = resolve(TASKS, strategy="finetuned").config.stages["quality"]
    return {name: replace(one, rewards=own) for name, own in rewards.items()}


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
    "name", [f"train{end}" for end in (".jsonl", ".json", ".arrow", ".parquet", "-00000-of-00001.parquet")]
    + ["data/train-00000-of-00001-0f3a.parquet", "data/train.arrow"]
)  # fmt: skip
def test_every_format_gives_the_same_fingerprint(tmp_path: Path, name: str) -> None:
    """The fingerprint is of the rows: nulls and floats that Parquet's columns add do not change it. Stored runs name
    their data by it, so a release must not compute another one."""
    path = table(tmp_path / name, ROWS)
    if name == "data/train.arrow":  # Arrow's other layout, of a file
        polars.read_ipc_stream(path).write_ipc(path)
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
    warning = check_references({"train": split}, stages(length={"length": 1.0, "meteor": 0.0}))
    assert split.no_references in warning
    assert warning.endswith("not measured on train: bleu, rouge, meteor")
    with refuses("stage quality", "bleu and meteor", split.no_references, hint, "--reward length"):
        check_references({"train": split}, stages(length={"length": 1.0}, quality={"meteor": 0.5, "bleu": 1.0}))


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
    assert "not measured on test" in check_references(
        {"train": split, "test": lacking}, stages(quality={"meteor": 1.0})
    )
    with refuses("stage quality", "meteor"):
        check_references({"train": split, "validation": lacking}, stages(quality={"meteor": 1.0}))
    assert not check_references({"train": split}, stages(quality={"meteor": 1.0}))


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


def one(tmp_path: Path, row: object, **settings: Any) -> Example:
    return load(lines(tmp_path / "one.jsonl", [row]), **settings).examples[0]


@pytest.mark.parametrize("suffix", ["csv", "tsv"])
def test_a_table_of_text(tmp_path: Path, suffix: str) -> None:
    """Quoted line breaks, separators and quotes, a byte order mark, and the line ends of Windows are read as meant."""
    separator = "," if suffix == "csv" else "\t"
    text = '\ufeffid,prompt,completion,n\r\n1,"Ann said: ""no"",\r\nand left.",Ann left.,3\r\n\r\n2,Bo,He.,\r\n'
    (tmp_path / f"train.{suffix}").write_bytes(text.replace(",", separator).encode())
    first, second = load(tmp_path).examples
    said = f'Ann said: "no"{separator}\r\nand left.'
    assert first == Example("1", said, ("Ann left.",), {"n": 3})
    assert second == Example("2", "Bo", ("He.",), {"n": None})


def test_a_column_of_numbers_holds_numbers(tmp_path: Path) -> None:
    """A whole column decides; posts, references and ids stay text, and so does what only looks like a number."""
    (tmp_path / "train.csv").write_text(
        "id,prompt,completion,whole,real,code,mixed,long,empty\n"
        "01,1984,7,1,2.5,007,3,12345678901234567890,\n"
        "02,1985,8,-2,3,010,three,22345678901234567890,\n"
    )
    first, second = load(tmp_path).examples
    assert (first.id, first.source, first.references) == ("01", "1984", ("7",))
    assert first.metadata == {
        "whole": 1, "real": 2.5, "code": "007", "mixed": "3", "long": "12345678901234567890", "empty": None,
    }  # fmt: skip
    assert [type(value) for value in second.metadata.values()] == [int, float, str, str, str, type(None)]


def test_what_a_csv_may_hold(tmp_path: Path) -> None:
    """A column without a name is called by its number, as pandas writes its index; a text may be long, though the csv
    module refuses more than 131 kB unless it is asked not to."""
    (tmp_path / "a.csv").write_text(",prompt,completion\n0,Ann,A.\n1,Bo,B.\n")
    assert [example.metadata for example in load(tmp_path / "a.csv").examples] == [{"column 1": 0}, {"column 1": 1}]
    (tmp_path / "a.csv").write_text(f"prompt,completion\n{'x' * 300_000},A.\n")
    assert len(load(tmp_path / "a.csv").examples[0].source) == 300_000


def test_what_datasets_saved(tmp_path: Path) -> None:
    """A dictionary's splits, in as many files as each has; a single data set is all `train`, and one that was filtered
    and shuffled is saved as it is then."""
    parts = {name: datasets.Dataset.from_list(PLAIN) for name in ("train", "validation")}
    datasets.DatasetDict(parts).save_to_disk(tmp_path / "saved", num_shards={"train": 3, "validation": 1})
    expected = load(lines(tmp_path / "rows.jsonl", PLAIN))
    for name in parts:
        assert [e.source for e in load(tmp_path / "saved", name).examples] == [e.source for e in expected.examples]
    assert load(tmp_path / "saved").fingerprint == expected.fingerprint
    assert load(tmp_path / "saved").origin == f"3 files of split 'train' in {tmp_path}/saved: 5 rows"
    kept = parts["train"].filter(lambda row: row["score"] > 0).shuffle(seed=1)
    kept.save_to_disk(tmp_path / "one")
    assert [example.source for example in load(tmp_path / "one").examples] == kept["prompt"]


@pytest.mark.parametrize("suffix", ["arrow", "parquet"])
def test_damage_anywhere_ends_in_a_usage_error(tmp_path: Path, suffix: str) -> None:
    """Whatever the reader makes of changed bytes, a panic included, is reported as damage to that file."""
    path, random = table(tmp_path / f"train.{suffix}", PLAIN), Random(1)
    content = path.read_bytes()
    for _ in range(200):
        damaged = bytearray(content)
        for _ in range(random.choice([1, 3, 20])):
            damaged[random.randrange(len(damaged))] = random.randrange(256)
        path.write_bytes(damaged)
        with suppress(UsageError):
            load(tmp_path)


def test_the_last_answer_of_a_chat_is_the_reference(tmp_path: Path) -> None:
    """`messages` is taken where there is no column `prompt`, and every turn before stays in the prompt."""
    chat = [USER, {"role": "assistant", "content": "Of what?"}, {"role": "user", "content": "Of this."}, ANSWER]
    example = one(tmp_path, {"messages": chat, "topic": "cats"})
    assert example == Example("train-1", "Of this.", ("Short.",), {"topic": "cats"}, tuple(chat[:2]))
    assert one(tmp_path, {"chat": chat}, prompt_column="chat").references == ("Short.",)
    asked = TASKS["tldr"].prompts.messages(example, Config(task=TldrConfig(system_prompt="Sum up.")))
    assert asked == ({"role": "system", "content": "Sum up."}, *chat[:3])


def test_a_system_message_of_the_data_stands_for_the_tasks(tmp_path: Path) -> None:
    """For its own row; an empty one is as good as missing."""
    config = Config(task=TldrConfig(system_prompt="Sum up."))
    example = one(tmp_path, {"messages": [SYSTEM, USER, ANSWER]})
    assert TASKS["tldr"].prompts.messages(example, config) == (SYSTEM, USER)
    example = one(tmp_path, {"messages": [SYSTEM | {"content": " "}, USER]})
    assert TASKS["tldr"].prompts.messages(example, config) == ({"role": "system", "content": "Sum up."}, USER)


def test_a_chat_of_one_turn_is_a_post(tmp_path: Path) -> None:
    """The same text has the same fingerprint in either form, also in TRL's with two columns; without an answer there is
    no reference, as in any data."""
    plain = load(lines(tmp_path / "a.jsonl", [{"prompt": "A post.", "completion": "Short."}]))
    for row in ({"messages": [USER, ANSWER]}, {"prompt": [USER], "completion": [ANSWER]}):
        assert load(lines(tmp_path / "b.jsonl", [row])).fingerprint == plain.fingerprint
    split = load(lines(tmp_path / "a.jsonl", [{"messages": [USER]}]))
    assert split.examples[0].references == ()
    assert "has no column 'completion', only messages" in split.no_references


def test_turns_are_content(tmp_path: Path) -> None:
    """Equal last turns are another question after other turns."""
    bare, turned = (one(tmp_path, {"messages": chat}) for chat in ([USER], [SYSTEM, USER]))
    assert generated_split("a", [bare]).fingerprint != generated_split("a", [turned]).fingerprint
    assert overlap(generated_split("a", [bare]), generated_split("b", [turned])) == []
    assert overlap(generated_split("a", [turned]), generated_split("b", [turned])) == ["A post."]


def test_chats_in_parquet(tmp_path: Path) -> None:
    """Nulls that its columns add to a message are not part of it."""
    rows = [{"messages": [USER | {"name": "ann"}, ANSWER]}, {"messages": [USER, ANSWER | {"weight": 1}]}]
    path = table(tmp_path / "a.parquet", rows)
    assert [example.source for example in load(path).examples] == ["A post."] * 2


def test_references_in_several_columns(tmp_path: Path) -> None:
    """In the order of the setting; nulls and columns that a row lacks stand for none, and lists join in. A column of
    just this name goes before columns that are named so; an empty cell of CSV is no reference."""
    rows = [{"prompt": "A.", "a": "1", "b": ["2", None, "3"]}, {"prompt": "B.", "b": "4", "a": None}]
    split = load(lines(tmp_path / "a.jsonl", [*rows, {"prompt": "C.", "a": "5"}]), completion_column="b, a")
    assert [example.references for example in split.examples] == [("2", "3", "1"), ("4",), ("5",)]
    assert all(example.metadata == {} for example in split.examples)
    assert one(tmp_path, {"prompt": "A.", "a,b": "1", "a": "2"}, completion_column="a,b").references == ("1",)
    (tmp_path / "a.csv").write_text("prompt,a,b\nAnn,1,\nBo,,2\n")
    split = load(tmp_path / "a.csv", completion_column="a,b")
    assert [example.references for example in split.examples] == [("1",), ("2",)]


def test_rows_with_empty_texts_can_be_dropped(tmp_path: Path) -> None:
    """The count is a warning; ids keep the numbers of the rows."""
    rows = [
        {"prompt": " ", "completion": "A."}, {"prompt": "B.", "completion": None}, {"prompt": "C."},
        {"completion": "D."}, {"prompt": "E.", "completion": ["", "E"]},
    ]  # fmt: skip
    split = load(lines(tmp_path / "a.jsonl", rows), empty_texts="drop")
    assert [(example.id, example.references) for example in split.examples] == [("train-5", ("E",))]
    assert split.left_out == "4 of 5 rows of the train split have an empty post or no reference, and were left out"
