"""A judgement in tags: how it is read, and what it is worth."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smolsum.tasks.ab_judge.signals import TAG, notes_bonus, read, scaled_by_accuracy

GOOD = "<notes>\nB repeats a word.\n</notes>\n<judgement>A</judgement>"


@pytest.mark.parametrize(
    ("text", "letter", "notes", "well_formed"),
    [
        (GOOD, "A", "\nB repeats a word.\n", True),
        ("<notes>x</notes><judgement>B</judgement>", "B", "x", True),
        (f"  {GOOD}\n", "A", "\nB repeats a word.\n", True),
        ("<judgement>A</judgement>", "A", None, False),  # right or wrong, but not as it was asked for
        ("<notes> </notes><judgement>A</judgement>", "A", " ", False),
        ("<judgement>A</judgement><notes>x</notes>", "A", "x", False),
        ("<notes>x<notes></notes><judgement>A</judgement>", "A", None, False),
        ("<notes>x</notes><notes>y</notes><judgement>A</judgement>", "A", None, False),
        ("<Notes>x</Notes><Judgement>A</Judgement>", None, None, False),
        ("", None, None, False),
        *((text.replace("N", "<notes>x</notes>").replace("J", "<judgement>A</judgement>"), "A", "x", False)
          for text in ("I say NJ", "N so J", "NJ.", "N<judgement> A\n</judgement>")),
        *((f"<notes>x</notes>{judgement}", None, "x", False)
          for judgement in ("<judgement>a</judgement>", "<judgement>C</judgement>", "<judgement>AB</judgement>",
                            "<judgement>A", "A", "<judgement>A</judgement><judgement>B</judgement>")),
    ],
)  # fmt: skip
def test_tags_are_read_strictly(text: str, letter: str | None, notes: str | None, well_formed: bool) -> None:
    """One judgement of one letter; the form is all or nothing."""
    reading = read(text)
    assert reading.letter == letter
    assert (reading.notes and text[slice(*reading.notes)]) == notes
    assert reading.well_formed is well_formed


def test_a_right_judgement_is_worth_the_accuracy_of_the_batch_to_the_fourth() -> None:
    """The study's example: 0.4 of the batch right makes each 0.4**4 = 0.0256; all right makes each 1."""
    two_of_five = [[True, False], [False, True, False]]
    assert scaled_by_accuracy(two_of_five, 4) == [[pytest.approx(0.0256), 0.0], [0.0, pytest.approx(0.0256), 0.0]]
    assert scaled_by_accuracy([[True, True], [True]], 4) == [[1.0, 1.0], [1.0]]
    assert scaled_by_accuracy([[True, False]], 4) == [[0.0625, 0.0]]  # half right: 1/16
    assert scaled_by_accuracy([[True, False]], 0) == [[1.0, 0.0]]  # without scaling
    assert scaled_by_accuracy([[False], []], 4) == [[0.0], []]
    assert scaled_by_accuracy([], 4) == []


@pytest.mark.parametrize(
    ("tokens", "expected"),
    # 32 off: e^(-1/2); 64 off: e^(-2); 128 off: e^(-8)
    [(128, 1.0), (96, math.exp(-0.5)), (160, math.exp(-0.5)), (64, math.exp(-2)), (0, math.exp(-8)), (None, 0.0)],
)
def test_notes_are_worth_most_at_their_length(tokens: int | None, expected: float) -> None:
    """A Gaussian around 128 tokens."""
    assert notes_bonus(tokens, target=128, width=32.0) == pytest.approx(expected)


parts = st.sampled_from(
    ["<notes>", "</notes>", "<judgement>", "</judgement>", "A", "B", " ", "\n", "notes", "<", "é\0"]
)


@pytest.mark.slow
@settings(max_examples=10_000)
@given(text=st.one_of(st.text(), st.lists(st.one_of(parts, st.text(max_size=4)), max_size=12).map("".join)))
def test_any_text_is_read(text: str) -> None:
    """No exception; a letter is A or B, the place of the notes is in the text, and what is well formed has both."""
    reading = read(text)
    assert reading.letter in (None, "A", "B")
    if reading.notes:
        start, end = reading.notes
        assert 0 <= start <= end <= len(text)
        assert not TAG.search(text[start:end]) or not reading.well_formed
    assert not reading.well_formed or (reading.letter and reading.notes)


@pytest.mark.slow
@settings(max_examples=10_000)
@given(
    right=st.lists(st.lists(st.booleans(), max_size=8), max_size=8),
    power=st.floats(0, 10),
    tokens=st.one_of(st.none(), st.integers(0, 10**6)),
    target=st.integers(1, 10**4),
    width=st.floats(0.5, 1e4),
)
def test_what_they_are_worth_stays_between_0_and_1(
    right: list[list[bool]], power: float, tokens: int | None, target: int, width: float
) -> None:
    """In [0, 1], 0 for what is wrong, one worth for all that is right."""
    worth = scaled_by_accuracy(right, power)
    assert [len(row) for row in worth] == [len(row) for row in right]
    flat = list(zip([one for row in right for one in row], [value for row in worth for value in row], strict=True))
    assert all(0 <= value <= 1 and (one or value == 0) for one, value in flat)
    assert len({value for one, value in flat if one}) <= 1
    assert 0 <= notes_bonus(tokens, target=target, width=width) <= 1
