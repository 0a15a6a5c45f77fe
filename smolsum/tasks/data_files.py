"""Which files hold which split: of one file, of a directory or hub snapshot, of what `datasets` saved, or of built-in
data."""

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Protocol

from smolsum.errors import UsageError
from smolsum.tasks.data_rows import SUFFIXES, ReadRow, nearest_name, read_rows

SPLITS = ("train", "validation", "test")
"""what a run needs, and the names that files of splits usually have"""
BUILTIN, BUILTIN_NAMES = "builtin:", ("tldr-mini",)
FORMATS = ".jsonl, .json (one object a line), .csv, .tsv, .parquet or .arrow"
LAYOUT = "a file of posts, or a directory with train, validation and test as .jsonl, .csv or .parquet"
_OTHERS = (".xlsx", ".xls", ".ods", ".txt", ".xml", ".pkl", ".db", ".sqlite", ".feather", ".gz", ".zst", ".zip", ".bz2")
"""suffixes of data files that are not read"""
_PACKED = {".gz": "gunzip", ".zst": "unzstd", ".zip": "unzip", ".bz2": "bunzip2"}
_SHARD = re.compile(r"(?P<split>.+)-\d+-of-(?P<count>\d+)(-\w+)?")
_SAVED, _SAVED_SPLIT = "dataset_dict.json", "state.json"
"""what `save_to_disk` of a DatasetDict and of a Dataset writes"""


class DataSource(Protocol):
    """Data with splits, of which none is read yet."""

    @property
    def splits(self) -> Collection[str]:
        """The names of those that it has."""

    def rows(self, split: str, setting: str, texts: Collection[str]) -> Iterator[ReadRow]:
        """Yield the rows of a split that the key `setting` named; `texts` as of `read_rows`. Raises UsageError for what
        is missing or wrong, UnreachableError for a hub that does not answer."""

    def place(self, split: str) -> str:
        """Return where a split's rows are, in words."""


@dataclass(frozen=True)
class FileSource:
    """Splits in files."""

    path: Path
    """the file or the directory"""
    files: Mapping[str, Sequence[Path]]
    """of each split; several are its shards in their order, or candidates of which one has to go"""
    name: str = ""
    """of built-in data, whose files are part of the package"""
    saved: bool = False
    """whether `datasets` saved them, with lists of the files"""

    @property
    def splits(self) -> Collection[str]:
        """The names of the splits."""
        return self.files.keys()

    def place(self, split: str) -> str:
        """Return the file of a split, or its number of shards."""
        files = self.files.get(split, ())
        if self.name:
            return f"{BUILTIN}{self.name}, split {split!r}"
        return str(files[0]) if len(files) == 1 else f"{len(files)} files of split {split!r} in {self.path}"

    def rows(self, split: str, setting: str, texts: Collection[str]) -> Iterator[ReadRow]:
        """Yield the rows of a split, file after file."""
        try:
            for path in self._checked(split, setting):
                yield from read_rows(path, texts)
        except OSError as error:
            raise _unreadable(error, self.path) from error

    def _checked(self, split: str, setting: str) -> Sequence[Path]:
        """Return the one file, or the complete shards, of a split."""
        if split not in self.files:
            raise self._missing(split, setting)
        files = self.files[split]
        shards = [match for path in files if (match := _SHARD.fullmatch(path.stem))]
        if self.saved or (not shards and len(files) == 1):
            return files
        if len(shards) < len(files) or len({path.suffix for path in files}) > 1:
            names = ", ".join(path.relative_to(self.path).as_posix() for path in files)
            raise UsageError(
                f"split {split!r} is more than once in {self.path}: {names}",
                hint="keep one of them, and move the others out of the directory",
            )
        count = max(int(match["count"]) for match in shards)
        if len(shards) != count:
            raise UsageError(
                f"split {split!r} in {files[0].parent} has {len(shards)} of {count} shards",
                hint="hf download OWNER/NAME --repo-type dataset --local-dir DIR",
            )
        return files

    def _missing(self, split: str, setting: str) -> UsageError:
        if self.name:
            near = nearest_name(split, self.files) or setting.removeprefix("data.").removesuffix("_split")
            message = f"built-in data set {self.name!r} has no split {split!r}, only {', '.join(sorted(self.files))}"
            return UsageError(message, hint=f"--set {setting}={near}")
        if self.path.is_file():
            return UsageError(
                f"{self.path} is one file, without a split {split!r}",
                hint=f"leave {setting} out: validation and test are taken from the posts of the file",
            )
        held = [path for files in self.files.values() for path in files]
        names = ", ".join(path.relative_to(self.path).as_posix() for path in held[:8])
        foreign = sorted(path.name for path in self.path.iterdir() if path.suffix in _OTHERS)
        if others := [file for file in foreign if not held or file.split(".")[0] == split]:
            return UsageError(
                f"no file for split {split!r} in {self.path}: {', '.join(others[:8])} is not read",
                hint=f"write {split} as {FORMATS}",
            )
        # a file that has the usual name of another split is that split: its rows must not be in two
        free = [name for name in self.files if name not in SPLITS]
        hint = f"write {self.path / split}.jsonl, or --set {setting}={nearest_name(split, free) or 'NAME'}"
        if held and not free and split in SPLITS[1:]:
            hint = f"write {self.path / split}.jsonl, or take it from the posts of train: --set data.{split}_share=0.1"
        return UsageError(
            f"no file for split {split!r} in {self.path}, which holds {names or 'no data file'}", hint=hint
        )


