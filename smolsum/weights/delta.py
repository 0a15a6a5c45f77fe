"""Patches: what changed in the served weights since a version, lossless; and anchors, which hold all weights.

    8 bytes   SMOLSUMW
    u32       format, little-endian as all numbers here
    u32       bytes of the header, compressed
    header    JSON, zstd: kind, versions, metadata; of each tensor name, type, shape, mode, lengths, checksum
    parts     the tensors' parts in the header's order, each a zstd frame (`weights/tensor.py` says what is in them)
    16 bytes  xxh3_128 of everything before

If a few percent of the values move by one step of their type, as an update of 2e-6 moves bfloat16 weights, a patch has
less than a fiftieth of the bytes of the weights.
"""

import os
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from math import prod
from typing import Annotated, Any, Literal, TypeVar

import msgspec
import numpy as np
import xxhash
import zstandard
from msgspec import Meta, Struct, field

from smolsum.errors import SmolsumError
from smolsum.weights import tensor
from smolsum.weights.tensor import Mode

MAGIC, FORMAT = b"SMOLSUMW", 1
LEVEL = 1
"""of zstd; the parts have few repetitions, and higher levels gain 1 % in several times the time"""
MAX_HEADER_BYTES = 64 << 20
"""bytes of a header, unpacked"""
MAX_AXES = 32
TYPES = (
    "float16", "float32", "float64", "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
)  # fmt: skip
"""numpy's names of the types that `apply` restores"""
_FRAME = struct.Struct("<8sII")
_SEAL = 16
Result = TypeVar("Result")
Count = Annotated[int, Meta(ge=0)]


class TensorEntry(Struct, frozen=True, forbid_unknown_fields=True):
    """One tensor in a patch."""

    name: str
    dtype: str
    """numpy's name of the type of the sender's array"""
    itemsize: Literal[1, 2, 4, 8]
    shape: Annotated[tuple[Count, ...], Meta(max_length=MAX_AXES)]
    mode: Mode
    sizes: tuple[Count, ...]
    """bytes of each part, compressed"""
    lengths: tuple[Count, ...]
    """bytes of each part, unpacked"""
    checksum: str
    """of the tensor after the patch"""

    def __post_init__(self) -> None:
        # at most the gaps, and a part for each byte of a value
        if not len(self.sizes) == len(self.lengths) <= self.itemsize + 1:
            raise ValueError(f"{self.name} has impossible sizes")

    @property
    def size(self) -> int:
        """Values in the tensor."""
        return prod(self.shape)


class Header(Struct, frozen=True, forbid_unknown_fields=True):
    """The facts of a patch, stored as JSON; parsing checks every field."""

    kind: Literal["patch", "anchor"]
    base_version: int | None
    version: int
    changed: int
    """values that differ from the base; in an anchor all of them"""
    entries: tuple[TensorEntry, ...]
    metadata: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if len({entry.name for entry in self.entries}) < len(self.entries):
            raise ValueError("a tensor occurs twice")
        if (self.base_version is None) != (self.kind == "anchor"):
            raise ValueError("only a patch has a base version")

    @property
    def density(self) -> float:
        """Share of the values that changed."""
        return self.changed / max(1, sum(entry.size for entry in self.entries))

    @property
    def nbytes(self) -> int:
        """Bytes of the weights after the patch."""
        return sum(entry.size * entry.itemsize for entry in self.entries)

    @property
    def weights(self) -> str:
        """`checksum` of the weights after the patch."""
        return _combined({entry.name: entry.checksum for entry in self.entries})


class PatchError(SmolsumError):
    """A patch that cannot be made or applied; the weights are unchanged."""


class CorruptPatchError(PatchError):
    """The bytes are not those that `encode` or `anchor` returned."""


class WrongBaseError(PatchError):
    """The patch is intact, but was made for other weights."""


def encode(
    base: Mapping[str, Any],
    new: Mapping[str, Any],
    *,
    base_version: int,
    version: int,
    metadata: Mapping[str, Any] | None = None,
) -> bytes:
    """Return the patch that turns `base` into `new`, bit for bit: numpy arrays by name, of any type of 1, 2, 4 or 8
    bytes (bfloat16 as uint16).

    `metadata` is JSON for the receiver. Raises PatchError if names, shapes or types of the two differ: send an anchor
    then.
    """
    for name in sorted(base.keys() | new.keys()):
        if name not in base or name not in new or _kind(base[name]) != _kind(new[name]):
            raise PatchError(f"{name} is not the same tensor in both versions", hint="send a full anchor instead")
    return _write(base, new, "patch", base_version, version, metadata)


def anchor(new: Mapping[str, Any], *, version: int, metadata: Mapping[str, Any] | None = None) -> bytes:
    """Return all weights, as a patch that needs no base. The arguments are those of `encode`."""
    return _write({}, new, "anchor", None, version, metadata)


