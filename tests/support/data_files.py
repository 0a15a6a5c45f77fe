"""Files of rows, and the splits that are read from them."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import polars

from smolsum.config.sections import DataConfig
from smolsum.tasks.data import Split, load_split


def lines(path: Path, rows: Sequence[object]) -> Path:
    """The rows as JSON Lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def table(path: Path, rows: Sequence[Mapping[str, Any]], **options: Any) -> Path:
    """The rows in the format of the suffix: CSV, Parquet, Arrow, or JSON Lines for any other."""
    frame = polars.DataFrame(rows, infer_schema_length=None, strict=False)
    writers = {".csv": frame.write_csv, ".parquet": frame.write_parquet, ".arrow": frame.write_ipc_stream}
    path.parent.mkdir(parents=True, exist_ok=True)
    writers.get(path.suffix, lambda to: lines(to, rows))(path, **options)
    return path


def load(path: Path | str, split: str = "train", **settings: Any) -> Split:
    """The split, of data that have to have all that are read."""
    whole = {"validation_share": 0.0, "test_share": 0.0}
    return load_split(DataConfig(path=str(path), **(whole | settings)), split)


def card(folder: Path, configurations: Mapping[str, Mapping[str, str]]) -> None:
    """The README of a data set on the hub, which says what files each split of each configuration has."""
    text = ["---", "configs:"]
    for name, splits in configurations.items():
        text += [f"- config_name: {name}", "  data_files:"]
        text += [f"  - split: {split}\n    path: {path}" for split, path in splits.items()]
    (folder / "README.md").write_text("\n".join([*text, "---", ""]))
