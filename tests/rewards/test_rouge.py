"""ROUGE-L."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rouge_score.rouge_scorer import RougeScorer

from smolsum.config.sections import Config
from smolsum.rewards.overlap import rouge_l, score_rouge
from smolsum.types import RolloutGroup


def test_f1_worked_by_hand() -> None:
    """Five words against six, longest common subsequence all five: P = 5/5, R = 5/6, F1 = 10/11."""
    assert rouge_l("the cat on the mat", ["the cat sat on the mat"]) == pytest.approx(10 / 11)


def test_order_counts() -> None:
    """Four words in reverse have a common subsequence of one: P = R = F1 = 1/4."""
    assert rouge_l("mat the on cat", ["cat on the mat"]) == pytest.approx(1 / 4)


def test_words_are_stemmed() -> None:
    """Porter stems "running" and "runs" to "run": a full match."""
    assert rouge_l("Running!", ["runs"]) == 1.0


def test_the_best_reference_counts() -> None:
    """The score is that of the closest reference."""
    assert rouge_l("the cat", ["a dog barks", "the cat"]) == 1.0


@pytest.mark.parametrize("text", ["", "  \n", "!?", "日本語"])
def test_text_without_a_word_scores_zero(text: str) -> None:
    """Nothing to compare is worth 0, and does not raise."""
    assert rouge_l(text, ["the cat sat"]) == 0.0


@given(text=st.text(max_size=200), references=st.lists(st.text(max_size=200), min_size=1, max_size=3))
def test_any_text_gives_what_the_library_gives(text: str, references: list[str]) -> None:
    """Never raises, is in [0, 1], and equals the best of rouge_score's single scores."""
    library = RougeScorer(["rougeL"], use_stemmer=True)
    value = rouge_l(text, references)
    assert 0 <= value <= 1
    assert value == max(library.score(reference, text)["rougeL"].fmeasure for reference in references)


def test_the_scorer_returns_a_list_for_each_group(group: Callable[..., RolloutGroup]) -> None:
    """P lists of G values; a prompt without references cannot be scored, which is None and not 0."""
    groups = [group(["the cat sat on the mat", ""]), group(["the cat"], references=())]
    assert score_rouge(groups, Config()) == [[1.0, 0.0], [None]]
