"""Answers on disk by the content of their question: the same question to the same model is paid for once.

One file for each model below `$XDG_CACHE_HOME/smolsum/<kind>`, one JSON line for each answer, only ever appended to:
answers that were paid for outlive damage, and any number of processes share them, without a database.
"""

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Generic, Protocol, Self, TypeVar

import msgspec
import xxhash

from smolsum import console
from smolsum.files import Lines, json_objects, read_bytes, to_json, whole_lines


class Keyed(Protocol):
    """A record with the `content_key` of its question."""

    @property
    def key(self) -> str: ...


A = TypeVar("A", bound=Keyed)


class KeptAnswer(msgspec.Struct, frozen=True):
    """An answer to a question; None: it was refused for good."""

    key: str
    answer: Any


def content_key(*parts: Any) -> str:
    """Return the XXH3-128 hex of a question: the model, the prompt, and whatever else makes it another question."""
    # surrogatepass: a text from a user's data may hold half a surrogate pair
    content = json.dumps(parts, ensure_ascii=False)
    return str(xxhash.xxh3_128_hexdigest(content.encode("utf-8", "surrogatepass")))


class AnswerCache(Generic[A]):
    """The answers of one model, as records of one type, by `content_key`. Damaged lines are counted, skipped and left
    in the file.

    Answers are added inside a `with` block, which holds the file open; other processes may append to it too.
    """

    def __init__(
        self, kind: str, model: str, record: type[A], retry: str, *, known: Mapping[str, A] | None = None
    ) -> None:
        """`retry` is the command that continues after a full disk. `known` answers replace those of the file."""
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "smolsum" / kind
        self._path = folder / f"{re.sub(r'[^A-Za-z0-9._-]+', '-', model)}.jsonl"
        self._retry = retry
        self.known = self._read(record) if known is None else dict(known)
        """the answers by key"""

    def __enter__(self) -> Self:
        self._lines = Lines(self._path, self._retry, shared=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._lines.__exit__()

    def add(self, answer: A) -> None:
        """Store an answer. Raises SmolsumError for a full disk."""
        self.known[answer.key] = answer
        self._lines.append(to_json(msgspec.to_builtins(answer)))

    def _read(self, record: type[A]) -> dict[str, A]:
        known, damaged = dict[str, A](), 0
        for row in json_objects(whole_lines(read_bytes(self._path))):
            try:
                answer = msgspec.convert(row, record)
                known[answer.key] = answer
            except msgspec.ValidationError:
                damaged += 1
        if damaged:
            lines = "line" if damaged == 1 else "lines"
            console.warn(f"skipped {damaged} damaged {lines} of {self._path}; their questions are asked again")
        return known
