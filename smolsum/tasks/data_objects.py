"""Data that Python code passes on: rows, a frame or a `datasets.Dataset`, kept as files so that a run can resume."""

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from smolsum.errors import UsageError
from smolsum.files import digest, replace
from smolsum.tasks.data_files import SPLITS

FOLDER = ".data"
"""next to the runs"""


def store_data(data: Any, runs_dir: Path) -> str:
    """Return the value of `data.path` for data: a path or hub id as it is; rows (dicts), a polars frame or a
    `datasets.Dataset` as the training split, or a mapping from splits to such, written to a folder in `runs_dir` that
    is named after their content. Raises UsageError for anything else, with the row that is no JSON."""
    if isinstance(data, str | Path):
        return str(data)
    splits = data if isinstance(data, Mapping) else {"train": data}
    if unknown := [name for name in splits if name not in SPLITS]:
        raise UsageError(f"data has the split {unknown[0]!r}", hint=f"name splits {', '.join(SPLITS)}")
    texts = {name: _lines(rows, name) for name, rows in splits.items()}
    folder = runs_dir / FOLDER / digest(texts)[:16]
    for name, text in texts.items():
        folder.mkdir(parents=True, exist_ok=True)
        replace(folder / f"{name}.jsonl", text.encode(), "the same call")
    return str(folder)


def _lines(rows: Any, split: str) -> str:
    """Return the rows as JSON Lines."""
    lines = []
    for number, row in enumerate(_rows(rows, split), start=1):
        if not isinstance(row, Mapping):
            raise UsageError(
                f"row {number} of the {split} data is {type(row).__name__}, not a dict",
                hint='[{"prompt": "…", "completion": "…"}, …]',
            )
        try:
            lines.append(json.dumps(dict(row), ensure_ascii=False) + "\n")
        except (TypeError, ValueError) as error:
            raise UsageError(
                f"row {number} of the {split} data cannot be kept as JSON: {error}", hint="leave that column out"
            ) from error
    if not lines:
        raise UsageError(f"the {split} data has no row", hint="give one dict for each post")
    return "".join(lines)


def _rows(rows: Any, split: str) -> Iterator[Any]:
    """Yield the rows of a frame by `iter_rows`, and those of anything else as it yields them."""
    if hasattr(rows, "iter_rows"):
        return iter(rows.iter_rows(named=True))
    if isinstance(rows, str | bytes) or not isinstance(rows, Iterable):
        raise UsageError(
            f"the {split} data is {type(rows).__name__}, not rows",
            hint="a list of dicts, a polars frame, a datasets.Dataset, or a path",
        )
    return iter(rows)
