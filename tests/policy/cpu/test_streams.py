"""Work shared over streams: the same results as one after the other."""

import os
from collections.abc import Sequence

import pytest

from smolsum.policy.cpu.streams import MAX_STREAMS, map_one_by_one, map_over_streams, map_with_streams, streams

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
    results = list(map_over_streams(lambda n: mx.full((3,), n).sum(), range(count)))
    assert [r.item() for r in results] == [3 * n for n in range(count)]


def test_items_share_the_streams() -> None:
    """Each item of a wave has its own streams; a lone one has several, where there are."""
    every = streams()

    def work(n: int, own: Sequence[mx.Stream]) -> list[mx.array]:
        return [mx.array(n), mx.array(len(set(map(str, own)))), mx.array(own[0] in every)]

    results = list(map_with_streams(work, range(len(every) + 1)))
    crowd, alone = results[:-1], results[-1]
    assert [[x.item() for x in row] for row in crowd] == [[n, 1, True] for n in range(len(every))]
    assert [x.item() for x in alone] == [len(every), min(MAX_STREAMS, len(every) + (len(every) > 1)), True]


def test_one_by_one_is_computed_when_taken() -> None:
    """The next is begun only then."""
    begun = []
    results = map_one_by_one(lambda n: begun.append(n) or mx.array(n), range(3))
    assert next(results).item() == 0
    assert begun == [0]
    assert [r.item() for r in results] == [1, 2]


def test_memory_is_for_one_wave() -> None:
    """A wave is begun only when the one before was taken."""
    begun = []

    def work(n: int) -> mx.array:
        begun.append(n)
        return mx.array(n)

    results = map_over_streams(work, range(20))
    next(results)
    assert len(begun) == min(20, len(streams()))


def test_an_error_is_passed_on() -> None:
    """What goes wrong in one item is not lost."""

    def work(n: int) -> mx.array:
        if n == 1:
            raise ValueError("item 1")
        return mx.array(n)

    with pytest.raises(ValueError, match="item 1"):
        list(map_over_streams(work, range(3)))
