"""The forms that data may have: CSV and TSV, Arrow, what `datasets` saved, chats, and several references."""

from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import datasets
import polars
import pytest
from support.data_files import lines, load, table

from smolsum.config.sections import Config
from smolsum.errors import UsageError
from smolsum.tasks import TASKS
from smolsum.tasks.data import Example, generated_split, overlap
from smolsum.tasks.tldr.settings import TldrConfig

USER, ANSWER = {"role": "user", "content": "A post."}, {"role": "assistant", "content": "Short."}
SYSTEM = {"role": "system", "content": "Be brief."}
ROWS = [{"id": f"n{n}", "prompt": f"Post {n}.", "completion": f"Short {n}.", "score": n / 2} for n in range(5)]


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


@pytest.mark.parametrize("name", ["a.csv", "a.arrow", "b.arrow"])
def test_every_format_equals_json_lines(tmp_path: Path, name: str) -> None:
    """The same rows have the same fingerprint; both of Arrow's layouts are read."""
    path = table(tmp_path / name, ROWS)
    if name == "b.arrow":
        polars.DataFrame(ROWS).write_ipc(path)
    assert load(path).fingerprint == load(lines(tmp_path / "b.jsonl", ROWS)).fingerprint


def test_what_datasets_saved(tmp_path: Path) -> None:
    """A dictionary's splits, in as many files as each has; a single data set is all `train`, and one that was filtered
    and shuffled is saved as it is then."""
    parts = {name: datasets.Dataset.from_list(ROWS) for name in ("train", "validation")}
    datasets.DatasetDict(parts).save_to_disk(tmp_path / "saved", num_shards={"train": 3, "validation": 1})
    expected = load(lines(tmp_path / "rows.jsonl", ROWS))
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
    path, random = table(tmp_path / f"train.{suffix}", ROWS), Random(1)
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
