"""The gradient of a group's loss: a few rollouts at a time, with one pass forward and back over the prompt.

To hold less, layers may keep only their inputs and compute the rest again in backward (activation checkpointing).
"""

import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten, tree_map

from smolsum.policy import logprobs
from smolsum.policy.cpu.gradient import GradientSum, TokenGroup, can_differentiate, score_groups
from smolsum.policy.cpu.native_model import can_run
from smolsum.policy.cpu.streams import map_one_by_one, map_over_streams, map_with_streams

S = TypeVar("S")
Metrics: TypeAlias = dict[str, Any]
"""a tree of arrays by name, nested as the loss likes, that `join` merges"""
GroupLoss: TypeAlias = Callable[[mx.array, mx.array, mx.array, slice], tuple[mx.array, Metrics]]
"""(logp_gT, entropy_gT, mask_gT, rows) -> (share of the loss, shares of the metrics), for these rows of the group: g of
its G rollouts, T tokens of its longest completion"""


@dataclass(frozen=True)
class Chunking:
    """How much of a group's forward and backward is held at once: less memory for more time."""

    rows: int | None = None
    """Rollouts that go through the model together; None: the whole group."""
    logits: int | None = None
    """Logits held at once; None: all of these rollouts."""
    checkpointing: bool = False
    """Whether layers keep only their inputs, and compute the rest again in backward."""
    shared_prefix: bool = True
    """Whether the prompt goes through the model once for the group, and not once for each rollout."""
    bfloat16: bool = False
    """Whether products in C round their factors to bfloat16."""


WHOLE = Chunking()


def added(a: Metrics, b: Metrics) -> Metrics:
    """Return the metrics of two parts whose metrics are all sums."""
    return tree_map(mx.add, a, b)  # type: ignore[no-any-return]  # MLX has no types


def sum_over_groups(
    model: nn.Module,
    groups: Sequence[TokenGroup],
    losses: Sequence[GroupLoss],
    *,
    temperature: float = 1.0,
    join: Callable[[Metrics, Metrics], Metrics] = added,
    chunking: Chunking = WHOLE,
    report: Callable[[int], None] = lambda done: None,
) -> tuple[tuple[mx.array, Metrics], Any]:
    """Return the sum of the groups' losses with their metrics, merged by `join`, and the gradient tree of the sum, like
    `model.trainable_parameters()`; evaluated. In C where the library has the model, else as many groups at a time as
    the CPU has cores, or one after the other in chunks. `report` gets the number of groups that are done."""

    def one(p: int, streams: Sequence[mx.Stream] = ()) -> tuple[tuple[mx.array, Metrics], Any]:
        return group_value_and_grad(
            model, groups[p].prompt_ids, groups[p].completions_ids, losses[p], targets_ids=groups[p].targets_ids,
            temperature=temperature, join=join, chunking=chunking, streams=streams,
        )  # fmt: skip

    if updates_in_c(model, chunking):
        return _sum_in_c(model, groups, losses, temperature, join, chunking.bfloat16, report)
    total: Any = None
    spread = map_with_streams if chunking.rows is None else map_one_by_one
    for done, ((value, metrics), gradient) in enumerate(spread(one, range(len(groups))), start=1):
        if total is not None:
            value, metrics = total[0][0] + value, join(total[0][1], metrics)
            gradient = tree_map(mx.add, total[1], gradient)
        total = (value, metrics), gradient
        del gradient
        mx.eval(total)  # frees this group's gradient
        report(done)
    return total  # type: ignore[no-any-return]  # MLX has no types


def _sum_in_c(
    model: nn.Module,
    groups: Sequence[TokenGroup],
    losses: Sequence[GroupLoss],
    temperature: float,
    join: Callable[[Metrics, Metrics], Metrics],
    bfloat16: bool,
    report: Callable[[int], None],
) -> tuple[tuple[mx.array, Metrics], Any]:
    work, found = GradientSum(model), list[tuple[mx.array, Metrics]]()
    for batch in work.batches(groups, temperature, bfloat16=bfloat16):
        by_logp = []
        for group, scored in zip(batch.groups, batch.scored(), strict=True):
            given = scored.entropy_GT, logprobs.padded(group.completions_ids)[1], slice(None)
            one, gradient = mx.value_and_grad(losses[len(found)])(scored.logp_GT, *given)
            found.append(one)
            by_logp.append(gradient)
        mx.eval(found, by_logp)
        work.add(batch, by_logp)
        report(len(found))
    value, metrics = functools.reduce(lambda a, b: (a[0] + b[0], join(a[1], b[1])), found)
    mx.eval(value, metrics)
    return (value, metrics), work.gradient


