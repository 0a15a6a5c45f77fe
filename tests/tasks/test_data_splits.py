"""Splits that are taken from `train`, and samples of rows."""

import json
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import pyarrow
import pytest
from pyarrow import ipc, parquet
from support.data_files import lines, table
from support.processes import python
from support.refusals import refuses

from smolsum.config.resolve import resolve
from smolsum.config.sections import DataConfig
from smolsum.tasks import TASKS
from smolsum.tasks.data import Split, load_split, overlap
from smolsum.tasks.data_files import SPLITS

ROWS = [{"prompt": f"Post {n % 400}.", "completion": f"Short {n}."} for n in range(500)]
"""a hundred posts are there twice"""
SIZE, GROWTH = 1_000_000_000, 200_000_000
"""bytes of the file, and by how much the process may grow"""
TEXT = "My brother lost the guitar in November, and I do not know what to think about it. " * 50
READER = """
import json, resource, sys
from smolsum.config.sections import DataConfig
from smolsum.tasks.data import load_split

def peak():
    if sys.platform == "linux":  # where ru_maxrss has the parent's size at first
        return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM")) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

def read(path):
    return load_split(DataConfig(path=path, train_rows=500), "train")

read(sys.argv[1])  # what the libraries take
before = peak()
split = read(sys.argv[2])
print(json.dumps({"examples": len(split.examples), "growth": peak() - before, "origin": split.origin}))
"""


def load(path: Path, **settings: Any) -> dict[str, Split]:
    return {name: load_split(DataConfig(path=str(path), **settings), name) for name in SPLITS}


def where(splits: dict[str, Split]) -> dict[str, str]:
    return {example.source: name for name, split in splits.items() for example in split.examples}


def test_one_file_makes_three_splits(tmp_path: Path) -> None:
    """About as large as the shares, without a post in common and without a row lost; ids are the numbers of rows."""
    splits = load(lines(tmp_path / "posts.jsonl", ROWS), test_share=0.2, validation_rows=1000)
    sizes = {name: len(split.examples) for name, split in splits.items()}
    assert sum(sizes.values()) == len(ROWS)
    assert 30 <= sizes["validation"] <= 70
    assert 70 <= sizes["test"] <= 130
    train, validation, test = splits.values()
    assert overlap(train, validation) == overlap(train, test) == overlap(validation, test) == []
    numbers = [int(example.id.split("-")[1]) for split in splits.values() for example in split.examples]
    assert sorted(numbers) == list(range(1, len(ROWS) + 1))
    assert validation.origin == (
        f"{tmp_path}/posts.jsonl: 500 rows, of which {sizes['validation']} by data.validation_share = 0.1 and "
        "data.split_seed = 0"
    )
    assert "validation_rows" not in validation.origin  # there are fewer, so all are taken
    assert train.origin.endswith(f"500 rows, of which {sizes['train']} are left by validation and test")


def test_a_row_without_a_post_is_dropped_from_one_file(tmp_path: Path) -> None:
    """Also where splits are made by the posts; only a split that lost rows says so."""
    splits = load(lines(tmp_path / "posts.jsonl", [*ROWS, {"completion": "x"}]), empty_texts="drop")
    assert sum(len(split.examples) for split in splits.values()) == len(ROWS)
    assert sorted(split.left_out[:4] for split in splits.values()) == ["", "", "1 of"]


def test_a_lot_depends_on_the_post_and_the_seed_alone(tmp_path: Path) -> None:
    """Neither order nor further rows nor another format move a post; another seed does."""
    first = where(load(lines(tmp_path / "a.jsonl", ROWS)))
    shuffled = [*ROWS, *({"prompt": f"More {n}.", "completion": "x"} for n in range(100))]
    Random(1).shuffle(shuffled)
    assert first.items() <= where(load(table(tmp_path / "b.csv", shuffled))).items()
    assert where(load(tmp_path / "a.jsonl", split_seed=1)) != first


def test_a_split_of_known_posts_never_changes(tmp_path: Path) -> None:
    """Stored runs name it by its fingerprint."""
    splits = load(lines(tmp_path / "a.jsonl", ROWS), train_rows=20)
    assert [split.fingerprint for split in splits.values()] == [
        "fcdec3d5f75627d1a3397f46e42db818", "815bcdcee556814aa4d9364aeb0618dd", "9346287cebcb19ed8d7652e338509288",
    ]  # fmt: skip


@pytest.mark.parametrize("has", ["validation", "test"])
def test_only_a_split_that_is_missing_is_taken_from_train(tmp_path: Path, has: str) -> None:
    """A directory may have one of the two."""
    lines(tmp_path / "train.jsonl", ROWS)
    lines(tmp_path / f"{has}.jsonl", [{"prompt": "Own.", "completion": "x"}])
    splits = load(tmp_path)
    other = "test" if has == "validation" else "validation"
    assert [example.source for example in splits[has].examples] == ["Own."]
    assert len(splits["train"].examples) + len(splits[other].examples) == len(ROWS)
    assert overlap(splits["train"], splits[other]) == []


def test_a_split_of_another_name_is_asked_for_first(tmp_path: Path) -> None:
    """`dev` may be the validation split: nothing is taken from `train` before the user has said."""
    lines(tmp_path / "train.jsonl", ROWS)
    lines(tmp_path / "dev.jsonl", ROWS)
    with refuses("'validation'", "dev.jsonl", "data.validation_split="):
        load(tmp_path)
    assert len(load(tmp_path, validation_split="dev")["validation"].examples) == 500


