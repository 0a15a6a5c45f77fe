"""Parts of a model whose intermediate values are thrown away in forward and made again in backward."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_map


def recomputed(module: nn.Module, function: Callable[..., Any]) -> Callable[..., Any]:
    """`function(module, *arguments)` as a function of the arguments (trees of floating-point arrays) that keeps nothing
    but its arguments and its results for backward (arXiv:1604.06174).

    Differentiable in the arguments and in the module's trainable parameters. Whatever else `function` reads is taken
    for constant, and what it changes is lost: a cache must come in as arrays and leave as arrays.
    """
    twin = replica(module)  # takes the weights of whichever pass is being traced: the module itself is left alone

    def run(parameters: dict[str, Any], *arguments: Any) -> Any:
        twin.update(parameters)
        return function(twin, *arguments)

    part = mx.checkpoint(run)
    return lambda *arguments: part(module.trainable_parameters(), *arguments)


def replica(module: nn.Module) -> nn.Module:
    """Another module with the same arrays, whose update does not reach the first."""
    twin = copy.copy(module)
    for name, child in module.items():
        twin[name] = tree_map(
            lambda x: replica(x) if isinstance(x, nn.Module) else x, child, is_leaf=nn.Module.is_module
        )
    return twin
