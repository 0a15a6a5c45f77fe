"""One tensor as bytes: its changes since an earlier version, or all of it.

The bits of floats are mapped to integers in the order of the numbers. Neighbouring floats then differ by 1 whatever
their size, and the smallest update that the served type can show is a step of +1 or -1. Every mapping here is a
bijection on the bits, also for NaNs, infinities and -0.0.
"""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import xxhash

Mode = Literal["same", "sparse", "steps", "whole"]

SPARSE = 0.2
"""largest share of changed values that are written with their positions; above it a step for every value is smaller"""
BLOCK = 1 << 20
"""values compared at a time, few enough for the processor's cache"""
ESCAPE = 255
"""a byte of a gap: 255 further, and the gap continues in the next byte"""


def bits(array: Any) -> Any:
    """Return the values of an array as a flat array of unsigned integers of their size, a view if possible. Raises
    ValueError for a type that does not have 1, 2, 4 or 8 bytes."""
    flat = np.ascontiguousarray(array).reshape(-1)
    if flat.dtype.itemsize not in (1, 2, 4, 8) or flat.dtype.hasobject:
        raise ValueError(f"values of type {flat.dtype} cannot be encoded")
    return flat.view(f"<u{flat.dtype.itemsize}")


def checksum(array: Any) -> str:
    """xxh3_128 hex over the shape, the size of the values, and the bytes of an array."""
    flat = bits(array)
    digest = xxhash.xxh3_128(f"{flat.dtype.itemsize}{tuple(np.shape(array))}".encode())
    digest.update(memoryview(flat).cast("B") if flat.size else b"")
    return str(digest.hexdigest())


def encode(base: Any | None, new: Any) -> tuple[Mode, int, list[Any]]:
    """Encode the flat unsigned `new`, against `base` of the same size if given: the mode, the number of changed values,
    and the byte arrays (uint8) to compress, each of similar bytes."""
    if base is None:
        return "whole", new.size, _planes(new, new.dtype.itemsize)
    places = _changed(base, new)
    if places.size == 0:
        return "same", 0, []
    if places.size <= SPARSE * new.size:
        steps = _zigzag(_ordered(new[places]) - _ordered(base[places]))
        return "sparse", places.size, [_gaps(places), *_planes(steps, _width(steps))]
    steps = _zigzag(_ordered(new) - _ordered(base))
    return "steps", places.size, _planes(steps, _width(steps))


def decode(mode: Mode, base: Any | None, size: int, kind: Any, parts: Sequence[Any]) -> Any:
    """Return the `new` of `encode`: a flat array of `size` values of the unsigned type `kind`.

    Raises ValueError for parts that `encode` cannot have written.
    """
    if mode == "whole":
        return _values(parts, size, kind)
    if base is None or base.size != size or base.dtype != kind:
        raise ValueError("the base does not have this shape")
    if mode == "same":
        return base
    if mode == "steps":
        return _plain(_ordered(base) + _unzigzag(_values(parts, size, kind)))
    places = _places(parts[0])
    if places.size and places[-1] >= size:
        raise ValueError("a change is outside the tensor")
    new = base.copy()
    new[places] = _plain(_ordered(base[places]) + _unzigzag(_values(parts[1:], places.size, kind)))
    return new


def _changed(base: Any, new: Any) -> Any:
    """Return the positions at which the two differ (int64, ascending)."""
    found = [
        np.flatnonzero(base[start : start + BLOCK] != new[start : start + BLOCK]) + start
        for start in range(0, new.size, BLOCK)
    ]
    return np.concatenate(found) if found else np.empty(0, np.int64)


def _gaps(places: Any) -> Any:
    """Return the number of unchanged values before each place, as bytes: ESCAPE for each 255, then the rest."""
    gaps = np.diff(places, prepend=-1) - 1
    if gaps.max() < ESCAPE:
        return gaps.astype(np.uint8)
    full = gaps // ESCAPE
    ends = np.cumsum(full + 1) - 1
    codes = np.full(int(ends[-1]) + 1, ESCAPE, np.uint8)
    codes[ends] = gaps - ESCAPE * full
    return codes


def _places(codes: Any) -> Any:
    """Return the inverse of `_gaps`."""
    ends = np.flatnonzero(codes != ESCAPE)
    return np.cumsum(codes, dtype=np.int64)[ends] + np.arange(ends.size)


def _ordered(values: Any) -> Any:
    """Return bits of floats as unsigned integers in the order of the numbers: positive ones get the sign bit, negative
    ones all bits inverted."""
    kind, sign = values.dtype.type, 8 * values.dtype.itemsize - 1
    return values ^ ((kind(0) - (values >> kind(sign))) | (kind(1) << kind(sign)))


def _plain(ordered: Any) -> Any:
    kind, sign = ordered.dtype.type, 8 * ordered.dtype.itemsize - 1
    return ordered ^ (((ordered >> kind(sign)) - kind(1)) | (kind(1) << kind(sign)))


def _zigzag(steps: Any) -> Any:
    """Return steps 0, -1, 1, -2, 2 … as 0, 1, 2, 3, 4 …, modulo the type's size: small steps have zero high bytes."""
    kind, sign = steps.dtype.type, 8 * steps.dtype.itemsize - 1
    return (steps << kind(1)) ^ (kind(0) - (steps >> kind(sign)))


def _unzigzag(codes: Any) -> Any:
    kind = codes.dtype.type
    return (codes >> kind(1)) ^ (kind(0) - (codes & kind(1)))


def _width(codes: Any) -> int:
    """Return how many bytes the largest of the codes needs."""
    return max(1, (int(codes.max()).bit_length() + 7) // 8)


def _planes(values: Any, width: int) -> list[Any]:
    """Return the lowest `width` bytes of the values, an array for each: similar bytes compress well together."""
    table = values.view(np.uint8).reshape(values.size, values.dtype.itemsize)
    return [np.ascontiguousarray(table[:, n]) for n in range(width)]


def _values(planes: Sequence[Any], size: int, kind: Any) -> Any:
    """Return the inverse of `_planes`; the missing bytes are zero."""
    if not 1 <= len(planes) <= kind.itemsize or any(plane.size != size for plane in planes):
        raise ValueError("the number of values is not that of the tensor")
    table = np.zeros((size, kind.itemsize), np.uint8)
    for n, plane in enumerate(planes):
        table[:, n] = plane
    return table.reshape(-1).view(kind)
