"""A sample of data that are larger than memory."""

import json
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import ipc, parquet
from support.processes import python

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


def rows(count: int) -> Iterator[dict[str, Any]]:
    for number in range(count):
        yield {"id": f"n{number}", "prompt": f"{number} {TEXT}", "completion": "Guitar lost.", "score": number}


def write_arrow(path: Path, count: int, open_writer: Callable[..., Any], batch_rows: int) -> None:
    schema = pyarrow.Table.from_pylist([*rows(1)]).schema
    every = rows(count)
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
            for row in rows(count):
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
