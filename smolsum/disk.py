"""Writing that leaves whole files behind, however it ends, and the one error for a disk that refuses."""

from __future__ import annotations

import errno
import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from smolsum.errors import SmolsumError

FULL = (errno.ENOSPC, errno.EDQUOT)


@contextmanager
def writing(path: Path, remedy: str) -> Iterator[None]:
    """Turns an OSError of the block into a SmolsumError about `path`; `remedy` is the command that helps."""
    try:
        yield
    except OSError as error:
        if error.errno in FULL:
            what, hint = f"the disk is full at {path}", f"free space there, then {remedy}"
        else:
            what = f"cannot write {error.filename or path}: {error.strerror or error}"
            hint = f"make sure that {path.parent} can be written, then {remedy}"
        raise SmolsumError(what, hint=hint) from error


def replace(path: Path, content: bytes, remedy: str, *, durable: bool = False) -> None:
    """Puts `content` at `path` in one step: a reader sees the file before or after, never a part of it.

    `durable` also waits until it would outlive a power cut. One writer a file. Errors as of `writing`.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    with writing(path, remedy):
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
    """Makes `link` a symbolic link to its neighbour `target`, in one step."""
    temporary = link.with_name(f".{link.name}.tmp")
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(target)
    temporary.replace(link)


def sync(path: Path) -> None:
    """Waits until a file's bytes, or a directory's names, are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def to_json(value: object, *, indent: int | None = None) -> bytes:
    """Returns `value` as JSON in UTF-8, with a line end; ValueError for NaN and infinities."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, indent=indent)
    # half a surrogate pair (an undecodable file name, say) becomes the escape that JSON has for it
    return text.encode("utf-8", "backslashreplace") + b"\n"


def finite(value: Any) -> Any:
    """Returns `value` itself if JSON can hold it, else a copy with None for every NaN and infinity."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        clean = {key: finite(item) for key, item in value.items()}
        return value if all(clean[key] is item for key, item in value.items()) else clean
    if isinstance(value, list | tuple):
        items = [finite(item) for item in value]
        return value if all(new is old for new, old in zip(items, value, strict=True)) else items
    return value
