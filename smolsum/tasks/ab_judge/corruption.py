"""Makes texts subtly worse by rules, for pairs in which the original has to be found.

Each kind of fault is a function from a text to the edits that would cause it; one is drawn. Rules that know words know
English ones; `swapped`, `repeated`, `dropped`, `spelling`, `number` and `name` work in every language that puts spaces
between words.
"""

import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

WORD = re.compile(r"[^\W_]+(?:['\u2019-][^\W_]+)*")
DIGITS = re.compile(r"\d+")
SENTENCE_START = re.compile(r"(?:^|[.!?:\n])[\s\"'\u201c\u201d\u2018(\[]*$")
BY_MODEL = "model"
"""the kind of a change that a model made: which fault it is, is not known"""
MIN_WORDS = 4
"""shorter texts are not corrupted, as hardly any fault in them would be subtle"""


@dataclass(frozen=True)
class Corruption:
    """A text with one fault: its kind, and the words before and after the change."""

    text: str
    kind: str
    before: str
    after: str


@dataclass(frozen=True)
class Edit:
    """New text for the characters from `start` to `end`."""

    start: int
    end: int
    new: str


@dataclass(frozen=True)
class Passage:
    """A text, its words, and the names that may be put into it."""

    text: str
    words: tuple[re.Match[str], ...]
    names: Sequence[str]

    def inner(self) -> Iterator[tuple[int, re.Match[str]]]:
        """Yield its words with their places, except those that open a sentence: their capital would reveal a change."""
        for place, word in enumerate(self.words):
            if not SENTENCE_START.search(self.text, max(0, word.start() - 8), word.start()):
                yield place, word

    def gap(self, place: int) -> str:
        """Return the text between a word and the next."""
        return self.text[self.words[place].end() : self.words[place + 1].start()]


Fault = Callable[[Passage, random.Random], Iterator[Edit]]


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


def _both_ways(pairs: str) -> dict[str, str]:
    """Return `a/b c/d` as a mapping of a to b, b to a, and so on."""
    found = dict(pair.split("/") for pair in pairs.split())
    return found | {b: a for a, b in found.items()}


FUNCTION_WORDS = _words(
    "a an the of in on at by for from to with without into about and or but if that which who whom whose as than is are"
    " was were be been am has have had do does did will would can could should may might must he she it they we you him"
    " her them us me my your his its our their not"
)
PREPOSITIONS = _words("in on at by for from of with into about under between")
NUMBERS = _words("two three four five six seven eight nine ten eleven twelve twenty")
DENIALS = _words("not never")
AUXILIARIES = _words("is are was were am has have had do does did will would can could should may might must")
AGREEMENT = _both_ways("is/are was/were has/have does/do this/these that/those") | {"am": "is"}
ARTICLES = _both_ways("a/an")
PRONOUNS = _both_ways("she/her he/him i/me we/us they/them")
OPPOSITES = _both_ways(
    "before/after more/less always/never first/last early/late increase/decrease increases/decreases"
    " increasing/decreasing increased/decreased minimum/maximum high/low higher/lower large/small larger/smaller"
    " big/little old/new older/younger long/short longer/shorter open/closed best/worst better/worse buy/sell"
    " bought/sold win/lose won/lost love/hate loved/hated true/false right/wrong right/left up/down inside/outside"
    " all/none everything/nothing everyone/nobody many/few strong/weak hot/cold good/bad easy/hard rich/poor"
    " start/stop started/stopped begin/end accept/refuse accepts/refuses accepted/refused with/without"
)


def _swapped(passage: Passage, rng: random.Random) -> Iterator[Edit]:
    """Two neighbours change places."""
    for place, word in passage.inner():
        if place + 1 < len(passage.words) and not (gap := passage.gap(place)).strip():
            after = passage.words[place + 1]
            if word[0].casefold() != after[0].casefold():
                yield Edit(word.start(), after.end(), after[0] + gap + word[0])


def _repeated(passage: Passage, rng: random.Random) -> Iterator[Edit]:
    for _, word in passage.inner():
        yield Edit(word.start(), word.end(), f"{word[0]} {word[0]}")


def _dropped(passage: Passage, rng: random.Random) -> Iterator[Edit]:
    """A word is left out, a function word if there is one."""
    inner = [place for place, _ in passage.inner() if place > 0 and not passage.gap(place - 1).strip()]
    grammar = [place for place in inner if passage.words[place][0].lower() in FUNCTION_WORDS]
    for place in grammar or inner:
        yield Edit(passage.words[place - 1].end(), passage.words[place].end(), "")


def _spelling(passage: Passage, rng: random.Random) -> Iterator[Edit]:
    """Two letters inside a word change places."""
    for word in passage.words:
        letters = word[0]
        inner = [k for k in range(1, len(letters) - 2) if letters[k] != letters[k + 1]]
        if places := [k for k in inner if letters[k : k + 2].isalpha()]:
            k = rng.choice(places)
            yield Edit(word.start(), word.end(), letters[:k] + letters[k + 1] + letters[k] + letters[k + 2 :])


def _number(passage: Passage, rng: random.Random) -> Iterator[Edit]:
    """Another number: as many digits, or another number's word."""
    for found in DIGITS.finditer(passage.text):
        yield Edit(found.start(), found.end(), _another_number(found[0], rng))
    for word in passage.words:
        if word[0].lower() in NUMBERS:
            yield _instead(word, rng.choice([n for n in NUMBERS if n != word[0].lower()]))


