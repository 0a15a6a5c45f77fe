"""JSON Lines that grow while a process may be killed.

A line counts once its line end is written. What a killed process leaves after the last one is no line: readers pass
over it, and the next writer removes it before it appends.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from smolsum.disk import writing
from smolsum.errors import SmolsumError


class Lines:
    """A file open at its end, from one process unless it is `shared`; each line is with the system when `append`
    returns."""

    def __init__(self, path: Path, remedy: str, *, shared: bool = False) -> None:
        """Opens the file, and makes it where it is not there; `remedy` is the command that goes on after a full
        disk."""
        self._path, self._remedy, self._shared = path, remedy, shared
        with writing(path, remedy):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("ab", buffering=0)  # no buffer that could keep a line from its readers
            with self._alone():  # what another process is writing is no rest of a killed one
                self._file.truncate(end_of_lines(read_bytes(path)))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    @property
    def size(self) -> int:
        """Bytes in the file."""
        return os.fstat(self._file.fileno()).st_size

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Nobody else writes to a shared file during the block."""
        if not self._shared:
            yield
            return
        fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def append(self, content: bytes) -> None:
        """Writes through to the system; a full disk takes a part first, which is then taken back."""
        with writing(self._path, self._remedy), self._alone():
            size = self.size
            try:
                rest = memoryview(content)
                while rest:
                    rest = rest[self._file.write(rest) :]
            except BaseException:
                self._file.truncate(size)
                raise


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """Returns the objects of a JSON Lines file that may still be growing; none if it does not exist yet.

    A last line without its line end is passed over. SmolsumError, with the line, for a file that is damaged.
    """
    return [row for _, row in rows_with_starts(read_bytes(path), path)]


def read_sound(path: Path) -> tuple[list[dict[str, Any]], int]:
    """Returns the objects of a JSON Lines file, and how many lines hold none: for a cache, whose other lines count."""
    content, rows = read_bytes(path), list[dict[str, Any]]()
    lines = content[: end_of_lines(content)].split(b"\n")[:-1]
    for line in lines:
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(row, dict):
            rows.append(row)
    return rows, len(lines) - len(rows)


def read_bytes(path: Path) -> bytes:
    """Returns a file's content, empty if it does not exist yet. SmolsumError for one that cannot be read."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""
    except OSError as error:
        what = f"cannot read {path}: {error.strerror or error}"
        raise SmolsumError(what, hint="check that it is a file and that you may read it") from error


def rows_with_starts(content: bytes, path: Path) -> list[tuple[int, dict[str, Any]]]:
    """The objects of whole lines, each with the byte at which its line starts."""
    rows, start = [], 0
    for number, line in enumerate(content[: end_of_lines(content)].split(b"\n")[:-1], start=1):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            row = None
        if not isinstance(row, dict):
            raise SmolsumError(
                f"{path}:{number} is not a JSON object, so the file is damaged",
                hint="restore it from a copy, or remove that line",
            )
        rows.append((start, row))
        start += len(line) + 1
    return rows


def end_of_lines(content: bytes) -> int:
    """The byte after the last line end."""
    return content.rfind(b"\n") + 1
