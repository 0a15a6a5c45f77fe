"""The rows of a split, from the package or a local directory, each with its place for error messages."""

import difflib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import polars

from smolsum.errors import UsageError

BUILTIN, BUILTIN_NAMES = "builtin:", ("tldr-mini",)
SUFFIXES = (".jsonl", ".json", ".parquet")
USUAL_SPLITS = ("train", "validation", "test")
OTHERS = (".csv", ".tsv", ".xlsx", ".arrow", ".gz", ".zst")
"""suffixes of data files that are not read"""
LAYOUT = "a directory with train.jsonl, validation.jsonl and test.jsonl (or .parquet)"

PlacedRow = tuple[str, Mapping[str, Any]]
"""its place, for error messages, and its columns"""


def read_builtin(builtin: str, name: str, setting: str) -> list[PlacedRow]:
    """Return the rows of split `name` of a data set in the package; `setting` is the key that named the split. Raises
    UsageError for an unknown data set or split."""
    if builtin not in BUILTIN_NAMES:
        near = nearest_name(builtin, BUILTIN_NAMES) or BUILTIN_NAMES[0]
        raise UsageError(f"no built-in data set {builtin!r}", hint=f"--set data.path={BUILTIN}{near}")
    with resources.as_file(resources.files("smolsum.tasks") / "builtin" / builtin) as directory:
        held = [path.stem for path in directory.iterdir() if path.suffix in SUFFIXES]
        if name not in held:
            near = nearest_name(name, held) or setting.removeprefix("data.").removesuffix("_split")
            message = f"built-in data set {builtin!r} has no split {name!r}, only {', '.join(sorted(held))}"
            raise UsageError(message, hint=f"--set {setting}={near}")
        return read_directory(directory, name, setting)


def read_directory(directory: Path, name: str, setting: str) -> list[PlacedRow]:
    """Return the rows of split `name` in a directory; `setting` is the key that named the split. Raises UsageError with
    the place of what is wrong."""
    if directory.is_file():
        raise UsageError(
            f"{directory} is one file, but training needs three splits that share no post",
            hint=f"make {LAYOUT}, and give the directory: --set data.path=DIR",
        )
    if not directory.is_dir():
        raise UsageError(f"no data at {directory.absolute()}: no such directory", hint=f"--set data.path=DIR, {LAYOUT}")
    try:
        return [row for path in _split_files(directory, name, setting) for row in _read_file(path)]
    except OSError as error:
        raise UsageError(
            f"cannot read {error.filename or directory}: {error.strerror or error}",
            hint="check that it is a file and that you may read it",
        ) from error


def _split_files(directory: Path, name: str, setting: str) -> list[Path]:
    """Return the one file, or the complete shards, of split `name`. Raises UsageError for several candidates."""
    files = [path for suffix in SUFFIXES if (path := directory / (name + suffix)).exists()]
    pattern = re.compile(re.escape(name) + r"-\d+-of-(\d+)(-\w+)?\.parquet")
    nested = sorted([*directory.glob("data/*.parquet"), *directory.glob("*-of-*.parquet")])
    shards = {path: match for path in nested if (match := pattern.fullmatch(path.name))}
    if len(files) + bool(shards) > 1:
        names = ", ".join(path.relative_to(directory).as_posix() for path in (*files, *shards))
        raise UsageError(
            f"split {name!r} is more than once in {directory}: {names}",
            hint="keep one of them, and move the others out of the directory",
        )
    if not files and not shards:
        held = [path for path in sorted(directory.iterdir()) if path.suffix in SUFFIXES] + nested
        names = ", ".join(path.relative_to(directory).as_posix() for path in held[:8])
        foreign = sorted(path.name for path in directory.iterdir() if path.suffix in OTHERS)
        if others := [file for file in foreign if not held or file.split(".")[0] == name]:
            raise UsageError(
                f"no file for split {name!r} in {directory}: {', '.join(others[:8])} is not read",
                hint=f"write {name}.jsonl or {name}.json (one JSON object a line) or {name}.parquet",
            )
        # a file that has the usual name of another split is that split: its rows must not be in two
        free = [stem for path in held if (stem := path.stem.split("-")[0]) not in USUAL_SPLITS]
        near = nearest_name(name, free) or "NAME"
        hint = f"write {directory / name}.jsonl, or --set {setting}={near}"
        if held and not free:
            hint = f"move some rows of {held[0].name} to {directory / name}.jsonl, as splits must not share rows"
        raise UsageError(f"no file for split {name!r} in {directory}, which holds {names or 'no data file'}", hint=hint)
    count = max((int(match[1]) for match in shards.values()), default=0)
    if len(shards) != count:
        raise UsageError(
            f"split {name!r} in {directory}/data has {len(shards)} of {count} shards",
            hint="hf download OWNER/NAME --repo-type dataset --local-dir DIR",
        )
    return files or list(shards)


def _read_file(path: Path) -> list[PlacedRow]:
    rows = list(_parquet_rows(path) if path.suffix == ".parquet" else _json_rows(path))
    if not rows:
        raise UsageError(f"{path} is empty", hint="write one row for each post")
    return rows


def _parquet_rows(path: Path) -> Iterator[PlacedRow]:
    if not (content := path.read_bytes()):
        return
    try:
        frame = polars.read_parquet(content)
    except (polars.exceptions.PolarsError, polars.exceptions.PanicException) as error:  # damage causes both
        reason = str(error).splitlines()[0]
        raise UsageError(f"{path} is not Parquet, or is damaged: {reason}", hint="write it again") from error
    for number, row in enumerate(frame.iter_rows(named=True), start=1):
        yield f"{path}, row {number}", row


def _json_rows(path: Path) -> Iterator[PlacedRow]:
    """Yield the objects of a JSON Lines file; blank lines hold none."""
    with path.open("rb") as file:
        for number, raw in enumerate(file, start=1):
            where = f"{path}:{number}"
            if b"\0" in raw:
                raise UsageError(f"{where} holds a NUL byte", hint="save the file as UTF-8 (is it UTF-16?)")
            try:
                line = raw.decode("utf-8-sig").strip()
                if not line:
                    continue
                row = json.loads(line)
            except UnicodeDecodeError as error:
                problem = f"is not UTF-8 at its byte {error.start + 1}"
                raise UsageError(f"{where} {problem}", hint="save the file as UTF-8") from error
            except (ValueError, RecursionError) as error:
                reason = str(error).replace(": line 1 column", ", column")
                raise UsageError(f"{where} is not JSON: {reason}", hint=_json_hint(line)) from error
            if not isinstance(row, dict):
                raise UsageError(f"{where} is {kind_of(row)}, not an object", hint=_json_hint(line))
            yield where, row


def _json_hint(line: str) -> str:
    array = "an array has to become one object a line: jq -c '.[]' FILE > train.jsonl"
    return array if line.startswith("[") else "write one JSON object a line, or remove the line"


def kind_of(value: object) -> str:
    """Return what JSON would call the value, in the words of an error message."""
    names = {dict: "an object", list: "a list", str: "text", bool: "true or false", type(None): "null"}
    return (names | {int: "a number", float: "a number"}).get(type(value), type(value).__name__)


def nearest_name(name: str, known: Iterable[str]) -> str | None:
    """Return the known name closest to `name`, or None where none is close."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.4)  # finds "val" for "validation"
    return close[0] if close else None
