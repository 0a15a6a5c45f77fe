"""Work spread over MLX streams and BLAS threads.

On the CPU, MLX runs a stream's elementwise work on one thread, so each core gets a stream; a GPU has its default one.
"""

import functools
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from typing import Any, TypeVar

import mlx.core as mx
from mlx.utils import tree_flatten
from threadpoolctl import ThreadpoolController

T = TypeVar("T")
PART = 1 << 23
"""values of a tensor that a stream works on at once, in an optimizer step"""
MAX_STREAMS = 3
"""streams for one item: while one waits for results or multiplies matrices, another has elementwise work to do"""


class _Own(threading.local):
    """A thread's streams: no other thread can use them, and MLX keeps their threads for good."""

    @functools.cached_property
    def streams(self) -> tuple[mx.Stream, ...]:
        if mx.default_device().type != mx.DeviceType.cpu:
            return (mx.default_stream(mx.default_device()),)
        cores = len(os.sched_getaffinity(0)) if "sched_getaffinity" in dir(os) else os.cpu_count() or 1
        return tuple(mx.new_stream(mx.cpu) for _ in range(cores))

    @functools.cached_property
    def spare(self) -> tuple[mx.Stream, ...]:
        """One stream more than cores, for waves of a single item."""
        return (mx.new_stream(mx.cpu),) if len(self.streams) > 1 else ()


_own = _Own()


def streams() -> tuple[mx.Stream, ...]:
    """Return the streams for this thread to share work over; on the CPU as many as this process may use cores."""
    return _own.streams


def map_over_streams(function: Callable[[T], Any], items: Iterable[T]) -> Iterator[Any]:
    """Yield `function(item)` for each item in order, evaluated as many at a time as streams, each on its own."""
    yield from map_with_streams(lambda item, _: function(item), items)


def map_with_streams(function: Callable[[T, Sequence[mx.Stream]], Any], items: Iterable[T]) -> Iterator[Any]:
    """`map_over_streams` for a function that can use several streams; its second argument is the item's own streams.

    An item has several where fewer items are left than cores. The remaining cores then serve matrix products.
    """
    items, every = list(items), streams()
    for start in range(0, len(items), len(every)):
        batch = items[start : start + len(every)]
        usable = every + _own.spare if len(batch) == 1 else every
        share = min(MAX_STREAMS, len(usable) // len(batch))
        wave = []
        for n, item in enumerate(batch):
            own = usable[n * share : (n + 1) * share]
            with mx.stream(own[0]):
                wave.append(function(item, own))
        with blas_threads(max(1, len(every) // (len(batch) * share))):
            leaves = [reversed([array for _, array in tree_flatten(result)]) for result in wave]
            for level in zip_longest(*leaves):  # the last layer's first, as backward makes them; all items' abreast
                mx.async_eval(*(array for array in level if array is not None))
            mx.eval(wave)  # the only place where these graphs run
        yield from wave


def map_one_by_one(function: Callable[[T], Any], items: Iterable[T]) -> Iterator[Any]:
    """Yield `function(item)` for each item in order, evaluated one by one, with all cores for its matrix products."""
    for item in items:
        with blas_threads(len(streams())):
            result = function(item)
            mx.eval(result)
        yield result


@contextmanager
def blas_threads(count: int) -> Iterator[None]:
    """Let each matrix product use this many threads in the block, for when fewer streams than cores are at work.

    A setting of the whole process, so one block at a time, in one thread. No effect where the BLAS has no such setting
    (Apple's).
    """
    with _blas_libraries().limit(limits=count, user_api="blas"):
        yield


@functools.cache
def _blas_libraries() -> ThreadpoolController:
    """Return the BLAS libraries of this process, looked up once, when all are loaded."""
    return ThreadpoolController()


def kernels() -> str:
    """Return what decides how this machine rounds, in words: its processor or GPU, and the kernels that the BLAS chose
    for it."""
    chosen = {str(one.get("architecture") or "") for one in _blas_libraries().info() if one["user_api"] == "blas"}
    return ", ".join([str(mx.device_info().get("device_name", "")), *sorted(filter(None, chosen))])
