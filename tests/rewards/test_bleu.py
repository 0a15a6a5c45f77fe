"""Sentence BLEU."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import sacrebleu
from hypothesis import given
from hypothesis import strategies as st

from smolsum.config.sections import Config, RewardsConfig
from smolsum.rewards.overlap import bleu, score_bleu
from smolsum.types import RolloutGroup


def test_worked_by_hand() -> None:
    """Five words, the last one wrong.

    Precisions of orders 1 to 4: 4/5, 3/4, 2/3, 1/2; equal lengths, so no brevity penalty:
    (4/5 * 3/4 * 2/3 * 1/2)^(1/4) = (1/5)^(1/4) = 0.668740.
    """
    assert bleu("the cat sat on it", ["the cat sat on mats"]) == pytest.approx(0.2**0.25)


def test_a_short_text_pays_the_brevity_penalty_and_leaves_out_the_orders_it_lacks() -> None:
    """Two right words of six: orders 1 and 2 only (both 1), penalty exp(1 - 6/2) = exp(-2)."""
    assert bleu("the cat", ["the cat sat on the mat"]) == pytest.approx(math.exp(-2))


def test_a_perfect_match_is_one() -> None:
    """The same text scores 1, not a rounding error above."""
    assert bleu("the cat sat on the mat", ["the cat sat on the mat"]) == 1.0


@pytest.mark.parametrize(
    ("text", "reference", "expected"),
    [
        # orders 1 to 4: 4/5, 3/4, 2/3, 1/2
        ("the cat sat on it", "the cat sat on mats", 0.2**0.25),
        # 4/5, 2/4, and no trigram
        ("the cat sat down here", "the cat ran down here", 0.0),
        # all of its words are right, but three words have no 4-gram
        ("the cat sat", "the cat sat", 0.0),
        # four right words of five: exp(1 - 5/4)
        ("the cat sat on", "the cat sat on mats", 0.778801),
        ("", "the cat sat on mats", 0.0),
    ],
)
def test_the_studys_by_hand(text: str, reference: str, expected: float) -> None:
    """Not smoothed: 0 unless an n-gram of every order from 1 to 4 matches."""
    assert bleu(text, [reference], smoothed=False) == pytest.approx(expected, abs=1e-6)


def test_the_setting_chooses_the_signals_bleu(
    group: Callable[..., RolloutGroup], caplog: pytest.LogCaptureFixture
) -> None:
    """Four of five words right and no trigram: something, or nothing as in the study; the library warns of neither."""
    groups = [group(["the cat sat down here"], references=("the cat ran down here",))]
    ((smoothed,),) = score_bleu(groups, Config())
    assert smoothed is not None
    assert smoothed > 0.2
    assert score_bleu(groups, Config(rewards=RewardsConfig(bleu="study"))) == [[0.0]]
    assert not caplog.records


def test_case_counts() -> None:
    """sacrebleu keeps case: "The" is not "the", so one of four words is lost."""
    assert bleu("The cat sat down", ["the cat sat down"]) < 1.0


@pytest.mark.parametrize("text", ["", "  \n"])
def test_empty_text_scores_zero(text: str) -> None:
    """Nothing to compare is worth 0, and does not raise."""
    assert bleu(text, ["the cat sat"]) == 0.0


@given(text=st.text(max_size=200), references=st.lists(st.text(max_size=200), min_size=1, max_size=3))
def test_any_text_gives_what_the_library_gives(text: str, references: list[str]) -> None:
    """Never raises, is in [0, 1], and equals sacrebleu's sentence BLEU with effective order, over 100."""
    value = bleu(text, references)
    assert 0 <= value <= 1
    assert value == pytest.approx(
        sacrebleu.sentence_bleu(text, references, use_effective_order=True).score / 100, abs=1e-12
    )


def test_the_scorer_returns_a_list_for_each_group(group: Callable[..., RolloutGroup]) -> None:
    """P lists of G values; a prompt without references cannot be scored, which is None and not 0."""
    groups = [group(["the cat sat on the mat", ""]), group(["the cat"], references=())]
    assert score_bleu(groups, Config()) == [[1.0, 0.0], [None]]
