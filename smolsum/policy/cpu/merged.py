"""A model with adapters as the library in C takes it: with plain weights, into which they are merged, and the gradient
by those weights as one by the adapters. Quantised weights stay as they are: to save memory is what they are for.

y = W x + s B A x = (W + s B A) x, so with G the gradient by the sum, that by A is s B^T G and that by B is s G A^T
(arXiv:2106.09685, section 4.1). mlx-lm stores both transposed: `lora_a` is A^T and `lora_b` is B^T.
"""

from collections.abc import Mapping
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten, tree_map_with_path, tree_unflatten
from mlx_lm.tuner.lora import LoRALinear

from smolsum.policy.logprobs import replica


def merged(model: nn.Module) -> nn.Module:
    """Return a model that computes the same without adapters, its new arrays not yet evaluated; the model itself where
    it has none, or where they are over quantised weights."""
    adapters = _adapters(model)
    if not adapters or any(isinstance(module.linear, nn.QuantizedLinear) for module in adapters.values()):
        return model
    twin = replica(model)
    twin.update_modules(tree_unflatten([(name, _plain(module)) for name, module in adapters.items()]))
    return twin


def weights_to_train(model: nn.Module) -> list[str] | None:
    """Return the names, in the merged model, of the weights whose gradient gives that of all that is trained: adapters
    alone, or a whole model without any; None for other models."""
    trained, held = (dict(tree_flatten(tree)) for tree in (model.trainable_parameters(), model.parameters()))
    if not (adapters := _adapters(model)):
        return list(trained) if len(trained) == len(held) else None
    own = {f"{name}.{part}" for name in adapters for part in ("lora_a", "lora_b")}
    return [f"{name}.weight" for name in adapters] if own == set(trained) else None


def gradient_of_trained(model: nn.Module, by_weight: Mapping[str, mx.array]) -> Any:
    """Return the gradient like `model.trainable_parameters()`, from that by each of `weights_to_train`, (out, in)."""
    found = dict(by_weight)
    for name, module in _adapters(model).items():
        gradient = module.scale * by_weight[f"{name}.weight"]
        found[f"{name}.lora_a"] = gradient.T @ module.lora_b.T
        found[f"{name}.lora_b"] = (gradient @ module.lora_a).T
    return tree_map_with_path(lambda name, _: found[name], model.trainable_parameters())


def _adapters(model: nn.Module) -> dict[str, LoRALinear]:
    return {name: module for name, module in model.named_modules() if isinstance(module, LoRALinear)}


def _plain(module: LoRALinear) -> nn.Module:
    """Return a layer that computes the same; the constructor of a layer would draw weights at random."""
    layer: nn.Module = nn.Linear.__new__(nn.Linear)
    nn.Module.__init__(layer)
    weight = module.linear.weight
    layer.weight = weight + ((module.scale * module.lora_b.T) @ module.lora_a.T).astype(weight.dtype)
    if "bias" in module.linear:
        layer.bias = module.linear.bias
    return layer
