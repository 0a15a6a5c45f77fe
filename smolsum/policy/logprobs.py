"""Token log-probs of a prompt's G completions, with one pass over the prompt.

Three parts: the prompt's state, computed once and shared by its completions (Prefix Grouper, arXiv:2506.05433; carried
by mlx-lm's own caches); the trunk's outputs for each completion; the head, a few logits at a time.

Axes: G rollouts of a prompt, T completion tokens, D width of the model, N positions, V vocabulary.
"""

import copy
import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten, tree_map
from mlx_lm.models.cache import ArraysCache, ConcatenateKVCache, KVCache, RotatingKVCache, make_prompt_cache

from smolsum.policy import fast_math

CHUNK_LOGITS = 16_000_000
"""Logits held at once; more are computed chunk by chunk, and again in backward."""
Cache: TypeAlias = ConcatenateKVCache | ArraysCache
State: TypeAlias = list[list[mx.array]]
"""For each layer its arrays, batch axis first and 1 long: keys and values, or convolution states; empty before the
first token."""


def group_logprobs(
    model: nn.Module,
    prompt_ids: Sequence[int],
    completions_ids: Sequence[Sequence[int]],
    *,
    temperature: float = 1.0,
    shared_prefix: bool = True,
    chunk_logits: int | None = CHUNK_LOGITS,
) -> tuple[mx.array, mx.array]:
    """Return log-probs (G, T) float32 of the completions' tokens at `temperature`, and their mask (G, T) float32.

    Right-padded with 0, differentiable. The prompt goes through the model once; what its layers remember is shared by
    the G completions. `shared_prefix=False`, or a model that cannot share (`can_share_prefix`), repeats it G times.
    Same values either way. At most `chunk_logits` logits are held at once.
    """
    hidden, completion_GT, mask_GT = group_hidden(model, prompt_ids, completions_ids, shared_prefix=shared_prefix)
    logp = token_logprobs(model, _rows(hidden), completion_GT.reshape(-1), temperature, chunk_logits=chunk_logits)
    return logp.reshape(mask_GT.shape) * mask_GT, mask_GT


def group_hidden(
    model: nn.Module, prompt_ids: Sequence[int], completions_ids: Sequence[Sequence[int]], *, shared_prefix: bool = True
) -> tuple[mx.array, mx.array, mx.array]:
    """Return the trunk's outputs (G, T, D) that predict the completions' tokens, the tokens (G, T), and their mask."""
    completion_GT, mask_GT = padded(completions_ids)
    if shared_prefix and can_share_prefix(model):
        hidden = branch_hidden(model, prefix_state(model, prompt_ids), prompt_ids[-1], completion_GT)
    else:
        hidden = repeated_hidden(model, prompt_ids, completion_GT)
    return hidden, completion_GT, mask_GT


def padded(completions_ids: Sequence[Sequence[int]]) -> tuple[mx.array, mx.array]:
    """Return the completions' tokens (G, T) int32, right-padded with 0, and their mask (G, T) float32."""
    longest = max(len(ids) for ids in completions_ids)
    completion_GT = mx.array([[*ids, *[0] * (longest - len(ids))] for ids in completions_ids])
    mask_GT = mx.array([[1.0] * len(ids) + [0.0] * (longest - len(ids)) for ids in completions_ids])
    return completion_GT, mask_GT


def scored(
    model: nn.Module,
    hidden_GTD: mx.array,
    completion_GT: mx.array,
    mask_GT: mx.array,
    temperature: float,
    chunk_logits: int | None,
) -> tuple[mx.array, mx.array]:
    """Return log-probs and entropies (G, T) float32 of the tokens, given the trunk's outputs; 0 outside of the mask."""
    tokens = completion_GT.reshape(-1)
    both = _score_tokens(model, _rows(hidden_GTD), tokens, temperature, chunk_logits, entropy=True)
    logp, entropy = (x.reshape(mask_GT.shape) * mask_GT for x in both)
    return logp, entropy


def _rows(hidden_GTD: mx.array) -> mx.array:
    return hidden_GTD.reshape(-1, hidden_GTD.shape[-1])


# The prompt, and the trunk's outputs after it


def can_share_prefix(model: nn.Module) -> bool:
    """Return whether a prompt's completions can share what every layer remembers: all keys and values, those in a
    sliding window, or states of fixed size."""
    made = make_prompt_cache(model)
    return len(made) == len(model.layers) and all(type(c) in (KVCache, RotatingKVCache, ArraysCache) for c in made)


