"""Patches: what changed in the served weights since a version, lossless; and anchors, which hold all of them.

    8 bytes   SMOLSUMW
    u32       format, little-endian as all numbers here
    u32       bytes of the header, compressed
    header    JSON, zstd: kind, versions, metadata; of each tensor name, type, shape, mode, lengths, checksum
    parts     the tensors' parts in the header's order, each a zstd frame (`weights/tensor.py` says what is in them)
    16 bytes  xxh3_128 of all that comes before

Where a few values in a hundred move by one step of their type, as an update of 2e-6 moves bfloat16 weights, a patch is
less than a fiftieth of the weights.

What a patch says of itself: JSON, of which every part is checked before anything is done.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from math import prod
from typing import Any, Literal, NoReturn, TypeVar, get_args

import numpy as np
import xxhash
import zstandard

from smolsum.errors import SmolsumError
from smolsum.weights import tensor
from smolsum.weights.tensor import Mode

MOST_AXES = 32


@dataclass(frozen=True)
class TensorEntry:
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
    entries: tuple[TensorEntry, ...]
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
        TensorEntry(**{**e, "shape": tuple(e["shape"]), "sizes": tuple(e["sizes"]), "lengths": tuple(e["lengths"])})
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


MAGIC, FORMAT = b"SMOLSUMW", 1
_FRAME = struct.Struct("<8sII")
_SEAL = 16
LEVEL = 1
"""of zstd; the parts have few repetitions to look for, and higher levels gain 1 % in several times the time"""
MOST_HEADER = 64 << 20
"""bytes of a header, unpacked"""
TYPES = (
    "float16", "float32", "float64", "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
)  # fmt: skip
"""numpy's names of the types that are given back as they were"""
Result = TypeVar("Result")


class PatchError(SmolsumError):
    """A patch that cannot be made or applied; the weights that it was for are unchanged."""


class CorruptPatchError(PatchError):
    """The bytes are not those that `encode` or `anchor` returned."""


class WrongBaseError(PatchError):
    """The patch is whole, but made for other weights than those it was applied to."""


def encode(
    base: Mapping[str, Any],
    new: Mapping[str, Any],
    *,
    base_version: int,
    version: int,
    metadata: Mapping[str, Any] | None = None,
) -> bytes:
    """The patch that turns `base` into `new`, bit for bit: numpy arrays by name, of any type of 1, 2, 4 or 8 bytes
    (bfloat16 as uint16).

    `metadata` is JSON for the receiver. Raises PatchError where names, shapes or types of the two differ: then only an
    anchor helps.
    """
    for name in sorted(base.keys() | new.keys()):
        if name not in base or name not in new or _kind(base[name]) != _kind(new[name]):
            raise PatchError(f"{name} is not the same tensor in both versions", hint="send a full anchor instead")
    return _write(base, new, "patch", base_version, version, metadata)


def anchor(new: Mapping[str, Any], *, version: int, metadata: Mapping[str, Any] | None = None) -> bytes:
    """All of the weights in the form of a patch that needs no base. Arguments as of `encode`."""
    return _write({}, new, "anchor", None, version, metadata)


def apply(base: Mapping[str, Any] | None, patch: bytes) -> dict[str, Any]:
    """The weights after the patch: arrays of the base's types, the sender's in an anchor (whose base is not looked at).

    `base` itself is unchanged; tensors without a change are not copied. Raises CorruptPatchError, or WrongBaseError
    where a tensor does not become what the sender had.
    """
    header, places = _read(patch)
    held = base or {}
    if header.kind == "patch" and held.keys() != {entry.name for entry in header.entries}:
        raise WrongBaseError("the patch is for other tensors", hint="send a full anchor")

    def one(entry: TensorEntry, start: int) -> Any:
        return _unpacked(entry, held.get(entry.name) if header.kind == "patch" else None, patch, start)

    return dict(zip((e.name for e in header.entries), _in_threads(one, header.entries, places), strict=True))


def read(patch: bytes) -> Header:
    """The header, once the patch is seen to be whole. Raises CorruptPatchError."""
    return _read(patch)[0]


def checksum(weights: Mapping[str, Any]) -> str:
    """xxh3_128 hex over the checksums of the tensors, in order of name: the same at both ends of a sync."""
    names = sorted(weights)
    return combined(dict(zip(names, _in_threads(lambda n: tensor.checksum(weights[n]), names), strict=True)))


