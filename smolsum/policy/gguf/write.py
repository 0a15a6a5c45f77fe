"""A policy as a GGUF file for llama.cpp and Ollama."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten
from numpy.typing import NDArray

from smolsum.errors import UsageError
from smolsum.policy.gguf.architectures import ARCHITECTURES, ROPE_FREQS, Architecture, gguf_values, rope_factors
from smolsum.policy.gguf.header import read_header
from smolsum.policy.gguf.tokenizer import tokenizer_files
from smolsum.policy.gguf.vocabulary import OTHER_FORMAT, Vocabulary, require_same, vocabulary_of
from smolsum.policy.load import Policy, encode_chat
from smolsum.policy.weights import hf_layout

FILE_TYPES = {"F16": 1, "Q8_0": 7, "Q4_0": 2}
"""types of matrices that files are written in, with llama.cpp's numbers of such files (`general.file_type`)"""
EMBEDDINGS = ("token_embd.weight", "output.weight")
"""have 8 bits in files of 4 bits: they are read most and round worst"""
CHAT = [{"role": "user", "content": "How many, at 9:30?"}]


def write_gguf(policy: Policy, weights: Mapping[str, Any], path: Path, *, kind: str, name: str, template: str) -> None:
    """Write these parameters (a tree like `model.parameters()`) with the tokenizer of the policy as a GGUF file.

    `kind` is the type of the matrices (`FILE_TYPES`), `name` the model's, `template` its chat template. One tensor at a
    time is in memory in its new type. Raises UsageError for an architecture, a setting or a tokenizer that llama.cpp
    does not have.
    """
    import gguf

    own = {one.model_type: key for key, one in ARCHITECTURES.items()}
    if (key := own.get(policy.config["model_type"])) is None:
        raise UsageError(
            f"GGUF files are made of models of the architectures {', '.join(own)}, not of"
            f" {policy.config['model_type']}",
            hint="leave --format out, and try llama.cpp's convert_hf_to_gguf.py",
        )
    architecture, arguments = ARCHITECTURES[key], policy.model.args
    flat = {name: hf_layout(name, value) for name, value in tree_flatten(weights)}
    named = {place: architecture.tensor(place) for place in flat}
    if missing := [place for place, tensor in named.items() if tensor is None]:
        raise _cannot(f"llama.cpp has no place for the weight {missing[0]}")
    vocabulary = vocabulary_of(policy.tokenizer, flat["model.embed_tokens.weight"].shape[0], policy.eos_ids)
    writer = gguf.GGUFWriter(path, key)
    writer.add_type("model")
    writer.add_name(name)
    writer.add_file_type(FILE_TYPES[kind])
    if kind != "F16":
        writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    heads = _add_settings(writer, key, architecture, arguments, flat)
    _add_vocabulary(writer, vocabulary)
    writer.add_chat_template(template)
    factors = _factors(arguments)
    kinds = {tensor: _kind(tensor, flat[place].shape, kind) for place, tensor in named.items() if tensor}
    if factors is not None:
        writer.add_tensor_info(ROPE_FREQS, factors.shape, factors.dtype, factors.nbytes)
    for place, tensor in named.items():
        _add_info(writer, str(tensor), _shape(flat[place], str(tensor)), kinds[str(tensor)])
    try:
        for step in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_ti_data_to_file):
            step()
        if factors is not None:
            writer.write_tensor_data(factors)
        for place, tensor in named.items():
            values = np.array(flat[place].astype(mx.float32))
            moved = gguf_values(architecture, str(tensor), values, heads["q" if "attn_q" in str(tensor) else "k"])
            writer.write_tensor_data(_converted(moved, str(tensor), kinds[str(tensor)]))
    finally:
        writer.close()
    read, _, _ = tokenizer_files(read_header(path))
    require_same(policy.tokenizer, read, policy.tokenizer.decode(encode_chat(policy, CHAT)))


def _cannot(what: str) -> UsageError:
    return UsageError(what, hint=OTHER_FORMAT)


def _add_settings(
    writer: Any, key: str, architecture: Architecture, arguments: Any, flat: Mapping[str, mx.array]
) -> dict[str, int]:
    """Add the shape of the model as MLX computes it, and return the number of heads of queries and of keys."""
    heads, keys = arguments.num_attention_heads, arguments.num_key_value_heads or arguments.num_attention_heads
    head_dim = getattr(arguments, "head_dim", None) or arguments.hidden_size // heads
    writer.add_block_count(arguments.num_hidden_layers)
    writer.add_context_length(arguments.max_position_embeddings or 2048)
    writer.add_embedding_length(arguments.hidden_size)
    writer.add_feed_forward_length(flat[f"model.layers.0.{architecture.layers['ffn_gate']}.weight"].shape[0])
    writer.add_head_count(heads)
    writer.add_rope_freq_base(float(arguments.rope_theta))
    writer.add_layer_norm_rms_eps(arguments.norm_eps if key == "lfm2" else arguments.rms_norm_eps)
    writer.add_vocab_size(flat["model.embed_tokens.weight"].shape[0])
    if key == "lfm2":
        attention = set(arguments.full_attn_idxs)
        writer.add_head_count_kv([keys if n in attention else 0 for n in range(arguments.num_hidden_layers)])
        writer.add_shortconv_l_cache(arguments.conv_L_cache)
    else:
        writer.add_head_count_kv(keys)
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
    if key == "llama":
        writer.add_rope_dimension_count(head_dim)
        if "sliding_attention" in (arguments.layer_types or ()):
            raise _cannot("llama.cpp's llama has no attention over a window")
    if key == "gemma3":
        if arguments.query_pre_attn_scalar != head_dim and arguments.num_hidden_layers != 62:
            raise _cannot(f"llama.cpp's gemma3 scales attention by {head_dim}, not {arguments.query_pre_attn_scalar}")
        if arguments.sliding_window_pattern > 1:
            writer.add_sliding_window(arguments.sliding_window)
            writer.add_sliding_window_pattern(arguments.sliding_window_pattern)
            writer.add_rope_freq_base_swa(float(arguments.rope_local_base_freq))
    _add_scaling(writer, _scaling(arguments))
    return {"q": heads, "k": keys}


