"""Work shared over streams: the same results as one after the other."""

from __future__ import annotations

import os

import pytest

from smolsum.policy.streams import spread, streams

# isort: split
import mlx.core as mx


def test_there_is_a_stream_for_each_core() -> None:
    """On the CPU as many as this process may use, and always the same ones."""
    assert streams() is streams()
    if mx.default_device() == mx.cpu and "sched_getaffinity" in dir(os):
        assert len(streams()) == len(os.sched_getaffinity(0))


@pytest.mark.parametrize("count", [0, 1, 2, 7])
def test_results_come_in_order_and_computed(count: int) -> None:
    """More items than streams, fewer, or none."""
    results = list(spread(lambda n: mx.full((3,), n).sum(), range(count)))
    assert [r.item() for r in results] == [3 * n for n in range(count)]


def test_memory_is_for_one_wave() -> None:
    """A wave is begun only when the one before was taken."""
    begun = []

    def work(n: int) -> mx.array:
        begun.append(n)
        return mx.array(n)

    results = spread(work, range(20))
    next(results)
    assert len(begun) == min(20, len(streams()))


def test_an_error_is_passed_on() -> None:
    """What goes wrong in one item is not lost."""

    def work(n: int) -> mx.array:
        if n == 1:
            raise ValueError("item 1")
        return mx.array(n)

    with pytest.raises(ValueError, match="item 1"):
        list(spread(work, range(3)))
