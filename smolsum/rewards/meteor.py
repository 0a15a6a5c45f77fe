"""METEOR (Lavie and Agarwal 2007): words aligned exactly, by stem, then by synonym, as `nltk` computes it.

Tokens are those of nltk's word tokeniser, sentence by sentence, as in Hugging Face's `evaluate`. That one
finds sentences with a downloaded model; here they come from the same Punkt rules untrained, so that nothing
is downloaded and every machine gives the same number. They differ where only training knows better, as after
an abbreviation ("Mr." here is two tokens).

nltk looks up synonyms of words that are already stemmed, so "auto" finds "car" but "automobile" (stem
"automobil") does not. That is kept: the score is nltk's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

from smolsum.errors import MachineError
from smolsum.rewards.wordnet import Lexicon, find_lexicon

if TYPE_CHECKING:
    from smolsum.config import Config
    from smolsum.rollout.records import RolloutGroup


class _CachedStemmer:
    """nltk's Porter stemmer, which METEOR asks for the same words again and again."""

    def __init__(self) -> None:
        from nltk.stem.porter import PorterStemmer

        self.stem: Callable[[str], str] = lru_cache(maxsize=65_536)(PorterStemmer().stem)


@cache
def _stemmer() -> _CachedStemmer:
    return _CachedStemmer()


@cache
def _tokenizers() -> tuple[Any, Any]:
    from nltk.tokenize.destructive import NLTKWordTokenizer
    from nltk.tokenize.punkt import PunktSentenceTokenizer

    return PunktSentenceTokenizer(), NLTKWordTokenizer()


@lru_cache(maxsize=4096)  # a reference comes back for each of its G rollouts, and in every epoch
def meteor_tokens(text: str) -> tuple[str, ...]:
    """The tokens METEOR compares, case kept (nltk lower-cases them itself)."""
    sentences, words = _tokenizers()
    return tuple(token for sentence in sentences.tokenize(text) for token in words.tokenize(sentence))


def meteor(text: str, references: Sequence[str], *, matcher: Lexicon) -> float:
    """METEOR of `text` against its best reference, in [0, 1); 0 for empty text.

    nltk's parameters (alpha 0.9, beta 3, gamma 0.5): even a copy of an n-word reference stays below 1, at
    1 - 0.5 / n^3. `references` holds at least one.
    """
    from nltk.translate.meteor_score import meteor_score

    return float(
        meteor_score(
            [meteor_tokens(reference) for reference in references],
            meteor_tokens(text),
            stemmer=_stemmer(),
            wordnet=matcher,
        )
    )


def score_meteor(groups: Sequence[RolloutGroup], config: Config) -> list[list[float | None]]:
    """PxG METEOR with the best matching this machine has; None for a prompt without references.

    Raises MachineError if `rewards.require_wordnet` is set and there is no WordNet.
    """
    ensure_meteor(config.rewards.require_wordnet)
    matcher = find_lexicon()
    return [
        [
            meteor(rollout.text, refs, matcher=matcher) if (refs := group.prompt.references) else None
            for rollout in group.rollouts
        ]
        for group in groups
    ]


def describe_meteor() -> str:
    """How METEOR matches words on this machine, for run.json: "wordnet (WHERE)" or "exact+stem"."""
    return find_lexicon().description


def wordnet_problem() -> MachineError | None:
    """Why synonyms are not matched, and the remedy, to be shown once as a warning; None if they are."""
    lexicon = find_lexicon()
    if lexicon.kind == "wordnet":
        return None
    reasons = "".join(f"; {reason}" for reason in lexicon.refused)
    return MachineError(
        f"no usable WordNet database: METEOR matches words and stems but no synonyms{reasons}",
        hint="apt-get install wordnet-base, or uv run python -m nltk.downloader wordnet",
    )


def ensure_meteor(require: bool) -> str:
    """Load what METEOR needs, before training starts; returns `describe_meteor()`.

    Raises MachineError if `require` is set and there is no WordNet.
    """
    if require and (problem := wordnet_problem()):
        raise problem
    return describe_meteor()