def _scaling(arguments: Any) -> dict[str, Any]:
    found = getattr(arguments, "rope_scaling", None) or {}
    return {**found, "rope_type": found.get("type") or found.get("rope_type", "default")}


def _add_scaling(writer: Any, scaling: Mapping[str, Any]) -> None:
    import gguf

    kind = scaling["rope_type"]
    if kind in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(kind))
        writer.add_rope_scaling_factor(float(scaling["factor"]))
    elif kind not in ("default", "llama3"):
        raise _cannot(f"GGUF files are not made of models with the scaling of positions {kind!r}")
    if kind == "yarn":
        writer.add_rope_scaling_orig_ctx_len(int(scaling.get("original_max_position_embeddings", 4096)))
        writer.add_rope_scaling_yarn_beta_fast(float(scaling.get("beta_fast", 32)))
        writer.add_rope_scaling_yarn_beta_slow(float(scaling.get("beta_slow", 1)))
        if scaling.get("mscale", 1) != 1 or scaling.get("mscale_all_dim", 0):
            raise _cannot("GGUF files are not made of models with YaRN's mscale")


def _factors(arguments: Any) -> NDArray[np.float32] | None:
    """Return the factors of Llama 3's scaling, None for another."""
    scaling = _scaling(arguments)
    if scaling["rope_type"] != "llama3":
        return None
    defaults = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
    head_dim = getattr(arguments, "head_dim", None) or arguments.hidden_size // arguments.num_attention_heads
    return rope_factors(defaults | scaling, arguments.rope_theta, head_dim).astype(np.float32)


def _add_vocabulary(writer: Any, vocabulary: Vocabulary) -> None:
    writer.add_tokenizer_model(vocabulary.model)
    writer.add_tokenizer_pre(vocabulary.pre)
    writer.add_token_list(vocabulary.tokens)
    writer.add_token_types(vocabulary.kinds)
    if vocabulary.scores:
        writer.add_token_scores(vocabulary.scores)
    else:
        writer.add_token_merges(vocabulary.merges)
    for name, number in vocabulary.ids.items():
        writer.add_uint32(f"tokenizer.ggml.{name}_token_id", number)
    for name, wish in vocabulary.adds.items():
        writer.add_bool(f"tokenizer.ggml.add_{name}_token", wish)
    writer.add_add_space_prefix(vocabulary.space_prefix)


def _kind(tensor: str, shape: tuple[int, ...], kind: str) -> str:
    """Return the type of a tensor: llama.cpp wants vectors and convolutions in float32, and blocks are of 32 values."""
    if len(shape) < 2 or "shortconv.conv" in tensor:
        return "F32"
    if kind == "F16" or shape[-1] % 32:
        return "F16"
    return "Q8_0" if tensor in EMBEDDINGS else kind


def _shape(value: mx.array, tensor: str) -> tuple[int, ...]:
    return (value.shape[0], value.shape[2]) if "shortconv.conv" in tensor else tuple(value.shape)


def _add_info(writer: Any, tensor: str, shape: tuple[int, ...], kind: str) -> None:
    import gguf

    number = gguf.GGMLQuantizationType[kind]
    block, nbytes = gguf.GGML_QUANT_SIZES[number]
    size = int(np.prod(shape)) // block * nbytes
    if kind in ("F32", "F16"):
        writer.add_tensor_info(tensor, shape, np.dtype(np.float32 if kind == "F32" else np.float16), size)
    else:
        held = gguf.quant_shape_to_byte_shape(shape, number)
        writer.add_tensor_info(tensor, held, np.dtype(np.uint8), size, raw_dtype=number)


def _converted(values: NDArray[Any], tensor: str, kind: str) -> NDArray[Any]:
    import gguf

    with np.errstate(over="ignore"):
        made = gguf.quants.quantize(np.ascontiguousarray(values, np.float32), gguf.GGMLQuantizationType[kind])
    if kind == "F16" and not np.isfinite(made).all():
        raise _cannot(f"{tensor} has values that float16 does not: {np.abs(values).max():.3g}")
    return np.ascontiguousarray(made)
