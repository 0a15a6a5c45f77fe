"""Texts made subtly worse by rule."""

import random
import re
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smolsum.tasks.ab_judge.corruption import FAULTS, MIN_WORDS, WORD, corrupt, names_in

TEXT = "Last year my sister Edith broke 20 cups in March and she has not paid; before that he was kind to me."
LINE = "the a an is are was not never she her I me 7 1200 two Edith March before after in of hello naïve ß Ω"


def faults_of(text: str, kind: str, names: tuple[str, ...] = ("Edith", "Noah"), draws: int = 60) -> set[str]:
    """Everything that some draws of one kind make of a text."""
    made = (corrupt(text, random.Random(n), kinds=(kind,), names=names) for n in range(draws))
    return {found.text for found in made if found}


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        ("swapped", "We ate it up", {"We it ate up", "We ate up it"}),  # a capital that moved would tell
        ("swapped", "We ate it, up", {"We it ate, up"}),  # nothing moves over a comma
        ("repeated", "We ate up it", {"We ate ate up it", "We ate up up it", "We ate up it it"}),
        ("dropped", "Cats ate up the mouse", {"Cats ate up mouse"}),  # words of grammar first
        ("dropped", "Cats ate fat mice", {"Cats fat mice", "Cats ate mice", "Cats ate fat"}),
        ("spelling", "Do go to bird", {"Do go to brid"}),
        ("agreement", "You are so kind", {"You is so kind"}),
        ("agreement", "Now she denies it", {"Now she deny it"}),
        ("agreement", "Now she misses it", {"Now she misse it"}),
        ("agreement", "Now he refuses it", {"Now he refuse it"}),
        ("article", "Here is an egg", {"Here is a egg"}),
        ("pronoun", "Here he met them", {"Here him met them", "Here he met they"}),
        ("pronoun", "Then I met you", {"Then me met you"}),
        ("opposite", "Always wash before lunch", {"Never wash before lunch", "Always wash after lunch"}),
        ("negation", "He did not go home", {"He did go home"}),
        ("negation", "He will go home", {"He will not go home"}),
        ("name", "We met Edith here", {"We met Noah here"}),
        ("name", "Edith met us here", set()),  # it opens the sentence: any word may have a capital there
    ],
)
def test_each_kind_makes_its_fault_and_no_other(kind: str, text: str, expected: set[str]) -> None:
    """All that can come of a short text, written out by hand."""
    assert faults_of(text, kind) == expected


def test_another_number_has_the_same_shape() -> None:
    """As many digits, as many zeros at the end, and never the same one; number words stay number words."""
    for made in faults_of("It cost $1200 and more", "number"):
        number = made.removeprefix("It cost $").removesuffix(" and more")
        assert re.fullmatch(r"\d[1-9]00", number)
        assert number != "1200"
    assert "We saw two cats" not in faults_of("We saw two cats", "number")
    assert all(len(made.split()) == 4 for made in faults_of("We saw two cats", "number"))
    assert len(faults_of("There were 0 cats", "number")) == 9


def test_the_kind_and_the_words_are_recorded() -> None:
    """What stood there and what stands there now: the two texts differ only there. Nothing but the seed decides."""
    for n in range(300):
        found = corrupt(TEXT, random.Random(n), names=("Edith", "Noah"))
        assert found is not None
        assert found.kind in FAULTS
        assert found == corrupt(TEXT, random.Random(n), names=("Edith", "Noah"))
        assert any(
            TEXT[:k] + found.after + TEXT[k + len(found.before) :] == found.text
            for k in range(len(TEXT))
            if TEXT.startswith(found.before, k)
        )


def test_every_kind_that_fits_is_drawn_about_as_often() -> None:
    """Uniform over the kinds that a text can have, however many places each has in it."""
    drawn = Counter(corrupt(TEXT, random.Random(n), names=("Edith", "Noah")).kind for n in range(2200))  # type: ignore[union-attr]
    assert set(drawn) == set(FAULTS) - {"article"}
    assert all(140 < count < 260 for count in drawn.values()), drawn


@pytest.mark.parametrize("text", ["", "   ", "One two three", "?! … --"])
def test_a_text_without_room_for_a_fault_makes_none(text: str) -> None:
    """Fewer words than a subtle fault needs, or no number for another number."""
    assert corrupt(text, random.Random(1)) is None
    assert MIN_WORDS == 4
    assert corrupt("We saw some cats", random.Random(1), kinds=("number",)) is None


def test_names_are_what_stands_with_a_capital_inside_sentences_only() -> None:
    """Not the first word, not one that is elsewhere in lower case."""
    texts = ["My aunt Edith met Noah. The end.", "the Will of Noah", "we will go; Then I met Maya"]
    assert names_in(texts) == ("Edith", "Noah", "Then", "Maya")
    assert names_in([*texts, "and then"]) == ("Edith", "Noah", "Maya")


@pytest.mark.slow
@settings(max_examples=10_000)
@given(
    text=st.one_of(
        st.text(max_size=80), st.lists(st.sampled_from([*LINE.split(), "\n", ",", ". ", "  "])).map(" ".join)
    ),
    seed=st.integers(0, 100),
)
def test_it_never_returns_the_text_as_it_was(text: str, seed: int) -> None:
    """For any text: no exception, and a fault that shows, or none at all."""
    found = corrupt(text, random.Random(seed), names=("Edith", "Noah"))
    if found is None:
        assert len(WORD.findall(text)) < MIN_WORDS or not faults_of(text, "repeated", draws=1)
    else:
        assert found.text.split() != text.split()
        assert 0 < len(found.text) <= 2 * len(text) + 8
