"""Known words in no order: pairs of neighbours that neither the source nor the data have."""

import random
from statistics import fmean

import pytest

from smolsum.config.resolve import resolve
from smolsum.tasks import TASKS
from smolsum.tasks.data import Example, Split, load_split
from smolsum.tasks.word_pairs import READ, SeenPairs, pairs, seen_pairs
from smolsum.types import Prompt, Rollout

SEEN = seen_pairs(["I have not slept. She is 35 now, and I'm angry!", "We have been close\nfor years"])


def test_pairs_end_with_their_sentence() -> None:
    """Numbers are one word, whatever they are, and an apostrophe parts no word."""
    assert list(pairs("I'm 35. She is 1.5 km away, or 12km\nNow")) == [
        ("i'm", "0"), ("she", "is"), ("is", "0"), ("0", "0"), ("0", "km"), ("km", "away"), ("away", "or"), ("or", "0")
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "source", "share"),
    [
        ("I have not slept.", "", 0.0),
        ("SHE is 36 now", "", 0.0),  # any number
        ("Slept not have I", "", 1.0),
        ("I have not cried", "", 1 / 3),
        ("I have not cried", "She had not cried at all.", 0.0),
        ("slept she", "", 1.0),  # in another order
        ("slept. She", "", None),  # two sentences of a word
        ("", "", None),
    ],
)
def test_what_neither_has_is_unseen(text: str, source: str, share: float | None) -> None:
    assert SEEN.unseen_share(text, source) == (share if share is None else pytest.approx(share))


def test_no_more_texts_are_read_than_the_limit() -> None:
    assert seen_pairs("a b" if i < READ else "c d" for i in range(READ + 1)) == SeenPairs({"a": {"b"}})


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


def test_an_evaluation_and_a_run_have_seen_the_same() -> None:
    """Whatever the order in which they give the splits: the pairs are those of the training split."""
    config = resolve(TASKS, model="tiny").config
    splits = [Split(name, (Example(name, f"I sold {name} bikes."),), "") for name in ("train", "test")]
    prompt = Prompt("x", ({"role": "user", "content": "A bike."},), (1,), (), {})
    rollout = Rollout((1,), (0.0,), "stop", 0, "", 0, "I sold train bikes. I sold test bikes.")
    measurers = [TASKS["tldr"].evaluation.measurer(some, config) for some in (splits, splits[::-1])]
    assert [one(prompt, rollout)["unseen_pairs"] for one in measurers] == [2 / 6, 2 / 6]
