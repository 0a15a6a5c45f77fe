"""How llama.cpp names, orders and shifts the weights of each architecture, and the settings in `config.json` that its
metadata say. Facts from llama.cpp's converters (`conversion/`) and its loaders (`src/models/`).
"""

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from smolsum.errors import UsageError
from smolsum.policy.gguf.header import GgufFile

PROJECTIONS = {"attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj"}
MLP = {"ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
DECODER = {"attn_norm": "input_layernorm", **PROJECTIONS, "attn_output": "self_attn.o_proj", **MLP}
HEAD_NORMS = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
ROPE_FREQS = "rope_freqs.weight"
"""factors of the rotary frequencies, of Llama 3's scaling: settings in `config.json`, not a weight"""
OTHERS = "convert a model of these, or give its Hugging Face directory"
DEFAULT_BASE = 10_000.0
"""of the rotary frequencies, where a file says none"""
LLAMA3_LOW, LLAMA3_HIGH = 1.0, 4.0
"""the `low_freq_factor` and `high_freq_factor` of Llama 3.1 and later"""


@dataclass(frozen=True)
class Architecture:
    """An architecture: `model_type` is its name in `config.json`; layers and top say which module each of llama.cpp's
    is."""

    model_type: str
    model_class: str
    layers: dict[str, str]
    top: dict[str, str] = field(default_factory=lambda: TOP)
    pairs: bool = False
    """whether the rows of q and k stand in llama.cpp's order of rotary pairs"""
    norm_shift: float = 0.0
    """what llama.cpp adds to the weights of norms"""

    def module(self, name: str) -> str | None:
        """Return the name of a tensor in the Hugging Face layout, None for one that the architecture does not have."""
        stem, _, suffix = name.rpartition(".")
        layer = re.fullmatch(r"blk\.(\d+)\.(.+)", stem)
        module = self.layers.get(layer[2]) if layer else self.top.get(stem)
        if suffix not in ("weight", "bias") or module is None:
            return None
        return f"model.layers.{layer[1]}.{module}.{suffix}" if layer else f"{module}.{suffix}"

    def tensor(self, name: str) -> str | None:
        """Return llama.cpp's name of a weight of the Hugging Face layout, None for one that the architecture does not
        have."""
        stem, _, suffix = name.rpartition(".")
        layer = re.fullmatch(r"model\.layers\.(\d+)\.(.+)", stem)
        names = {module: own for own, module in (self.layers if layer else self.top).items()}
        own = names.get(layer[2] if layer else stem)
        if suffix not in ("weight", "bias") or own is None:
            return None
        return f"blk.{layer[1]}.{own}.{suffix}" if layer else f"{own}.{suffix}"


ARCHITECTURES = {
    "llama": Architecture(
        "llama", "LlamaForCausalLM", DECODER | {"ffn_norm": "post_attention_layernorm"}, pairs=True
    ),
    "qwen2": Architecture("qwen2", "Qwen2ForCausalLM", DECODER | {"ffn_norm": "post_attention_layernorm"}),
    "qwen3": Architecture(
        "qwen3", "Qwen3ForCausalLM", DECODER | HEAD_NORMS | {"ffn_norm": "post_attention_layernorm"}
    ),
    "gemma3": Architecture(
        "gemma3_text",
        "Gemma3ForCausalLM",
        DECODER
        | HEAD_NORMS
        | {
            "ffn_norm": "pre_feedforward_layernorm",
            "post_attention_norm": "post_attention_layernorm",
            "post_ffw_norm": "post_feedforward_layernorm",
        },
        norm_shift=1.0,
    ),
    "lfm2": Architecture(
        "lfm2",
        "Lfm2ForCausalLM",
        {
            "attn_norm": "operator_norm", "ffn_norm": "ffn_norm", **PROJECTIONS, "attn_output": "self_attn.out_proj",
            "attn_q_norm": "self_attn.q_layernorm", "attn_k_norm": "self_attn.k_layernorm",
            "shortconv.conv": "conv.conv", "shortconv.in_proj": "conv.in_proj", "shortconv.out_proj": "conv.out_proj",
            "ffn_gate": "feed_forward.w1", "ffn_down": "feed_forward.w2", "ffn_up": "feed_forward.w3",
        },
        top={"token_embd": "model.embed_tokens", "token_embd_norm": "model.embedding_norm"},
    ),
}  # fmt: skip
"""by llama.cpp's names"""


def architecture_of(file: GgufFile) -> Architecture:
    """Return the architecture of a file. Raises UsageError for one that is not known, and for the part of a model that
    sees or hears."""
    name = file.architecture
    if name == "clip" or file.metadata.get("general.type") == "mmproj":
        raise UsageError(
            f"{file.path} holds the part of a model that reads images or sound (general.architecture = {name})",
            hint="give the file of the language model, without mmproj in its name",
        )
    if file.metadata.get("general.type", "model") != "model":
        raise UsageError(
            f"{file.path} holds no model: general.type = {file.metadata['general.type']}",
            hint="give the file of the whole model",
        )
    if file.metadata.get("split.count", 0) not in (0, 1):
        raise UsageError(
            f"{file.path} is one of {file.metadata['split.count']} parts of a model (split.count)",
            hint="join them with llama.cpp: llama-gguf-split --merge FIRST OUT.gguf",
        )
    if name not in ARCHITECTURES:
        raise UsageError(
            f"{file.path} holds the architecture {name!r}; known in GGUF files are {', '.join(ARCHITECTURES)}",
            hint=OTHERS,
        )
    return ARCHITECTURES[name]


def config_of(file: GgufFile, architecture: Architecture) -> dict[str, Any]:
    """Return what `config.json` says about the model's shape. Raises UsageError for a missing or bad key, and for what
    MLX's model of this architecture cannot compute."""
    name = file.architecture
    sizes = ("attention.head_count", "block_count", "embedding_length")
    heads, layers, width = (_size(file, f"{name}.{key}") for key in sizes)
    if layers > len(file.tensors):  # a list of so many might not end
        raise _cannot(file, f"{name}.block_count", f"is {layers}, and the file has {len(file.tensors)} tensors")
    keys = _key_value_heads(file, layers, heads)
    head_dim = _head_dim(file, width, heads)
    if (embedding := file.tensors.get("token_embd.weight")) is None:
        raise UsageError(f"{file.path} has no tensor token_embd.weight", hint="give the file of the whole model")
    epsilon = file.required(f"{name}.attention.layer_norm_rms_epsilon", float)
    config: dict[str, Any] = {
        "architectures": [architecture.model_class],
        "model_type": architecture.model_type,
        "hidden_size": width,
        "intermediate_size": _size(file, f"{name}.feed_forward_length"),
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": max(keys),
        "head_dim": head_dim,
        "max_position_embeddings": _size(file, f"{name}.context_length"),
        "rope_theta": file.optional(f"{name}.rope.freq_base", float, DEFAULT_BASE),
        "vocab_size": embedding.shape[0],
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "attention_bias": "blk.0.attn_q.bias" in file.tensors,
        "rms_norm_eps": shortest(epsilon),
    }
    if (scaling := _rope_scaling(file, head_dim)) is not None:
        config["rope_scaling"] = scaling
    if name == "lfm2":
        return config | _lfm2(file, config, keys)
    if len(set(keys)) > 1:
        raise _cannot(file, f"{name}.attention.head_count_kv", "differs between layers")
    if name == "gemma3":
        return config | _gemma3(file, config)
    if name == "llama":
        config["mlp_bias"] = "blk.0.ffn_up.bias" in file.tensors
    return config | {"hidden_act": "silu"}


def hf_values(architecture: Architecture, name: str, values: NDArray[Any], heads: int) -> NDArray[Any]:
    """Return the values of a tensor as the Hugging Face layout has them: `heads` is the number of heads of its rows."""
    stem = name.removesuffix(".weight").removesuffix(".bias").rpartition(".")[2]
    if architecture.pairs and stem in ("attn_q", "attn_k"):
        # llama.cpp turns neighbours (2i, 2i + 1), the others turn (i, i + half a head)
        return values.reshape(heads, -1, 2, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)
    if architecture.norm_shift and "norm" in stem:
        return np.asarray(values - np.float32(architecture.norm_shift))
    if stem == "conv":
        return values[:, None, :]
    return values


def gguf_values(architecture: Architecture, name: str, values: NDArray[Any], heads: int) -> NDArray[Any]:
    """Undo `hf_values`."""
    stem = name.removesuffix(".weight").removesuffix(".bias").rpartition(".")[2]
    if architecture.pairs and stem in ("attn_q", "attn_k"):
        return values.reshape(heads, 2, -1, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)
    if architecture.norm_shift and "norm" in stem:
        return np.asarray(values + np.float32(architecture.norm_shift))
    if stem == "conv":
        return values[:, 0, :]
    return values


def rope_factors(scaling: dict[str, Any], base: float, head_dim: int) -> NDArray[np.float64]:
    """Return what Llama 3's scaling divides each rotary frequency by (`head_dim` / 2 numbers)."""
    factor, old = scaling["factor"], scaling["original_max_position_embeddings"]
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    waves = _wave_lengths(base, head_dim)
    smooth = np.clip((old / waves - low) / (high - low), 0.0, 1.0)
    return np.asarray(1.0 / ((1.0 - smooth) / factor + smooth))


def shortest(value: float) -> float:
    """Return the shortest decimal number that is the same in float32: 1e-05 rather than 9.999999747378752e-06."""
    return float(np.format_float_scientific(np.float32(value), unique=True))


def _wave_lengths(base: float, head_dim: int) -> NDArray[np.float64]:
    return np.asarray(2 * math.pi * base ** (np.arange(0, head_dim, 2) / head_dim))


def _size(file: GgufFile, key: str) -> int:
    value = file.required(key, int)
    if value < 1:
        raise _cannot(file, key, f"must be above 0, got {value}")
    return int(value)


def _cannot(file: GgufFile, key: str, why: str) -> UsageError:
    return UsageError(f"{file.path}: {key} {why}", hint=OTHERS)


def _key_value_heads(file: GgufFile, layers: int, heads: int) -> list[int]:
    """Return the number of key and value heads of each layer; 0 for a layer without attention."""
    key = f"{file.architecture}.attention.head_count_kv"
    value = file.metadata.get(key, heads)
    found = value if isinstance(value, list) else [value] * layers
    if len(found) != layers or not all(isinstance(n, int) and n >= 0 for n in found) or max(found) < 1:
        raise _cannot(file, key, f"must be numbers of heads for {layers} layers")
    return found


def _head_dim(file: GgufFile, width: int, heads: int) -> int:
    name = file.architecture
    key = f"{name}.attention.key_length"
    head_dim = _size(file, key) if key in file.metadata else width // heads
    for other in (f"{name}.attention.value_length", f"{name}.rope.dimension_count"):
        if file.optional(other, int, head_dim) != head_dim:
            raise _cannot(file, other, f"is {file.metadata[other]}, and the heads have {head_dim} dimensions")
    if name in ("qwen2", "lfm2") and head_dim * heads != width:
        raise _cannot(file, key, f"is {head_dim}, but {heads} heads share {width} dimensions")
    return head_dim


def _rope_scaling(file: GgufFile, head_dim: int) -> dict[str, Any] | None:
    name = file.architecture
    prefix = f"{name}.rope.scaling"
    for key in ("rope_factors_long.weight", "rope_factors_short.weight"):
        if key in file.tensors:
            raise _cannot(file, key, "is a scaling of positions (LongRoPE) that is not known")
    if ROPE_FREQS in file.tensors:
        return _llama3(file, head_dim)
    factor = file.optional(f"{prefix}.factor", float, file.optional(f"{name}.rope.scale_linear", float, 1.0))
    kind = file.optional(f"{prefix}.type", str, "linear")
    if kind == "none" or (kind == "linear" and factor in (0.0, 1.0)):
        return None
    if name == "lfm2" or kind not in ("linear", "yarn"):
        raise _cannot(file, f"{prefix}.type", f"= {kind} is a scaling of positions that is not known here")
    if kind == "linear":
        return {"rope_type": "linear", "factor": factor}
    if name == "gemma3":
        raise _cannot(file, f"{prefix}.type", "= yarn is not known for gemma3")
    for key in ("attn_factor", "yarn_attn_factor", "yarn_ext_factor"):
        if file.optional(f"{prefix}.{key}", float, 1.0) != 1.0:
            raise _cannot(file, f"{prefix}.{key}", f"= {file.metadata[f'{prefix}.{key}']} is not known here")
    old = file.required(f"{prefix}.original_context_length", int)
    fast, slow = (
        file.optional(f"{prefix}.yarn_{key}", float, n) for key, n in (("beta_fast", 32.0), ("beta_slow", 1.0))
    )
    return {
        "rope_type": "yarn", "factor": factor, "original_max_position_embeddings": old, "beta_fast": fast,
        "beta_slow": slow,
    }  # fmt: skip


def _llama3(file: GgufFile, head_dim: int) -> dict[str, Any] | None:
    """Return the settings of Llama 3's scaling that the file's factors are from. Raises UsageError for factors of
    another kind.

    Between its two wave lengths the scaling is linear in frequency: 1 / factor_i = (1 - s_i) / factor + s_i with
    s_i = (old / wave_i - low) / (high - low). So two of these factors give old / low and old / high, and Llama 3's low,
    1, fixes the rest. One of them is enough with Llama 3's high.
    """
    factors = file.values(file.tensors[ROPE_FREQS]).astype(np.float64).ravel()
    base = file.optional(f"{file.architecture}.rope.freq_base", float, DEFAULT_BASE)
    waves = _wave_lengths(base, head_dim)
    if len(factors) != len(waves):
        raise _cannot(file, ROPE_FREQS, f"has {len(factors)} factors for {len(waves)} pairs")
    if np.allclose(factors, 1.0):
        return None
    factor = float(factors.max())
    smooth = (1 / factors - 1 / factor) / (1 - 1 / factor)
    between = (smooth > 1e-4) & (smooth < 1 - 1e-4)
    old, high = float("nan"), LLAMA3_HIGH
    if between.sum() >= 2:
        slope, start = np.polyfit(1 / waves[between], smooth[between], 1)
        high = LLAMA3_LOW - LLAMA3_LOW / start
        old = slope * (high - LLAMA3_LOW)
    elif between.any():
        old = float((smooth * (high - LLAMA3_LOW) + LLAMA3_LOW)[between][0] * waves[between][0])
    found = {
        "rope_type": "llama3", "factor": _rounded(factor), "low_freq_factor": LLAMA3_LOW,
        "high_freq_factor": _rounded(high), "original_max_position_embeddings": _rounded(old),
    }  # fmt: skip
    if not np.allclose(rope_factors(found, base, head_dim), factors, rtol=1e-4):
        raise _cannot(file, ROPE_FREQS, "holds factors of positions that are not those of Llama 3's scaling")
    return found


def _rounded(value: float) -> float:
    """Return the whole number that a value is, up to the rounding of float32 factors; else the value."""
    near = round(value) if math.isfinite(value) else value
    return float(near) if abs(near - value) < 1e-3 * abs(value) else value


def _gemma3(file: GgufFile, config: dict[str, Any]) -> dict[str, Any]:
    if file.optional("gemma3.final_logit_softcapping", float, 0.0):
        raise _cannot(file, "gemma3.final_logit_softcapping", "caps logits, which the model of MLX does not")
    layers, width, heads = config["num_hidden_layers"], config["hidden_size"], config["num_attention_heads"]
    window = file.optional("gemma3.attention.sliding_window", int, 0)
    sliding = _sliding(file, layers) if window else [False] * layers
    pattern = sliding.index(False) + 1 if False in sliding else layers + 1
    if sliding != [(layer + 1) % pattern != 0 for layer in range(layers)]:
        raise _cannot(file, "gemma3.attention.sliding_window_pattern", "does not repeat")
    return {
        "hidden_activation": "gelu_pytorch_tanh",
        # llama.cpp tells the 27B model, whose scale is another, by its number of layers
        "query_pre_attn_scalar": width // heads if layers == 62 else config["head_dim"],
        "sliding_window": window or config["max_position_embeddings"],
        "sliding_window_pattern": pattern,
        "layer_types": ["sliding_attention" if one else "full_attention" for one in sliding],
        "rope_local_base_freq": file.optional("gemma3.rope.freq_base_swa", float, DEFAULT_BASE),
    }


def _sliding(file: GgufFile, layers: int) -> list[bool]:
    """Return for each layer whether its attention looks back over a window only."""
    key = "gemma3.attention.sliding_window_pattern"
    value = file.metadata.get(key, 6)
    if isinstance(value, list) and len(value) >= layers:
        return [bool(one) for one in value[:layers]]
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise _cannot(file, key, f"must be a number above 0, or one for each of {layers} layers")
    return [(layer + 1) % value != 0 for layer in range(layers)]


def _lfm2(file: GgufFile, config: dict[str, Any], keys: Iterable[int]) -> dict[str, Any]:
    if file.optional("lfm2.attention.sliding_window", int, 0):
        raise _cannot(file, "lfm2.attention.sliding_window", "is not known to the model of MLX")
    return {
        "layer_types": ["full_attention" if n else "conv" for n in keys],
        "norm_eps": config["rms_norm_eps"],
        "block_norm_eps": config["rms_norm_eps"],
        "num_heads": config["num_attention_heads"],
        "conv_L_cache": _size(file, "lfm2.shortconv.l_cache"),
        "conv_bias": False,
        "conv_dim": config["hidden_size"],
        "conv_dim_out": config["hidden_size"],
        "block_dim": config["hidden_size"],
        "block_ff_dim": config["intermediate_size"],
        "block_multiple_of": 256,
        "block_ffn_dim_multiplier": 1.0,
        "block_auto_adjust_ff_dim": False,
        "block_use_swiglu": True,
        "use_pos_enc": True,
    }
