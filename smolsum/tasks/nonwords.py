"""Non-words, such as "reallyororan": it has as many tokens as a length reward wants, costs a reward for overlap no more
than any other wrong word does, and says nothing twice.

A word is known if its source, the data's training split or WordNet (in any form that WordNet's rules lead back to one
of its words) has it, or if it is a function word, which WordNet leaves out. Names count like other words: one that
neither the source nor the data have is unknown, as are rare technical words. Of untrained models' summaries of
abstracts one word in a thousand is.

The rules are those of English. Texts of which WordNet knows less than `ENGLISH` of the words have no such measure, nor
has a machine without WordNet.
"""

import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice

from smolsum.rewards.meteor import Lexicon

ENGLISH = 0.8
"""share of the words of English posts and abstracts that WordNet and the function words have at least (0.94 and 0.95;
German, French and Spanish 0.3 to 0.5)"""
TRIED, READ = 100, 20_000
"""texts whose words are looked up to tell the language, and texts whose words are known: the first of the split, read
within seconds"""
_WORD = re.compile(r"(?<![^\W_])[^\W\d_]+|(?<=\d)[^\W\d_]{3,}")
"""letters; those after a digit only where they are more than an ending or a unit (1st, 10k, 3pm)"""
_APOSTROPHE = "['\u2019\u2018\u00b4`]"
_SHORTENED = re.compile(rf"(?:n{_APOSTROPHE}t|{_APOSTROPHE}(?:s|m|d|t|re|ve|ll))\b")


def _words(text: str) -> list[str]:
    """Return the words of a text in lower case, contractions without what an apostrophe joins to them."""
    return _WORD.findall(_SHORTENED.sub("", text.lower()))


FUNCTION_WORDS = frozenset(
    _words(
        "the my myself we our ours ourselves you your yours yourself yourselves him his himself she her hers"
        " herself itself they them their theirs themselves oneself this that these those whom whose which what"
        " whoever whichever whomever something anyone anybody anything everyone everybody everything others nor"
        " and for if unless because although whereas since until when whenever where how than whether of to from"
        " with without into onto unto upon against among amongst amidst beside during per thru toward towards"
        " versus via amid could shall should would ought cannot else whilst albeit whereby wherein whereof"
        " whereupon thereof inasmuch pre multi semi intra uni hyper meta"
    )
)
"""English words without a meaning of their own, and beginnings of words with hyphens: WordNet has nouns, verbs,
adjectives and adverbs"""
COLLOQUIAL = frozenset(
    _words(
        "gonna gotta wanna gimme lemme dunno yep nope hey ah oh haha etc eg ie btw idk omg ca wo sha ai im ive id"
        " youre youve youd youll hes hed shes shed itll itd weve wed theyre theyve theyd theyll thats whats lets"
        " dont didnt doesnt isnt wasnt arent werent cant wont couldnt wouldnt shouldnt mustnt hasnt havent hadnt aint"
    )
)
"""contractions without their apostrophes, what is left of those with one (ca n't, wo n't), and words of posts"""


@dataclass(frozen=True)
class KnownWords:
    """The words of a data set's texts, in lower case, and those of a lexicon."""

    own: frozenset[str]
    lexicon: Lexicon

    def unknown_share(self, text: str, source: str) -> float | None:
        """Return the share of the text's words that neither `source` nor these have, in [0, 1]; None for a text without
        words."""
        words = _words(text)
        unknown = {word for word in words if not self._has(word)}
        if unknown:  # a source is read only for these
            unknown -= set(_words(source))
        return sum(word in unknown for word in words) / len(words) if words else None

    def _has(self, word: str) -> bool:
        if word in self.own or word in FUNCTION_WORDS or word in COLLOQUIAL or self.lexicon.synsets(word):
            return True
        return (plain := _without_accents(word)) != word and self._has(plain)


def known_words(texts: Iterable[str], lexicon: Lexicon) -> KnownWords | None:
    """Return the words of the first `READ` texts and of the lexicon; None where it is no WordNet or the texts are not
    English."""
    if lexicon.kind != "wordnet":
        return None
    texts = islice(texts, READ)
    first = [word for text in islice(texts, TRIED) for word in _words(text)]
    lexical = KnownWords(frozenset(), lexicon)
    if sum(map(lexical._has, first)) < ENGLISH * len(first):
        return None
    return KnownWords(frozenset(first).union(*map(_words, texts)), lexicon)


def _without_accents(word: str) -> str:
    return "".join(one for one in unicodedata.normalize("NFKD", word) if not unicodedata.combining(one))
