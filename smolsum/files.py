"""Files that survive a kill and a full disk: atomic writes, JSON and growing JSON Lines, a lock, and digests.

A line of JSON Lines counts once its line end is written. Readers skip what a killed process left after the last line
end, and the next writer removes it before it appends.
"""

import errno
import fcntl
import json
import math
import os
import platform
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

import xxhash

from smolsum.errors import SmolsumError, UsageError

FULL = (errno.ENOSPC, errno.EDQUOT)
"""Error numbers of a full disk."""
BLOCK, LONGEST_LINE = 1 << 20, 8 << 20
"""Bytes that `line_blocks` reads at once, and of the longest line that it returns."""


@contextmanager
def writing(path: Path, retry: str) -> Iterator[None]:
    """Turn an OSError of the block into a SmolsumError about `path`; `retry` is the command that helps afterwards."""
    try:
        yield
    except OSError as error:
        if error.errno in FULL:
            what, hint = f"the disk is full at {path}", f"free space there, then {retry}"
        else:
            what = f"cannot write {error.filename2 or error.filename or path}: {error.strerror or error}"
            hint = f"make sure that {path.parent} can be written, then {retry}"
        raise SmolsumError(what, hint=hint) from error


def replace(path: Path, content: bytes, retry: str, *, durable: bool = False) -> None:
    """Put `content` at `path` in one step: a reader sees the file before or after, never a part of it.

    `durable` also waits until the file would survive a power cut. Each file has one writer. Raises what `writing`
    raises.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    with writing(path, retry):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            temporary.write_bytes(content)
            if durable:
                sync(temporary)
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        if durable:
            sync(path.parent)


def point(link: Path, target: str) -> None:
    """Make `link` a symbolic link to `target` in the same folder, in one step."""
    temporary = link.with_name(f".{link.name}.tmp")
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(target)
    temporary.replace(link)


def sync(path: Path) -> None:
    """Wait until a file's bytes, or a directory's names, are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def to_json(value: object, *, indent: int | None = None) -> bytes:
    """Return `value` as JSON in UTF-8 with a line end. Raises ValueError for NaN and infinities."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, indent=indent)
    # half a surrogate pair, as in an undecodable file name, becomes its JSON escape
    return text.encode("utf-8", "backslashreplace") + b"\n"


def finite(value: Any) -> Any:
    """Return `value` itself if all its numbers are finite, else a copy with None for every NaN and infinity."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        clean = {key: finite(item) for key, item in value.items()}
        return value if all(clean[key] is item for key, item in value.items()) else clean
    if isinstance(value, list | tuple):
        items = [finite(item) for item in value]
        return value if all(new is old for new, old in zip(items, value, strict=True)) else items
    return value


class Lines:
    """A JSON Lines file, open for appending. One process writes it, unless it is `shared`. The system has each line
    when `append` returns."""

    def __init__(self, path: Path, retry: str, *, shared: bool = False) -> None:
        """Open or create the file, and remove an unfinished line; `retry` continues after a full disk."""
        self._path, self._retry, self._shared = path, retry, shared
        with writing(path, retry):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("ab", buffering=0)  # unbuffered: readers see each line at once
            with self._alone():  # else another process's write would look unfinished
                self._file.truncate(read_bytes(path).rfind(b"\n") + 1)

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
        """Keep other writers out of a shared file during the block."""
        if not self._shared:
            yield
            return
        fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def append(self, content: bytes) -> None:
        """Append bytes, all or none: what a full disk took before it failed is removed."""
        with writing(self._path, self._retry), self._alone():
            size = self.size
            try:
                rest = memoryview(content)
                while rest:
                    rest = rest[self._file.write(rest) :]
            except BaseException:
                self._file.truncate(size)
                raise


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """Return the objects of `json_lines` without their numbers."""
    return [row for _, row in json_lines(path)]


def json_lines(path: Path, *, growing: bool = True, hint: str = "") -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the objects of a JSON Lines file, each with its line number from 1; none if the file does not exist yet.

    In a `growing` file a last line without its line end is not there yet; otherwise it counts, and empty lines are
    skipped. Raises SmolsumError, with the line, if one is not an object.
    """
    content = read_bytes(path)
    lines = whole_lines(content) if growing else content.split(b"\n")
    for number, (line, row) in enumerate(zip(lines, json_objects(lines), strict=True), start=1):
        if not growing and not line.strip():
            continue
        if row is None:
            what = f"{path}:{number} is damaged: it is not a JSON object"
            raise SmolsumError(what, hint=hint or "restore it, or remove that line")
        yield number, row


def json_objects(lines: Iterable[bytes]) -> Iterator[dict[str, Any] | None]:
    """Yield the object of each line; None for a line that is not a JSON object."""
    for line in lines:
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            row = None
        yield row if isinstance(row, dict) else None


def whole_lines(content: bytes) -> list[bytes]:
    """Return the lines that have their line end, without it."""
    return content.split(b"\n")[:-1]


def line_blocks(path: Path, offset: int = 0) -> Iterator[tuple[int, bytes]]:
    """Yield a file from an offset on in blocks of whole lines, each with its offset, so that a file of any size needs
    little memory; nothing of a file that cannot be read.

    A last line without its line end comes alone. An empty block stands for a line above `LONGEST_LINE`, which is left
    out.
    """
    with suppress(OSError), path.open("rb") as file:
        file.seek(offset)
        rest, skipping = b"", False
        while chunk := file.read(BLOCK):
            if skipping:
                end = chunk.find(b"\n") + 1
                skipping = end == 0
                offset += end or len(chunk)
                chunk = b"" if skipping else chunk[end:]
            rest += chunk
            if end := rest.rfind(b"\n") + 1:
                yield offset, rest[:end]
                offset, rest = offset + end, rest[end:]
            elif len(rest) > LONGEST_LINE:
                yield offset, b""
                offset, rest, skipping = offset + len(rest), b"", True
        if rest:
            yield offset, rest


def read_bytes(path: Path) -> bytes:
    """Return a file's content, empty if the file does not exist yet. Raises SmolsumError if it cannot be read."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""
    except OSError as error:
        what = f"cannot read {path}: {error.strerror or error}"
        raise SmolsumError(what, hint="check that it is a file and that you may read it") from error


@contextmanager
def locked(path: Path, busy: str, retry: str, *, hint: str | None = None) -> Iterator[None]:
    """Lock the file during the block and write the process into it. Raises UsageError that begins with `busy` where
    another process has the lock, with the advice to wait unless `hint` gives another, and what `writing` raises. The
    kernel frees the lock however the process ends."""
    with writing(path, retry):
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("a+", encoding="utf-8")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            file.truncate(0)
            file.write(f"{os.getpid()} on {platform.node()}")
            file.flush()
        except BlockingIOError as error:
            file.seek(0)
            holder = file.read()  # empty between the other process's lock and its line
            file.close()
            who = f"process {holder}" if holder else "another process"
            stop = f", or end it with a checkpoint: kill -INT {holder.split()[0]}" if holder else ""
            raise UsageError(f"{busy} by {who}", hint=hint or f"wait until it ends{stop}") from error
        except OSError:
            file.close()
            raise
    with file:
        yield


def digest(value: Any) -> str:
    """Return the xxh3_128 hex digest of a value as JSON with sorted keys, the same on every machine. Objects that JSON
    does not know count as their text."""
    return str(xxhash.xxh3_128_hexdigest(json.dumps(value, sort_keys=True, default=str).encode()))
