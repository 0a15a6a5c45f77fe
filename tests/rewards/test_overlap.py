"""The signals that compare words with references: ROUGE-L, sentence BLEU and METEOR, by hand and by their libraries."""

import math
from collections.abc import Callable, Sequence

import pytest
import sacrebleu
from hypothesis import given
from hypothesis import strategies as st
from nltk.translate.meteor_score import meteor_score
from rouge_score.rouge_scorer import RougeScorer

from smolsum.config.sections import Config, RewardsConfig
from smolsum.rewards.meteor import Lexicon, meteor, meteor_tokens, score_meteor
from smolsum.rewards.overlap import bleu, rouge_l, score_bleu, score_rouge
from smolsum.types import RolloutGroup

Metric = Callable[[str, Sequence[str]], float]
PLAIN = Lexicon("exact+stem", "", (), lambda word: ())


def plain_meteor(text: str, references: Sequence[str]) -> float:
    """METEOR as on a machine without WordNet."""
    return meteor(text, references, matcher=PLAIN)


def study_bleu(text: str, references: Sequence[str]) -> float:
    """Not smoothed: 0 unless an n-gram of every order from 1 to 4 matches."""
    return bleu(text, references, smoothed=False)


@pytest.mark.parametrize(
    ("metric", "text", "references", "expected"),
    [
        # five words against six, longest common subsequence all five: P = 5/5, R = 5/6, F1 = 10/11
        (rouge_l, "the cat on the mat", ["the cat sat on the mat"], 10 / 11),
        # four words in reverse have a common subsequence of one: P = R = F1 = 1/4
        (rouge_l, "mat the on cat", ["cat on the mat"], 1 / 4),
        (rouge_l, "Running!", ["runs"], 1.0),  # stems
        (rouge_l, "the cat", ["a dog barks", "the cat"], 1.0),  # the best reference counts
        # the last of five words is wrong: orders 1 to 4 have 4/5, 3/4, 2/3, 1/2, and (1/5)^(1/4) = 0.668740
        (bleu, "the cat sat on it", ["the cat sat on mats"], 0.2**0.25),
        (study_bleu, "the cat sat on it", ["the cat sat on mats"], 0.2**0.25),
        # two right words of six: orders 1 and 2 only (both 1), penalty exp(1 - 6/2) = exp(-2)
        (bleu, "the cat", ["the cat sat on the mat"], math.exp(-2)),
        (study_bleu, "the cat sat", ["the cat sat"], 0.0),  # all right, but three words have no 4-gram
        (study_bleu, "the cat sat down here", ["the cat ran down here"], 0.0),  # 4/5, 2/4, and no trigram
        (study_bleu, "the cat sat on", ["the cat sat on mats"], math.exp(-1 / 4)),  # four of five: exp(1 - 5/4)
        # all five words matched, in two runs: P = 5/5, R = 5/6, F = PR / (0.9 P + 0.1 R) = (5/6) / (59/60) = 50/59;
        # penalty 0.5 (2/5)^3 = 0.032
        (plain_meteor, "the cat on the mat", ["the cat sat on the mat"], 0.968 * 50 / 59),
        # two of two in one run, by stem and whatever the case: F = 1, penalty 0.5 (1/2)^3 = 0.0625
        (plain_meteor, "Cats sleeping", ["cat sleeps"], 0.9375),
        (plain_meteor, "the cat", ["a dog barks", "the cat"], 0.9375),
    ],
)
def test_worked_by_hand(metric: Metric, text: str, references: list[str], expected: float) -> None:
    assert metric(text, references) == pytest.approx(expected)


def test_bleu_of_the_same_text_is_one() -> None:
    """Not a rounding error above; and sacrebleu keeps case: "The" is not "the"."""
    assert bleu("the cat sat on the mat", ["the cat sat on the mat"]) == 1.0
    assert bleu("The cat sat down", ["the cat sat down"]) < 1.0


@pytest.mark.parametrize("metric", [rouge_l, bleu, study_bleu, plain_meteor])
@pytest.mark.parametrize("text", ["", "  \n", "!?", "日本語"])
def test_text_without_a_word_scores_zero(metric: Metric, text: str) -> None:
    """Nothing to compare is worth 0, and does not raise."""
    assert metric(text, ["the cat sat"]) == 0.0


def library_rouge(text: str, references: Sequence[str]) -> float:
    scorer = RougeScorer(["rougeL"], use_stemmer=True)
    return max(scorer.score(reference, text)["rougeL"].fmeasure for reference in references)


def library_bleu(text: str, references: Sequence[str]) -> float:
    return float(sacrebleu.sentence_bleu(text, references, use_effective_order=True).score / 100)


def library_meteor(text: str, references: Sequence[str]) -> float:
    return float(meteor_score(list(map(meteor_tokens, references)), meteor_tokens(text), wordnet=PLAIN))


@pytest.mark.parametrize(
    ("metric", "library", "off"),
    [(rouge_l, library_rouge, 0.0), (bleu, library_bleu, 1e-12), (plain_meteor, library_meteor, 0.0)],
)
@given(text=st.text(max_size=200), references=st.lists(st.text(max_size=200), min_size=1, max_size=3))
def test_any_text_gives_what_the_library_gives(
    metric: Metric, library: Metric, off: float, text: str, references: list[str]
) -> None:
    """Never raises, is in [0, 1], and equals the library's score, of METEOR that of the same tokens with nltk's own
    stemmer."""
    value = metric(text, references)
    assert 0 <= value <= 1
    assert abs(value - library(text, references)) <= off


@pytest.mark.usefixtures("no_wordnet")
@pytest.mark.parametrize(("score", "best"), [(score_rouge, 1.0), (score_bleu, 1.0), (score_meteor, 1 - 0.5 / 6**3)])
def test_the_scorer_returns_a_list_for_each_group(
    score: Callable[..., object], best: float, group: Callable[..., RolloutGroup]
) -> None:
    """P lists of G values; a prompt without references cannot be scored, which is None and not 0."""
    groups = [group(["the cat sat on the mat", ""]), group(["the cat"], references=())]
    assert score(groups, Config()) == [[pytest.approx(best), 0.0], [None]]


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