def fits_c(chunking: Chunking) -> bool:
    """Return whether the library in C computes updates in this way: all of a group together, with a shared prompt."""
    return chunking.rows is None and chunking.shared_prefix


def updates_in_c(model: nn.Module, chunking: Chunking) -> bool:
    """Return whether the library in C computes the gradients of this model in this way."""
    return fits_c(chunking) and can_differentiate(model)


def logprobs_of_groups(
    model: nn.Module, groups: Sequence[TokenGroup], *, temperature: float = 1.0, chunking: Chunking = WHOLE
) -> list[mx.array]:
    """Return the log-probs (G, T) float32 of each group's tokens, without gradient; as `group_logprobs`, but in C where
    the library has the model, and on several streams elsewhere."""
    if fits_c(chunking) and can_run(model):
        return [scored.logp_GT for scored in score_groups(model, groups, temperature, bfloat16=chunking.bfloat16)]

    def one(group: TokenGroup) -> mx.array:
        return logprobs.group_logprobs(
            model, group.prompt_ids, group.completions_ids, temperature=temperature,
            shared_prefix=chunking.shared_prefix, chunk_logits=chunking.logits,
        )[0]  # fmt: skip

    return list((map_over_streams if chunking.rows is None else map_one_by_one)(one, groups))


def group_value_and_grad(
    model: nn.Module,
    prompt_ids: Sequence[int],
    completions_ids: Sequence[Sequence[int]],
    loss: GroupLoss,
    *,
    targets_ids: Sequence[Sequence[int]] = (),
    temperature: float = 1.0,
    join: Callable[[Metrics, Metrics], Metrics] = added,
    chunking: Chunking = WHOLE,
    streams: Sequence[mx.Stream] = (),
) -> tuple[tuple[mx.array, Metrics], Any]:
    """Return the sum of the loss over the group with its metrics, merged by `join`, and the gradient tree of that sum,
    like `model.trainable_parameters()`. `targets_ids` as in `TokenGroup`.

    Takes `chunking.rows` rollouts at a time, each chunk padded to the group's longest completion, so that `loss` sees
    rows of one (G, T). Each chunk's gradient is taken with respect to the weights and to what the layers remember of
    the prompt; the latter's sum is pulled back through the prompt once. Chunks are evaluated one after the other, layer
    by layer, and only the sums stay. `rows=None` takes all rollouts at once, spread over `streams`, and leaves the
    evaluation to the caller.
    """
    completion_GT, mask_GT = logprobs.padded(completions_ids)
    target_GT = logprobs.padded(targets_ids)[0] if targets_ids else completion_GT
    shared = chunking.shared_prefix and logprobs.can_share_prefix(model)
    kept = model.trainable_parameters()

    def own() -> Any:
        """Return the weights in a new tree: where a function raises, MLX leaves its tracers in the tree it got."""
        return tree_map(lambda p: p, kept)

    def prompt(weights: Any, embeddings: mx.array | None = None) -> logprobs.State:
        model.update(weights)
        return logprobs.prefix_state(model, prompt_ids, embeddings) if shared else []

    def branches(
        weights: Any, state: logprobs.State, chunk: slice, embeddings_GTD: mx.array | None = None
    ) -> tuple[mx.array, Metrics]:
        model.update(weights)
        completion, mask = completion_GT[chunk], mask_GT[chunk]
        if shared:
            own_embeddings = None if embeddings_GTD is None else embeddings_GTD[chunk]
            hidden = logprobs.branch_hidden(model, state, prompt_ids[-1], completion, own_embeddings)
        else:
            hidden = logprobs.repeated_hidden(model, prompt_ids, completion)
        return loss(*logprobs.scored(model, hidden, target_GT[chunk], mask, temperature, chunking.logits), mask, chunk)

    def whole(weights: Any) -> tuple[mx.array, Metrics]:
        model.update(weights)
        before, after = (logprobs.embedded(model, prompt_ids, completion_GT) if shared else None) or (None, None)
        state, parts = prompt(weights, before), []
        ahead = logprobs.prompt_work(model, len(prompt_ids), mask_GT.shape[1]) if shared else 0.0
        for stream, chunk in _shares(len(mask_GT), ahead, streams or [None]):
            with mx.stream(stream) if stream else nullcontext():
                parts.append(branches(weights, state, chunk, after))
        return functools.reduce(both, parts)

    def both(a: tuple[mx.array, Metrics], b: tuple[mx.array, Metrics]) -> tuple[mx.array, Metrics]:
        return a[0] + b[0], join(a[1], b[1])

    try:
        with checkpointed(model) if chunking.checkpointing else nullcontext():
            if chunking.rows is None:
                return mx.value_and_grad(whole)(own())  # type: ignore[no-any-return]  # MLX has no types
            chunks = [slice(i, i + chunking.rows) for i in range(0, len(mask_GT), chunking.rows)]
            return _in_chunks(prompt, branches, own, both, chunks)
    finally:
        model.update(kept)