def prefix_state(model: nn.Module, prompt_ids: Sequence[int], embeddings: mx.array | None = None) -> State:
    """What the layers remember of the prompt up to its last token, from which each completion starts."""
    caches = _caches(model)
    if len(prompt_ids) > 1:
        _trunk(model, mx.array([list(prompt_ids[:-1])]), caches, embeddings if embeddings is None else embeddings[None])
    return [arrays(cache) for cache in caches]


def branch_hidden(
    model: nn.Module, state: State, last_prompt_token: int, completion_GT: mx.array, embeddings: mx.array | None = None
) -> mx.array:
    """Return the trunk's outputs (G, T, D) that predict the completions' tokens, after the prompt of `state`."""
    group = len(completion_GT)
    # the gradient of a broadcast is the sum over the G branches
    shared = [[mx.broadcast_to(a, (group, *a.shape[1:])) for a in layer] for layer in state]
    caches = _caches(model)
    for cache, layer in zip(caches, shared, strict=True):
        fill(cache, layer)
    return _trunk(model, _branch_tokens(last_prompt_token, completion_GT), caches, embeddings)


def repeated_hidden(model: nn.Module, prompt_ids: Sequence[int], completion_GT: mx.array) -> mx.array:
    """Return the same outputs, with the prompt going through the model once for each completion."""
    prompt = mx.broadcast_to(mx.array([list(prompt_ids)]), (len(completion_GT), len(prompt_ids)))
    out: mx.array = text_model(model).model(mx.concatenate([prompt, completion_GT[:, :-1]], axis=1))
    return out[:, len(prompt_ids) - 1 :]


def embedded(model: nn.Module, prompt_ids: Sequence[int], completion_GT: mx.array) -> tuple[mx.array, mx.array] | None:
    """Return the embeddings (N - 1, D) of the prompt's N tokens but the last, and (G, T, D) of the tokens from which
    the completions' are predicted. Looked up together, as each look-up has a gradient as large as the whole table. None
    where the trunk does not take embeddings."""
    trunk = text_model(model).model
    if "input_embeddings" not in inspect.signature(type(trunk).__call__).parameters:
        return None
    branches = _branch_tokens(prompt_ids[-1], completion_GT)
    before = mx.array(list(prompt_ids[:-1]), branches.dtype)
    both = trunk.embed_tokens(mx.concatenate([before, branches.reshape(-1)]))
    return both[: len(before)], both[len(before) :].reshape(*branches.shape, -1)


def prompt_work(model: nn.Module, prompt: int, tokens: int) -> float:
    """Return the work of a prompt of `prompt` tokens, without logits, in units of a completion of `tokens` tokens."""
    every = sum(p.size for _, p in tree_flatten(model.parameters()))
    layers = sum(p.size for _, p in tree_flatten([layer.parameters() for layer in model.layers]))
    return float(prompt * layers / (tokens * every))


def _branch_tokens(last_prompt_token: int, completion_GT: mx.array) -> mx.array:
    """Return the tokens (G, T) from which the completions' are predicted."""
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
    """Return an empty cache of the same kind."""
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


# The head


def text_model(model: nn.Module) -> nn.Module:
    """Return the module that puts a head on a trunk, `.model`: the model or the text part of a multimodal one."""
    while "language_model" in model:
        model = model.language_model
    return model


def head(model: nn.Module) -> nn.Module:
    """Return the model without its layers: called with the trunk's outputs (1, N, D), it returns logits (1, N, V).

    This runs the model's own code, with a trunk that returns its input, so scaled and capped logits come out right.
    """
    text = copy.copy(text_model(model))
    text["model"] = _IdleTrunk(text.model)
    return text


class _IdleTrunk(nn.Module):  # type: ignore[misc]  # MLX has no types
    """A trunk without its layers, which returns its input. It keeps what the head reads: embeddings, settings."""

    def __init__(self, trunk: nn.Module) -> None:
        super().__init__()
        self.__dict__.update(vars(trunk))
        for name, child in trunk.items():
            if not isinstance(child, list):
                self[name] = child

    def __call__(self, hidden: mx.array, *_: Any, **__: Any) -> mx.array:
        return hidden


