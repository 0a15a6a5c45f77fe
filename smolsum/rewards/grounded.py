"""Names and numbers of a text that its source has: what a reader can check of a summary without a judge.

The share is the precision of entities against the source, `prec_s` of Nan et al. (2021), "Entity-level Factual
Consistency of Abstractive Text Summarization", EACL, https://doi.org/10.18653/v1/2021.eacl-main.235: of what a summary
names, the part that the source names. They find entities with a model. Here rules find them, so that the same text has
the same value everywhere, and numbers of all kinds count too. What counts once, however often it is said:

1. A name is a word with a capital inside a sentence; consecutive ones are one name. An acronym or a term (BERT, GANs,
   PyTorch, CIFAR-10) is a name anywhere. Another capitalised word that starts a sentence is one only if the source or
   the text also has it with a capital inside a sentence.
2. A number is written in digits, or in words from two to ninety-nine, with its factor (3 million, 10k) and its unit if
   that is money or per cent. `One` and `zero` in words state nothing.
3. The source has a name if it has each of its words, in any case, singular or plural, with or without hyphens, accents
   or 's. An acronym of three letters or more may also stand there in full, and the reverse.
4. The source has a number if it has the same value, and the same unit where the text states one.

What it does not see: which of the source's names did what, denials, and all that is said without names and numbers. An
invented name that stands only at the start of a sentence is not known for a name, nor is one in lower case. A number
that was rounded or counted by the writer counts as wrong, as does an abbreviation of two letters. The rules are those
of English: a language without capitals has only numbers, and in German every noun is a name.
"""

import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import lru_cache

import regex

from smolsum.config.sections import Config
from smolsum.rewards.signal import Values, described
from smolsum.types import RolloutGroup

NUMBER = re.compile(r"\$?\d+(?:,\d{3})*(?:\.\d+)?")
SENTENCE_START = re.compile(r"(?:^|[.?!…:\n])[\s\"'“\u2018(\[*•-]*$")
ABBREVIATION = re.compile(r"(?<!\w)(?:Mr|Mrs|Ms|Dr|Prof|St|vs|cf|e\.g|i\.e|[A-HJ-Z])\.\s+$")
LOOK_BACK = 40
"""characters before a word in which the end of the sentence before it is looked for"""
MOST_DIGITS = 400
"""of a number that are compared; far more of them, times a factor, are beyond what Decimal holds"""
SILENT = 0.5
"""the reward of a text that states no name and no number"""


def starts_sentence(text: str, place: int) -> bool:
    """Return whether a sentence starts at `place`; none does after a title or an initial (Dr. Quinn, J. Quinn)."""
    since = max(0, place - LOOK_BACK)
    return bool(SENTENCE_START.search(text, since, place)) and not ABBREVIATION.search(text, since, place)


def supported_share(text: str, source: str) -> float | None:
    """Return the share of the names and numbers stated by `text` that `source` has, in [0, 1]; None where the text
    states none."""
    stated = _stated(_read(_MARKERS.sub(" ", text)), _source(source))
    return sum(stated.values()) / len(stated) if stated else None


def grounded_reward(text: str, source: str) -> float:
    """Return the share of the text's names and numbers that the source has, in [0, 1]; `SILENT` for words without a
    name or number, and 0 for no words at all.

    So silence is worth less than an honest name and more than an invented one: stating something pays where it is more
    likely right than wrong. The value rises with few, safe names; reward quality or length next to it.
    """
    if not any(letter.isalnum() for letter in text):
        return 0.0
    share = supported_share(text, source)
    return SILENT if share is None else share


@described("[0, 1]", "share of names and numbers that the source has; 1/2 where none is stated")
def score_grounded(groups: Sequence[RolloutGroup], config: Config) -> Values:
    """Return PxG rewards of each text against its prompt's source."""
    return [[grounded_reward(rollout.text, group.prompt.source) for rollout in group.rollouts] for group in groups]


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


