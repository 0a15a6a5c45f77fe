"""Answers by content, on disk: the same question to the same model is never paid for twice.

One file a model below $XDG_CACHE_HOME/smolsum/<kind>, a JSON line an answer, only ever appended to.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any, Self

import xxhash

from smolsum import console
from smolsum.files import Lines, read_sound, to_json


def cache_file(kind: str, model: str) -> Path:
    """Where answers of one kind by one model are kept, over all runs of this user."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "smolsum" / kind / f"{re.sub(r'[^A-Za-z0-9._-]+', '-', model)}.jsonl"


def content_key(*parts: Any) -> str:
    """XXH3-128 hex of what is asked: model, prompt and whatever else makes another question."""
    content = json.dumps(parts, ensure_ascii=False)
    return str(xxhash.xxh3_128_hexdigest(content.encode("utf-8", "surrogatepass")))


def warn_of_damage(path: Path, bad: int) -> None:
    """Say that lines of a cache were passed over, if any were."""
    if bad:
        console.warn(
            f"{bad} damaged {'line' if bad == 1 else 'lines'} of {path} passed over; what it held is asked again"
        )


class Answers:
    """What a model answered, by `content_key`. Lines that are damaged are counted and passed over."""

    def __init__(self, path: Path, remedy: str) -> None:
        """`remedy` is the command that goes on after a full disk."""
        self._path, self._remedy = path, remedy
        rows, bad = read_sound(path)
        sound = [row for row in rows if isinstance(row.get("key"), str) and "answer" in row]
        self._known = {row["key"]: row["answer"] for row in sound}
        warn_of_damage(path, bad + len(rows) - len(sound))
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
    def any(self) -> bool:
        """Whether there is an answer at all, and not only questions that were decided to have none."""
        return any(answer is not None for answer in self._known.values())

    def get(self, key: str) -> Any | None:
        """The answer, None where there is none yet."""
        return self._known.get(key)

    def add(self, key: str, answer: Any) -> None:
        """Keep an answer, which JSON can hold, within the block that opens this; SmolsumError for a full disk."""
        assert self._lines is not None
        self._known[key] = answer
        self._lines.append(to_json({"key": key, "answer": answer}))
