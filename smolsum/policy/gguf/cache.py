"""GGUF files as models in the Hugging Face layout, each made once and kept in the user's cache.

The folder's name holds a digest of the file's content. A model is built in another folder, which is renamed when it is
whole: neither a kill nor a full disk leaves a part of one, and of two processes the second waits for the first.
An outline of a model has the same files, but its weights are a hole in the file, of no size on the disk: what a dry
run needs takes a second or two for a model of any size.
"""

import fcntl
import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import xxhash
from mlx_lm.tokenizer_utils import load as load_tokenizer
from mlx_lm.utils import load_model
from numpy.typing import NDArray
from tokenizers import Tokenizer

from smolsum import console
from smolsum.errors import UsageError
from smolsum.files import to_json, writing
from smolsum.policy.chat_template import no_template
from smolsum.policy.gguf.architectures import OTHERS, ROPE_FREQS, Architecture, architecture_of, config_of, hf_values
from smolsum.policy.gguf.header import AGAIN, GgufFile, TensorInfo, read_header, require_gguf
from smolsum.policy.gguf.tokenizer import tokenizer_files
from smolsum.policy.gguf.vocabulary import PROBE

SUFFIX, OUTLINE = ".gguf", "-outline"
EDITION = 1
"""goes into the names of folders: another one where the same file becomes another folder"""
HALVES = {"F16": "float16", "BF16": "bfloat16"}
STORED: dict[str, type[np.generic]] = {"float32": np.float32, "float16": np.float16, "bfloat16": np.uint16}
TYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}
"""types in NumPy, and their names in safetensors"""
BLOCK, LONGEST_STEM = 1 << 24, 100
"""bytes that are read at once, and characters of a file's name in that of its folder"""
MB = 10**6
NAMES = re.compile(r"(?:model|lm_head)\.[\w.]*\w")
"""names of weights in what MLX says about them"""


@dataclass(frozen=True)
class Weight:
    """A weight of the model, the tensor that it is made of, and its shape and type there."""

    name: str
    tensor: TensorInfo
    shape: tuple[int, ...]
    dtype: str
    """float32, float16 or bfloat16"""

    @property
    def nbytes(self) -> int:
        """Size of its values."""
        return int(np.prod(self.shape)) * (4 if self.dtype == "float32" else 2)


def cached_model(path: Path, *, outline: bool = False, bare: bool = False) -> Path:
    """Return the folder of the model in a GGUF file, which is made where the cache does not have it. With `outline` it
    may lack the values of the weights (`is_outline`), with `bare` a chat template.

    Raises UsageError for a file that cannot become a model, and SmolsumError where the cache cannot be written.
    """
    require_gguf(path)
    folder = cache_root() / f"{path.stem[:LONGEST_STEM]}-{_digest(path, *_state(path))}"
    sketch = folder.with_name(folder.name + OUTLINE)
    if folder.is_dir():
        return folder
    if outline and sketch.is_dir():
        return sketch
    target = sketch if outline else folder
    with _alone(target):
        if not target.is_dir():  # another process made it meanwhile
            _build(read_header(path), target, outline=outline, bare=bare)
    return target


def is_outline(folder: Path) -> bool:
    """Whether a model's folder is an outline of a GGUF file, without the values of its weights."""
    return folder.name.endswith(OUTLINE) and folder.parent == cache_root()


def cache_root() -> Path:
    """Return where models of GGUF files are kept."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "smolsum" / "gguf"


def _state(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_size, found.st_mtime_ns


@cache
def _digest(path: Path, size: int, changed_ns: int) -> str:
    """Return a digest of the file's content; a file of the same size and time is not read again by this process."""
    found = xxhash.xxh3_128(str(EDITION).encode())
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            found.update(block)
    return str(found.hexdigest())


@contextmanager
def _alone(target: Path) -> Iterator[None]:
    """Keep other processes out of the building of a folder; they wait."""
    lock = target.with_name(f".{target.name}.lock")
    with writing(lock, "try again"):
        lock.parent.mkdir(parents=True, exist_ok=True)
        file = lock.open("a")
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _build(file: GgufFile, target: Path, *, outline: bool, bare: bool) -> None:
    """Write the folder, or nothing."""
    architecture = architecture_of(file)
    config = config_of(file, architecture)
    tokenizer, settings, generation = tokenizer_files(file)
    if not (bare or "chat_template" in settings):
        raise no_template(str(file.path))
    dtype, weights = _weights(file, architecture)
    config |= generation | {"dtype": dtype}
    if not outline:
        kinds = ", ".join(sorted({one.kind for one in file.tensors.values() if _is_matrix(one)}))
        size = sum(one.nbytes for one in weights) / 1e9
        console.narrate(f"converting {file.path} ({kinds}) once, to {size:.2g} GB of {dtype} in {target}")
    building = target.with_name(f".{target.name}.tmp")
    shutil.rmtree(building, ignore_errors=True)  # what a killed process left
    texts = {"config.json": config, "generation_config.json": generation, "tokenizer_config.json": settings}
    try:
        with writing(target, "try again, or set XDG_CACHE_HOME to a directory with more space"):
            building.mkdir(parents=True)
            for name, value in texts.items():
                (building / name).write_bytes(to_json(value, indent=2))
            (building / "tokenizer.json").write_text(tokenizer.to_str(pretty=True), encoding="utf-8")
            with (building / "model.safetensors").open("wb") as out:
                _write_outline(out, weights)
                _require_whole(file, architecture, building)
                if not outline:
                    _require_tokenizer(file, tokenizer, building)
                    _write_values(out, file, architecture, weights, config)
            building.replace(target)
    finally:
        shutil.rmtree(building, ignore_errors=True)