NEVER_NAMES = frozenset(
    _words(
        "a an the i im ive id ill it its he hes she shes we weve were they theyre you your my our his her their this"
        " that these those there here and or but if as at by for from in into of on to with without about after before"
        " because while when where who what which why how is are was were be been has have had do does did would"
        " can could should might must not no nor so than then also both all any some each one"
    )
)
"""English words that name nothing, however they are written; not those that are names too (May, Will)"""
ONES = _words(
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen"
    " eighteen nineteen"
)
SMALL = {word: value for value, word in enumerate(ONES)}
TENS = {word: 10 * n for n, word in enumerate(_words("twenty thirty forty fifty sixty seventy eighty ninety"), 2)}
FACTORS = {"hundred": 100, "thousand": 1_000, "million": 10**6, "billion": 10**9, "trillion": 10**12}
SUFFIXES = {"k": 1_000, "K": 1_000, "M": 10**6, "mn": 10**6, "B": 10**9, "bn": 10**9}
UNSURE = {"m": 10**6, "b": 10**9}
"""suffixes of factors that may also be something else, such as metres"""
IMPLIED = {
    "first": 1, "second": 2, "third": 3, "fourth": 4, "fifth": 5, "sixth": 6, "seventh": 7, "eighth": 8, "ninth": 9,
    "tenth": 10, "single": 1, "once": 1, "twice": 2, "double": 2, "both": 2, "pair": 2, "couple": 2, "triple": 3,
    "dozen": 12, **FACTORS,
}  # fmt: skip
"""words by which a source supports a number, and which state none in a text"""
UNITS = {
    "%": "%", "percent": "%", "percentage": "%", "$": "$", "dollar": "$", "dollars": "$", "usd": "$", "bucks": "$",
    "€": "€", "euro": "€", "euros": "€", "eur": "€", "£": "£", "pound": "£", "pounds": "£", "gbp": "£",
    "¥": "¥", "yen": "¥", "jpy": "¥", "₹": "₹", "rupee": "₹", "rupees": "₹", "inr": "₹",
}  # fmt: skip
BEFORE = frozenset({"$", "€", "£", "¥", "₹", "usd", "eur", "gbp", "jpy", "inr"})

_LETTERS = r"\p{Lu}\p{Ll}\p{Lt}"
_PIECE = regex.compile(
    rf"(?P<number>{NUMBER.pattern})(?P<suffix>[{_LETTERS}]*)(?![{_LETTERS}\d])"  # 3, $1,500.50, 10k, 3D, 2nd
    rf"|(?P<word>[{_LETTERS}\d]+(?:(?<=\d)\.\d+)*)"  # Noah, CIFAR10, v2.1, 3x3
    r"|(?P<sign>[%$€£¥₹])"
)
_MARKERS = re.compile(r"(?m)^[ \t]*\(?\d{1,2}[.)](?=\s)|\([1-9]\)")  # of lists
_SPELLINGS = str.maketrans(
    {
        **dict.fromkeys("\u2018\u2019\u02bc`", "'"),
        **dict.fromkeys("\u2010\u2011", "-"),
        **dict.fromkeys("™®©\u00ad\u200b\ufeff", None),
    }
)


@dataclass(frozen=True)
class _Number:
    """A number: its values (5m may be five metres or five million), its unit, if any, and whether a text states it."""

    values: frozenset[Decimal]
    unit: str = ""
    literal: str = ""
    stated: bool = True


@dataclass(frozen=True)
class _Word:
    """A word with a capital: its key, whether it is a name by itself, and the number that a hyphen joins to it."""

    key: str
    sure: bool
    acronym: bool
    number: _Number | None = None


@dataclass(frozen=True)
class _Reading:
    runs: tuple[tuple[_Word, ...], ...]
    """consecutive words with capitals"""
    numbers: tuple[_Number, ...]
    words: frozenset[str]
    """the keys of all words in singular and plural, and of each two neighbours as one word"""
    inside: frozenset[str]
    """likewise, of those with a capital that do not start a sentence"""
    acronyms: frozenset[str]
    initials: str
    """the first letters of all words but the commonest, in order"""


@lru_cache(maxsize=256)  # all rollouts of a step's prompts, over several samples
def _source(text: str) -> _Reading:
    return _read(text)


