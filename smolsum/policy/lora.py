"""Low-rank adapters (arXiv:2106.09685), in mlx-lm's layers and format, and the quantised bases under them.

y = W x + scale * B A x with A random and B zero at the start: the policy begins as its base, which stays frozen.
"""

import contextlib
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten, tree_unflatten
from mlx_lm.tuner.lora import LoRALinear
from mlx_lm.tuner.utils import linear_to_lora_layers
from mlx_lm.utils import quantize_model

from smolsum.config.sections import LoraConfig
from smolsum.errors import UsageError, nearest

CONFIG, WEIGHTS = "adapter_config.json", "adapters.safetensors"
"""mlx-lm's names of an adapter's files"""
QUANTISED = (nn.QuantizedLinear, nn.QuantizedEmbedding)
GROUP = 64
"""weights that share a scale, as in `mlx_lm.convert`"""


def add_adapters(model: nn.Module, lora: LoraConfig, *, dtype: mx.Dtype, seed: int) -> None:
    """Freeze the model and add adapters of this type to its projections; the same seed draws the same ones.

    Raises UsageError for a rank, a number of layers or a key that the model has no place for.
    """
    if lora.layers > len(model.layers):
        raise UsageError(
            f"lora.layers = {lora.layers}, but the model has {len(model.layers)} layers",
            hint=f"--set lora.layers={len(model.layers)}, or 0 for all",
        )
    chosen = _projections(model, lora)
    most = min(_width(module) for module in chosen)
    if not 1 <= lora.rank <= most:
        raise UsageError(
            f"lora.rank = {lora.rank} does not fit: the narrowest of the adapted layers takes 1 to {most}",
            hint=f"--set lora.rank={min(8, most)}",
        )
    model.freeze()
    mx.random.seed(seed)  # the layers draw from MLX's global generator
    linear_to_lora_layers(model, lora.layers, _parameters(lora))
    model.update(tree_unflatten([(k, v.astype(dtype)) for k, v in tree_flatten(model.trainable_parameters())]))
    mx.eval(model.trainable_parameters())


def save_adapters(model: nn.Module, lora: LoraConfig, base: str, folder: Path) -> None:
    """Write the adapters and the path or hub id of their base, so that mlx-lm's `--adapter-path` takes the folder."""
    layers = lora.layers or len(model.layers)
    facts = {"model": base, "fine_tune_type": "lora", "num_layers": layers, "lora_parameters": _parameters(lora)}
    (folder / CONFIG).write_text(json.dumps(facts, indent=2) + "\n")
    mx.save_safetensors(str(folder / WEIGHTS), dict(tree_flatten(model.trainable_parameters())))


def base_of(folder: Path) -> str | None:
    """Return the base of the adapters in the folder, empty where it is unknown; None without adapters."""
    if not (folder / WEIGHTS).is_file():
        return None
    try:
        facts = json.loads((folder / CONFIG).read_text())
    except (OSError, ValueError):
        return ""
    return str(facts.get("model", "")) if isinstance(facts, dict) else ""


def load_adapters(model: nn.Module, folder: Path) -> None:
    """Load what `save_adapters` wrote into a model with adapters."""
    model.update(tree_unflatten(list(mx.load(str(folder / WEIGHTS)).items())))
    mx.eval(model.trainable_parameters())


def fused_weights(model: nn.Module) -> dict[str, mx.array]:
    """Return the model's parameters by name, with its adapters merged into the weights and nothing quantised: rounding
    again would lose most of what the adapters learned."""
    merged = {name: m.fuse(dequantize=True) for name, m in model.named_modules() if isinstance(m, LoRALinear)}
    inner = tuple(f"{name}." for name in merged)
    weights = {name: array for name, array in plain_weights(model).items() if not name.startswith(inner)}
    for name, module in merged.items():
        weights |= {f"{name}.{key}": array for key, array in tree_flatten(module.parameters())}
    return weights


def _parameters(lora: LoraConfig) -> dict[str, Any]:
    """Return mlx-lm's `lora_parameters`."""
    keys = {"keys": _keys(lora)} if _keys(lora) else {}
    return {"rank": lora.rank, "scale": lora.scale, "dropout": 0.0, **keys}


def _keys(lora: LoraConfig) -> list[str]:
    return [key.strip() for key in lora.keys.split(",") if key.strip()]


def _projections(model: nn.Module, lora: LoraConfig) -> list[nn.Module]:
    """Return the modules that get adapters; UsageError for a key that matches none of them."""
    found = [
        (name, module)
        for layer in model.layers[-lora.layers :]
        for name, module in layer.named_modules()
        if isinstance(module, nn.Linear | nn.QuantizedLinear)
    ]
    names = dict.fromkeys(name for name, _ in found)
    for key in _keys(lora):
        if key not in names:
            raise UsageError(f"lora.keys: no layer has a projection {key!r}", hint=nearest(key, names))
    wanted = _keys(lora) or names
    return [module for name, module in found if name in wanted]


def _width(linear: nn.Module) -> int:
    outputs, inputs = linear.weight.shape
    return int(min(outputs, inputs * 32 // linear.bits if isinstance(linear, QUANTISED) else inputs))


def is_quantised(model: nn.Module) -> bool:
    """Return whether any weight of the model is quantised."""
    return any(isinstance(module, QUANTISED) for _, module in model.named_modules())


def count_parameters(model: nn.Module) -> int:
    """Return the number of weights of a model without its adapters; a quantised weight counts as the one it was."""
    adapters = {id(p) for _, m in model.named_modules() if isinstance(m, LoRALinear) for p in (m.lora_a, m.lora_b)}
    packed = {id(m.weight): 32 // m.bits for _, m in model.named_modules() if isinstance(m, QUANTISED)}
    scales = {id(p) for _, m in model.named_modules() if isinstance(m, QUANTISED) for p in (m.scales, m.get("biases"))}
    weights = (p for _, p in tree_flatten(model.parameters()) if id(p) not in adapters | scales)
    return sum(p.size * packed.get(id(p), 1) for p in weights)


def quantise(model: nn.Module, config: Mapping[str, Any], bits: int) -> None:
    """Quantise the model in place as `mlx_lm.convert` would; a model that has these bits already stays as it is.

    Raises UsageError for a model of other bits, and for one whose widths are not multiples of 64.
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
    """Return the model's parameters by name, with quantised weights turned back into plain ones."""
    weights = dict(tree_flatten(model.parameters()))
    for name, m in model.named_modules():
        if isinstance(m, QUANTISED):
            scales, biases = weights.pop(f"{name}.scales"), weights.pop(f"{name}.biases", None)
            weights[f"{name}.weight"] = mx.dequantize(m.weight, scales, biases, m.group_size, m.bits, m.mode)
    return weights
