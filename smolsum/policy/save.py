"""A policy to disk in the Hugging Face layout, and what training changed back from there."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten

from smolsum.policy.load import COMPANIONS, DTYPES, FUSED, Policy
from smolsum.policy.lora import fused_weights, load_adapters, save_adapters


def save_policy(policy: Policy, weights: Mapping[str, Any], folder: Path) -> None:
    """Write the policy with these parameters (a tree like `model.parameters()`) so that mlx-lm and transformers load
    it."""
    dtype = DTYPES[policy.dtype]
    flat = {k: v.astype(dtype) if mx.issubdtype(v.dtype, mx.floating) else v for k, v in tree_flatten(weights)}
    for source in sorted({p for pattern in COMPANIONS for p in policy.path.glob(pattern)}):
        if source.name not in ("config.json", "model.safetensors.index.json", "meta.json"):
            shutil.copyfile(source, folder / source.name)
    config = {k: v for k, v in policy.config.items() if k not in ("dtype", "torch_dtype")} | {
        "dtype": policy.dtype,
        "torch_dtype": policy.dtype,
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    mx.save_safetensors(str(folder / "model.safetensors"), _hub_layout(flat), metadata={"format": "pt"})


def _hub_layout(flat: dict[str, mx.array]) -> dict[str, mx.array]:
    """LFM2's convolution weights turned back: mlx-lm turns them on loading (models/lfm2.py, sanitize)."""
    return {k: mx.contiguous(v.transpose(0, 2, 1)) if k.endswith("conv.conv.weight") else v for k, v in flat.items()}


def load_weights(policy: Policy, folder: Path) -> None:
    """Give the policy the weights that `save_policy` wrote to the folder."""
    weights = mx.load(str(folder / "model.safetensors"))
    if "sanitize" in dir(policy.model):
        weights = policy.model.sanitize(weights)
    policy.model.load_weights(list(weights.items()))
    mx.eval(policy.model.parameters())


def save_trained(policy: Policy, folder: Path) -> None:
    """Write what training changes: the adapters, and below `fused` the whole model where that is asked for; or, without
    adapters, the whole model."""
    if policy.lora is None:
        save_policy(policy, policy.model.parameters(), folder)
        return
    save_adapters(policy.model, policy.lora, policy.source, folder)
    if policy.lora.fuse:
        plain = {k: v for k, v in policy.config.items() if k not in ("quantization", "quantization_config")}
        (folder / FUSED).mkdir()
        save_policy(replace(policy, config=plain), fused_weights(policy.model), folder / FUSED)


def load_trained(policy: Policy, folder: Path) -> None:
    """Give the policy what `save_trained` wrote to the folder."""
    if policy.lora is None:
        load_weights(policy, folder)
    else:
        load_adapters(policy.model, folder)
