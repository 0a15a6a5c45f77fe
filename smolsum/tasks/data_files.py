"""Data in files: which hold which split, in a file, a directory, a hub snapshot, what `datasets` saved or the package,
and their rows, each with its place for error messages.

The readers are ours, and not those of `datasets`, pandas or Polars: these take seconds to import or copy the data into
a cache, name no line of a text file, take 007 for a number, and refuse a column with a text here and a list there. No
reader holds more than a batch of rows, so a file may be larger than memory.
"""

import csv
import difflib
import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

from smolsum.errors import UsageError
from smolsum.files import digest, replace

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
STORED = ".data"
"""the folder next to the runs for data that Python code passes on"""

ReadRow = tuple[str, Mapping[str, Any]]
"""its place, for error messages, and its columns"""
BATCH = 1000
"""rows of Parquet and Arrow that are Python objects at a time"""
_WHOLE = re.compile(r"-?(0|[1-9]\d{0,17})")
_NUMBER = re.compile(r"-?(0|[1-9]\d{0,17})(\.\d+)?([eE][+-]?\d{1,2})?")
"""what a number looks like: not 007, nor twenty digits, which name something"""


@dataclass(frozen=True)
class FileSource:
    """Data with splits in files, of which none is read yet."""

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
        return self.files.keys()

    def place(self, split: str) -> str:
        """Return the file of a split, or its number of shards."""
        files = self.files.get(split, ())
        if self.name:
            return f"{BUILTIN}{self.name}, split {split!r}"
        return str(files[0]) if len(files) == 1 else f"{len(files)} files of split {split!r} in {self.path}"

    def rows(self, split: str, setting: str, texts: Collection[str]) -> Iterator[ReadRow]:
        """Yield the rows of a split that the key `setting` named, file after file. In CSV and TSV, a column with
        nothing but numbers holds numbers, unless it is among `texts`, and an empty cell is None.

        Raises UsageError with the place of what is wrong, and for a file without rows.
        """
        try:
            for path in self._checked(split, setting):
                empty = True
                for row in READERS[path.suffix.lower()](path, texts):
                    empty = False
                    yield row
                if empty:
                    raise UsageError(f"{path} is empty", hint="write one row for each post")
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
            raise UsageError(
                f"split {split!r} is more than once in {self.path}: {self._named(files)}",
                hint="keep one of them, and move the others out of the directory",
            )
        count = max(int(match["count"]) for match in shards)
        if len(shards) != count:
            raise UsageError(
                f"split {split!r} in {files[0].parent} has {len(shards)} of {count} shards",
                hint="hf download OWNER/NAME --repo-type dataset --local-dir DIR",
            )
        return files

    def _named(self, files: Iterable[Path]) -> str:
        return ", ".join(path.relative_to(self.path).as_posix() for path in files)

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
        holds = self._named(held[:8]) or "no data file"
        return UsageError(f"no file for split {split!r} in {self.path}, which holds {holds}", hint=hint)


def open_path(path: Path) -> FileSource:
    """Return the splits of a file, which is all `train`, or of a directory. Raises UsageError for anything else."""
    try:
        if path.is_file():
            return FileSource(path, {"train": [_known(path)]})
        if not path.is_dir():
            hint = f"--set data.path=PATH, {LAYOUT}"
            raise UsageError(f"no data at {path.absolute()}: no such file or directory", hint=hint)
        saved = _saved_splits(path)
        return FileSource(path, saved or _listed(path), saved=bool(saved))
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


def _saved_splits(path: Path) -> dict[str, list[Path]]:
    """Return the files of the splits that `save_to_disk` wrote into a directory, none for any other. Raises UsageError
    where one of its lists is missing or damaged."""
    folders, found, record = dict[str, Path](), dict[str, list[Path]](), path / _SAVED
    try:
        if record.is_file():
            folders = {name: path / name for name in json.loads(record.read_bytes())["splits"]}
        elif (path / _SAVED_SPLIT).is_file():
            folders = {"train": path}
        for name, folder in folders.items():
            record = folder / _SAVED_SPLIT
            found[name] = [folder / one["filename"] for one in json.loads(record.read_bytes())["_data_files"]]
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise UsageError(
            f"{record} is missing or damaged: {type(error).__name__}: {error}",
            hint="save the data set again with save_to_disk",
        ) from error
    return found


