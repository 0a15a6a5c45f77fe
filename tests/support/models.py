"""Tiny random models of real families, in memory and on disk in the Hugging Face layout."""

import json
import shutil
import string
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import smolsum.policy  # noqa: F401  loads a fast BLAS before MLX

# isort: split
import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from mlx.utils import tree_flatten, tree_map
from mlx_lm.tuner.utils import linear_to_lora_layers
from mlx_lm.utils import _get_classes
from numpy.typing import NDArray
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from smolsum.config.sections import OptimizerConfig
from smolsum.config.stage import StageConfig
from smolsum.policy.cpu import native
from smolsum.policy.group_gradient import GroupLoss
from smolsum.policy.logprobs import group_logprobs
from smolsum.types import Prompt, Rollout, RolloutGroup

NEEDS_C = pytest.mark.skipif(
    sys.platform != "linux" or not any(map(shutil.which, native.COMPILERS)), reason="a Linux CPU with a C compiler"
)

PAD, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
EOS = 2
SPECIAL = [PAD, START, END]
LETTERS = [*string.ascii_lowercase, *string.digits, "Ġ", "Ċ", *".,:;?!'-=", *"ABCDEFGHIJKLMN"]
"""what the tokenizer can write, as byte-level BPE names it"""
VOCABULARY = len(SPECIAL) + len(LETTERS)
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SHARED = {
    "vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 48, "max_position_embeddings": 256, "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "torch_dtype": "float32", "bos_token_id": 0, "eos_token_id": EOS, "pad_token_id": 0, "hidden_act": "silu",
}  # fmt: skip
FAMILIES: dict[str, dict[str, Any]] = {
    "qwen2": {"architectures": ["Qwen2ForCausalLM"], "rms_norm_eps": 1e-6},
    "qwen3": {"architectures": ["Qwen3ForCausalLM"], "rms_norm_eps": 1e-6, "head_dim": 8},
    "llama": {"architectures": ["LlamaForCausalLM"], "rms_norm_eps": 1e-6},
    "lfm2": {
        "architectures": ["Lfm2ForCausalLM"], "layer_types": ["conv", "full_attention"],
        "norm_eps": 1e-5, "block_norm_eps": 1e-5, "num_heads": 4,
        "conv_bias": False, "conv_L_cache": 3, "conv_dim": 32, "conv_dim_out": 32, "block_dim": 32,
        "block_ff_dim": 48, "block_multiple_of": 16, "block_ffn_dim_multiplier": 1.0, "block_auto_adjust_ff_dim": False,
        "block_use_swiglu": True, "use_pos_enc": True,
    },
    # the first caps its logits; the second looks back over a window in every other layer
    "gemma2": {
        "architectures": ["Gemma2ForCausalLM"], "rms_norm_eps": 1e-6, "head_dim": 8, "final_logit_softcapping": 3.0,
    },
    "gemma3_text": {
        "architectures": ["Gemma3ForCausalLM"], "rms_norm_eps": 1e-6, "head_dim": 8, "query_pre_attn_scalar": 8,
        "sliding_window": 6, "sliding_window_pattern": 2, "rope_local_base_freq": 1000.0,
    },
    # every second layer knows no positions
    "smollm3": {"architectures": ["SmolLM3ForCausalLM"], "rms_norm_eps": 1e-6, "no_rope_layer_interval": 2},
    # these scale their logits
    "cohere": {
        "architectures": ["CohereForCausalLM"], "layer_norm_eps": 1e-5, "logit_scale": 0.25, "attention_bias": False,
        "layer_norm_bias": False,
    },
    "granite": {
        "architectures": ["GraniteForCausalLM"], "rms_norm_eps": 1e-6, "logits_scaling": 8.0,
        "attention_multiplier": 0.35, "embedding_multiplier": 1.0, "residual_multiplier": 1.0,
        "attention_bias": False, "mlp_bias": False,
    },
    # the prompt cannot be shared: two kinds of cache in a layer
    "falcon_h1": {
        "architectures": ["FalconH1ForCausalLM"], "rms_norm_eps": 1e-5, "head_dim": 8, "mamba_d_ssm": 32,
        "mamba_n_heads": 4, "mamba_d_head": 8, "mamba_d_state": 8, "mamba_n_groups": 1,
    },
    # its trunk is not called `model`
    "gpt_bigcode": {
        "architectures": ["GPTBigCodeForCausalLM"], "n_embd": 32, "n_layer": 2, "n_inner": 48, "n_head": 4,
        "n_positions": 256, "layer_norm_epsilon": 1e-5,
    },
}  # fmt: skip
FAMILIES["gemma3"] = {
    "architectures": ["Gemma3ForConditionalGeneration"],
    "text_config": {**SHARED, **FAMILIES["gemma3_text"], "model_type": "gemma3_text"},
}


