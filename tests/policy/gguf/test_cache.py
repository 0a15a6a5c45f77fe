"""Models from GGUF files: the same logits as from a directory with the same values, and each is converted once."""

import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from support.calls import Call, done
from support.disks import mounted
from support.gguf_files import replaced, write_pair
from support.models import LLAMA3, assert_same_arrays
from support.refusals import refuses

from smolsum.errors import SmolsumError
from smolsum.policy.gguf.cache import cached_model
from smolsum.policy.load import encode_chat, load_encoder, load_policy, read_weights
from smolsum.policy.weights import served_arrays
from smolsum.weights.delta import checksum

# isort: split
import mlx.core as mx

WIDE: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 96}
K_QUANTS: dict[str, Any] = {"hidden_size": 256, "intermediate_size": 256}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
LFM2 = {**WIDE, "conv_dim": 64, "conv_dim_out": 64, "block_dim": 64, "block_ff_dim": 96}
MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "llama": ("llama", "F32", WIDE),
    "llama, own head": ("llama", "Q8_0", {**WIDE, "tie_word_embeddings": False}),
    "llama, biases": ("llama", "F32", {**WIDE, "attention_bias": True, "mlp_bias": True}),
    "llama, a few key heads": ("llama", "Q4_0", {**WIDE, "num_key_value_heads": 1, "head_dim": 32}),
    "llama 3": ("llama", "Q8_0", {**WIDE, "rope_scaling": LLAMA3}),
    "llama, linear": ("llama", "F32", {**WIDE, "rope_scaling": {"rope_type": "linear", "factor": 2.0}}),
    "llama, Q4_K": ("llama", "Q4_K", K_QUANTS),
    "qwen2": ("qwen2", "Q4_1", WIDE),
    "qwen2, YaRN": ("qwen2", "F32", {**WIDE, "rope_scaling": YARN}),
    "qwen3": ("qwen3", "Q5_0", {**WIDE, "head_dim": 24}),
    "qwen3, Q5_K": ("qwen3", "Q5_K", {**K_QUANTS, "head_dim": 64}),
    "gemma3": ("gemma3_text", "Q8_0", {**WIDE, "num_hidden_layers": 4}),
    "gemma3, Q6_K": ("gemma3_text", "Q6_K", {**K_QUANTS, "head_dim": 64, "query_pre_attn_scalar": 64}),
    "lfm2": ("lfm2", "Q5_1", LFM2),
}
"""by name: family, type of tensors, changed settings"""
LONG = list(range(3, 15))
"""more tokens than the window of the tests' gemma3"""


def logits(path: Path) -> np.ndarray:
    model = load_policy(str(path), dtype="float32").model
    return np.array(model(mx.array([LONG]))[0])


@pytest.mark.parametrize(("family", "kind", "changes"), MODELS.values(), ids=MODELS)
def test_logits_are_those_of_a_directory_with_the_same_values(
    tmp_path: Path, family: str, kind: str, changes: dict[str, Any]
) -> None:
    """Order of rotary pairs, shifted norms, scaled positions, windows, convolutions, and the values of each type."""
    folder, file = write_pair(tmp_path, family, kind, **changes)
    expected = logits(folder)
    assert expected.std() > 1e-3
    np.testing.assert_allclose(logits(file), expected, atol=1e-4)


@pytest.mark.parametrize(("kind", "dtype"), [("F16", "float16"), ("BF16", "bfloat16"), ("F32", "float32")])
@pytest.mark.parametrize("family", ["llama", "gemma3_text"])
def test_half_precision_stays_as_it_is(tmp_path: Path, family: str, kind: str, dtype: str) -> None:
    """Matrices to the bit and in their type, on a machine that computes in float32 too."""
    folder, file = write_pair(tmp_path, family, kind, **WIDE)
    one, other = load_policy(str(file)), load_policy(str(folder))
    assert_same_arrays(one.model, other.model)
    stored = mx.load(str(one.path / "model.safetensors"))
    assert str(stored["model.layers.0.mlp.up_proj.weight"].dtype) == f"mlx.core.{dtype}"
    assert one.config["dtype"] == dtype