def _shares(group: int, ahead: float, streams: Sequence[S]) -> Iterator[tuple[S, slice]]:
    """Spread the group's rollouts over the streams; the first stream also has the work of `ahead` rollouts."""
    each, start = (group + ahead) / len(streams), 0
    for n, stream in enumerate(streams, start=1):
        end = min(group, max(start, round(each * n - ahead)))
        if end > start:
            yield stream, slice(start, end)
        start = end


def _in_chunks(
    prompt: Callable[[Any], logprobs.State],
    branches: Callable[[Any, logprobs.State, slice], tuple[mx.array, Metrics]],
    own: Callable[[], Any],
    both: Callable[[tuple[mx.array, Metrics], tuple[mx.array, Metrics]], tuple[mx.array, Metrics]],
    rows: Sequence[slice],
) -> tuple[tuple[mx.array, Metrics], Any]:
    """Return loss, metrics and gradient over the chunks, evaluated; one pass over the prompt, forward and back."""

    def through_prompt(weights: Any) -> tuple[mx.array, list[Any]]:
        """Return a scalar whose gradient is the prompt's part, and the chunks' values and gradients."""
        state = prompt(weights)
        leaves = tree_map(mx.stop_gradient, state)
        chunks = [mx.value_and_grad(branches, argnums=(0, 1))(own(), leaves, chunk) for chunk in rows]
        pulls = [(a, g) for _, (_, by_state) in chunks for a, g in zip(_leaves(state), _leaves(by_state), strict=True)]
        return sum((mx.sum(a * mx.stop_gradient(g)) for a, g in pulls), mx.array(0.0)), chunks

    (_, chunks), through = mx.value_and_grad(through_prompt)(own())
    total, (gradient, by_state) = chunks.pop(0)
    _evaluate(by_state, total, gradient)
    while chunks:
        part, (more, by_state) = chunks.pop(0)
        total, gradient = both(total, part), tree_map(mx.add, gradient, more)
        del part, more  # so that the sums can take their memory
        _evaluate(by_state, total, gradient)
    gradient = tree_map(mx.add, gradient, through)
    del through
    _evaluate(gradient)
    return total, gradient


def _evaluate(*trees: Any) -> None:
    """Evaluate array by array, the last layer's first, as backward makes them. Given all at once, MLX would compute the
    weights' gradients last, and keep every layer's activations until then."""
    for array in reversed(_leaves(trees)):
        mx.eval(array)


def _leaves(tree: Any) -> list[mx.array]:
    return [array for _, array in tree_flatten(tree)]


def can_checkpoint(model: nn.Module) -> bool:
    """Return whether every layer is called as (x, mask, cache), as `checkpointed` assumes."""
    called = [list(inspect.signature(type(layer).__call__).parameters) for layer in model.layers]
    return all(len(names) == 4 and names[2:] == ["mask", "cache"] for names in called)


@contextmanager
def checkpointed(model: nn.Module) -> Iterator[None]:
    """The model's layers recompute their activations in the backward of every graph that is built inside the block.

    Correct with caches too: what a layer remembers passes through as arguments and results, so that it has a gradient.
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
    """Return the layer's class, with a call that recomputes."""

    def call(self: nn.Module, x: mx.array, mask: Any = None, cache: logprobs.Cache | None = None) -> Any:
        def layer(twin: nn.Module, x: mx.array, before: list[mx.array]) -> tuple[Any, list[mx.array]]:
            if cache is None:
                return kind.__call__(twin, x, mask, None), []
            memory = logprobs.empty_like(cache)
            logprobs.fill(memory, before)
            return kind.__call__(twin, x, mask, memory), logprobs.arrays(memory)

        out, after = logprobs.recomputed(self, layer)(x, [] if cache is None else logprobs.arrays(cache))
        if cache is not None:
            logprobs.fill(cache, after)
        return out

    return type(kind.__name__, (kind,), {"__call__": call})
