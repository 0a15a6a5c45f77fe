"""Shapes of the built-in models, and starting weights that make copying easy to learn.

From random weights a model needs thousands of steps before it attends to what it should copy. Each architecture starts
with most of an induction head (arXiv:2209.11895); a few hundred steps of drill complete it.
"""

from __future__ import annotations

import math

import smolsum.policy  # noqa: F401  loads a fast BLAS before MLX

# isort: split
import mlx.core as mx
import mlx.nn as nn

VOCABULARY = 1536
TAGS = ("<notes>", "</notes>", "<judgement>", "</judgement>")
"""tokens that only the judge has"""
SHARED = {
    "vocab_size": VOCABULARY,
    "hidden_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "bos_token_id": 0,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "initializer_range": 0.02,
    "use_cache": True,
}
CONFIGS = {
    "tiny": SHARED
    | {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "num_hidden_layers": 4,
        "intermediate_size": 384,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
    },
    # the keys of LiquidAI's own files: MLX needs block_dim, vLLM conv_dim, transformers intermediate_size
    "tiny-lfm": SHARED
    | {
        "architectures": ["Lfm2ForCausalLM"],
        "model_type": "lfm2",
        "num_hidden_layers": 6,
        "num_heads": 4,
        "layer_types": ["conv", "full_attention"] * 3,
        "norm_eps": 1e-5,
        "block_norm_eps": 1e-5,
        "conv_bias": False,
        "conv_L_cache": 3,
        "conv_dim": 128,
        "conv_dim_out": 128,
        "block_dim": 128,
        "block_ff_dim": 320,
        "intermediate_size": 320,
        "block_multiple_of": 32,
        "block_ffn_dim_multiplier": 1.0,
        "block_auto_adjust_ff_dim": False,
        "block_use_swiglu": True,
        "use_pos_enc": True,
    },
}
CONFIGS["judge"] = CONFIGS["tiny"] | {"vocab_size": VOCABULARY + len(TAGS)}


def start_copying(model: nn.Module) -> None:
    """Set starting weights for copying."""
    _look_back(model) if model.model_type == "qwen2" else _look_up(model)


def _look_back(model: nn.Module) -> None:
    """Make two heads of the first layer attend one and two tokens back, through their biases alone.

    A bias pair rotated by RoPE scores a position by its distance only. With it a model learns to copy ("after this
    token came that one") in a few hundred steps instead of thousands.
    """
    attention, width, strength = model.model.layers[0].self_attn, 32, 5.0
    q, k = [0.0] * attention.q_proj.bias.size, [0.0] * attention.k_proj.bias.size
    for d in range(5):
        angle = SHARED["rope_theta"] ** (-2 * d / width)
        k[d] = strength
        for head, distance in enumerate((1, 2)):
            q[head * width + d] = strength * math.cos(angle * distance)
            q[head * width + d + width // 2] = -strength * math.sin(angle * distance)
    attention.q_proj.bias, attention.k_proj.bias = mx.array(q), mx.array(k)


def _look_up(model: nn.Module) -> None:
    """Give LFM2's first two layers the whole induction head.

    The first convolution writes the previous token into a separate subspace. In the attention that follows, a query
    reads the present token and a key reads that subspace, by the same random projection, so a token attends to what
    followed it before. Values pass through unchanged. One embedding dimension is the same for every token and opens the
    convolution's gates from the start. The contributions of the other layers start small, so that they do not drown
    this.
    """
    for layer in model.model.layers:
        mixer = layer.self_attn if layer.is_attention_layer else layer.conv
        for last in (mixer.out_proj, layer.feed_forward.w2):
            last.weight = 0.25 * last.weight
    width, half, head = SHARED["hidden_size"], SHARED["hidden_size"] // 2, 32
    before, written, carried = (_orthonormal(width)[:half] for _ in range(3))
    embeddings = model.model.embed_tokens.weight
    embeddings[:, 0] = 0.5
    conv, attention = model.model.layers[0].conv, model.model.layers[1].self_attn
    gates, taps = conv.in_proj.weight, mx.zeros_like(conv.conv.weight)
    gates[: 2 * width] *= 0.3
    gates[: 2 * width, 0] = 0.2
    gates[2 * width : 2 * width + half] = before
    taps[:half, 1], taps[half : half + half // 2, 0], taps[half + half // 2 :, 2] = 1.0, 1.0, 1.0
    out = conv.out_proj.weight
    out[:, :half] = 0.1 * written.T
    # RoPE rotates the pair (d, d + 16): only the slow pairs match at a distance
    slow = mx.where(mx.arange(head) % (head // 2) >= head // 4, 1.0, 0.2)[:, None]
    for kv in range(SHARED["num_key_value_heads"]):
        keys = slice(kv * head, (kv + 1) * head)
        alike = slow * mx.random.normal((head, half)) * 0.125
        attention.k_proj.weight[keys] = alike @ written
        for h in (2 * kv, 2 * kv + 1):
            queries = slice(h * head, (h + 1) * head)
            attention.q_proj.weight[queries] = alike @ before
            attention.out_proj.weight[:, queries] = 0.1 * carried[keys].T
    attention.v_proj.weight = carried
    model.model.embed_tokens.weight = embeddings
    conv.in_proj.weight, conv.conv.weight, conv.out_proj.weight = gates, taps, out


def _orthonormal(width: int) -> mx.array:
    return mx.linalg.qr(mx.random.normal((width, width)), stream=mx.cpu)[0]
