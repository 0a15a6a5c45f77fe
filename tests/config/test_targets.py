"""The lengths that prompts ask for: how they are written, drawn, held out and widened."""

from collections import Counter
from itertools import pairwise

import pytest
from support.refusals import refuses

from smolsum.config.targets import curriculum_progress, make_targets, parse_targets, tolerance

THIRDS = make_targets("16-128", "18-126/3")
FIRST = [100, 17, 66, 101, 21, 32]
"""what evaluations ask the first test posts for"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("64", (64,)), ("64,16, 32", (16, 32, 64)), ("16-19", (16, 17, 18, 19)), ("16-32/8", (16, 24, 32)),
        ("18-23/3,20,20", (18, 20, 21)),
    ],
)  # fmt: skip
def test_targets_are_lists_and_ranges(text: str, expected: tuple[int, ...]) -> None:
    """In any mixture, ascending, each once."""
    assert parse_targets(text, "task.targets") == expected


@pytest.mark.parametrize("text", ["", "0", "20-10", "a-b", "16..128", "16-128/0", "1-9,,3", "-5", "1e2"])
def test_what_is_not_a_length_is_refused(text: str) -> None:
    with refuses("task.targets = ", "--set task.targets=16-128"):
        parse_targets(text, "task.targets")


@pytest.mark.parametrize(
    ("targets", "held_out", "named", "hint"),
    [
        ("1-9999999", "", "100,000", "16-128"), ("16-128", "12", "has 12,", "held_out_targets="),
        ("16-128", "16-128", "every target", "to evaluate"),
    ],
)  # fmt: skip
def test_impossible_targets_are_refused(targets: str, held_out: str, named: str, hint: str) -> None:
    with refuses(named, hint):
        make_targets(targets, held_out)


def test_a_third_is_held_out() -> None:
    assert (len(THIRDS.every), len(THIRDS.unseen)) == (113, 37)
    assert {*THIRDS.unseen}.isdisjoint(THIRDS.trained)
    assert {*THIRDS.unseen, *THIRDS.trained} == {*THIRDS.every}


def test_training_never_draws_a_held_out_target() -> None:
    """In 20,000 draws every other one comes, about equally often, and the same place always has the same."""
    places = [(7, 0, step, f"train-{prompt:04d}") for step in range(500) for prompt in range(40)]
    drawn = [THIRDS.drawn(*place) for place in places]
    assert drawn == [THIRDS.drawn(*place) for place in places]
    counts = Counter(drawn)
    assert {*counts} == {*THIRDS.trained}
    assert max(counts.values()) < 1.5 * len(places) / len(THIRDS.trained)
    assert len({THIRDS.drawn(7, 0, step, "train-0001") for step in range(50)}) > 20  # a prompt asks for others later


def test_an_evaluation_draws_by_split_and_prompt_alone() -> None:
    """All targets come, the held-out ones among them; the draws of these prompts stay what they are today, since stored
    evaluations are compared by prompt."""
    drawn = [THIRDS.evaluated("test", f"test-{n:04d}") for n in range(2_000)]
    assert {*drawn} == {*THIRDS.every}
    assert drawn[:5] == [THIRDS.evaluated("test", f"test-{n:04d}") for n in range(5)]
    assert drawn[:6] == FIRST
    assert [THIRDS.evaluated("validation", f"test-{n:04d}") for n in range(6)] != FIRST


def test_the_nearest_trained_target_of_a_length() -> None:
    """Of two as near the smaller; beyond the range its end."""
    assert [THIRDS.nearest(n) for n in (3, 16, 18, 19, 64, 126, 500)] == [16, 16, 17, 19, 64, 125, 128]


def test_the_curriculum_goes_from_coarse_to_fine() -> None:
    """Four targets from end to end, then twice the intervals in each equal part of the way, each set within the next,
    and all at the end; without a curriculum all are drawn from the start."""
    assert [curriculum_progress(step, 100, 0.5) for step in (0, 25, 50, 99)] == [0.0, 0.5, 1.0, 1.0]
    assert curriculum_progress(0, 100, 0.0) == 1.0
    assert THIRDS.at(0.0).trained == (16, 53, 91, 128)
    sizes = [len(THIRDS.at(progress).trained) for progress in (0.0, 0.3, 0.5, 0.7, 0.9, 1.0)]
    assert sizes == [4, 7, 13, 25, 49, 76]
    sets = [{*THIRDS.at(progress / 10).trained} for progress in range(11)]
    assert all(a <= b for a, b in pairwise(sets))
    assert sets[-1] == {*THIRDS.trained}
    assert {THIRDS.at(0.0).drawn(7, 0, 0, str(prompt)) for prompt in range(100)} == {16, 53, 91, 128}
    few = make_targets("16,64,128", "")
    assert few.at(0.0) == few
    assert make_targets("16-19", "").at(0.0).trained == (16, 17, 18, 19)


def test_the_tolerance_follows_the_target_where_it_is_a_share() -> None:
    assert [tolerance(target, 5, 5 / 64) for target in (3, 16, 64, 128)] == [1, 1, 5, 10]
    assert tolerance(128, 5, 0.0) == 5
