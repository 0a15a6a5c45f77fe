"""GGUF files of the tests' tiny models, written by the rules of llama.cpp's converters (`conversion/` there: `base.py`,
`llama.py`, `qwen.py`, `gemma.py`, `lfm2.py`) with the package `gguf` and its own map of names. Nothing is shared with
what reads them."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray
from support.models import CHAT_TEMPLATE, EOS, LETTERS, SPECIAL, write

# isort: split
import mlx.core as mx

NAMES = {"qwen2": "qwen2", "qwen3": "qwen3", "llama": "llama", "lfm2": "lfm2", "gemma3_text": "gemma3"}
"""llama.cpp's names of the families"""
TOKENS = [*SPECIAL, *LETTERS, "th"]
BLOCKS: dict[str, tuple[int, int]] = {"Q4_K": (144, 0), "Q5_K": (176, 0), "Q6_K": (210, 208)}
"""bytes of a block of 256 values, and where its float16 scale is; the package cannot make these itself"""
Change = Callable[[gguf.GGUFWriter], None]


def write_pair(
    folder: Path, family: str, kind: str = "F32", change: Change | None = None, *, pre: str = "gpt-2", **changes: Any
) -> tuple[Path, Path]:
    """Write a model with the values that tensors of this kind can hold as a directory and as a GGUF file, and return
    both. `change` adds to the file's metadata, or replaces what is there; `changes` are settings of the model."""
    model = write(folder / "model", family, **{"vocab_size": len(TOKENS), **changes})
    tokenizer = json.loads((model / "tokenizer.json").read_text())
    tokenizer["model"] |= {"vocab": {token: i for i, token in enumerate(TOKENS)}, "merges": [["t", "h"]]}
    (model / "tokenizer.json").write_text(json.dumps(tokenizer))
    config = json.loads((model / "config.json").read_text())
    weights = {name: np.array(w.astype(mx.float32)) for name, w in mx.load(str(model / "model.safetensors")).items()}
    writer = gguf.GGUFWriter(folder / "model.gguf", NAMES[family])
    _add_settings(writer, family, config)
    _add_tokenizer(writer, pre)
    kept = _add_tensors(writer, family, config, weights, kind)
    if change is not None:
        change(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    mx.save_safetensors(str(model / "model.safetensors"), {name: mx.array(w) for name, w in kept.items()})
    return model, folder / "model.gguf"


def replaced(key: str, value: Any) -> Change:
    """A change of a value that the file has anyway; None takes the key out."""

    def change(writer: gguf.GGUFWriter) -> None:
        old = writer.kv_data[0].pop(key)
        if value is not None:
            writer.add_key_value(key, value, old.type, old.sub_type)

    return change


def _add_settings(writer: gguf.GGUFWriter, family: str, config: dict[str, Any]) -> None:
    layers, heads = config["num_hidden_layers"], config["num_attention_heads"]
    head_dim = config.get("head_dim", config["hidden_size"] // heads)
    writer.add_type("model")
    writer.add_block_count(layers)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config.get("rms_norm_eps", config.get("norm_eps")))
    keys: int | list[int] = config["num_key_value_heads"]
    if family == "lfm2":
        keys = [0 if kind == "conv" else config["num_key_value_heads"] for kind in config["layer_types"]]
        writer.add_shortconv_l_cache(config["conv_L_cache"])
    writer.add_head_count_kv(keys)
    if "head_dim" in config:
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
    if family == "llama":
        writer.add_vocab_size(config["vocab_size"])
        writer.add_rope_dimension_count(head_dim)
    if family == "gemma3_text":
        writer.add_sliding_window(config["sliding_window"])
        writer.add_sliding_window_pattern(config["sliding_window_pattern"])
        writer.add_rope_freq_base_swa(config["rope_local_base_freq"])
    scaling = config.get("rope_scaling", {})
    if scaling.get("rope_type") in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(scaling["rope_type"]))
        writer.add_rope_scaling_factor(scaling["factor"])
    if scaling.get("rope_type") == "yarn":
        writer.add_rope_scaling_orig_ctx_len(scaling["original_max_position_embeddings"])