def _unreadable(error: OSError, path: Path) -> UsageError:
    return UsageError(
        f"cannot read {error.filename or path}: {error.strerror or error}",
        hint="check that it is a file and that you may read it",
    )


def _json_rows(path: Path, texts: Collection[str]) -> Iterator[ReadRow]:
    """Yield the objects of a JSON Lines file; blank lines hold none."""
    for number, line in enumerate(map(str.strip, _lines(path)), start=1):
        if not line:
            continue
        where = f"{path}:{number}"
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            reason = str(error).replace(": line 1 column", ", column")
            raise UsageError(f"{where} is not JSON: {reason}", hint=_json_hint(line)) from error
        if not isinstance(row, dict):
            raise UsageError(f"{where} is {kind_of(row)}, not an object", hint=_json_hint(line))
        yield where, row


def _json_hint(line: str) -> str:
    array = "an array has to become one object a line: jq -c '.[]' FILE > train.jsonl"
    return array if line.startswith("[") else "write one JSON object a line, or remove the line"


def _lines(path: Path) -> Iterator[str]:
    """Yield the lines of a file, with their ends. Raises UsageError for a line that is not UTF-8."""
    with path.open("rb") as file:
        for number, raw in enumerate(file, start=1):
            if b"\0" in raw:
                raise UsageError(f"{path}:{number} holds a NUL byte", hint="save the file as UTF-8 (is it UTF-16?)")
            try:
                yield raw.decode("utf-8-sig")  # without the byte order mark that some editors begin a file with
            except UnicodeDecodeError as error:
                problem = f"is not UTF-8 at its byte {error.start + 1}"
                raise UsageError(f"{path}:{number} {problem}", hint="save the file as UTF-8") from error


def _csv_rows(path: Path, texts: Collection[str]) -> Iterator[ReadRow]:
    """Yield the rows of a CSV or TSV file, whose first one names the columns."""
    numbers = _numeric_columns(path, texts)
    for where, cells in csv_records(path):
        yield where, {name: numbers[name](text) if text and name in numbers else text for name, text in cells.items()}


def _numeric_columns(path: Path, texts: Collection[str]) -> dict[str, type[int] | type[float]]:
    """Return the type of each column that holds nothing but numbers. A type is that of a whole column, so the file is
    read once for it."""
    found: dict[str, type[int] | type[float]] = {}
    others = set(texts)
    for _, cells in csv_records(path):
        if others.issuperset(cells):
            break
        for name in cells.keys() - others:
            text = cells[name]
            if text is None:
                continue
            if not _NUMBER.fullmatch(text):
                others.add(name)
                found.pop(name, None)
            elif not _WHOLE.fullmatch(text):
                found[name] = float
            else:
                found.setdefault(name, int)
    return found


def csv_records(path: Path) -> Iterator[tuple[str, dict[str, str | None]]]:
    """Yield the cells of each row by column, None for empty ones, with the line on which the row begins."""
    csv.field_size_limit(2**31 - 1)  # the default refuses a text of 131 kB
    reader = csv.reader(_lines(path), delimiter="\t" if path.suffix.lower() == ".tsv" else ",", strict=True)
    names: list[str] = []
    while True:
        where = f"{path}:{reader.line_num + 1}"
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            unclosed = "unexpected end" in str(error)
            problem = "has a quoted text that never ends" if unclosed else f"is not CSV: {error}"
            raise UsageError(f"{where} {problem}", hint='a " inside of a quoted text has to be ""') from error
        if not cells:
            continue  # a blank line
        if not names:
            names = _header(cells, where)
        elif len(cells) != len(names):
            problem = f"has {len(cells)} of {len(names)} columns: no {', '.join(map(repr, names[len(cells) :]))}"
            if len(cells) > len(names):
                problem = f"has {len(cells)} columns, and {len(names)} names: {cells[len(names)][:40]!r} is left over"
            raise UsageError(f"{where} {problem}", hint="put a text with separators or line breaks in double quotes")
        else:
            yield where, {name: cell or None for name, cell in zip(names, cells, strict=True)}


def _header(cells: list[str], where: str) -> list[str]:
    """Return the names of the columns; one without a name is called by its number."""
    if len(cells) == 1 and ";" in cells[0]:
        raise UsageError(
            f"{where} names one column, {cells[0][:80]!r}", hint="save the file with commas, or with tabs as .tsv"
        )
    names = [cell.strip() or f"column {number}" for number, cell in enumerate(cells, start=1)]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise UsageError(f"{where} names the column {twice!r} more than once", hint="give each column its own name")
    return names


