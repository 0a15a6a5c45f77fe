"""The rows of one data file, read one after another by the format that its suffix names, each with its place for error
messages. No reader holds more than a batch of rows, so a file may be larger than memory."""

import csv
import difflib
import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

from smolsum.errors import UsageError

ReadRow = tuple[str, Mapping[str, Any]]
"""its place, for error messages, and its columns"""
BATCH = 1000
"""rows of Parquet and Arrow that are Python objects at a time"""
_WHOLE = re.compile(r"-?(0|[1-9]\d{0,17})")
_NUMBER = re.compile(r"-?(0|[1-9]\d{0,17})(\.\d+)?([eE][+-]?\d{1,2})?")
"""what a number looks like: not 007, nor twenty digits, which name something"""


def read_rows(path: Path, texts: Collection[str]) -> Iterator[ReadRow]:
    """Yield the rows of a file. In CSV and TSV, a column with nothing but numbers holds numbers, unless it is among
    `texts`, and an empty cell is None.

    Raises UsageError with the place of what is wrong, and for a file without rows; OSError for one that cannot be read.
    """
    read, empty = READERS[path.suffix.lower()], True
    for placed in read(path, texts):
        empty = False
        yield placed
    if empty:
        raise UsageError(f"{path} is empty", hint="write one row for each post")


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
                yield raw.decode("utf-8-sig")
            except UnicodeDecodeError as error:
                problem = f"is not UTF-8 at its byte {error.start + 1}"
                raise UsageError(f"{path}:{number} {problem}", hint="save the file as UTF-8") from error


def _csv_rows(path: Path, texts: Collection[str]) -> Iterator[ReadRow]:
    """Yield the rows of a CSV or TSV file, whose first one names the columns."""
    numbers = _numeric_columns(path, texts)
    for where, cells in _records(path):
        yield where, {name: numbers[name](text) if text and name in numbers else text for name, text in cells.items()}


def _numeric_columns(path: Path, texts: Collection[str]) -> dict[str, Callable[[str], int | float]]:
    """Return the type of each column that holds nothing but numbers. A type is that of a whole column, so the file is
    read once for it."""
    found: dict[str, Callable[[str], int | float]] | None = None
    filled: set[str] = set()
    for _, cells in _records(path):
        if found is None:
            found = {name: int for name in cells if name not in texts}
        for name in [*found]:
            if (text := cells[name]) is not None:
                filled.add(name)
                if not _NUMBER.fullmatch(text):
                    del found[name]
                elif not _WHOLE.fullmatch(text):
                    found[name] = float
        if not found:
            break
    return {name: kind for name, kind in (found or {}).items() if name in filled}


def _records(path: Path) -> Iterator[tuple[str, dict[str, str | None]]]:
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


def _parquet_rows(path: Path, texts: Collection[str]) -> Iterator[ReadRow]:
    from pyarrow.parquet import ParquetFile

    if not path.stat().st_size:
        return

    def batches() -> Iterator[Any]:
        # by default a whole column of a row group is read at once, and many files have one row group
        return iter(ParquetFile(file, pre_buffer=False, buffer_size=2**20).iter_batches(BATCH, use_threads=False))

    with path.open("rb") as file:
        yield from _batch_rows(path, "Parquet", batches)


def _arrow_rows(path: Path, texts: Collection[str]) -> Iterator[ReadRow]:
    """Yield the rows of an Arrow stream, as `datasets` writes it, or of an Arrow file."""
    from pyarrow import ipc

    if not path.stat().st_size:
        return

    def batches() -> Iterator[Any]:
        if head == b"ARROW1":
            whole = ipc.open_file(file)
            found = map(whole.get_batch, range(whole.num_record_batches))
        else:
            found = iter(ipc.open_stream(file))
        for batch in found:
            batch.validate(full=True)  # Arrow itself trusts its offsets
            yield from (batch.slice(start, BATCH) for start in range(0, batch.num_rows, BATCH))

    with path.open("rb") as file:
        head = file.read(6)
        file.seek(0)
        yield from _batch_rows(path, "Arrow", batches)


def _batch_rows(path: Path, form: str, batches: Callable[[], Iterable[Any]]) -> Iterator[ReadRow]:
    """Yield the rows of Arrow record batches. Raises UsageError for damage."""
    from pyarrow import ArrowException

    try:
        rows = chain.from_iterable(batch.to_pylist() for batch in batches())
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
    ".parquet": _parquet_rows,
    ".arrow": _arrow_rows,
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