def test_vectors_take_the_type_of_the_matrices_where_they_lose_nothing(tmp_path: Path) -> None:
    """As in the checkpoint that was converted: llama.cpp writes norms in float32 always."""
    kept = {}
    for name, rounded in (("rounded", True), ("finer", False)):
        (tmp_path / name).mkdir()

        def change(writer: gguf.GGUFWriter, rounded: bool = rounded) -> None:
            info = next(one for one in writer.tensors[0] if one == "output_norm.weight")
            tensor = writer.tensors[0][info]
            fine = np.float32(1.0) + np.arange(tensor.tensor.size, dtype=np.float32) / (64 if rounded else 1000)
            tensor.tensor = fine

        _, file = write_pair(tmp_path / name, "qwen3", "BF16", change, **WIDE)
        folder = load_policy(str(file)).path
        kept[name] = str(mx.load(str(folder / "model.safetensors"))["model.norm.weight"].dtype)
    assert kept == {"rounded": "mlx.core.bfloat16", "finer": "mlx.core.float32"}


def test_a_file_is_converted_once_by_whoever_comes_first(
    tmp_path: Path, own_cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Several at once wait for the first, which says what it does; copies of a file are the same file."""
    _, file = write_pair(tmp_path, "llama", "Q8_0", **WIDE)
    found: list[Path] = []
    threads = [threading.Thread(target=lambda: found.append(cached_model(file))) for _ in range(3)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    copy = tmp_path / "elsewhere" / file.name
    copy.parent.mkdir()
    copy.write_bytes(file.read_bytes())
    assert {*found, cached_model(copy)} == {path for path in own_cache.iterdir() if not path.name.startswith(".")}
    said = capsys.readouterr().err
    assert said.count("converting") == 1
    assert "Q8_0" in said
    assert " GB of float32" in said


def test_a_long_conversion_says_how_far_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the time left, as every count."""
    _, file = write_pair(tmp_path, "llama", "Q8_0", hidden_size=256, intermediate_size=4096)
    monkeypatch.setattr("smolsum.console.FIRST_S", 0.0)
    monkeypatch.setattr("smolsum.console.METER_S", 0.0)
    cached_model(file)
    counts = re.findall(r"converted (\d+)/(\d+) MB eta \d+s", capsys.readouterr().err)
    assert {total for _, total in counts} == {counts[-1][0]}
    done = [int(count) for count, _ in counts]
    assert done == sorted(done)
    assert len({*done}) > 2


def test_another_content_is_another_model(tmp_path: Path) -> None:
    """Under the same name and of the same size."""
    _, file = write_pair(tmp_path, "llama", "F32", **WIDE)
    first = logits(file)
    content = bytearray(file.read_bytes())
    content[-4:] = np.float32(3.0).tobytes()
    file.write_bytes(content)
    assert np.abs(logits(file) - first).max() > 1e-3


def test_an_outline_reads_no_weight_and_takes_no_space(tmp_path: Path, own_cache: Path) -> None:
    """It has the shapes and the tokenizer; weights that are not there cannot be read as if they were."""
    _, file = write_pair(tmp_path, "qwen2", "Q8_0", hidden_size=256, intermediate_size=4096)
    policy = load_policy(str(file), shapes_only=True, convert=False)
    weights = policy.path / "model.safetensors"
    assert policy.weight_bytes <= weights.stat().st_size < 2 * policy.weight_bytes
    assert weights.stat().st_blocks * 512 < policy.weight_bytes / 10
    assert load_encoder(str(file))("ab") == policy.tokenizer.encode("ab")
    with pytest.raises(ValueError, match="convert"):
        read_weights(policy)
    whole = load_policy(str(file), shapes_only=True)
    read_weights(whole)
    assert policy.weight_bytes == whole.weight_bytes
    assert load_policy(str(file), shapes_only=True, convert=False).path == whole.path


def test_a_dry_run_converts_nothing(tmp_path: Path, own_cache: Path, call: Call) -> None:
    """It knows the memory and the lengths all the same."""
    _, file = write_pair(tmp_path, "qwen2", "Q8_0", **WIDE)
    shown, said = done(call("train", "--model", file, "--set=data.max_input_tokens=900", "--dry-run"), "peak")
    assert str(file) in shown
    assert "converting" not in said
    assert [path.name.endswith("-outline") for path in own_cache.iterdir() if not path.name.startswith(".")] == [True]


@pytest.fixture
def small_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with mounted(tmp_path / "small", 300) as disk:
        monkeypatch.setenv("XDG_CACHE_HOME", str(disk))
        yield disk


def test_a_full_disk_leaves_nothing(tmp_path: Path, small_cache: Path) -> None:
    """And the same call succeeds once there is space."""
    _, file = write_pair(tmp_path, "llama", "Q8_0", hidden_size=128, intermediate_size=128)
    with refuses("disk is full", "XDG_CACHE_HOME", error=SmolsumError):
        load_policy(str(file))
    left = [path for path in (small_cache / "smolsum" / "gguf").iterdir() if not path.name.endswith(".lock")]
    assert left == []


def test_what_a_kill_left_is_replaced(tmp_path: Path, own_cache: Path) -> None:
    """A half-written folder is never taken for a model."""
    folder, file = write_pair(tmp_path, "llama", "F32", **WIDE)
    name = cached_model(file, outline=True).name.removesuffix("-outline")
    half = own_cache / f".{name}.tmp"
    half.mkdir()
    (half / "config.json").write_text("{")
    (half / "model.safetensors").write_bytes(b"half")
    np.testing.assert_allclose(logits(file), logits(folder), atol=1e-4)
    assert not half.exists()


def test_a_chat_is_encoded_as_by_the_directory(tmp_path: Path) -> None:
    """Special tokens, template, and what ends a completion: the file's EOS, and other ends that it has."""
    folder, file = write_pair(tmp_path, "llama", "F32", **WIDE)
    one, other = load_policy(str(file)), load_policy(str(folder))
    chat = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "who is there, at 9?"}]
    assert encode_chat(one, chat) == encode_chat(other, chat)
    assert one.tokenizer.decode(encode_chat(one, chat)).startswith("<|im_start|>system\nbe brief<|im_end|>")
    assert (other.eos_ids, one.eos_ids) == ({2}, {2, 0})  # <|endoftext|> too
    assert one.tokenizer.eos_token == "<|im_end|>"
    config = json.loads((one.path / "config.json").read_text())
    assert config["tie_word_embeddings"]