def _parquet_batches(file: BinaryIO) -> Iterator[Any]:
    from pyarrow.parquet import ParquetFile

    # by default a whole column of a row group is read at once, and many files have one row group
    yield from ParquetFile(file, pre_buffer=False, buffer_size=2**20).iter_batches(BATCH, use_threads=False)


def _arrow_batches(file: BinaryIO) -> Iterator[Any]:
    """Yield those of an Arrow stream, as `datasets` writes it, or of an Arrow file."""
    from pyarrow import ipc

    head = file.read(6)
    file.seek(0)
    if head == b"ARROW1":
        whole = ipc.open_file(file)
        found = map(whole.get_batch, range(whole.num_record_batches))
    else:
        found = iter(ipc.open_stream(file))
    for batch in found:
        batch.validate(full=True)  # Arrow itself trusts its offsets
        yield from (batch.slice(start, BATCH) for start in range(0, batch.num_rows, BATCH))


def _batch_rows(path: Path, texts: Collection[str]) -> Iterator[ReadRow]:
    """Yield the rows of a Parquet or Arrow file. Raises UsageError for damage."""
    from pyarrow import ArrowException

    if not path.stat().st_size:
        return
    form, batches = ("Arrow", _arrow_batches) if path.suffix.lower() == ".arrow" else ("Parquet", _parquet_batches)
    try:
        with path.open("rb") as file:
            rows = chain.from_iterable(batch.to_pylist() for batch in batches(file))
            for number, row in enumerate(rows, start=1):
                yield f"{path}, row {number}", row
    except (OSError, ValueError, MemoryError, ArrowException) as error:  # damage causes all of them
        if isinstance(error, OSError) and error.errno:
            raise
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise UsageError(f"{path} is not {form}, or is damaged: {reason}", hint="write it again") from error


READERS: dict[str, Callable[[Path, Collection[str]], Iterator[ReadRow]]] = {
    ".jsonl": _json_rows,
    ".ndjson": _json_rows,
    ".json": _json_rows,
    ".csv": _csv_rows,
    ".tsv": _csv_rows,
    ".parquet": _batch_rows,
    ".arrow": _batch_rows,
}
"""by suffix: what yields the rows of a file"""
SUFFIXES = tuple(READERS)


def kind_of(value: object) -> str:
    """Return what JSON would call the value, in the words of an error message."""
    names = {dict: "an object", list: "a list", str: "text", bool: "true or false", type(None): "null"}
    return (names | {int: "a number", float: "a number"}).get(type(value), type(value).__name__)


def nearest_name(name: str, known: Iterable[str]) -> str | None:
    """Return the known name closest to `name`, or None where none is close."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.4)  # finds "val" for "validation"
    return close[0] if close else None


def store_data(data: Any, runs_dir: Path) -> str:
    """Return the value of `data.path` for data: a path or hub id as it is; rows (dicts), a polars frame or a
    `datasets.Dataset` as the training split, or a mapping from splits to such, written to a folder in `runs_dir` that
    is named after their content. Raises UsageError for anything else, with the row that is not JSON."""
    if isinstance(data, str | Path):
        return str(data)
    splits = data if isinstance(data, Mapping) else {"train": data}
    if unknown := [name for name in splits if name not in SPLITS]:
        raise UsageError(f"data has the split {unknown[0]!r}", hint=f"name splits {', '.join(SPLITS)}")
    texts = {name: _json_lines(rows, name) for name, rows in splits.items()}
    folder = runs_dir / STORED / digest(texts)[:16]
    for name, text in texts.items():
        folder.mkdir(parents=True, exist_ok=True)
        replace(folder / f"{name}.jsonl", text.encode(), "the same call")
    return str(folder)


def _json_lines(rows: Any, split: str) -> str:
    """Return the rows as JSON Lines; those of a frame are what `iter_rows` yields."""
    rows = rows.iter_rows(named=True) if hasattr(rows, "iter_rows") else rows
    if isinstance(rows, str | bytes) or not isinstance(rows, Iterable):
        raise UsageError(
            f"the {split} data is {type(rows).__name__}, not rows",
            hint="a list of dicts, a polars frame, a datasets.Dataset, or a path",
        )
    lines = []
    for number, row in enumerate(rows, start=1):
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
