"""Known words in no order: pairs of neighbours that neither the source nor the data have."""

import random
from statistics import fmean

import pytest

from smolsum.config.constraints import parse_constraints
from smolsum.config.resolve import resolve
from smolsum.tasks import TASKS
from smolsum.tasks.data import Example, Split, load_split
from smolsum.tasks.word_pairs import SeenPairs, pairs, seen_pairs
from smolsum.types import Prompt, Rollout

SEEN = seen_pairs(["I have not slept. She is 35 now, and I'm angry!", "We have been close for years"])


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("She is 1,500.50 km away, or 12km", "she is, is 0, 0 km, km away, away or, or 0, 0 km"),
        (
            'I\u2019m here. He said "yes." Then left.',
            "i'm here, here ., . he, he said, said yes, yes ., . then, then left",
        ),
        ("so. of. all?", "so ., . of, of ., . all"),
        ("\u6211\u5f88\u9ad8\u3002\u4eca", "\u6211 \u5f88, \u5f88 \u9ad8, \u9ad8 ., . \u4eca"),
        ("one", ""),
        ("", ""),
    ],
)
def test_pairs(text: str, found: str) -> None:
    """Any number is one word, both apostrophes are the same, and the end of a sentence is a word, so that a text of
    short sentences has no fewer pairs."""
    assert ", ".join(map(" ".join, pairs(text))) == found


@pytest.mark.parametrize(
    ("text", "source", "share"),
    [
        ("I have not slept.", "", 0.0),
        ("SHE is 36 now", "", 0.0),  # any number
        ("Slept not have I", "", 1.0),
        ("I have not cried", "", 1 / 3),
        ("I have not cried", "She had not cried at all.", 0.0),
        ("slept she", "", 1.0),
        ("Slept. She", "", 0.0),
        ("slept", "", None),
        ("", "", None),
    ],
)
def test_what_neither_has_is_unseen(text: str, source: str, share: float | None) -> None:
    assert SEEN.unseen_share(text, source) == (share if share is None else pytest.approx(share))


def test_no_more_words_are_read_than_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A text that goes beyond it is read to its end."""
    monkeypatch.setattr("smolsum.tasks.word_pairs.READ", 2)
    assert seen_pairs(["a b", "c d e", "f g"]) == SeenPairs({"a": {"b"}, "c": {"d"}, "d": {"e"}})


def test_nothing_is_read_for_an_empty_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """A dry run measures one to learn the columns."""
    monkeypatch.setattr("smolsum.tasks.tldr.task.seen_pairs", lambda texts: pytest.fail("read"))
    measure = TASKS["tldr"].evaluation.measurer([], resolve(TASKS, model="tiny").config)
    prompt = Prompt("x", ({"role": "user", "content": "A bike."},), (1,), (), {})
    assert measure(prompt, Rollout((1,), (0.0,), "stop", 0, "", 0, ""))["unseen_pairs"] is None


def test_order_is_what_it_measures() -> None:
    """The references of the built-in test posts, and their words shuffled."""
    config = resolve(TASKS, model="tiny").config
    train, test = (load_split(config.data, name) for name in ("train", "test"))
    measure = TASKS["tldr"].evaluation.measurer([train, test], config)

    def unseen(example: Example, text: str) -> float:
        prompt = Prompt(example.id, ({"role": "user", "content": example.source},), (1,), example.references, {})
        share = measure(prompt, Rollout((1,), (0.0,), "stop", 0, "", 0, text))["unseen_pairs"]
        assert isinstance(share, float)
        return share

    examples = test.examples[:40]
    words = {one.id: one.references[0].split() for one in examples}
    for some in words.values():
        random.Random(0).shuffle(some)
    assert fmean(unseen(one, one.references[0]) for one in examples) < 0.02
    assert fmean(unseen(one, " ".join(words[one.id])) for one in examples) > 0.6


def test_a_run_bounds_it_by_its_start() -> None:
    """Of the training posts alone: a constraint is on the column, and the words of other splits are unseen."""
    config = resolve(TASKS, model="tiny", flags={"grpo.constraints": "unseen_pairs <= start"}).config
    (bound,) = parse_constraints(config.stages["constrained"].constraints)
    splits = [Split(name, (Example(name, f"I sold {name} bikes."),), "") for name in ("test", "train")]
    prompt = Prompt("x", ({"role": "user", "content": "A bike."},), (1,), (), {})
    rollout = Rollout((1,), (0.0,), "stop", 0, "", 0, "I sold train bikes. I sold test bikes.")
    row = TASKS["tldr"].evaluation.measurer(splits, config)(prompt, rollout)
    assert row[bound.measured] == 4 / 8
