"""Overlap with the reference: ROUGE-L, the longest common subsequence of words (Lin 2004), as `rouge_score` computes
it, and sentence BLEU (Papineni et al. 2002), as `sacrebleu` does.
"""

from collections.abc import Sequence
from functools import cache, partial
from types import SimpleNamespace
from typing import Any

from smolsum.config.sections import Config
from smolsum.rewards.meteor import cached_stemmer
from smolsum.rewards.signal import Values, described, score_against_references
from smolsum.types import RolloutGroup


@cache
def _scorer() -> Any:
    from rouge_score.rouge_scorer import RougeScorer
    from rouge_score.tokenize import tokenize

    stemmer = cached_stemmer()
    return RougeScorer(["rougeL"], tokenizer=SimpleNamespace(tokenize=lambda text: tokenize(text, stemmer)))


def rouge_l(text: str, references: Sequence[str]) -> float:
    """Return ROUGE-L F1, Porter-stemmed, of `text` against its best reference, in [0, 1]; 0 for text without a word.

    Words are runs of a-z and 0-9 in the lower-cased text (`rouge_score`'s tokeniser). `references` holds at
    least one.
    """
    return float(_scorer().score_multi(references, text)["rougeL"].fmeasure)


score_rouge = described(
    "[0, 1]", "F1 of the longest common subsequence with the reference", title="ROUGE-L", by_reference=True
)(score_against_references(rouge_l))


@cache
def _metric(smoothed: bool) -> Any:
    from sacrebleu.metrics.bleu import BLEU

    return BLEU(effective_order=True) if smoothed else BLEU(smooth_method="none")


def bleu(text: str, references: Sequence[str], *, smoothed: bool = True) -> float:
    """Return sentence BLEU of `text` against all its references together, in [0, 1]; 0 for empty text.

    sacrebleu's own settings (13a tokeniser, case kept, exponential smoothing) divided by 100, with
    `effective_order`: n-gram orders that a text is too short to have are left out instead of lowering its
    score, as sacrebleu advises for single sentences. `references` holds at least one.

    Not `smoothed`: BLEU of a corpus of this one text (Papineni et al. 2002, section 2.3), 0 unless an n-gram of each
    order from 1 to 4 matches. So computes the library `evaluate`, which the study's code calls, for one reference.
    """
    # of a whole corpus, as sentence_score warns of every text without effective_order
    score = _metric(smoothed).corpus_score([text], [[reference] for reference in references]).score
    # rounding lets a perfect match come out at 100.00000000000004
    return min(1.0, float(score) / 100)


@described("[0, 1]", "n-gram precision against the reference, with a brevity penalty", title="BLEU", by_reference=True)
def score_bleu(groups: Sequence[RolloutGroup], config: Config) -> Values:
    """Return PxG BLEU of each text against its prompt's references, smoothed or not as `rewards.bleu` says."""
    score = partial(bleu, smoothed=config.rewards.bleu == "smoothed")
    return score_against_references(score)(groups, config)
