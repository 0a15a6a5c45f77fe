"""Answers on disk by the content of their question: the same question to the same model is paid for once.

One file for each model below `$XDG_CACHE_HOME/smolsum/<kind>`, one JSON line for each answer, only ever appended to.
"""

import json
import os
import re
from collections.abc import Callable, Mapping
from operator import itemgetter
from pathlib import Path
from typing import Any, Generic, Self, TypeVar

import xxhash

from smolsum import console
from smolsum.files import Lines, json_objects, read_bytes, to_json, whole_lines

A = TypeVar("A")


def content_key(*parts: Any) -> str:
    """Return the XXH3-128 hex of a question: the model, the prompt, and whatever else makes it another question."""
    content = json.dumps(parts, ensure_ascii=False)
    return str(xxhash.xxh3_128_hexdigest(content.encode("utf-8", "surrogatepass")))


class AnswerCache(Generic[A]):
    """The answers of one model, by `content_key`. Damaged lines are counted, skipped and left in the file.

    Answers are added inside a `with` block, which holds the file open; other processes may append to it too.
    """

    def __init__(
        self,
        kind: str,
        model: str,
        remedy: str,
        *,
        read: Callable[[Mapping[str, Any]], A] = itemgetter("answer"),
        row: Callable[[str, A], Mapping[str, Any]] = lambda key, answer: {"key": key, "answer": answer},
        known: Mapping[str, A] | None = None,
    ) -> None:
        """`remedy` is the command that continues after a full disk. `read` takes an answer from a line (ValueError or
        KeyError for a damaged one), `row` makes the line. `known` answers replace those of the file."""
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "smolsum" / kind
        self._path = folder / f"{re.sub(r'[^A-Za-z0-9._-]+', '-', model)}.jsonl"
        self._remedy, self._row = remedy, row
        self._known = self._read(read) if known is None else dict(known)
        self._lines: Lines | None = None

    def __enter__(self) -> Self:
        self._lines = Lines(self._path, self._remedy, shared=True)
        return self

    def __exit__(self, *_: object) -> None:
        if self._lines is not None:
            self._lines.__exit__()
        self._lines = None

    def __contains__(self, key: str) -> bool:
        return key in self._known

    @property
    def has_answers(self) -> bool:
        """Whether any answer is more than a stored refusal (None)."""
        return any(answer is not None for answer in self._known.values())

    def get(self, key: str) -> A | None:
        """Return the answer, or None if it is not known yet."""
        return self._known.get(key)

    def add(self, key: str, answer: A) -> None:
        """Store an answer. Raises SmolsumError for a full disk."""
        assert self._lines is not None
        self._known[key] = answer
        self._lines.append(to_json(self._row(key, answer)))

    def _read(self, read: Callable[[Mapping[str, Any]], A]) -> dict[str, A]:
        known, damaged = dict[str, A](), 0
        for row in json_objects(whole_lines(read_bytes(self._path))):
            try:
                if row is None or not isinstance(row["key"], str):
                    raise ValueError("a key that is not a text")
                known[row["key"]] = read(row)
            except (KeyError, ValueError):
                damaged += 1
        if damaged:
            lines = "line" if damaged == 1 else "lines"
            console.warn(f"skipped {damaged} damaged {lines} of {self._path}; their questions are asked again")
        return known
