"""What the layers remember of a prompt, as arrays: computed once, shared by the prompt's completions, differentiable.

Carried by mlx-lm's own caches (Prefix Grouper, arXiv:2506.05433). Axes: G rollouts, T completion tokens, D width.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import TypeAlias

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten
from mlx_lm.models.cache import ArraysCache, ConcatenateKVCache, KVCache, RotatingKVCache, make_prompt_cache

from smolsum.policy.head import text_model

Cache: TypeAlias = ConcatenateKVCache | ArraysCache
Embedded: TypeAlias = tuple[mx.array, mx.array]
State: TypeAlias = list[list[mx.array]]
"""For each layer its arrays, batch axis first and 1 long: keys and values, or convolution states; none before the first
token."""


def can_share_prefix(model: nn.Module) -> bool:
    """Whether every layer remembers in a way that a prompt's completions can share: keys and values, all or those in a
    sliding window, or states of fixed size."""
    made = make_prompt_cache(model)
    return len(made) == len(model.layers) and all(type(c) in (KVCache, RotatingKVCache, ArraysCache) for c in made)


def embedded(model: nn.Module, prompt_ids: Sequence[int], completion_GT: mx.array) -> Embedded | None:
    """The embeddings (P - 1, D) of the prompt up to its last token and (G, T, D) of what the completions' tokens are
    predicted from, looked up at once: each look-up has a gradient as large as the whole table. None where the trunk
    does not take embeddings."""
    trunk = text_model(model).model
    if "input_embeddings" not in inspect.signature(type(trunk).__call__).parameters:
        return None
    branches = _branch_tokens(prompt_ids[-1], completion_GT)
    before = mx.array(list(prompt_ids[:-1]), branches.dtype)
    both = trunk.embed_tokens(mx.concatenate([before, branches.reshape(-1)]))
    return both[: len(before)], both[len(before) :].reshape(*branches.shape, -1)


def prefix_state(model: nn.Module, prompt_ids: Sequence[int], embeddings: mx.array | None = None) -> State:
    """What the layers remember of the prompt up to its last token, which each completion starts from."""
    caches = _caches(model)
    if len(prompt_ids) > 1:
        _trunk(model, mx.array([list(prompt_ids[:-1])]), caches, embeddings if embeddings is None else embeddings[None])
    return [arrays(cache) for cache in caches]


def branch_hidden(
    model: nn.Module,
    state: State,
    last_prompt_token: int,
    completion_GT: mx.array,
    embeddings: mx.array | None = None,
) -> mx.array:
    """The trunk's outputs (G, T, D) from which the completions' tokens are predicted, after the prompt of `state`."""
    group = len(completion_GT)
    # the gradient of a broadcast is the sum over the G branches
    shared = [[mx.broadcast_to(a, (group, *a.shape[1:])) for a in layer] for layer in state]
    caches = _caches(model)
    for cache, layer in zip(caches, shared, strict=True):
        fill(cache, layer)
    return _trunk(model, _branch_tokens(last_prompt_token, completion_GT), caches, embeddings)


def repeated_hidden(model: nn.Module, prompt_ids: Sequence[int], completion_GT: mx.array) -> mx.array:
    """The same outputs, the prompt going through the model once for each completion."""
    prompt = mx.broadcast_to(mx.array([list(prompt_ids)]), (len(completion_GT), len(prompt_ids)))
    out: mx.array = text_model(model).model(mx.concatenate([prompt, completion_GT[:, :-1]], axis=1))
    return out[:, len(prompt_ids) - 1 :]


def prompt_work(model: nn.Module, prompt: int, tokens: int) -> float:
    """The work of a prompt, which needs no logits, in completions of `tokens` tokens."""
    every = sum(p.size for _, p in tree_flatten(model.parameters()))
    layers = sum(p.size for _, p in tree_flatten([layer.parameters() for layer in model.layers]))
    return float(prompt * layers / (tokens * every))


def _branch_tokens(last_prompt_token: int, completion_GT: mx.array) -> mx.array:
    """The tokens (G, T) from which the completions' are predicted."""
    first = mx.full((len(completion_GT), 1), last_prompt_token, completion_GT.dtype)
    return mx.concatenate([first, completion_GT[:, :-1]], axis=1)


def _trunk(model: nn.Module, tokens: mx.array, caches: list[Cache], embeddings: mx.array | None) -> mx.array:
    given = {} if embeddings is None else {"input_embeddings": embeddings}
    out: mx.array = text_model(model).model(tokens, cache=caches, **given)
    return out


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
