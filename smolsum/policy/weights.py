"""The weights of a policy on disk and on their way to workers, and the facts by which two processes compare policies.

On disk: the Hugging Face layout, or mlx-lm's adapter format. On their way: numpy arrays with the names of that
layout, only the adapters of a policy that has them; bfloat16, which numpy lacks, is seen as uint16.
"""

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten, tree_unflatten
from mlx_lm.tokenizer_utils import TokenizerWrapper

from smolsum.config.sections import LoraConfig
from smolsum.errors import UsageError
from smolsum.files import digest
from smolsum.policy.chat_template import plain_template, write_template
from smolsum.policy.load import DTYPES, FUSED, Policy, weights_hash
from smolsum.policy.logprobs import group_logprobs
from smolsum.policy.lora import add_adapters, fused_weights, load_adapters, save_adapters

MAX_PROBE_TOKENS = 32
"""tokens of each probe that are scored"""


TOKENIZER_FILES = (
    "tokenizer*.json", "vocab*.json", "vocab*.txt", "merges.txt", "special_tokens_map.json", "added_tokens.json",
    "tekken.json", "*.model", "*chat_template*.j*", "generation_config.json", "*processor_config.json",
)  # fmt: skip
"""files of a model's folder that go along with its weights; others, such as notes or texts, may be private"""


def save_policy(policy: Policy, weights: Mapping[str, Any], folder: Path) -> None:
    """Write the policy with these parameters (a tree like `model.parameters()`) in the Hugging Face layout, as mlx-lm
    and transformers load it."""
    dtype = DTYPES[policy.dtype]
    flat = {k: v.astype(dtype) if mx.issubdtype(v.dtype, mx.floating) else v for k, v in tree_flatten(weights)}
    for source in sorted({p for pattern in TOKENIZER_FILES for p in policy.path.glob(pattern) if p.is_file()}):
        shutil.copyfile(source, folder / source.name)
    config = {k: v for k, v in policy.config.items() if k not in ("dtype", "torch_dtype")} | {
        "dtype": policy.dtype,
        "torch_dtype": policy.dtype,
    }
    write_template(policy.tokenizer, policy.system, folder)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    mx.save_safetensors(
        str(folder / "model.safetensors"),
        {k: mx.contiguous(hf_layout(k, v)) for k, v in flat.items()},
        metadata={"format": "pt"},
    )


def load_weights(policy: Policy, folder: Path) -> None:
    """Load what `save_policy` wrote to the folder into the policy."""
    # without mlx-lm's `sanitize`, which changes the model too: that of Gemma 3 fails the second time
    weights = mx.load(str(folder / "model.safetensors"))
    policy.model.load_weights([(name, hf_layout(name, value)) for name, value in weights.items()])
    mx.eval(policy.model.parameters())


def begin_again(policy: Policy, fresh: Policy) -> None:
    """Give the policy the weights that training changed as `fresh` has them, the same policy as it was loaded, with
    `shapes_only`. They are read one by one, so that the model is in memory once."""
    policy.model.update(fresh.model.trainable_parameters())
    for _, array in tree_flatten(policy.model.parameters()):
        mx.eval(array)


def save_trained(policy: Policy, folder: Path) -> None:
    """Write what training changes: the adapters, and with `lora.fuse` the whole model in `fused`; without adapters the
    whole model."""
    if policy.lora is None:
        save_policy(policy, policy.model.parameters(), folder)
        return
    save_adapters(policy.model, policy.lora, policy.source, folder)
    write_template(policy.tokenizer, policy.system, folder)
    if policy.lora.fuse:
        plain = {k: v for k, v in policy.config.items() if k not in ("quantization", "quantization_config")}
        (folder / FUSED).mkdir()
        save_policy(replace(policy, config=plain), fused_weights(policy.model), folder / FUSED)


def load_trained(policy: Policy, folder: Path, *, base: str = "") -> None:
    """Load what `save_trained` wrote to the folder into the policy. Raises UsageError for adapters that were trained on
    other weights than the policy has: `base` is their `weights_hash`, empty if it is not known."""
    if policy.lora is None:
        load_weights(policy, folder)
        return
    if base not in ("", weights_hash(policy.path)):
        raise UsageError(
            f"{policy.path} has other weights than those that the adapters in {folder} were trained on",
            hint="put the model back that the run began with",
        )
    load_adapters(policy.model, folder)


