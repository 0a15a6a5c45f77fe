"""Token log-probs of a prompt's G completions, with one pass over the prompt.

Axes: G rollouts of a prompt, T completion tokens, D width of the model, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.cache import ArraysCache, ConcatenateKVCache, KVCache

from smolsum.policy import kernels

CHUNK_LOGITS = 16_000_000
"""Logits held at once; above this they are made chunk by chunk and again in backward."""


def group_logprobs(
    model: nn.Module,
    prompt_ids: Sequence[int],
    completions_ids: Sequence[Sequence[int]],
    *,
    temperature: float = 1.0,
    shared_prefix: bool = True,
) -> tuple[mx.array, mx.array]:
    """Log-probs (G, T) float32 of the completions' tokens at `temperature`, and their mask (G, T) float32.

    Right-padded, differentiable. The prompt goes through the model once; its keys, values and convolution states are
    broadcast to the G completions (Prefix Grouper, arXiv:2506.05433). `shared_prefix=False`, or a cache that cannot be
    shared, repeats it G times. Same values either way.
    """
    hidden, completion_GT, mask_GT = group_hidden(model, prompt_ids, completions_ids, shared_prefix=shared_prefix)
    logp = token_logprobs(model, hidden.reshape(-1, hidden.shape[-1]), completion_GT.reshape(-1), temperature)
    return logp.reshape(completion_GT.shape) * mask_GT, mask_GT


def group_hidden(
    model: nn.Module, prompt_ids: Sequence[int], completions_ids: Sequence[Sequence[int]], *, shared_prefix: bool = True
) -> tuple[mx.array, mx.array, mx.array]:
    """The trunk's outputs (G, T, D) from which the completions' tokens are predicted, the tokens (G, T), their mask."""
    longest = max(len(ids) for ids in completions_ids)
    completion_GT = mx.array([[*ids, *[0] * (longest - len(ids))] for ids in completions_ids])
    mask_GT = mx.array([[1.0] * len(ids) + [0.0] * (longest - len(ids)) for ids in completions_ids])
    through = _shared if shared_prefix else _repeated
    return through(model, mx.array(list(prompt_ids)), completion_GT), completion_GT, mask_GT


def token_logprobs(model: nn.Module, hidden_ND: mx.array, target_N: mx.array, temperature: float) -> mx.array:
    """Log-probs (N,) float32 of the targets given the trunk's outputs; logits are bounded by `CHUNK_LOGITS`."""
    head, project = _head(model)
    weights = head.trainable_parameters()  # frozen ones are constants, and quantised ones have no gradient

    def chunk(hidden: mx.array, target: mx.array, parameters: dict[str, Any]) -> mx.array:
        head.update(parameters)  # a checkpointed function sees weights only as arguments
        logits = project(hidden).astype(mx.float32) / temperature
        target = mx.stop_gradient(target)  # gather has no gradient for its indices
        return (mx.take_along_axis(logits, target[:, None], -1) - kernels.logsumexp(logits))[:, 0]

    rows = max(1, CHUNK_LOGITS // head.weight.shape[0])
    if len(target_N) <= rows:
        return chunk(hidden_ND, target_N, weights)
    part = mx.checkpoint(chunk)
    logp = [part(hidden_ND[i : i + rows], target_N[i : i + rows], weights) for i in range(0, len(target_N), rows)]
    head.update(weights)
    return mx.concatenate(logp)


def logits_are_projected(model: nn.Module) -> bool:
    """Whether the model's logits are its head applied to its trunk, as `token_logprobs` takes for granted: some
    families scale or cap them (granite, cohere, gemma2)."""
    if "model" not in model or ("lm_head" not in model and "embed_tokens" not in model.model):
        return False
    token = mx.zeros((1, 1), mx.int32)
    _, project = _head(model)
    return bool(mx.allclose(project(model.model(token)), model(token), rtol=1e-4, atol=1e-6).item())


def _head(model: nn.Module) -> tuple[nn.Module, Any]:
    """The module that holds the output projection, and the projection: an untied head or the embedding."""
    if "lm_head" in model:
        return model.lm_head, model.lm_head
    return model.model.embed_tokens, model.model.embed_tokens.as_linear


def _shared(model: nn.Module, prompt_P: mx.array, completion_GT: mx.array) -> mx.array:
    """Trunk outputs (G, T, D) at the positions that predict the completions' tokens."""
    cache = _differentiable_cache(model)
    if cache is None:
        return _repeated(model, prompt_P, completion_GT)
    group = len(completion_GT)
    if len(prompt_P) > 1:
        model.model(prompt_P[None, :-1], cache)
        for layer in cache:  # the gradient of a broadcast is the sum over the G branches
            if isinstance(layer, ConcatenateKVCache):
                layer.keys, layer.values = (_broadcast(a, group) for a in (layer.keys, layer.values))
            else:
                layer.cache = [_broadcast(a, group) for a in layer.cache]
    last = mx.broadcast_to(prompt_P[-1:], (group, 1))
    out: mx.array = model.model(mx.concatenate([last, completion_GT[:, :-1]], axis=1), cache)
    return out


def _repeated(model: nn.Module, prompt_P: mx.array, completion_GT: mx.array) -> mx.array:
    group = len(completion_GT)
    inputs = mx.concatenate([mx.broadcast_to(prompt_P, (group, len(prompt_P))), completion_GT[:, :-1]], axis=1)
    out: mx.array = model.model(inputs)
    return out[:, len(prompt_P) - 1 :]


def _differentiable_cache(model: nn.Module) -> list[Any] | None:
    """mlx-lm's cache with append-only keys and values, as in-place writes have no gradient; None for other layers."""
    made = model.make_cache() if "make_cache" in dir(model) else [KVCache() for _ in model.layers]
    if not all(type(layer) in (KVCache, ArraysCache) for layer in made):
        return None
    return [ConcatenateKVCache() if type(layer) is KVCache else layer for layer in made]


def _broadcast(array: mx.array, group: int) -> mx.array:
    return mx.broadcast_to(array, (group, *array.shape[1:]))
