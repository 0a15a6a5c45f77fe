"""Processes (ranks) that train one model together, as `mlx.launch` starts them. In a single process nothing is
exchanged: sums, extremes and shares are the argument itself.

Every rank must make the same calls in the same order. Arrays travel through `mx.distributed`.
"""

import functools
import json
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import mlx.core as mx
from mlx.utils import tree_map

from smolsum.errors import MachineError, SmolsumError, UnreachableError, UsageError

T = TypeVar("T")
KINDS: tuple[type[SmolsumError], ...] = (UsageError, UnreachableError, MachineError)
"""errors with an exit code of their own, which other ranks raise too"""


@functools.cache
def _group() -> Any:
    return mx.distributed.init()


def rank() -> int:
    """Return this process's number, from 0."""
    return int(_group().rank())


def leads() -> bool:
    """Return whether this is the first rank: it owns the run directory and the screen."""
    return rank() == 0


def alone() -> bool:
    """Return whether this process trains by itself."""
    return bool(_group().size() == 1)


def share(items: Sequence[T]) -> list[T]:
    """Return this rank's part of the items: every n-th."""
    return list(items[rank() :: _group().size()])


def share_or_spare(items: Sequence[T]) -> tuple[list[T], bool]:
    """Return this rank's part of the items, of which there is at least one, and whether that part counts. With more
    ranks than items a spare rank gets the first item, and computes it without counting it: every rank has to make the
    same calls, with arrays of the same shapes."""
    counts = rank() < len(items)
    return (share(items) if counts else [items[0]]), counts


def total(tree: Any) -> Any:
    """Return the sum over all ranks of a tree of arrays, evaluated."""
    if not alone():
        tree = tree_map(mx.distributed.all_sum, tree)
        mx.eval(tree)
    return tree


def lowest(tree: Any) -> Any:
    """Return the minimum over all ranks, element by element, evaluated."""
    return _extreme(tree, mx.min)


def highest(tree: Any) -> Any:
    """Return the maximum over all ranks, element by element, evaluated."""
    return _extreme(tree, mx.max)


def _extreme(tree: Any, of: Any) -> Any:
    if not alone():
        tree = tree_map(lambda a: of(mx.distributed.all_gather(a[None]), axis=0), tree)
        mx.eval(tree)
    return tree


def from_first(tree: Any) -> Any:
    """Return the first rank's values of a tree of arrays, which has the same shapes everywhere, evaluated."""
    # mx.distributed has no broadcast: the other ranks add zeros
    return tree if alone() else total(tree if leads() else tree_map(mx.zeros_like, tree))


def any_rank(condition: bool) -> bool:
    """Return whether the condition holds on at least one rank."""
    return condition if alone() else bool(total(mx.array(int(condition))).item())


def gathered(value: Any) -> list[Any]:
    """Return the values of all ranks, in order; each must be JSON."""
    if alone():
        return [value]
    # arrays that are gathered have equal shapes, so the lengths travel first
    data = mx.array(list(json.dumps(value).encode()), mx.uint8)
    sizes: list[int] = mx.distributed.all_gather(mx.array([len(data)])).tolist()
    padded = mx.concatenate([data, mx.zeros(max(sizes) - len(data), mx.uint8)])
    rows = mx.distributed.all_gather(padded[None])
    return [json.loads(bytes(row[:size].tolist())) for row, size in zip(rows, sizes, strict=True)]


def together(compute: Callable[[], T]) -> T:
    """Return what `compute` returns, which makes no call of this module. Where it raises a SmolsumError on one rank all
    ranks raise one, so that none waits for a rank that has ended."""
    if alone():
        return compute()
    found, failure = None, None
    try:
        found = compute()
    except SmolsumError as error:
        failure = error
    failures = gathered(failure and [failure.exit_code, failure.message])
    if failure:
        raise failure
    for number, other in enumerate(failures):
        if other:
            kind = next((kind for kind in KINDS if kind.exit_code == other[0]), SmolsumError)
            raise kind(f"on rank {number}, {other[1]}", hint="the output of that rank says what helps")
    return cast(T, found)
