"""The rows of a split, from the package, a local directory or the hub, each with its place for error messages."""

import difflib
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import polars

from smolsum.errors import SmolsumError, UnreachableError, UsageError

BUILTIN, BUILTIN_NAMES = "builtin:", ("tldr-mini",)
SUFFIXES = (".jsonl", ".json", ".parquet")
OTHERS = (".csv", ".tsv", ".xlsx", ".arrow", ".gz", ".zst")
"""suffixes of data files that are not read"""
HUB_ID = re.compile(r"\w[\w.-]*/\w[\w.-]*", re.ASCII)
LAYOUT = "a directory with train.jsonl, validation.jsonl and test.jsonl (or .parquet)"

PlacedRow = tuple[str, Mapping[str, Any]]
"""its place, for error messages, and its columns"""


def read_rows(path: str, name: str, setting: str) -> list[PlacedRow]:
    """Return the rows of split `name` at `path` (`builtin:NAME`, a directory or a hub id); `setting` is the key that
    named it.

    Raises UsageError for wrong input, UnreachableError for a hub that does not answer.
    """
    if path.startswith(BUILTIN):
        return _read_builtin(path.removeprefix(BUILTIN), name, setting)
    if _is_local(path):
        return _read_directory(Path(os.path.expanduser(path)), name, setting)
    return _read_hub(path, name, setting)


def _is_local(path: str) -> bool:
    """Return whether `path` is on this machine: one that exists, or looks like a path, is never looked up on a hub."""
    if path.startswith(("./", "../", "/", "~")) or path.endswith(SUFFIXES) or Path(path).exists():
        return True
    if not HUB_ID.fullmatch(path):
        raise UsageError(
            f"no data at {path!r}: no such directory, and not a hub id (owner/name)",
            hint=f"--set data.path=DIR, {LAYOUT}, or {BUILTIN}{BUILTIN_NAMES[0]}",
        )
    return False


def _read_builtin(builtin: str, name: str, setting: str) -> list[PlacedRow]:
    if builtin not in BUILTIN_NAMES:
        near = nearest_name(builtin, BUILTIN_NAMES) or BUILTIN_NAMES[0]
        raise UsageError(f"no built-in data set {builtin!r}", hint=f"--set data.path={BUILTIN}{near}")
    with resources.as_file(resources.files("smolsum.tasks") / "builtin" / builtin) as directory:
        return _read_directory(directory, name, setting)


def _read_directory(directory: Path, name: str, setting: str) -> list[PlacedRow]:
    if directory.is_file():
        raise UsageError(
            f"{directory} is one file, but training needs three splits that share no post",
            hint=f"make {LAYOUT}, and give the directory: --set data.path=DIR",
        )
    if not directory.is_dir():
        raise UsageError(f"no data at {directory}: no such directory", hint=f"--set data.path=DIR, {LAYOUT}")
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
    nested = sorted(directory.glob("data/*.parquet"))
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
        near = nearest_name(name, [path.stem.split("-")[0] for path in held]) or "NAME"
        raise UsageError(
            f"no file for split {name!r} in {directory}, which holds {names or 'no data file'}",
            hint=f"write {directory / name}.jsonl, or --set {setting}={near}",
        )
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


def _read_hub(path: str, name: str, setting: str) -> list[PlacedRow]:
    import datasets  # takes seconds, and only hub ids need it
    from huggingface_hub.errors import HTTPError  # type: ignore[attr-defined] # root of its HTTP client's
    from huggingface_hub.utils.tqdm import disable_progress_bars

    # where a user has set the variables, the libraries would only warn about this
    if not sys.stderr.isatty() and "HF_DATASETS_DISABLE_PROGRESS_BARS" not in os.environ:
        datasets.disable_progress_bars()
    if not sys.stderr.isatty() and "HF_HUB_DISABLE_PROGRESS_BARS" not in os.environ:
        disable_progress_bars()
    try:
        # as Arrow, so that no column (an image, say) is decoded
        rows = datasets.load_dataset(path, split=name).with_format("arrow")[:].to_pylist()
    except (OSError, ValueError, RuntimeError, HTTPError, datasets.exceptions.DatasetsError) as error:
        raise _hub_error(error, path, setting) from error
    if not rows:
        raise UsageError(f"split {name!r} of hub data set {path!r} is empty", hint=f"--set {setting}=NAME")
    return [(f"{path}, split {name!r}, row {number}", row) for number, row in enumerate(rows, start=1)]


def _hub_error(error: Exception, path: str, setting: str) -> SmolsumError:
    """Return the error of loading from the hub, by its cause: the request, this disk or the hub."""
    from datasets import config, data_files, exceptions

    what = f"hub data set {path!r}"
    cause = error.__cause__ if isinstance(error, exceptions.DatasetGenerationError) else error
    reason = (str(cause) or type(cause).__name__).splitlines()[0].rstrip(".")
    download = f"hf download {path} --repo-type dataset --local-dir DIR"
    # what huggingface_hub 1 says after its first try was refused: it tries again on the client that it closed
    refused = isinstance(error, RuntimeError) and "client has been closed" in reason
    if isinstance(error, exceptions.DatasetNotFoundError):
        return UsageError(
            f"{what} does not exist, or you have no access: {reason}",
            hint=f"check the name, or hf auth login; for a directory --set data.path=./{path}",
        )
    if isinstance(cause, OSError) and cause.errno and not isinstance(cause, ConnectionError | TimeoutError):
        return SmolsumError(
            f"{what} cannot be kept on this disk: {reason}",
            hint="set HF_HOME to a directory that can be written and has room",
        )
    if type(error) is ValueError:  # the library's own refusal: of the split's name, as a rule
        return UsageError(f"{what}: {reason}", hint=f"--set {setting}=NAME")
    unreadable = exceptions.DatasetsError | data_files.EmptyDatasetError | RuntimeError | ValueError
    if isinstance(error, unreadable) and not refused:
        return UsageError(f"{what} cannot be read: {reason}", hint=f"{download}, then make it {LAYOUT}")
    if config.HF_HUB_OFFLINE:
        return UnreachableError(
            f"{what} is not in the cache, and HF_HUB_OFFLINE forbids a download",
            hint=f"unset HF_HUB_OFFLINE, or {download} elsewhere and --set data.path=DIR",
        )
    return UnreachableError(
        f"the hub did not answer for data set {path!r}: {'connection refused' if refused else reason}",
        hint=f"try again later, or {download} elsewhere and --set data.path=DIR",
    )


def kind_of(value: object) -> str:
    """Return what JSON would call the value, in the words of an error message."""
    names = {dict: "an object", list: "a list", str: "text", bool: "true or false", type(None): "null"}
    return (names | {int: "a number", float: "a number"}).get(type(value), type(value).__name__)


def nearest_name(name: str, known: Iterable[str]) -> str | None:
    """Return the known name closest to `name`, or None where none is close."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.4)  # finds "val" for "validation"
    return close[0] if close else None