def _write(
    base: Mapping[str, Any],
    new: Mapping[str, Any],
    kind: str,
    base_version: int | None,
    version: int,
    metadata: Mapping[str, Any] | None,
) -> bytes:
    def one(name: str) -> tuple[TensorEntry, int, list[bytes]]:
        array = np.asarray(new[name])
        try:
            flat = tensor.bits(array)
        except ValueError as error:
            raise PatchError(f"{name}: {error}") from error
        mode, changed, parts = tensor.encode(tensor.bits(base[name]) if name in base else None, flat)
        packer = zstandard.ZstdCompressor(level=LEVEL)
        packed = [packer.compress(part) for part in parts]
        sizes, lengths = tuple(map(len, packed)), tuple(part.size for part in parts)
        itemsize = flat.dtype.itemsize
        entry = TensorEntry(name, str(array.dtype), itemsize, array.shape, mode, sizes, lengths, tensor.checksum(array))
        return entry, changed, packed

    written = list(_in_threads(one, sorted(new)))
    entries = [vars(entry) for entry, _, _ in written]
    header: dict[str, Any] = {
        "kind": kind,
        "base_version": base_version,
        "version": version,
        "metadata": dict(metadata or {}),
    }
    header |= {"changed": sum(changed for _, changed, _ in written), "entries": entries}
    packed = zstandard.ZstdCompressor(level=LEVEL).compress(json.dumps(header).encode())
    pieces = [_FRAME.pack(MAGIC, FORMAT, len(packed)), packed, *(part for _, _, parts in written for part in parts)]
    seal = xxhash.xxh3_128()
    for piece in pieces:
        seal.update(piece)
    return b"".join([*pieces, seal.digest()])


def _read(patch: bytes) -> tuple[Header, list[int]]:
    """The header, and where each tensor's parts begin."""
    if len(patch) < _FRAME.size + _SEAL:
        raise CorruptPatchError(f"{len(patch)} bytes are too few for a patch", hint="send it again")
    magic, version, length = _FRAME.unpack_from(patch)
    if magic != MAGIC:
        raise CorruptPatchError("these bytes are no patch", hint="send what smolsum.weights.delta makes")
    if xxhash.xxh3_128_digest(memoryview(patch)[:-_SEAL]) != patch[-_SEAL:]:
        raise CorruptPatchError("the patch was damaged on its way", hint="send it again")
    if version != FORMAT:
        raise CorruptPatchError(
            f"the patch is of format {version}, not {FORMAT}", hint="run the same version of smolsum on both machines"
        )
    start = _FRAME.size + length
    try:
        header = parse(_unzip(patch[_FRAME.size : start], None))
    except (ValueError, KeyError, TypeError, RecursionError, zstandard.ZstdError) as error:
        raise CorruptPatchError(f"the header of the patch cannot be read: {error}", hint="send it again") from error
    places = []
    for entry in header.entries:
        places.append(start)
        start += sum(entry.sizes)
    if start != len(patch) - _SEAL:
        raise CorruptPatchError("the patch does not have the length that it states", hint="send it again")
    return header, places


def _unpacked(entry: TensorEntry, base: Any | None, patch: bytes, start: int) -> Any:
    parts, kind = [], np.dtype(f"<u{entry.itemsize}")
    if base is not None and (base.shape, base.dtype.itemsize) != (entry.shape, entry.itemsize):
        raise WrongBaseError(f"{entry.name} has another shape here", hint="send a full anchor")
    try:
        # nothing is unpacked that is longer than the tensor could make it
        if any(length > entry.size + entry.size // tensor.ESCAPE + 1 for length in entry.lengths):
            raise ValueError("a part is longer than the tensor")
        for size, length in zip(entry.sizes, entry.lengths, strict=True):
            parts.append(np.frombuffer(_unzip(patch[start : start + size], length), np.uint8))
            start += size
        flat = tensor.decode(entry.mode, None if base is None else tensor.bits(base), entry.size, kind, parts)
    except (ValueError, IndexError, zstandard.ZstdError) as error:
        raise CorruptPatchError(f"{entry.name} cannot be unpacked: {error}", hint="send it again") from error
    new = flat.view(_dtype(entry) if base is None else base.dtype).reshape(entry.shape)
    if tensor.checksum(new) != entry.checksum:
        raise WrongBaseError(f"{entry.name} does not become what the sender has", hint="send a full anchor")
    return new


def _unzip(packed: bytes, length: int | None) -> bytes:
    """The contents of a zstd frame that states their length; ValueError where that is another one than expected."""
    stated = zstandard.frame_content_size(packed)
    if stated < 0 or (stated > MOST_HEADER if length is None else stated != length):
        raise ValueError("a part has another length than stated")
    return zstandard.ZstdDecompressor().decompress(packed) if stated else b""


def _dtype(entry: TensorEntry) -> Any:
    """The sender's type where it is one of TYPES, else an unsigned integer of its size."""
    known = np.dtype(entry.dtype) if entry.dtype in TYPES else None
    return known if known is not None and known.itemsize == entry.itemsize else np.dtype(f"<u{entry.itemsize}")


def _kind(array: Any) -> tuple[Any, Any]:
    return np.shape(array), np.asarray(array).dtype


def _in_threads(function: Callable[..., Result], *items: Iterable[Any]) -> Sequence[Result]:
    """`function` of each item, in order; numpy, zstd and xxhash let go of the interpreter."""
    with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
        return list(pool.map(function, *items))
