"""The lower half of a model under another head, which names classes instead of tokens.

It has the model's own arrays, so that a gradient by them is a part of the model's. The head is fixed: nothing is added
to what is trained, saved or exported.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten, tree_unflatten
from mlx_lm.models.cache import make_prompt_cache

from smolsum.policy.logprobs import replica, text_model


class LowerHalf(nn.Module):  # type: ignore[misc]  # MLX has no types
    """The embeddings, the lower layers and the last norm of a model, whose outputs the head compares with the code of
    each class: float32 (classes, width)."""

    def __init__(self, model: nn.Module, codes_CD: mx.array) -> None:
        super().__init__()
        text = text_model(model)
        self.model_type = getattr(model, "model_type", "")
        self._whole_caches: Callable[[], Any] = lambda: make_prompt_cache(model)
        self.model = replica(text.model)
        self.model.layers = lower_layers(model)
        self.lm_head = nn.Linear(1, 1, bias=False)
        self.lm_head.weight = codes_CD
        if len(tree_flatten(model.trainable_parameters())) != len(tree_flatten(model.parameters())):
            self.lm_head.freeze()  # as the rest of a model with adapters

    def __call__(self, inputs: mx.array, cache: Any = None) -> mx.array:
        logits: mx.array = self.lm_head(self.model(inputs, cache=cache))
        return logits

    @property
    def layers(self) -> list[nn.Module]:
        """The layers of the half."""
        return list(self.model.layers)

    def make_cache(self) -> list[Any]:
        """Return the caches of its layers."""
        return list(self._whole_caches()[: len(self.layers)])


def lower_layers(model: nn.Module) -> list[nn.Module]:
    """Return the first half of the layers, and those up to the first with attention."""
    every = text_model(model).model.layers
    attends = next((n for n, layer in enumerate(every) if "self_attn" in layer), 0)
    return list(every[: max(len(every) // 2, attends + 1)])


def trains_below(model: nn.Module) -> bool:
    """Return whether any of the lower layers is trained; adapters may be in the last ones alone."""
    return any(tree_flatten(layer.trainable_parameters()) for layer in lower_layers(model))


def width_of(model: nn.Module) -> int:
    """Return the number of features of the model's layers."""
    # nothing is computed, and weights may be packed
    return int(text_model(model).model.embed_tokens(mx.zeros((1, 1), mx.int32)).shape[-1])


def added_to_whole(gradient: Any, model: nn.Module, lower: Any, weight: float) -> Any:
    """Return the gradient of the model's trained weights, with that of its lower half added, times `weight`."""
    place, inner = "", model
    while "language_model" in inner:
        place, inner = f"{place}language_model.", inner.language_model
    total = dict(tree_flatten(gradient))
    for name, more in tree_flatten(lower):
        if name != "lm_head.weight":
            own = total[f"{place}{name}"]
            total[f"{place}{name}"] = own + (weight * more).astype(own.dtype)
    return tree_unflatten(list(total.items()))