def settings(family: str, **changes: Any) -> dict[str, Any]:
    """The `config.json` of a tiny model of this family."""
    return {**SHARED, "model_type": family, **FAMILIES[family], **changes}


def build(family: str, *, seed: int = 0, **changes: Any) -> nn.Module:
    """A float32 model with random weights, norms and biases included."""
    mx.random.seed(seed)
    model_class, arguments = _get_classes(settings(family, **changes))
    model = model_class(arguments.from_dict(settings(family, **changes)))
    model.update(tree_map(lambda p: p + 0.1 * mx.random.normal(p.shape), model.parameters()))
    mx.eval(model.parameters())
    return model


def tokenizer() -> Tokenizer:
    """One token for each letter of a small alphabet; what is not in it is dropped."""
    vocabulary = {token: i for i, token in enumerate([*SPECIAL, *LETTERS])}
    made = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    made.add_special_tokens(SPECIAL)
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    return made


def write(folder: Path, family: str, *, seed: int = 0, **changes: Any) -> Path:
    """Write `build` of the same arguments to the folder with a tokenizer, as the hub keeps models, and return it."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = dict(tree_flatten(build(family, seed=seed, **changes).parameters()))
    weights = {k: v.transpose(0, 2, 1) if k.endswith("conv.conv.weight") else v for k, v in weights.items()}
    if settings(family, **changes)["tie_word_embeddings"]:
        weights = {k: v for k, v in weights.items() if "lm_head" not in k}
    mx.save_safetensors(str(folder / "model.safetensors"), weights, metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(settings(family, **changes)))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": EOS, "pad_token_id": 0}))
    tokenizer().save(str(folder / "tokenizer.json"))
    told = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": CHAT_TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(told | {"eos_token": END, "pad_token": PAD}))
    return folder


def group(prompt_ids: list[int], completions: list[list[int]], *, stopped: list[bool] | None = None) -> RolloutGroup:
    """A group of rollouts with made-up log-probs; those not `stopped` were cut at the token limit."""
    ended = stopped or [True] * len(completions)
    rollouts = [
        Rollout(tuple(ids), tuple(-3.0 - 0.1 * t for t in range(len(ids))), "stop" if end else "length", 0, "w", n, "")
        for n, (ids, end) in enumerate(zip(completions, ended, strict=True))
    ]
    return RolloutGroup(Prompt("p", (), tuple(prompt_ids), (), {}), tuple(rollouts))


def stage(**changes: Any) -> StageConfig:
    """A stage of one step at a constant rate, without a reference; `changes` are other settings."""
    plain = StageConfig({}, 1, 1.0, 1.0, learning_rate=1e-3, schedule="constant", warmup_steps=0, beta=0.0)
    return replace(plain, **changes)


def adapted(model: nn.Module, layers: int = 1) -> nn.Module:
    """The same model, frozen, with adapters of rank 4 in its last layers."""
    model.freeze()
    mx.random.seed(0)
    linear_to_lora_layers(model, layers, {"rank": 4, "dropout": 0.0, "scale": 1.0})
    return model


def weighted(p: int = 0) -> GroupLoss:
    """The loss of group `p`: each token has its own weight, and it is not linear in the log-probs."""
    weights_GT = mx.sin(p + 1 + mx.arange(8 * 150)).reshape(8, 150)

    def loss(logp: mx.array, entropy: mx.array, mask: mx.array, rows: slice) -> tuple[mx.array, dict[str, mx.array]]:
        own = weights_GT[rows][: len(mask), : mask.shape[1]]
        return (mx.exp(0.1 * logp) * mask * own).sum(), {"tokens": mask.sum(), "entropy": entropy.sum()}

    return loss


def by_repetition(model: nn.Module, groups: Sequence[Sequence[Any]], temperature: float) -> tuple[float, Any]:
    """Value and gradient of `weighted` over prompts with their completions, each prompt repeated, all groups at once,
    by MLX."""

    def loss(model: nn.Module) -> mx.array:
        total = mx.array(0.0)
        for p, (prompt, completions, *_) in enumerate(groups):
            logp, mask = group_logprobs(model, prompt, completions, temperature=temperature, shared_prefix=False)
            total = total + weighted(p)(logp, logp, mask, slice(None))[0]
        return total

    value, tree = nn.value_and_grad(model, loss)(model)
    return value.item(), tree


def adam_by_the_paper(
    start: Any, gradients: Sequence[Any], rates: Sequence[float], config: OptimizerConfig
) -> NDArray[np.float64]:
    """Adam (arXiv:1412.6980, algorithm 1) with AdamW's decoupled decay (arXiv:1711.05101, algorithm 2), in float64."""
    w = np.array(start, np.float64)
    m, v = np.zeros_like(w), np.zeros_like(w)
    for t, (gradient, rate) in enumerate(zip(gradients, rates, strict=True), start=1):
        g = np.array(gradient, np.float64)
        m, v = config.beta1 * m + (1 - config.beta1) * g, config.beta2 * v + (1 - config.beta2) * g**2
        corrected = [1 - config.beta1**t, 1 - config.beta2**t] if config.bias_correction else [1.0, 1.0]
        decay = config.weight_decay if config.name == "adamw" else 0.0
        w = w * (1 - rate * decay) - rate * (m / corrected[0]) / (np.sqrt(v / corrected[1]) + config.eps)
    return w