def _add_tokenizer(writer: gguf.GGUFWriter, pre: str) -> None:
    """The tokenizer of the tests' models and one merge: llama.cpp refuses a BPE without merges."""
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(TOKENS)
    writer.add_token_types(
        [gguf.TokenType[kind] for kind in ["CONTROL"] * len(SPECIAL) + ["NORMAL"] * (len(LETTERS) + 1)]
    )
    writer.add_token_merges(["t h"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(EOS)
    writer.add_pad_token_id(0)
    writer.add_chat_template(CHAT_TEMPLATE)


def _add_tensors(
    writer: gguf.GGUFWriter, family: str, config: dict[str, Any], weights: dict[str, NDArray[Any]], kind: str
) -> dict[str, NDArray[Any]]:
    """Add the weights, and return the values that the file has, as the Hugging Face layout has them."""
    places = gguf.get_tensor_name_map(
        {name: number for number, name in gguf.MODEL_ARCH_NAMES.items()}[NAMES[family]], config["num_hidden_layers"]
    )
    heads, kept = {"q": config["num_attention_heads"], "k": config["num_key_value_heads"]}, {}
    scaling = config.get("rope_scaling", {})
    if scaling.get("rope_type") == "llama3":
        writer.add_tensor("rope_freqs.weight", _llama3_factors(config, scaling))
    for number, (name, values) in enumerate(sorted(weights.items())):
        stem, suffix = name.rsplit(".", 1)
        own = f"{places.get_name(stem)}.{suffix}"
        data = values
        if family == "llama" and stem.endswith(("q_proj", "k_proj")):
            n = heads[stem[-6]]
            data = values.reshape(n, 2, values.shape[0] // n // 2, *values.shape[1:]).swapaxes(1, 2)
            data = data.reshape(values.shape)
        if family == "gemma3_text" and name.endswith("norm.weight"):
            data = values + np.float32(1)
        if "conv.conv" in name:
            data = values.squeeze(1)
        vector = data.ndim <= 1 or "conv.conv" in name or own.endswith("_norm.weight")
        type_ = gguf.GGMLQuantizationType["F32" if vector else kind]
        raw = _quantised(data, type_, seed=number)
        writer.add_tensor(own, raw, raw_dtype=type_)
        held = gguf.quants.dequantize(raw, type_).reshape(data.shape).astype(np.float32)
        # undone by indices rather than by reshaping back
        if family == "llama" and stem.endswith(("q_proj", "k_proj")):
            size = values.shape[0] // heads[stem[-6]]
            half = size // 2
            rows = [r // size * size + 2 * (r % size % half) + r % size // half for r in range(values.shape[0])]
            held = held[rows]
        if family == "gemma3_text" and name.endswith("norm.weight"):
            held = held - np.float32(1)
        kept[name] = held.reshape(values.shape)
    return kept


def _quantised(values: NDArray[Any], kind: gguf.GGMLQuantizationType, *, seed: int) -> NDArray[Any]:
    """The bytes of a tensor; for K-quants, which the package only reads, blocks of random bytes with small scales."""
    if kind.name not in BLOCKS:
        return np.asarray(gguf.quants.quantize(np.ascontiguousarray(values), kind))
    nbytes, scale = BLOCKS[kind.name]
    blocks = np.random.default_rng(seed).integers(0, 256, (values.shape[0], values.shape[1] // 256, nbytes), np.uint8)
    small = np.array([2e-4 if kind.name != "Q6_K" else 2e-5], np.float16).view(np.uint8)
    for place in (scale, scale + 2) if kind.name != "Q6_K" else (scale,):
        blocks[..., place : place + 2] = small
    return blocks.reshape(values.shape[0], -1)


def _llama3_factors(config: dict[str, Any], scaling: dict[str, Any]) -> NDArray[np.float32]:
    dim = config.get("head_dim", config["hidden_size"] // config["num_attention_heads"])
    low, high, old = (scaling[k] for k in ("low_freq_factor", "high_freq_factor", "original_max_position_embeddings"))
    found = []
    for i in range(0, dim, 2):
        wave = 2 * math.pi * config["rope_theta"] ** (i / dim)
        if wave < old / high:
            found.append(1.0)
        elif wave > old / low:
            found.append(scaling["factor"])
        else:
            smooth = (old / wave - low) / (high - low)
            found.append(1 / ((1 - smooth) / scaling["factor"] + smooth))
    return np.array(found, np.float32)