def test_a_template_that_cannot_be_read_is_the_files(tmp_path: Path, own_cache: Path) -> None:
    _, file = write_pair(tmp_path, "llama", "F32", replaced("tokenizer.chat_template", "{% if %}"), **WIDE)
    policy = load_policy(str(file))
    with refuses(f"template of {file} refuses") as refused:
        encode_chat(policy, [{"role": "user", "content": "hello"}])
    assert str(own_cache) not in str(refused.value)


def test_a_file_without_a_template_is_given_one(tmp_path: Path) -> None:
    """Its weights are those of the file; without, it is refused also when the cache has it."""
    _, file = write_pair(tmp_path, "llama", "F32", replaced("tokenizer.chat_template", None), **WIDE)
    folder, _ = write_pair(tmp_path / "whole", "llama", "F32", **WIDE)
    own = tmp_path / "own.jinja"
    own.write_text("{% for m in messages %}{{ m['content'] }} = {% endfor %}")
    policy, other = load_policy(str(file), chat_template=str(own)), load_policy(str(folder))
    assert policy.tokenizer.decode(encode_chat(policy, [{"role": "user", "content": "hello"}])) == "hello = "
    assert checksum(served_arrays(policy)) == checksum(served_arrays(other))
    with refuses(f"{file} has no chat template", "model.chat_template"):
        load_policy(str(file))


def test_a_period_of_windows_may_be_a_list(tmp_path: Path) -> None:
    """One entry for each layer, as newer converters write it."""
    folder, file = write_pair(
        tmp_path, "gemma3_text", "F32", lambda writer: _windows(writer, [True, False, True, False]),
        **WIDE, num_hidden_layers=4,
    )  # fmt: skip
    np.testing.assert_allclose(logits(file), logits(folder), atol=1e-4)
    _, odd = write_pair(
        tmp_path / "odd", "gemma3_text", "F32", lambda writer: _windows(writer, [True, False, False, True]),
        **WIDE, num_hidden_layers=4,
    )  # fmt: skip
    with refuses(odd, "sliding_window_pattern"):
        load_policy(str(odd))


def _windows(writer: gguf.GGUFWriter, pattern: list[bool]) -> None:
    replaced("gemma3.attention.sliding_window_pattern", None)(writer)
    writer.add_sliding_window_pattern(pattern)
