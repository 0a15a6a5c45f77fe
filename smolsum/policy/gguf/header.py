"""What a GGUF file says about itself, its metadata and its list of tensors, and the values of a tensor.

The layout is that of the specification (ggml's docs/gguf.md), versions 2 and 3, little-endian. `gguf.GGUFReader` reads
the same, but takes four seconds for the vocabulary of SmolLM2, and where a file is cut off it fails in NumPy, or reads
zeros. Types, block sizes and the values of blocks are those of the package `gguf`.
"""

import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from smolsum.errors import UsageError

MAGIC, VERSIONS = b"GGUF", (2, 3)
DEFAULT_ALIGNMENT = 32
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""formats of `struct` by the type numbers of the specification"""
STRING, ARRAY = 8, 9
LONGEST_NAME, MOST_DIMENSIONS = 1 << 16, 4
"""bytes of a key or a tensor's name, and axes of a tensor: more than the format allows means damage"""
AGAIN = "download or copy the file again"


@dataclass(frozen=True)
class TensorInfo:
    """A tensor of the file: its type by llama.cpp's name (`Q4_1`), its shape as NumPy has it, and its place."""

    name: str
    kind: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int

    @property
    def quantised(self) -> bool:
        """Whether its values stand in blocks with shared scales."""
        return self.kind not in ("F64", "F32", "F16", "BF16")


@dataclass(frozen=True)
class GgufFile:
    """The metadata and the list of tensors of a file."""

    path: Path
    metadata: Mapping[str, Any]
    tensors: Mapping[str, TensorInfo]

    @property
    def architecture(self) -> str:
        """The name of the architecture, as llama.cpp has it."""
        return str(self.required("general.architecture", str))

    def required(self, key: str, kind: type) -> Any:
        """Return the value of a key, of this type. Raises UsageError where it is missing or of another type."""
        if key not in self.metadata:
            raise UsageError(f"{self.path} has no {key}", hint="convert the model to GGUF again, with its tokenizer")
        value = self.metadata[key]
        if isinstance(value, int) and not isinstance(value, bool) and kind is float:
            return float(value)
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise UsageError(f"{self.path}: {key} = {_shortened(value)} is no {kind.__name__}", hint=AGAIN)
        return value

    def optional(self, key: str, kind: type, default: Any) -> Any:
        """Return the value of a key, of this type, or the default. Raises UsageError for another type."""
        return self.required(key, kind) if key in self.metadata else default

    def values(self, tensor: TensorInfo) -> NDArray[Any]:
        """Return the values of a tensor: float16 and bfloat16 (as uint16) as they are, others as float32."""
        from gguf import GGMLQuantizationType, quants

        with self.path.open("rb") as file:
            file.seek(tensor.offset)
            raw = np.frombuffer(file.read(tensor.nbytes), np.uint8)
        if raw.nbytes < tensor.nbytes:  # it shrank since it was opened
            raise UsageError(f"{self.path} is cut off in the tensor {tensor.name}", hint=AGAIN)
        if tensor.kind in PLAIN:
            plain = raw.view(PLAIN[tensor.kind]).reshape(tensor.shape)
            return plain.astype(np.float32) if tensor.kind == "F64" else plain
        rows = raw.reshape(*tensor.shape[:-1], -1)
        return np.asarray(quants.dequantize(rows, GGMLQuantizationType[tensor.kind]), np.float32)


PLAIN: dict[str, type[np.generic]] = {"F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": np.uint16}
"""NumPy's types of tensors that are not quantised; bfloat16, which it lacks, is seen as uint16"""


def read_header(path: Path) -> GgufFile:
    """Return what a GGUF file says about itself. Raises UsageError for another kind of file, for one that is cut off or
    damaged, of another byte order or version, or has tensors of a type without known values."""
    require_gguf(path)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return _Reader(path, content).read()


def require_gguf(path: Path) -> None:
    """Raise UsageError for what is not a GGUF file, by its first bytes, or cannot be read."""
    try:
        with path.open("rb") as file:
            begin = file.read(len(MAGIC))
    except OSError as error:
        raise UsageError(
            f"cannot read {path}: {error.strerror or error}", hint="check that it is a file and that you may read it"
        ) from error
    if begin != MAGIC:
        raise _no_gguf(path, begin)


def _no_gguf(path: Path, begin: bytes) -> UsageError:
    if not begin:
        return UsageError(f"{path} is empty", hint=AGAIN)
    kinds = {b"PK\x03\x04": "a ZIP archive, such as a wheel", b"vers": "a pointer of Git LFS", b"<!do": "a web page"}
    kinds |= {b"ggml": "a file of llama.cpp from before GGUF", b"ggjt": "a file of llama.cpp from before GGUF"}
    kind = kinds.get(begin.lower() if begin[:1] == b"<" else begin)
    what = f"{path} is no GGUF file" + (f" but {kind}" if kind else ": it does not begin with GGUF")
    pointer = begin == b"vers"
    return UsageError(what, hint="git lfs pull" if pointer else "give a .gguf file of llama.cpp, or a directory")