def token_logprobs(
    model: nn.Module,
    hidden_ND: mx.array,
    target_N: mx.array,
    temperature: float,
    *,
    chunk_logits: int | None = CHUNK_LOGITS,
) -> mx.array:
    """Return log-probs (N,) float32 of the targets given the trunk's outputs, at most `chunk_logits` logits at a time
    (None: all at once)."""
    return _score_tokens(model, hidden_ND, target_N, temperature, chunk_logits, entropy=False)[0]


def _score_tokens(
    model: nn.Module,
    hidden_ND: mx.array,
    target_N: mx.array,
    temperature: float,
    chunk_logits: int | None,
    *,
    entropy: bool,
) -> list[mx.array]:
    """`token_logprobs` and, with `entropy`, the entropies (N,) float32 in nats of the distributions at `temperature`,
    without gradient."""
    project = head(model)

    def part(module: nn.Module, hidden: mx.array, target: mx.array) -> list[mx.array]:
        logits = module(hidden[None])[0].astype(mx.float32)
        logits = logits if temperature == 1 else logits / temperature
        logp, spread = fast_math.logprob_and_entropy(logits, target, entropy=entropy)
        return [logp, mx.stop_gradient(spread)] if entropy else [logp]

    vocabulary = project(hidden_ND[None, :1]).shape[-1]  # never evaluated
    rows = len(target_N) if chunk_logits is None else max(1, chunk_logits // vocabulary)
    if len(target_N) <= rows:
        return part(project, hidden_ND, target_N)
    slices = [slice(i, i + rows) for i in range(0, len(target_N), rows)]
    return _one_after_another(project, part, slices, hidden_ND, target_N)


def _one_after_another(
    module: nn.Module,
    part: Callable[[nn.Module, mx.array, mx.array], list[mx.array]],
    slices: Sequence[slice],
    hidden_ND: mx.array,
    target_N: mx.array,
) -> list[mx.array]:
    """Return the columns of `part(module, hidden, target)` over all slices, which backward computes again.

    Each slice begins when the one before is done, forward and back: MLX would work on all side by side, and hold the
    logits of all.
    """
    twin = replica(module)

    def run(parameters: Any, hidden: mx.array, own: slice) -> list[mx.array]:
        twin.update(parameters)
        return part(twin, hidden, target_N[own])

    @mx.custom_function  # type: ignore[untyped-decorator]  # MLX has no types
    def columns(parameters: Any, hidden_ND: mx.array) -> list[mx.array]:
        parts: list[list[mx.array]] = []
        for own in slices:
            parts.append(run(parameters, _after(hidden_ND[own], parts[-1:]), own))
        return [mx.concatenate(column) for column in zip(*parts, strict=True)]

    @columns.vjp  # type: ignore[untyped-decorator]  # MLX has no types
    def backward(primals: Any, cotangents: Any, outputs: Any) -> Any:
        parameters, hidden_ND = primals
        total, parts = None, list[mx.array]()
        for own in reversed(slices):

            def weighted(parameters: Any, hidden: mx.array, own: slice = own) -> mx.array:
                pairs = zip(run(parameters, hidden, own), cotangents, strict=True)
                return sum((mx.sum(column * g[own]) for column, g in pairs), mx.array(0.0))

            more, by_hidden = mx.grad(weighted, argnums=(0, 1))(parameters, _after(hidden_ND[own], [parts[-1:], total]))
            total = more if total is None else tree_map(mx.add, total, more)
            parts.append(by_hidden)
        return total, mx.concatenate(parts[::-1])

    found: list[mx.array] = columns(module.trainable_parameters(), hidden_ND)
    return found


def _after(array: mx.array, earlier: Any) -> mx.array:
    """Return the array, to be used when the arrays of the tree `earlier` are there."""
    leaves = [one for _, one in tree_flatten(earlier) if isinstance(one, mx.array)]
    return mx.depends([array], leaves)[0] if leaves else array


# Recomputation


def recomputed(module: nn.Module, function: Callable[..., Any]) -> Callable[..., Any]:
    """`function(module, *arguments)` as a function of the arguments (trees of floating-point arrays) that keeps only
    its arguments and results for backward, and computes the rest again (arXiv:1604.06174).

    Differentiable in the arguments and in the module's trainable parameters. Everything else that `function` reads is
    a constant, and what it changes is lost: a cache must come in as arrays and leave as arrays.
    """
    twin = replica(module)  # takes the weights of whichever pass is being traced, so that the module keeps its own

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
