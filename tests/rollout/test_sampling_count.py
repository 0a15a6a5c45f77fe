"""The count of completions under way, with its pace."""

from types import SimpleNamespace

from smolsum.rollout.sampling_count import SamplingCount, SamplingCounter
from smolsum.types import Prompt, Rollout, RolloutGroup, SamplingProgress


def groups(count: int, tokens: int) -> list[RolloutGroup]:
    rollout = Rollout(tuple(range(tokens)), (), "length", 0, "local", 0, "")
    return [RolloutGroup(Prompt(str(n), (), (), (), {}), (rollout,)) for n in range(count)]


def test_the_time_left_is_that_of_the_work_so_far() -> None:
    """Completions that were there say nothing of the pace; work on those that are not whole counts before one is."""
    clock, shown = SimpleNamespace(now=100.0), list[SamplingCount]()
    counter = SamplingCounter(20, shown.append, clock=lambda: clock.now)
    clock.now += 50  # loading the weights
    counter.begin(4)
    clock.now += 2
    counter.within(SamplingProgress(8, 0, 0, 0.25, 600))  # a quarter of 8 in 2 s: 14 more take 14 s
    clock.now += 2
    counter.within(SamplingProgress(8, 3, 40, 0.5))
    clock.now += 4
    counter.add(groups(8, 10))
    clock.now += 8
    counter.within(SamplingProgress(8, 7, 70, 1.0))
    counter.add(groups(8, 10))
    assert shown == [
        SamplingCount(4, 20),
        SamplingCount(4, 20, None, 14.0, 300.0),
        SamplingCount(7, 20, 10.0, 12.0),
        SamplingCount(12, 20, 10.0, 8.0),
        SamplingCount(19, 20, 150 / 16, 0.0),
        SamplingCount(20, 20, 10.0, 0.0),
    ]
    assert [str(count) for count in shown[:3]] == [
        "4/20 completions", "4/20 completions 300 prompt tok/s eta 14s", "7/20 completions 10 tok/s eta 12s"
    ]  # fmt: skip