def test_chats_with_one_question_share_a_split(tmp_path: Path) -> None:
    """Whatever their answers are."""
    chats = [
        {"messages": [{"role": "user", "content": f"Post {n % 50}."}, {"role": "assistant", "content": f"{n}."}]}
        for n in range(200)
    ]
    train, validation, test = load(lines(tmp_path / "a.jsonl", chats)).values()
    assert overlap(train, validation) == overlap(train, test) == overlap(validation, test) == []
    assert sum(len(split.examples) for split in (train, validation, test)) == 200


def test_a_document_and_its_questions_share_a_split(tmp_path: Path) -> None:
    """Document QA has a row for each question."""
    rows = [
        {"document_id": n, "document_extracted": f"Document {n} says {n}.", "question": f"What {k}?", "answer": str(n)}
        for n in range(60)
        for k in range(3)
    ]
    task = TASKS["doc-qa"]
    sets = [f"data.path={lines(tmp_path / 'a.jsonl', rows)}"]
    config = resolve(TASKS, flags={"task.name": "doc-qa"}, sets=sets).config
    found = {name: task.prompts.load(config, name) for name in SPLITS}
    assert sum(len(split.examples) for split in found.values()) == 60
    assert all(len(e.metadata["questions"]) == 3 for split in found.values() for e in split.examples)
    assert "data.test_share" in found["test"].origin


@pytest.mark.parametrize("suffix", ["jsonl", "csv", "parquet", "arrow"])
def test_a_sample_is_of_the_number_that_was_asked_for(tmp_path: Path, suffix: str) -> None:
    """In the order of the data, the same for every format, and a smaller one is part of a larger one."""
    in_several_groups = {"row_group_size": 100} if suffix == "parquet" else {}
    path = table(tmp_path / f"a.{suffix}", ROWS, **in_several_groups)
    small, large = (load(path, train_rows=n, test_rows=5) for n in (20, 50))
    ids = [int(example.id.split("-")[1]) for example in large["train"].examples]
    assert len(ids) == 50
    assert ids == sorted(ids)
    assert {example.id for example in small["train"].examples} < {example.id for example in large["train"].examples}
    assert len(small["test"].examples) == 5
    assert small["train"].origin.endswith("of which data.train_rows = 20 by data.split_seed = 0")
    expected = load(lines(tmp_path / "b.jsonl", ROWS), train_rows=20)["train"]
    assert small["train"].fingerprint == expected.fingerprint


@pytest.mark.parametrize(
    ("settings", "split", "named"),
    [
        ({"test_share": 0.5, "validation_share": 0.5}, "train", "no post to train on"),
        ({"test_share": 0.001}, "test", "no post falls into test"),
        ({"test_share": 0.998, "validation_share": 0.001}, "train", "no post to train on"),
        ({"train_split": "posts"}, "train", "'posts'"),
        ({"validation_split": "dev"}, "validation", "'dev'"),
    ],
)
def test_shares_that_leave_a_split_empty(tmp_path: Path, settings: dict[str, Any], split: str, named: str) -> None:
    path = lines(tmp_path / "a.jsonl", ROWS[:10])
    with refuses(named, "data."):
        load_split(DataConfig(path=str(path), **settings), split)


def long_rows(count: int) -> Iterator[dict[str, Any]]:
    for number in range(count):
        yield {"id": f"n{number}", "prompt": f"{number} {TEXT}", "completion": "Guitar lost.", "score": number}


def write_arrow(path: Path, count: int, open_writer: Callable[..., Any], batch_rows: int) -> None:
    schema = pyarrow.Table.from_pylist([*long_rows(1)]).schema
    every = long_rows(count)
    with open_writer(path, schema) as writer:
        while batch := [*islice(every, batch_rows)]:
            writer.write_table(pyarrow.Table.from_pylist(batch, schema=schema))


def write(path: Path, count: int) -> Path:
    if path.suffix == ".parquet":
        # a row group is larger than what the process may grow by
        write_arrow(path, count, lambda to, schema: parquet.ParquetWriter(to, schema, compression="none"), 60_000)
    elif path.suffix == ".arrow":
        write_arrow(path, count, ipc.new_stream, 1000)
    else:
        with path.open("w") as file:
            if path.suffix == ".csv":
                file.write("id,prompt,completion,score\n")
            for row in long_rows(count):
                line = ",".join(f'"{value}"' for value in row.values()) if path.suffix == ".csv" else json.dumps(row)
                file.write(f"{line}\n")
    return path


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["jsonl", "csv", "parquet", "arrow"])
def test_a_sample_of_a_large_file_needs_little_memory(tmp_path: Path, suffix: str) -> None:
    """A file of 1 GB is split and sampled while the process grows by less than a fifth of it."""
    small = write(tmp_path / f"small.{suffix}", 1000)
    large = write(tmp_path / f"large.{suffix}", SIZE // len(TEXT))
    try:
        assert large.stat().st_size > SIZE
        code, out, err = python("-c", READER, small, large)
    finally:
        large.unlink()
    assert code == 0, err
    found = json.loads(out)
    assert found["examples"] == 500
    assert found["growth"] < GROWTH, found
    assert "of which data.train_rows = 500" in found["origin"]