def _weights(file: GgufFile, architecture: Architecture) -> tuple[str, list[Weight]]:
    """Return the type of the model, and its weights in the order of the file. The type is that of all matrices where it
    is one, and float32 for quantised ones. Raises UsageError for a tensor that the architecture does not have."""
    kinds = {HALVES.get(one.kind, "float32") for one in file.tensors.values() if _is_matrix(one)}
    common, found = kinds.pop() if len(kinds) == 1 else "float32", []
    for tensor in file.tensors.values():
        if tensor.name == ROPE_FREQS:
            continue
        name = architecture.module(tensor.name)
        if name is None:
            raise UsageError(
                f"{file.path} has the tensor {tensor.name}, which the architecture {file.architecture} does not have"
                " here",
                hint=OTHERS,
            )
        shape = (tensor.shape[0], 1, *tensor.shape[1:]) if name.endswith(".conv.conv.weight") else tensor.shape
        dtype = common if _is_matrix(tensor) or _fits(file, architecture, tensor, common) else "float32"
        found.append(Weight(name, tensor, shape, dtype))
    return common, found


def _is_matrix(tensor: TensorInfo) -> bool:
    """Whether the type of a file is that of the tensor: llama.cpp's converters write norms, biases and the kernels of
    convolutions in float32 always."""
    return len(tensor.shape) > 1 and "shortconv.conv" not in tensor.name


def _fits(file: GgufFile, architecture: Architecture, tensor: TensorInfo, dtype: str) -> bool:
    """Whether a vector loses nothing in this type: what llama.cpp's converter makes of the result is what the file
    has."""
    held = _as_float32(file.values(tensor))
    shift = np.float32(architecture.norm_shift if "norm" in tensor.name else 0.0)
    return dtype == "float32" or np.array_equal(_as_float32(_as_type(held - shift, dtype)) + shift, held)


def _require_whole(file: GgufFile, architecture: Architecture, outline: Path) -> None:
    """Raise UsageError where the tensors and the metadata are not those of one model, with llama.cpp's names."""
    try:
        load_model(outline, lazy=True)
    except (ValueError, TypeError, KeyError, ArithmeticError) as error:
        reason = NAMES.sub(lambda found: architecture.tensor(found[0]) or found[0], " ".join(str(error).split()))
        raise UsageError(
            f"{file.path}: its tensors do not fit its metadata: {reason.rstrip('.')}", hint=AGAIN
        ) from error


def _require_tokenizer(file: GgufFile, tokenizer: Tokenizer, folder: Path) -> None:
    """Raise UsageError where transformers takes another tokenizer than the file's, as it does for Qwen2."""
    own = tokenizer.encode(PROBE, add_special_tokens=False).ids
    if load_tokenizer(folder).encode(PROBE, add_special_tokens=False) != own:
        raise UsageError(
            f"{file.path}: transformers has another tokenizer for {file.architecture} than the file's"
            f" (tokenizer.ggml.pre = {file.metadata.get('tokenizer.ggml.pre')!r})",
            hint=OTHERS,
        )


def _write_outline(out: BinaryIO, weights: list[Weight]) -> None:
    """Write a file of safetensors whose values are a hole, and stay at their beginning."""
    place, header = 0, dict[str, Any](__metadata__={"format": "pt"})
    for one in weights:
        span = [place, place + one.nbytes]
        header[one.name] = {"dtype": TYPES[one.dtype], "shape": one.shape, "data_offsets": span}
        place += one.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    out.write(len(text).to_bytes(8, "little") + text)
    out.truncate(out.tell() + place)
    out.flush()


def _write_values(
    out: BinaryIO, file: GgufFile, architecture: Architecture, weights: list[Weight], config: dict[str, Any]
) -> None:
    """Write one weight after the other, so that no more than one is in memory."""
    written = 0
    with console.Meter("converted", sum(one.nbytes for one in weights) // MB, quiet=False) as meter:
        for one in weights:
            meter.to(written // MB, "MB")
            heads = config["num_attention_heads" if "attn_q" in one.tensor.name else "num_key_value_heads"]
            values = file.values(one.tensor)
            if architecture.norm_shift and "norm" in one.tensor.name:
                values = _as_float32(values)
            values = hf_values(architecture, one.tensor.name, values, heads)
            out.write(np.ascontiguousarray(_as_type(values, one.dtype)).tobytes())
            written += one.nbytes
        meter.to(written // MB, "MB")


def _as_type(values: NDArray[Any], dtype: str) -> NDArray[Any]:
    """Return values of a tensor in another type; bfloat16, which NumPy lacks, as uint16."""
    if values.dtype == STORED[dtype]:
        return values
    wide = _as_float32(values)
    return _as_bfloat16(wide) if dtype == "bfloat16" else wide.astype(STORED[dtype], copy=False)


def _as_bfloat16(values: NDArray[np.float32]) -> NDArray[Any]:
    from gguf import GGMLQuantizationType, quants

    flat = quants.quantize(values.reshape(1, -1), GGMLQuantizationType.BF16)
    return np.asarray(flat.view(np.uint16).reshape(values.shape))


def _as_float32(values: NDArray[Any]) -> NDArray[np.float32]:
    if values.dtype == np.uint16:
        return (values.astype(np.uint32) << 16).view(np.float32)
    return values.astype(np.float32, copy=False)
