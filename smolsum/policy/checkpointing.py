"""Activation checkpointing: layers that keep only their inputs and make the rest again in backward."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from smolsum.policy.prefix import Cache, arrays, empty_like, fill
from smolsum.policy.recompute import recomputed


def can_checkpoint(model: nn.Module) -> bool:
    """Whether every layer is called as (x, mask, cache), which `checkpointed` takes for granted."""
    called = [list(inspect.signature(type(layer).__call__).parameters) for layer in model.layers]
    return all(len(names) == 4 and names[2:] == ["mask", "cache"] for names in called)


@contextmanager
def checkpointed(model: nn.Module) -> Iterator[None]:
    """The model's layers recompute their activations in the backward of whatever is built inside the block.

    Right with caches too: what a layer remembers goes through as arguments and results, not behind the gradient's back.
    """
    layers = list(model.layers)
    kinds = [type(layer) for layer in layers]
    recomputing = {kind: _recomputing(kind) for kind in kinds}
    for layer, kind in zip(layers, kinds, strict=True):
        layer.__class__ = recomputing[kind]
    try:
        yield
    finally:
        for layer, kind in zip(layers, kinds, strict=True):
            layer.__class__ = kind


def _recomputing(kind: type[nn.Module]) -> type[nn.Module]:
    """The layer's class with a call that recomputes."""

    def call(self: nn.Module, x: mx.array, mask: Any = None, cache: Cache | None = None) -> Any:
        def layer(twin: nn.Module, x: mx.array, before: list[mx.array]) -> tuple[Any, list[mx.array]]:
            if cache is None:
                return kind.__call__(twin, x, mask, None), []
            memory = empty_like(cache)
            fill(memory, before)
            return kind.__call__(twin, x, mask, memory), arrays(memory)

        out, after = recomputed(self, layer)(x, [] if cache is None else arrays(cache))
        if cache is not None:
            fill(cache, after)
        return out

    return type(kind.__name__, (kind,), {"__call__": call})