def _another_number(digits: str, rng: random.Random) -> str:
    """Return another number with as many digits and as many zeros at its end, so that its shape reveals nothing."""
    head = digits.rstrip("0") or digits[0]
    new = head
    while new == head:
        ends = (0, len(head) - 1)
        new = "".join(rng.choice("123456789" if k in ends else "0123456789") for k in range(len(head)))
    return new + digits[len(head) :]


def _name(passage: Passage, rng: random.Random) -> Iterator[Edit]:
    for _, word in passage.inner():
        others = [name for name in passage.names if name != word[0]]
        if looks_like_name(word[0]) and others:
            yield Edit(word.start(), word.end(), rng.choice(others))


def _negation(passage: Passage, rng: random.Random) -> Iterator[Edit]:
    """A `not` added or removed."""
    for place, word in enumerate(passage.words):
        lower = word[0].lower()
        if lower in DENIALS and place > 0 and not passage.gap(place - 1).strip():
            yield Edit(passage.words[place - 1].end(), word.end(), "")
        elif lower in AUXILIARIES and not any(w[0].lower() in DENIALS for w in passage.words[place + 1 : place + 3]):
            yield Edit(word.end(), word.end(), " not")


def _agreement(passage: Passage, rng: random.Random) -> Iterator[Edit]:
    """A verb or a pronoun of the wrong number."""
    yield from _exchanged(passage, AGREEMENT)
    for place, word in enumerate(passage.words[:-1]):
        verb = passage.words[place + 1]
        if word[0].lower() in ("he", "she", "it") and not passage.gap(place).strip() and (bare := _bare(verb[0])):
            yield Edit(verb.start(), verb.end(), bare)


def _bare(verb: str) -> str | None:
    """Return `refuse` for `refuses`; None for any other form."""
    if verb.lower() in AGREEMENT or not re.fullmatch(r"[a-z]{2,}[^s\W\d_]s", verb):
        return None
    if verb.endswith("ies") and len(verb) > 4:
        return verb[:-3] + "y"
    return verb[:-2] if verb.endswith(("shes", "ches", "xes", "zzes", "oes")) else verb[:-1]


def _exchanged(passage: Passage, partners: Mapping[str, str]) -> Iterator[Edit]:
    for word in passage.words:
        if other := partners.get(word[0].lower()):
            yield _instead(word, other)


def _preposition(passage: Passage, rng: random.Random) -> Iterator[Edit]:
    for word in passage.words:
        if word[0].lower() in PREPOSITIONS:
            yield _instead(word, rng.choice([p for p in PREPOSITIONS if p != word[0].lower()]))


def _instead(word: re.Match[str], new: str) -> Edit:
    """Replace a word with `new`, capitalised if the word was, unless it was `I`."""
    capital = word[0][0].isupper() and word[0] != "I"
    return Edit(word.start(), word.end(), "I" if new == "i" else new.capitalize() if capital else new)


FAULTS: dict[str, Fault] = {
    "swapped": _swapped,
    "repeated": _repeated,
    "dropped": _dropped,
    "spelling": _spelling,
    "agreement": _agreement,
    "article": lambda passage, rng: _exchanged(passage, ARTICLES),
    "pronoun": lambda passage, rng: _exchanged(passage, PRONOUNS),
    "preposition": _preposition,
    "opposite": lambda passage, rng: _exchanged(passage, OPPOSITES),
    "negation": _negation,
    "number": _number,
    "name": _name,
}
"""by kind; `number`, `name`, `opposite` and `negation` often leave a fluent text with another meaning"""


def corrupt(
    text: str, rng: random.Random, *, kinds: Sequence[str] = tuple(FAULTS), names: Sequence[str] = ()
) -> Corruption | None:
    """Return the text with one fault, of a kind drawn from those of `kinds` that are possible; never unchanged.

    None for a text of fewer than `MIN_WORDS` words, or one that no kind fits. `names` may replace names.
    """
    words = tuple(WORD.finditer(text))
    if len(words) < MIN_WORDS:
        return None
    passage = Passage(text, words, names)
    for kind in rng.sample(list(kinds), len(kinds)):
        edits = [e for e in FAULTS[kind](passage, rng) if text[e.start : e.end].split() != e.new.split()]
        if edits:
            edit = rng.choice(edits)
            changed = text[: edit.start] + edit.new + text[edit.end :]
            return Corruption(changed, kind, text[edit.start : edit.end], edit.new)
    return None


def looks_like_name(word: str) -> bool:
    """Return whether a word inside a sentence is written as names are."""
    return len(word) > 1 and word[0].isupper() and word[1:].islower()


def names_in(texts: Iterable[str]) -> tuple[str, ...]:
    """Return the words that look like names inside the sentences of `texts` and are nowhere in lower case, in order."""
    found, common = dict[str, None](), set[str]()
    for text in texts:
        passage = Passage(text, tuple(WORD.finditer(text)), ())
        common.update(word[0] for word in passage.words if word[0].islower())
        found.update((word[0], None) for _, word in passage.inner() if looks_like_name(word[0]))
    return tuple(name for name in found if name.lower() not in common)