def apply(base: Mapping[str, Any] | None, patch: bytes) -> dict[str, Any]:
    """Return the weights after the patch: arrays of the base's types; for an anchor, which needs no base, the sender's.

    `base` is unchanged, and tensors without a change are not copied. Raises CorruptPatchError, or WrongBaseError if a
    tensor does not get the sender's checksum.
    """
    header, places = _read(patch)
    held = base or {}
    if header.kind == "patch" and held.keys() != {entry.name for entry in header.entries}:
        raise WrongBaseError("the patch is for other tensors", hint="send a full anchor")

    def one(entry: TensorEntry, start: int) -> Any:
        return _unpacked(entry, held.get(entry.name) if header.kind == "patch" else None, patch, start)

    return dict(zip((e.name for e in header.entries), _in_threads(one, header.entries, places), strict=True))


def read(patch: bytes) -> Header:
    """Return the header of an intact patch. Raises CorruptPatchError."""
    return _read(patch)[0]


def checksum(weights: Mapping[str, Any]) -> str:
    """xxh3_128 hex over the checksums of the tensors, sorted by name: equal at both ends of a sync."""
    names = sorted(weights)
    return _combined(dict(zip(names, _in_threads(lambda n: tensor.checksum(weights[n]), names), strict=True)))


def _combined(checksums: Mapping[str, str]) -> str:
    lines = "".join(f"{name} {checksums[name]}\n" for name in sorted(checksums))
    return str(xxhash.xxh3_128_hexdigest(lines.encode()))


def _write(
    base: Mapping[str, Any],
    new: Mapping[str, Any],
    kind: Literal["patch", "anchor"],
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
        itemsize: Any = flat.dtype.itemsize
        entry = TensorEntry(name, str(array.dtype), itemsize, array.shape, mode, sizes, lengths, tensor.checksum(array))
        return entry, changed, packed

    written = list(_in_threads(one, sorted(new)))
    entries = tuple(entry for entry, _, _ in written)
    changed = sum(changed for _, changed, _ in written)
    header = Header(kind, base_version, version, changed, entries, dict(metadata or {}))
    packed = zstandard.ZstdCompressor(level=LEVEL).compress(msgspec.json.encode(header))
    pieces = [_FRAME.pack(MAGIC, FORMAT, len(packed)), packed, *(part for _, _, parts in written for part in parts)]
    seal = xxhash.xxh3_128()
    for piece in pieces:
        seal.update(piece)
    return b"".join([*pieces, seal.digest()])


def _read(patch: bytes) -> tuple[Header, list[int]]:
    """Return the header, and the offset of each tensor's parts."""
    if len(patch) < _FRAME.size + _SEAL:
        raise CorruptPatchError(f"{len(patch)} bytes are too few for a patch", hint="send it again")
    magic, version, length = _FRAME.unpack_from(patch)
    if magic != MAGIC:
        raise CorruptPatchError("these bytes are not a patch", hint="send what smolsum.weights.delta makes")
    if xxhash.xxh3_128_digest(memoryview(patch)[:-_SEAL]) != patch[-_SEAL:]:
        raise CorruptPatchError("the patch was damaged on its way", hint="send it again")
    if version != FORMAT:
        raise CorruptPatchError(
            f"the patch is of format {version}, not {FORMAT}", hint="run the same version of smolsum on both machines"
        )
    start = _FRAME.size + length
    try:
        header = msgspec.json.decode(_unzip(patch[_FRAME.size : start], None), type=Header)
    except (ValueError, msgspec.DecodeError, RecursionError, zstandard.ZstdError) as error:
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
        # refuse to unpack more bytes than the tensor can have
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
        raise WrongBaseError(f"{entry.name} does not get the sender's checksum", hint="send a full anchor")
    return new


def _unzip(packed: bytes, length: int | None) -> bytes:
    """Return the contents of a zstd frame. Raises ValueError unless the frame states the expected length (None: any, up
    to MAX_HEADER_BYTES)."""
    stated = zstandard.frame_content_size(packed)
    if stated < 0 or (stated > MAX_HEADER_BYTES if length is None else stated != length):
        raise ValueError("a part has another length than stated")
    return zstandard.ZstdDecompressor().decompress(packed) if stated else b""


def _dtype(entry: TensorEntry) -> Any:
    """Return the sender's type if it is one of TYPES, else an unsigned integer of its size."""
    known = np.dtype(entry.dtype) if entry.dtype in TYPES else None
    return known if known is not None and known.itemsize == entry.itemsize else np.dtype(f"<u{entry.itemsize}")


def _kind(array: Any) -> tuple[Any, Any]:
    return np.shape(array), np.asarray(array).dtype


def _in_threads(function: Callable[..., Result], *items: Iterable[Any]) -> Sequence[Result]:
    """`function` of each item, in order; numpy, zstd and xxhash release the GIL."""
    with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
        return list(pool.map(function, *items))
