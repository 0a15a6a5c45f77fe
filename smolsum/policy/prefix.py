"""What the layers remember of a prompt, as arrays: computed once, shared by the prompt's completions, differentiable.

Carried by mlx-lm's own caches (Prefix Grouper, arXiv:2506.05433). Axes: G rollouts, T completion tokens, D width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.cache import ArraysCache, ConcatenateKVCache, KVCache, RotatingKVCache, make_prompt_cache

from smolsum.policy.head import text_model

Cache: TypeAlias = ConcatenateKVCache | ArraysCache
State: TypeAlias = list[list[mx.array]]
"""For each layer its arrays, batch axis first and 1 long: keys and values, or convolution states; none before the first
token."""


def can_share_prefix(model: nn.Module) -> bool:
    """Whether every layer remembers in a way that a prompt's completions can share: keys and values, all or those in a
    sliding window, or states of fixed size."""
    made = make_prompt_cache(model)
    return len(made) == len(model.layers) and all(type(c) in (KVCache, RotatingKVCache, ArraysCache) for c in made)


def prefix_state(model: nn.Module, prompt_ids: Sequence[int]) -> State:
    """What the layers remember of the prompt up to its last token, which each completion starts from."""
    caches = _caches(model)
    if len(prompt_ids) > 1:
        text_model(model).model(mx.array([list(prompt_ids[:-1])]), cache=caches)
    return [arrays(cache) for cache in caches]


def branch_hidden(model: nn.Module, state: State, last_prompt_token: int, completion_GT: mx.array) -> mx.array:
    """The trunk's outputs (G, T, D) from which the completions' tokens are predicted, after the prompt of `state`."""
    group = len(completion_GT)
    # the gradient of a broadcast is the sum over the G branches
    shared = [[mx.broadcast_to(a, (group, *a.shape[1:])) for a in layer] for layer in state]
    caches = _caches(model)
    for cache, layer in zip(caches, shared, strict=True):
        fill(cache, layer)
    first = mx.full((group, 1), last_prompt_token, completion_GT.dtype)
    out: mx.array = text_model(model).model(mx.concatenate([first, completion_GT[:, :-1]], axis=1), cache=caches)
    return out


def repeated_hidden(model: nn.Module, prompt_ids: Sequence[int], completion_GT: mx.array) -> mx.array:
    """The same outputs, the prompt going through the model once for each completion."""
    prompt = mx.broadcast_to(mx.array([list(prompt_ids)]), (len(completion_GT), len(prompt_ids)))
    out: mx.array = text_model(model).model(mx.concatenate([prompt, completion_GT[:, :-1]], axis=1))
    return out[:, len(prompt_ids) - 1 :]


def _caches(model: nn.Module) -> list[Cache]:
    """Empty caches that keep every key, and leave the window to the mask: writes in place have no gradient."""
    return [c if type(c) is ArraysCache else ConcatenateKVCache() for c in make_prompt_cache(model)]


def empty_like(cache: Cache) -> Cache:
    """A cache of the same kind that remembers nothing."""
    return ArraysCache(len(cache.cache)) if isinstance(cache, ArraysCache) else ConcatenateKVCache()


def arrays(cache: Cache) -> list[mx.array]:
    """What the cache remembers; empty before the first token."""
    if cache.empty():
        return []
    return list(cache.cache if isinstance(cache, ArraysCache) else cache.state)


def fill(cache: Cache, remembered: list[mx.array]) -> None:
    """Put what `arrays` returned into a cache of the same kind."""
    if not remembered:
        return
    if isinstance(cache, ArraysCache):
        cache.cache = list(remembered)
    else:
        cache.state = remembered