def open_path(path: Path) -> FileSource:
    """Return the splits of a file, which is all `train`, or of a directory. Raises UsageError for anything else."""
    try:
        if path.is_file():
            return FileSource(path, {"train": [_known(path)]})
        if not path.is_dir():
            hint = f"--set data.path=PATH, {LAYOUT}"
            raise UsageError(f"no data at {path.absolute()}: no such file or directory", hint=hint)
        if (path / _SAVED).is_file():
            names = _read_record(path / _SAVED, "splits", str)
            return FileSource(path, {name: _saved_files(path / name) for name in names}, saved=True)
        if (path / _SAVED_SPLIT).is_file():
            return FileSource(path, {"train": _saved_files(path)}, saved=True)
        return FileSource(path, _listed(path))
    except OSError as error:
        raise _unreadable(error, path) from error


def open_builtin(name: str) -> FileSource:
    """Return the splits of a data set in the package. Raises UsageError for an unknown one."""
    if name not in BUILTIN_NAMES:
        near = nearest_name(name, BUILTIN_NAMES) or BUILTIN_NAMES[0]
        raise UsageError(f"no built-in data set {name!r}", hint=f"--set data.path={BUILTIN}{near}")
    with resources.as_file(resources.files("smolsum.tasks") / "builtin" / name) as directory:
        return FileSource(directory, _listed(directory), name)


def _known(path: Path) -> Path:
    """Return a file that has a reader. Raises UsageError for another suffix."""
    if path.suffix.lower() in SUFFIXES:
        return path
    command = _PACKED.get(path.suffix)
    hint = f"{command} {path}" if command else f"write it as {FORMATS}"
    what = f"the format {path.suffix} is not read" if path.suffix else "its name has no suffix that tells the format"
    raise UsageError(f"{path}: {what}", hint=hint)


def _listed(directory: Path) -> dict[str, list[Path]]:
    """Return the data files of a directory and of its folder `data`, as in a hub snapshot, by split."""
    found: dict[str, list[Path]] = {}
    for place in (directory, directory / "data"):
        for path in sorted(place.iterdir()) if place.is_dir() else ():
            if path.suffix.lower() in SUFFIXES:
                shard = _SHARD.fullmatch(path.stem)
                found.setdefault(shard["split"] if shard else path.stem, []).append(path)
    return found


def _saved_files(folder: Path) -> list[Path]:
    """Return the files of a Dataset that was saved. Raises UsageError where one is missing."""
    state = folder / _SAVED_SPLIT
    if not state.is_file():
        raise UsageError(f"{folder} has no {_SAVED_SPLIT}", hint="save the data set again with save_to_disk")
    files = [folder / str(entry.get("filename")) for entry in _read_record(state, "_data_files", dict)]
    if lacking := [path for path in files if not path.is_file()]:
        raise UsageError(f"{lacking[0]} is missing, although {state} names it", hint="save it again with save_to_disk")
    return files


def _read_record(path: Path, key: str, kind: type) -> list[Any]:
    """Return the list under `key` in a JSON file. Raises UsageError unless it is one, with items of a kind."""
    try:
        record = json.loads(path.read_bytes())
    except ValueError as error:
        raise UsageError(f"{path} is not JSON: {error}", hint="save the data set again with save_to_disk") from error
    found = record.get(key) if isinstance(record, dict) else None
    if not isinstance(found, list) or not found or not all(isinstance(item, kind) for item in found):
        raise UsageError(f"{path} names no {key.strip('_')}", hint="save the data set again with save_to_disk")
    return found


def _unreadable(error: OSError, path: Path) -> UsageError:
    return UsageError(
        f"cannot read {error.filename or path}: {error.strerror or error}",
        hint="check that it is a file and that you may read it",
    )
