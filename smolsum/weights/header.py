"""What a patch says of itself: JSON, of which every part is checked before anything is done."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any, Literal, NoReturn, get_args

import xxhash

from smolsum.weights.tensor import Mode

MOST_AXES = 32


@dataclass(frozen=True)
class Entry:
    """One tensor in a patch."""

    name: str
    dtype: str
    """numpy's name of the type that the sender's array had"""
    itemsize: int
    shape: tuple[int, ...]
    mode: Mode
    sizes: tuple[int, ...]
    """bytes of each part, compressed"""
    lengths: tuple[int, ...]
    """bytes of each part, unpacked"""
    checksum: str
    """of the tensor after the patch"""

    @property
    def size(self) -> int:
        """Values in the tensor."""
        return prod(self.shape)


@dataclass(frozen=True)
class Header:
    """What a patch says of itself."""

    kind: Literal["patch", "anchor"]
    base_version: int | None
    version: int
    changed: int
    """values that differ from the base; in an anchor all of them"""
    entries: tuple[Entry, ...]
    metadata: Mapping[str, Any] = field(default_factory=dict)

    @property
    def values(self) -> int:
        """Values in all tensors."""
        return sum(entry.size for entry in self.entries)

    @property
    def density(self) -> float:
        """Share of the values that changed."""
        return self.changed / max(1, self.values)

    @property
    def nbytes(self) -> int:
        """Bytes of the weights after the patch."""
        return sum(entry.size * entry.itemsize for entry in self.entries)

    @property
    def weights(self) -> str:
        """`checksum` of the weights after the patch."""
        return combined({entry.name: entry.checksum for entry in self.entries})


def parse(text: bytes) -> Header:
    """What the JSON says, each part of the type that it must have; else ValueError, KeyError, TypeError or
    RecursionError."""
    facts = json.loads(text, parse_constant=_no_number)
    entries = tuple(
        Entry(**{**e, "shape": tuple(e["shape"]), "sizes": tuple(e["sizes"]), "lengths": tuple(e["lengths"])})
        for e in facts["entries"]
    )
    for entry in entries:
        if not all(isinstance(text, str) for text in (entry.name, entry.dtype, entry.mode, entry.checksum)):
            raise ValueError("a tensor whose name, type, mode or checksum is no text")
        numbers = (entry.itemsize, *entry.shape, *entry.sizes, *entry.lengths)
        fine = all(type(n) is int and n >= 0 for n in numbers) and entry.itemsize in (1, 2, 4, 8)
        # the gaps, and each byte of a value
        if not fine or len(entry.shape) > MOST_AXES or not len(entry.sizes) == len(entry.lengths) <= entry.itemsize + 1:
            raise ValueError(f"{entry.name} has impossible sizes")
        if entry.mode not in get_args(Mode):
            raise ValueError(f"{entry.name} is written in a way that is not known here")
    header = Header(**{**facts, "entries": entries})
    if len({entry.name for entry in entries}) < len(entries):
        raise ValueError("a tensor is there twice")
    if header.kind not in ("patch", "anchor") or (type(header.base_version) is int) != (header.kind == "patch"):
        raise ValueError("neither patch nor anchor")
    if type(header.version) is not int or type(header.changed) is not int or not isinstance(header.metadata, dict):
        raise ValueError("version, changed or metadata is of another type")
    return header


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


def combined(checksums: Mapping[str, str]) -> str:
    """The checksum of weights, of those of their tensors by name."""
    lines = "".join(f"{name} {checksums[name]}\n" for name in sorted(checksums))
    return str(xxhash.xxh3_128_hexdigest(lines.encode()))