def _stated(text: _Reading, source: _Reading) -> dict[object, bool]:
    """Return what a text states, each name and number once, and whether the source has it."""
    found: dict[object, bool] = {}
    numbers = [number for number in text.numbers if number.stated]
    capitals = text.inside | source.inside
    for run in text.runs:
        names = [word for word in run if word.sure or _forms(word.key) & capitals]
        numbers += [word.number for word in run if word.number and word not in names]
        if names:
            # singular and plural are one name
            found[tuple(min(_forms(word.key)) for word in names)] = _has_name(names, source)
    for number in numbers:
        found[min(number.values), number.unit] = any(_same(number, other) for other in source.numbers)
    return found


def _has_name(names: Sequence[_Word], source: _Reading) -> bool:
    keys = [word.key for word in names]
    if "".join(keys) in source.words or "".join(key[0] for key in keys) in source.acronyms:
        return True
    return all(_forms(word.key) & source.words or _in_full(word, source) for word in names)


def _in_full(word: _Word, source: _Reading) -> bool:
    """Return whether the source writes an acronym out."""
    return word.acronym and any(len(form) >= 3 and form in source.initials for form in _forms(word.key))


def _same(number: _Number, other: _Number) -> bool:
    if number.unit and number.unit != other.unit:
        return False
    return bool(number.values & other.values) or (number.literal != "" and number.literal == other.literal)


def _forms(key: str) -> frozenset[str]:
    """Return a word with its possible singulars."""
    found = {key}
    if len(key) > 3 and key.endswith("s") and not key.endswith("ss"):
        found.add(key[:-1])
        if key.endswith("es"):
            found.add(key[:-2])
        if key.endswith("ies"):
            found.add(key[:-3] + "y")
    return frozenset(found)


def _plain(text: str) -> str:
    """Return a text in one spelling: quotes, hyphens and accents, dots of acronyms, 's and apostrophes."""
    text = regex.sub(r"(?<=\d)[\u00a0\u2009\u202f](?=\d{3}(?!\d))", "", text.translate(_SPELLINGS))
    text = regex.sub(r"\p{M}+", "", unicodedata.normalize("NFKD", text))
    text = regex.sub(r"\bUS\$", "$", text)
    text = regex.sub(r"(?i)\bper cent\b", "percent", text)
    text = regex.sub(r"\b(?:\p{Lu}\.){2,}", lambda found: found[0].replace(".", ""), text)
    text = regex.sub(r"(?<![\w.])\.(?=\d)", "0.", text)  # .05
    text = regex.sub(r"(?i)(?<=\w)'s(?!\w)", "'", text)
    text = regex.sub(r"(?<=\p{Ll})'(?=\p{Lu})", " ", text)  # l'Avenir
    return str(regex.sub(r"(?<=\w)'(?=\w)", "", text))


def _read(text: str) -> _Reading:
    """Return the names and numbers of a text."""
    plain = _plain(text)
    pieces = tuple(_PIECE.finditer(plain))
    numbers = dict(_numbers(plain, pieces))
    keys = [piece[0].casefold() for piece in pieces]
    words = {form for key in keys for form in _forms(key)}
    for place in range(1, len(pieces)):
        if not _between(plain, pieces, place).strip("-. \n"):
            words |= _forms(keys[place - 1] + keys[place])
    shouted = not any(letter.islower() for letter in plain)
    runs = () if shouted else tuple(map(tuple, _runs(plain, pieces, numbers)))
    return _Reading(
        runs=runs,
        numbers=tuple(numbers.values()),
        words=frozenset(words),
        inside=frozenset(form for run in runs for word in run if word.sure for form in _forms(word.key)),
        acronyms=frozenset(form for run in runs for word in run if word.acronym for form in _forms(word.key)),
        initials="".join(key[0] for key, piece in zip(keys, pieces, strict=True) if _counts(key, piece)),
    )


def _counts(key: str, piece: regex.Match[str]) -> bool:
    return piece["word"] is not None and key not in NEVER_NAMES


def _between(plain: str, pieces: Sequence[regex.Match[str]], place: int) -> str:
    """Return what stands between a piece and the one before it; `|` before the first."""
    return plain[pieces[place - 1].end() : pieces[place].start()] if place else "|"


