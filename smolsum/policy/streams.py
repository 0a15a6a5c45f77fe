"""One stream a core on the CPU, where MLX runs a stream's elementwise work on one thread; on a GPU the default."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import mlx.core as mx

T = TypeVar("T")


@functools.cache
def streams() -> tuple[mx.Stream, ...]:
    """The streams to share work over; on the CPU as many as this process may use cores."""
    if mx.default_device().type != mx.DeviceType.cpu:
        return (mx.default_stream(mx.default_device()),)
    cores = len(os.sched_getaffinity(0)) if "sched_getaffinity" in dir(os) else os.cpu_count() or 1
    return tuple(mx.new_stream(mx.cpu) for _ in range(cores))


def spread(function: Callable[[T], Any], items: Iterable[T]) -> Iterator[Any]:
    """`function(item)` for each item in order, evaluated as many at a time as there are streams, each on its own."""
    items = list(items)
    for start in range(0, len(items), len(streams())):
        wave = []
        for stream, item in zip(streams(), items[start:], strict=False):
            with mx.stream(stream):
                wave.append(function(item))
        mx.eval(wave)  # the only place where these graphs run
        yield from wave
