"""A base of 4 or 8 bits a weight: made with mlx-lm's own rules, recognised, and turned back."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Mapping
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten
from mlx_lm.utils import quantize_model

from smolsum.errors import UsageError

QUANTISED = (nn.QuantizedLinear, nn.QuantizedEmbedding)
GROUP = 64
"""weights that share a scale, as in `mlx_lm.convert`"""


def is_quantised(model: nn.Module) -> bool:
    """Whether any weight of the model is quantised."""
    return any(isinstance(module, QUANTISED) for _, module in model.named_modules())


def quantise(model: nn.Module, config: Mapping[str, Any], bits: int) -> None:
    """Quantise the model in place as `mlx_lm.convert` would; one that has these bits already stays as it is.

    Raises UsageError for one of other bits, and for one whose widths are no multiples of 64.
    """
    if is_quantised(model):
        had = config["quantization"]["bits"]
        if had != bits:
            raise UsageError(f"model.quantize = {bits}, but the model has {had} bits already", hint="leave it at 0")
        return
    with contextlib.redirect_stdout(io.StringIO()):  # it prints, and stdout is for data
        quantize_model(model, dict(config), GROUP, bits)
    if not is_quantised(model):
        raise UsageError(
            f"model.quantize = {bits}, but no layer's width is a multiple of {GROUP}", hint="--set model.quantize=0"
        )


def plain_weights(model: nn.Module) -> dict[str, mx.array]:
    """The model's parameters by name, with what is quantised turned back into plain weights."""
    weights = dict(tree_flatten(model.parameters()))
    for name, m in model.named_modules():
        if isinstance(m, QUANTISED):
            scales, biases = weights.pop(f"{name}.scales"), weights.pop(f"{name}.biases", None)
            weights[f"{name}.weight"] = mx.dequantize(m.weight, scales, biases, m.group_size, m.bits, m.mode)
    return weights