class _Reader:
    """A pass over the header, from its first byte to its last; `_at` is the place and `_what` what is there."""

    def __init__(self, path: Path, content: mmap.mmap) -> None:
        self._path, self._content, self._size = path, content, len(content)
        self._at, self._what = len(MAGIC), "its header"

    def read(self) -> GgufFile:
        version = self._number("I")
        if version not in VERSIONS:
            if version & 0xFFFF == 0:
                raise UsageError(
                    f"{self._path} has its numbers in the other byte order (big-endian)",
                    hint="download the little-endian file, or gguf-convert-endian FILE little",
                )
            raise UsageError(
                f"{self._path} is of version {version} of GGUF; known are 2 and 3",
                hint="convert the model again with a llama.cpp of today",
            )
        count, keys = self._number("Q"), self._number("Q")
        metadata: dict[str, Any] = {}
        for number in range(keys):
            self._what = f"its metadata, after {list(metadata)[-1]}" if metadata else "its metadata"
            key = self._text(LONGEST_NAME)
            self._what = f"the value of {key}"
            if key in metadata:
                raise self._damaged(f"key {number} is {key} once more")
            metadata[key] = self._value(self._number("I"))
        found = [self._tensor(number) for number in range(count)]
        alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or alignment <= 0 or alignment & (alignment - 1):
            raise self._damaged(f"general.alignment = {_shortened(alignment)} is not a power of 2")
        start = -(-self._at // alignment) * alignment
        tensors: dict[str, TensorInfo] = {}
        for name, kind, shape, offset in found:
            if name in tensors:
                raise self._damaged(f"two tensors have the name {name}")
            tensors[name] = self._placed(name, kind, shape, start + offset)
        return GgufFile(self._path, metadata, tensors)

    def _tensor(self, number: int) -> tuple[str, int, tuple[int, ...], int]:
        self._what = f"its list of tensors, at number {number}"
        name = self._text(LONGEST_NAME)
        self._what = f"what it says about the tensor {name}"
        axes = self._number("I")
        if axes > MOST_DIMENSIONS:
            raise self._damaged(f"{name} has {axes} axes")
        shape = tuple(self._number("Q") for _ in range(axes))[::-1]
        return name, self._number("I"), shape, self._number("Q")

    def _placed(self, name: str, kind: int, shape: tuple[int, ...], offset: int) -> TensorInfo:
        """Return the tensor, of a known type and within the file."""
        known = _type(kind)
        if known is None:
            raise UsageError(
                f"{self._path}: the tensor {name} is of a type without known values (number {kind})",
                hint="take a file of another quantisation, such as Q8_0 or Q4_K_M",
            )
        label, block, nbytes = known
        if not shape or shape[-1] % block:
            raise self._damaged(f"{name} has rows of {shape[-1] if shape else 0} values, not of blocks of {block}")
        end = offset + prod(shape) // block * nbytes
        if end > self._size:
            raise UsageError(
                f"{self._path} is cut off: the tensor {name} ends at byte {end:,}, the file at {self._size:,}",
                hint=AGAIN,
            )
        return TensorInfo(name, label, shape, offset, end - offset)

    def _damaged(self, why: str) -> UsageError:
        return UsageError(f"{self._path} is damaged: {why}", hint=AGAIN)

    def _take(self, nbytes: int) -> int:
        """Return the place of so many bytes, and continue after them."""
        place, self._at = self._at, self._at + nbytes
        if self._at > self._size:
            raise UsageError(f"{self._path} is cut off in {self._what}", hint=AGAIN)
        return place

    def _number(self, code: str) -> Any:
        return struct.unpack_from(f"<{code}", self._content, self._take(struct.calcsize(f"<{code}")))[0]

    def _text(self, longest: int | None = None) -> str:
        length = self._number("Q")
        if longest is not None and length > longest:
            raise self._damaged(f"a name of {length:,} bytes in {self._what}")
        place = self._take(length)
        try:
            return self._content[place : place + length].decode()
        except UnicodeDecodeError as error:
            raise self._damaged(f"{self._what} is not a text") from error

    def _value(self, kind: int) -> Any:
        if kind == STRING:
            return self._text()
        if kind != ARRAY:
            return self._number(self._code(kind))
        inner, length = self._number("I"), self._number("Q")
        if inner == STRING:
            return [self._text() for _ in range(length)]
        code = self._code(inner)  # arrays of arrays are not in use
        place = self._take(length * struct.calcsize(f"<{code}"))
        return list(struct.unpack_from(f"<{length}{code}", self._content, place))

    def _code(self, kind: int) -> str:
        if kind not in SCALARS:
            raise self._damaged(f"{self._what} is of the unknown type {kind}")
        return SCALARS[kind]


@cache
def _type(number: int) -> tuple[str, int, int] | None:
    """Return the name of a type, and the values and bytes of its blocks; None where its values are not known."""
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, quants

    try:
        kind = GGMLQuantizationType(number)
        block, nbytes = GGML_QUANT_SIZES[kind]
        if kind.name not in PLAIN:
            quants.dequantize(np.zeros((1, nbytes), np.uint8), kind)
    except (ValueError, KeyError, NotImplementedError):
        return None
    return kind.name, block, nbytes


def _shortened(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
