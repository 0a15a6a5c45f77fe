"""What cannot become a model: one error that names the file and the key or tensor, and what helps; nothing is left."""

import os
import shutil
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from support.gguf_files import TOKENS, Change, replaced, write_pair
from support.refusals import refuses

from smolsum.errors import UsageError
from smolsum.policy.gguf.header import read_header
from smolsum.policy.load import load_policy


def assert_nothing_left(cache: Path) -> None:
    assert [path for path in cache.glob("*") if not path.name.endswith(".lock")] == []


def tensor(name: str, values: Any, kind: gguf.GGMLQuantizationType | None = None) -> Change:
    return lambda writer: writer.add_tensor(name, np.asarray(values), raw_dtype=kind)


def without_tensor(name: str) -> Change:
    return lambda writer: writer.tensors[0].pop(name) and None


def added(key: str, value: Any, kind: gguf.GGUFValueType) -> Change:
    return lambda writer: writer.add_key_value(key, value, kind)


WIDE = {"hidden_size": 64, "intermediate_size": 64}
FLOAT, UINT, STRING = gguf.GGUFValueType.FLOAT32, gguf.GGUFValueType.UINT32, gguf.GGUFValueType.STRING
KEYS: dict[str, tuple[str, Change, tuple[str, ...]]] = {
    "no architecture": ("llama", replaced("general.architecture", None), ("general.architecture",)),
    "unknown architecture": ("llama", replaced("general.architecture", "mamba"), ("'mamba'", "gemma3")),
    "vision": ("llama", replaced("general.architecture", "clip"), ("clip", "mmproj")),
    "vision by type": ("llama", replaced("general.type", "mmproj"), ("mmproj",)),
    "adapter": ("llama", replaced("general.type", "adapter"), ("general.type = adapter",)),
    "a part": ("llama", added("split.count", 3, gguf.GGUFValueType.UINT16), ("split.count", "llama-gguf-split")),
    "no tokenizer": ("llama", replaced("tokenizer.ggml.model", None), ("tokenizer.ggml.model",)),
    "unknown tokenizer": ("llama", replaced("tokenizer.ggml.model", "t5"), ("tokenizer.ggml.model", "'t5'")),
    "no tokens": ("llama", replaced("tokenizer.ggml.tokens", None), ("tokenizer.ggml.tokens",)),
    "too few kinds": ("llama", replaced("tokenizer.ggml.token_type", [1, 1]), ("tokenizer.ggml.token_type",)),
    "no merges": ("llama", replaced("tokenizer.ggml.merges", None), ("tokenizer.ggml.merges",)),
    "strange merges": ("llama", replaced("tokenizer.ggml.merges", ["t q"]), ("tokenizer.ggml.merges",)),
    "no pre": ("llama", replaced("tokenizer.ggml.pre", None), ("tokenizer.ggml.pre",)),
    "unknown pre": ("llama", replaced("tokenizer.ggml.pre", "tekken"), ("'tekken'", "smollm")),
    "EOS beyond": ("llama", replaced("tokenizer.ggml.eos_token_id", 9999), ("eos_token_id = 9999",)),
    "no template": ("llama", replaced("tokenizer.chat_template", None), ("chat template", "Instruct")),
    "an empty template": ("llama", replaced("tokenizer.chat_template", " "), ("chat template", "Instruct")),
    "no layers": ("llama", replaced("llama.block_count", 0), ("llama.block_count",)),
    "no width": ("llama", replaced("llama.embedding_length", None), ("llama.embedding_length",)),
    "layers without end": ("llama", replaced("llama.block_count", 2**31), ("llama.block_count", "2147483648")),
    "more layers": ("llama", replaced("llama.block_count", 3), ("blk.2.", "Missing")),
    "fewer layers": ("llama", replaced("llama.block_count", 1), ("blk.1.",)),
    "other heads": ("llama", replaced("llama.attention.head_count", 8), ("attn_q.weight",)),
    "heads by layer": ("qwen2", replaced("qwen2.attention.head_count_kv", None), ("attn_k.",)),
    "partly rotated": ("llama", replaced("llama.rope.dimension_count", 4), ("rope.dimension_count",)),
    "strange scaling": ("qwen2", added("qwen2.rope.scaling.type", "longrope", STRING), ("scaling.type", "longrope")),
    "strange factors": (
        "llama", tensor("rope_freqs.weight", np.array([1, 3, 2, 5, 1, 1, 7, 2], np.float32)), ("rope_freqs.weight",),
    ),
    "caps logits": (
        "gemma3_text", added("gemma3.final_logit_softcapping", 30.0, FLOAT), ("gemma3.final_logit_softcapping",),
    ),
    "experts": (
        "llama", tensor("blk.0.ffn_gate_inp.weight", np.zeros((2, 64), np.float32)), ("blk.0.ffn_gate_inp.weight",),
    ),
    "no embedding": ("llama", without_tensor("token_embd.weight"), ("token_embd.weight",)),
    "no norm": ("llama", without_tensor("output_norm.weight"), ("output_norm.weight",)),
    "another type": (
        "llama", tensor("blk.0.more.weight", np.zeros(64, np.int32), gguf.GGMLQuantizationType.I32),
        ("blk.0.more.weight", "type"),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("family", "change", "named"), KEYS.values(), ids=KEYS)
def test_a_file_that_says_something_else_is_refused(
    tmp_path: Path, own_cache: Path, family: str, change: Change, named: tuple[str, ...]
) -> None:
    """A missing, unknown or contradictory key or tensor."""
    changes = {"head_dim": 16} if family == "llama" else {}
    _, file = write_pair(tmp_path, family, change=change, **WIDE, **changes)
    with refuses(file, *named) as raised:
        load_policy(str(file))
    assert "\n" not in raised.value.message
    assert_nothing_left(own_cache)


def cut(share: float) -> Callable[[Path], None]:
    return lambda path: os.truncate(path, int(path.stat().st_size * share))


def written(content: bytes) -> Callable[[Path], None]:
    return lambda path: path.write_bytes(content) and None


def as_wheel(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr("a/__init__.py", "")


def as_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def at(place: int, content: bytes) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        whole = bytearray(path.read_bytes())
        whole[place : place + len(content)] = content
        path.write_bytes(whole)

    return change


FILES: dict[str, tuple[Callable[[Path], None], tuple[str, ...]]] = {
    "empty": (written(b""), ("empty",)),
    "web page": (written(b"<!DOCTYPE html>"), ("no GGUF file", "web page")),
    "LFS pointer": (written(b"version https://git-lfs.github.com/spec/v1\n"), ("no GGUF file", "git lfs pull")),
    "wheel": (as_wheel, ("no GGUF file", "wheel")),
    "safetensors": (written(b"\x10\0\0\0\0\0\0\0{}"), ("no GGUF file",)),
    "directory": (as_directory, ("config.json",)),
    "magic alone": (written(b"GGUF"), ("cut off",)),
    "cut in the metadata": (cut(0.01), ("cut off",)),
    "cut in the weights": (cut(0.9), ("cut off", "the tensor")),
    "cut by a byte": (lambda path: os.truncate(path, path.stat().st_size - 33), ("cut off", "the tensor")),
    "another byte order": (at(4, struct.pack(">I", 3)), ("byte order", "gguf-convert-endian")),
    "another version": (at(4, struct.pack("<I", 1)), ("version 1",)),
    "too many tensors": (at(8, struct.pack("<Q", 1 << 50)), ("model.gguf",)),
    "too many keys": (at(16, struct.pack("<Q", 1 << 50)), ("model.gguf",)),
    "a key of any length": (at(24, struct.pack("<Q", 1 << 50)), ("damaged",)),
    "no text": (at(32, b"\xff\xff"), ("damaged",)),
}


@pytest.mark.parametrize(("damage", "named"), FILES.values(), ids=FILES)
def test_a_damaged_file_is_refused(
    tmp_path: Path, own_cache: Path, damage: Callable[[Path], None], named: tuple[str, ...]
) -> None:
    """What is cut off, something else under this name, or of another machine's byte order."""
    _, file = write_pair(tmp_path, "llama")
    damage(file)
    with refuses(file, *named) as raised:
        load_policy(str(file))
    assert "\n" not in raised.value.message
    assert_nothing_left(own_cache)


def test_every_place_where_a_file_may_end_is_noticed(tmp_path: Path) -> None:
    """No cut makes a file that reads as a whole one, or fails in another way."""
    _, file = write_pair(tmp_path, "llama")
    size = file.stat().st_size
    cuts = sorted({*range(4, 3000, 7), *np.linspace(3000, size - 33, 40, dtype=int).tolist()}, reverse=True)
    for place in cuts:
        os.truncate(file, place)
        with pytest.raises(UsageError, match="cut off"):
            read_header(file)


def test_a_file_that_is_not_there_is_not_asked_of_a_hub() -> None:
    """Its name looks like OWNER/NAME."""
    with refuses("models/mine.gguf", "no such directory or GGUF file"):
        load_policy("models/mine.gguf")


def test_a_directory_names_the_file_in_it(tmp_path: Path) -> None:
    """As downloads often are: a folder with GGUF files only."""
    _, file = write_pair(tmp_path, "llama")
    shutil.rmtree(tmp_path / "model")
    with refuses(tmp_path, file):
        load_policy(str(tmp_path))


def test_a_file_needs_no_suffix(tmp_path: Path) -> None:
    """Ollama keeps models under the digest of their content."""
    _, file = write_pair(tmp_path, "llama")
    blob = file.rename(tmp_path / "sha256-0123")
    assert load_policy(str(blob)).tokenizer.decode([TOKENS.index("a")]) == "a"
