"""The head of a language model on its own: logits, log-probs and entropies from the trunk's outputs.

Axes: N positions, D width of the model, V vocabulary.

Parts of a model whose intermediate values are thrown away in forward and made again in backward.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_map

from smolsum.policy.cpu import kernels


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


CHUNK_LOGITS = 16_000_000
"""Logits held at once; above this they are made chunk by chunk and again in backward."""


def text_model(model: nn.Module) -> nn.Module:
    """The module that puts a head on a trunk, `.model`: the model itself or the text part of a multimodal one."""
    while "language_model" in model:
        model = model.language_model
    return model


def head(model: nn.Module) -> nn.Module:
    """The model without its layers: called with the trunk's outputs (1, N, D), it returns logits (1, N, V).

    The model's own code with a trunk that hands back what it is given, so scaled and capped logits come out right.
    """
    text = copy.copy(text_model(model))
    text["model"] = _IdleTrunk(text.model)
    return text


class _IdleTrunk(nn.Module):  # type: ignore[misc]  # MLX has no types
    """A trunk without its layers: the head finds what it needs in it (embeddings, settings), and it does nothing."""

    def __init__(self, trunk: nn.Module) -> None:
        super().__init__()
        self.__dict__.update(vars(trunk))
        for name, child in trunk.items():
            if not isinstance(child, list):
                self[name] = child

    def __call__(self, hidden: mx.array, *_: Any, **__: Any) -> mx.array:
        return hidden


def has_plain_head(model: nn.Module) -> bool:
    """Whether the model's logits are those of `head` on the outputs of its trunk, which everything here takes for
    granted."""
    text = text_model(model)
    if "model" not in text:
        return False
    tokens = mx.array([[0, 1]])
    return bool(mx.allclose(head(model)(text.model(tokens)), model(tokens), rtol=1e-4, atol=1e-6).item())


def token_logprobs(
    model: nn.Module,
    hidden_ND: mx.array,
    target_N: mx.array,
    temperature: float,
    *,
    chunk_logits: int | None = CHUNK_LOGITS,
) -> mx.array:
    """Log-probs (N,) float32 of the targets given the trunk's outputs, at most `chunk_logits` logits at a time
    (None: all at once)."""
    (logp,) = _in_chunks(model, hidden_ND, target_N, _logprob, temperature, chunk_logits)
    return logp


def token_logprobs_and_entropy(
    model: nn.Module,
    hidden_ND: mx.array,
    target_N: mx.array,
    temperature: float,
    *,
    chunk_logits: int | None = CHUNK_LOGITS,
) -> tuple[mx.array, mx.array]:
    """`token_logprobs`, and the entropy (N,) float32 in nats of the distribution at `temperature`, without gradient."""
    logp, entropy = _in_chunks(model, hidden_ND, target_N, _logprob_and_entropy, temperature, chunk_logits)
    return logp, entropy


def _in_chunks(
    model: nn.Module,
    hidden_ND: mx.array,
    target_N: mx.array,
    statistics: Callable[[mx.array, mx.array], list[mx.array]],
    temperature: float,
    chunk_logits: int | None,
) -> list[mx.array]:
    """`statistics` (each (N,)) of float32 logits (N, V) over the temperature, and the targets."""
    project = head(model)

    def part(module: nn.Module, hidden: mx.array, target: mx.array) -> list[mx.array]:
        logits = module(hidden[None])[0].astype(mx.float32)
        return statistics(logits if temperature == 1 else logits / temperature, target)

    vocabulary = project(hidden_ND[None, :1]).shape[-1]  # never evaluated
    rows = len(target_N) if chunk_logits is None else max(1, chunk_logits // vocabulary)
    if len(target_N) <= rows:
        return part(project, hidden_ND, target_N)
    again = recomputed(project, part)
    parts = [again(hidden_ND[i : i + rows], target_N[i : i + rows]) for i in range(0, len(target_N), rows)]
    return [mx.concatenate(column) for column in zip(*parts, strict=True)]


def _logprob(logits_NV: mx.array, target_N: mx.array) -> list[mx.array]:
    return [kernels.logprob_and_entropy(logits_NV, target_N, entropy=False)[0]]


def _logprob_and_entropy(logits_NV: mx.array, target_N: mx.array) -> list[mx.array]:
    logp, entropy = kernels.logprob_and_entropy(logits_NV, target_N)
    return [logp, mx.stop_gradient(entropy)]