def _joined(plain: str, pieces: Sequence[regex.Match[str]], place: int) -> bool:
    """Return whether nothing but blanks or a hyphen parts a piece from the one before it."""
    return place < len(pieces) and (not (gap := _between(plain, pieces, place)).strip() or gap == "-")


def _numbers(plain: str, pieces: Sequence[regex.Match[str]]) -> Iterator[tuple[int, _Number]]:
    """Yield the numbers of a text, each with the place of its first piece."""
    keys = [piece[0].casefold() for piece in pieces]
    place = 0
    while place < len(pieces):
        first, piece = place, pieces[place]
        place += 1
        in_digits = piece["number"] is not None
        if in_digits:
            values, literal = _values(piece["number"], piece["suffix"])
        elif keys[first] in SMALL or keys[first] in TENS:
            value = SMALL.get(keys[first]) or TENS.get(keys[first], 0)
            if keys[first] in TENS and _joined(plain, pieces, place) and 0 < SMALL.get(keys[place], 0) < 10:
                value += SMALL[keys[place]]
                place += 1
            values, literal = frozenset({Decimal(value)}), ""
        elif keys[first] in IMPLIED:
            yield first, _Number(frozenset({Decimal(IMPLIED[keys[first]])}), stated=False)
            continue
        else:
            continue
        stated = in_digits or keys[first] not in ("zero", "one")
        while _joined(plain, pieces, place) and keys[place] in FACTORS:
            values, stated = frozenset(value * FACTORS[keys[place]] for value in values), True
            place += 1
        yield first, _Number(values, _unit(plain, pieces, first, place), literal, stated)


def _values(digits: str, suffix: str) -> tuple[frozenset[Decimal], str]:
    """Return what a number in digits may mean, and its spelling if letters follow it."""
    value = Decimal(digits.lstrip("$").replace(",", "")[:MOST_DIGITS])
    values = {value * SUFFIXES[suffix]} if suffix in SUFFIXES else {value}
    if suffix in UNSURE:
        values.add(value * UNSURE[suffix])
    return frozenset(values), f"{value}{suffix.casefold()}" if suffix else ""


def _unit(plain: str, pieces: Sequence[regex.Match[str]], first: int, end: int) -> str:
    """Return the unit of the number whose pieces are those from `first` to `end`; empty for none."""
    if pieces[first][0].startswith("$"):
        return "$"
    if _joined(plain, pieces, first) and (before := pieces[first - 1][0].casefold()) in BEFORE:
        return UNITS[before]
    return UNITS.get(pieces[end][0].casefold(), "") if _joined(plain, pieces, end) else ""


def _runs(plain: str, pieces: Sequence[regex.Match[str]], numbers: dict[int, _Number]) -> Iterator[list[_Word]]:
    """Yield the runs of words with capitals; a number that belongs to a name is no longer stated by itself."""
    run: list[_Word] = []
    for place, piece in enumerate(pieces):
        if place in numbers:
            if run and piece["number"] and _between(plain, pieces, place) == "-":  # CIFAR-10: part of the name
                last, own = run[-1], numbers[place]
                run[-1] = _Word(last.key + piece[0].casefold(), last.sure, False, own)
                numbers[place] = replace(own, stated=False)
            continue
        word = _word(plain, piece)
        if run and not (word and _joined(plain, pieces, place)):
            yield run
            run = []
        if word:
            run.append(word)
    if run:
        yield run


def _word(plain: str, piece: regex.Match[str]) -> _Word | None:
    """Return a word that may be a name; None for another piece."""
    text, key = piece[0], piece[0].casefold()
    if piece["word"] is None or len(text) == 1 or key in NEVER_NAMES or key in BEFORE:
        return None
    capitals = sum(letter.isupper() for letter in text)
    digit = any(letter.isdigit() for letter in text)
    term = digit or any(letter.isupper() for letter in text[1:])
    if not term and not text[0].isupper():
        return None
    acronym = not digit and capitals >= 2 and capitals >= len(text) - 1
    return _Word(key, term or not starts_sentence(plain, piece.start()), acronym)
