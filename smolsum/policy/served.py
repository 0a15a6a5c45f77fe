"""The weights of a policy as they travel and are served: numpy arrays by the names of the Hugging Face layout.

bfloat16, which numpy lacks, is seen as uint16. Of a policy with adapters only these travel; their names are mlx-lm's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten, tree_unflatten

from smolsum.config import LoraConfig
from smolsum.errors import UsageError
from smolsum.policy.load import DTYPES, Policy
from smolsum.policy.lora import add_adapters


def served_arrays(policy: Policy, weights: Any = None) -> dict[str, Any]:
    """Copies of the weights (default: the policy's own; else a tree of the same names), in the type that computes.

    They share no memory with MLX, so another thread may read them while the policy is trained.
    """
    model = policy.model
    tree = weights or (model.trainable_parameters() if policy.lora else model.parameters())
    dtype = DTYPES[policy.dtype]
    arrays = {}
    for name, value in tree_flatten(tree):
        cast = value.astype(dtype) if mx.issubdtype(value.dtype, mx.floating) else value
        laid = mx.contiguous(_turned(name, cast))
        arrays[name] = np.array(laid.view(mx.uint16) if laid.dtype == mx.bfloat16 else laid)
    return arrays


def check_served(policy: Policy, arrays: Mapping[str, Any]) -> None:
    """Raise UsageError unless the arrays have the names, shapes and sizes of what this policy serves."""
    model = policy.model
    held = dict(tree_flatten(model.trainable_parameters() if policy.lora else model.parameters()))
    for name in sorted(held.keys() | arrays.keys()):
        if name not in held or name not in arrays:
            where = "the weights that were sent" if name in held else "this model"
            raise UsageError(f"{name} is not in {where}", hint="serve the model that is trained")
        expected = _turned(name, held[name]).shape, held[name].dtype.size
        if (arrays[name].shape, arrays[name].dtype.itemsize) != expected:
            got = f"{arrays[name].shape} of {arrays[name].dtype.itemsize} bytes"
            raise UsageError(
                f"{name} has {got} a value, this model {expected[0]} of {expected[1]}",
                hint="serve the model that is trained, with the same --dtype",
            )


def set_served(policy: Policy, arrays: Mapping[str, Any]) -> None:
    """Give the policy the weights that `served_arrays` returned, bit for bit. Raises as `check_served`."""
    check_served(policy, arrays)
    types = {name: value.dtype for name, value in tree_flatten(policy.model.parameters())}
    weights = [(name, _turned(name, _typed(array, types[name]))) for name, array in arrays.items()]
    policy.model.update(tree_unflatten(weights))
    mx.eval(policy.model.parameters())


def with_adapters(policy: Policy, lora: LoraConfig) -> Policy:
    """The policy with adapters of a LoraConfig on its model, whose weights are then to be set."""
    add_adapters(policy.model, lora, dtype=DTYPES[policy.dtype], seed=0)
    return replace(policy, lora=lora)


def _typed(array: Any, dtype: mx.Dtype) -> mx.array:
    made = mx.array(array)
    return made.view(dtype) if made.dtype != dtype else made


def _turned(name: str, value: mx.array) -> mx.array:
    """LFM2's convolution weights are held turned (mlx_lm/models/lfm2.py, sanitize); the same turn leads back."""
    return value.transpose(0, 2, 1) if name.endswith("conv.conv.weight") else value