def assert_same_arrays(got: Any, expected: Any) -> None:
    """Two models, or trees of arrays, have the same names, types and values, to the bit."""
    trees = (sorted(tree_flatten(one.parameters() if isinstance(one, nn.Module) else one)) for one in (got, expected))
    for (name, g), (other, e) in zip(*trees, strict=True):
        assert (name, g.dtype) == (other, e.dtype)
        assert mx.array_equal(g, e).item(), name


def assert_trees_close(got: Any, expected: Any, *, relative: float = 1e-5) -> None:
    """Every array equals its counterpart: to `relative` of its largest entry plus a tenth of that of the tree's."""
    pairs = list(zip(tree_flatten(got), tree_flatten(expected), strict=True))
    largest = max(mx.abs(e).max().item() for _, (_, e) in pairs)
    assert largest > 0
    for (name, g), (other, e) in pairs:
        assert name == other
        allowed = relative * mx.abs(e).max().item() + 0.1 * relative * largest
        assert mx.abs(g - e).max().item() <= allowed, name


LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 64}  # fmt: skip
WIDE: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 100}
LAYERS_IN_C: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen2": ("qwen2", {**WIDE, "hidden_size": 128, "num_attention_heads": 8}),
    "qwen2, own head": ("qwen2", {**WIDE, "tie_word_embeddings": False, "vocab_size": 1001}),
    "qwen3": ("qwen3", {**WIDE, "head_dim": 48}),
    "llama": ("llama", {**WIDE, "num_key_value_heads": 4}),
    "llama 3": ("llama", {**WIDE, "rope_scaling": LLAMA3, "attention_bias": True}),
    "lfm2": ("lfm2", {**WIDE, "conv_dim": 64, "conv_dim_out": 64, "block_dim": 64, "block_ff_dim": 96,
                      "layer_types": ["conv", "full_attention", "conv"], "num_hidden_layers": 3}),
}  # fmt: skip
LAYERS_IN_C["llama, adapters in one layer"] = LAYERS_IN_C["llama 3"]
LAYERS_IN_C["lfm2, adapters"] = LAYERS_IN_C["lfm2"]
"""models that the library in C has, by name: family and changed settings"""


def build_for_c(name: str) -> nn.Module:
    """Build one of `LAYERS_IN_C`; adapters do something."""
    family, changes = LAYERS_IN_C[name]
    model = build(family, **changes)
    if "adapters" in name:
        adapted(model, 1 if "one layer" in name else len(model.layers))
        model.update(tree_map(lambda p: p + 0.1 * mx.random.normal(p.shape), model.trainable_parameters()))
        mx.eval(model.parameters())
    return model