def served_arrays(policy: Policy, weights: Any = None) -> dict[str, Any]:
    """Return copies of the weights (the policy's, or a tree of the same names), in the type that computes.

    They share no memory with MLX, so another thread may read them while the policy is trained.
    """
    model = policy.model
    tree = weights or (model.trainable_parameters() if policy.lora else model.parameters())
    dtype = DTYPES[policy.dtype]
    arrays = {}
    for name, value in tree_flatten(tree):
        cast = value.astype(dtype) if mx.issubdtype(value.dtype, mx.floating) else value
        laid = mx.contiguous(hf_layout(name, cast))
        arrays[name] = np.array(laid.view(mx.uint16) if laid.dtype == mx.bfloat16 else laid)
    return arrays


def check_served(policy: Policy, arrays: Mapping[str, Any]) -> None:
    """Raise UsageError unless the arrays have the names, shapes and item sizes of what this policy serves."""
    model = policy.model
    held = dict(tree_flatten(model.trainable_parameters() if policy.lora else model.parameters()))
    for name in sorted(held.keys() | arrays.keys()):
        if name not in held or name not in arrays:
            where = "the weights that were sent" if name in held else "this model"
            raise UsageError(f"{name} is not in {where}", hint="serve the model that is trained")
        expected = hf_layout(name, held[name]).shape, held[name].dtype.size
        if (arrays[name].shape, arrays[name].dtype.itemsize) != expected:
            got = f"{arrays[name].shape} of {arrays[name].dtype.itemsize} bytes"
            raise UsageError(
                f"{name} has {got} a value, this model {expected[0]} of {expected[1]}",
                hint="serve the model that is trained, with the same --dtype",
            )


def set_served(policy: Policy, arrays: Mapping[str, Any]) -> None:
    """Load what `served_arrays` returned into the policy, bit for bit. Raises as `check_served`."""
    check_served(policy, arrays)
    types = {name: value.dtype for name, value in tree_flatten(policy.model.parameters())}
    weights = [(name, hf_layout(name, _typed(array, types[name]))) for name, array in arrays.items()]
    policy.model.update(tree_unflatten(weights))
    mx.eval(policy.model.parameters())


def with_adapters(policy: Policy, lora: LoraConfig) -> Policy:
    """Return the policy with new adapters on its model; `set_served` then gives them their weights."""
    add_adapters(policy.model, lora, dtype=DTYPES[policy.dtype], seed=0)
    return replace(policy, lora=lora)


def _typed(array: Any, dtype: mx.Dtype) -> mx.array:
    made = mx.array(array)
    return made.view(dtype) if made.dtype != dtype else made


def hf_layout(name: str, value: mx.array) -> mx.array:
    """Return LFM2's convolution weights, which mlx-lm transposes on loading (mlx_lm/models/lfm2.py, sanitize), in the
    Hugging Face layout or, applied again, in mlx-lm's; all other weights as they are."""
    return value.transpose(0, 2, 1) if name.endswith("conv.conv.weight") else value


def identity(policy: Policy) -> dict[str, Any]:
    """`architecture` (the config's model_type), `vocab_size` (rows of the logits), `tokenizer` (its digest) and
    `dtype` of the weights."""
    text = policy.config.get("text_config", policy.config)
    return {
        "architecture": policy.config["model_type"],
        "vocab_size": text.get("vocab_size", policy.config.get("vocab_size")),
        "tokenizer": tokenizer_digest(policy.tokenizer),
        "dtype": policy.dtype,
    }


def tokenizer_digest(tokenizer: TokenizerWrapper) -> str:
    """Digest of the vocabulary, followed by that of the chat template without what we added."""
    return digest(tokenizer.get_vocab()) + digest(plain_template(tokenizer.chat_template))


def probe_sequences(
    policy: Policy, prompts: Sequence[Sequence[int]], texts: Sequence[str]
) -> list[tuple[list[int], list[int]]]:
    """Probes: each prompt with the first tokens of its text."""
    rows = []
    for prompt, text in zip(prompts, texts, strict=True):
        ids = policy.tokenizer.encode(text, add_special_tokens=False)[:MAX_PROBE_TOKENS]
        rows.append((list(prompt), ids or list(prompt[-MAX_PROBE_TOKENS:])))
    return rows


def probe_scores(policy: Policy, rows: Sequence[tuple[Sequence[int], Sequence[int]]]) -> list[list[float]]:
    """Return log-probs of each probe's text after its prompt, at temperature 1: they show whether two processes hold
    the same weights."""
    return [group_logprobs(policy.model, prompt, [ids])[0][0].tolist() for prompt, ids in rows]
