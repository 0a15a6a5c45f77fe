"""Facts in a summary, counted without a judge: which the post states, which it does not, which are left out.

A data set may carry, for each post, the facts it states, as mappings with three keys that are read here:

    kind    what sort of fact ("name", "relation", "place", "amount", "event" …)
    forms   the words that state it ("Noah"; "last Friday"; "denied" or "denies")
    who     for a fact about a person: the words for that person ("Noah", "brother", "he"), else empty

The counting knows no template and no grammar. It reads a text from left to right, and these are its rules:

1. A mention is a form of any post's fact (whole words, the longest first, in any case except for names and
   places), or a number or sum of money, whether known or not.
2. A mention is right if its form is one of the post's own, else wrong. A form that several facts share is
   right if any of them fits.
3. For a fact about a person, the nearest person before the mention (a known name or relation, I, she, he)
   must be in `who`, else the statement is wrong: in the post another person did that.
4. A capitalised word inside a sentence that is neither a mention nor part of a form of the post's is wrong:
   a garbled name. (At the start of a sentence any word is capitalised.)
5. What is said twice counts once, right or wrong: `text_metrics` counts repetition.

So a paraphrase states nothing, and an exchange of two sums that the post names both goes unseen.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

from smolsum.errors import UsageError
from smolsum.rewards.grounded import NUMBER, starts_sentence

CASED_KINDS = frozenset({"name", "place"})
PERSON_KINDS = frozenset({"name", "relation"})
PRONOUNS = frozenset({"i", "she", "he"})


@dataclass(frozen=True)
class FactCount:
    """How many facts a text states rightly, states wrongly, and leaves out of those that the post has."""

    right: int
    wrong: int
    missing: int


@dataclass(frozen=True)
class FactVocabulary:
    """Every form that some post's facts have, by kind: what a text can state, truly or not."""

    forms: Mapping[str, frozenset[str]]

    @cached_property
    def people(self) -> frozenset[str]:
        """The forms that name a person, as `spelling` writes them."""
        return frozenset(spelling(form) for kind in PERSON_KINDS for form in self.forms.get(kind, ()))

    @cached_property
    def kinds(self) -> dict[str, frozenset[str]]:
        """The kinds of each form, as `spelling` writes it."""
        found: dict[str, frozenset[str]] = {}
        for kind, forms in self.forms.items():
            for form in map(spelling, forms):
                found[form] = found.get(form, frozenset()) | {kind}
        return found

    @cached_property
    def scanner(self) -> re.Pattern[str]:
        """Cuts a text into known forms, numbers and other words."""
        known = frozenset[str]().union(*self.forms.values())
        any_case = frozenset[str]().union(*(self.forms[kind] for kind in self.forms.keys() - CASED_KINDS))
        words = sorted(known, key=lambda form: (-len(form), form))
        options = "|".join(_pattern(form, any_case=form in any_case) for form in words if not NUMBER.fullmatch(form))
        form = rf"(?P<form>{options})(?!\w)|" if options else ""
        return re.compile(rf"{form}(?P<number>{NUMBER.pattern})|(?P<word>\w+)")


@dataclass(frozen=True)
class _Fact:
    kind: str
    forms: frozenset[str]
    keys: frozenset[str]
    """the forms as `spelling` writes them"""
    who: frozenset[str]
    """likewise"""


def vocabulary(facts: Iterable[Sequence[Mapping[str, Any]]]) -> FactVocabulary:
    """Return the forms of all facts, of which `facts` holds one list a post.

    Give the posts of every split, so that a form is known wherever it stands. Raises UsageError for anything but facts.
    """
    forms: dict[str, set[str]] = {}
    for post in facts:
        for fact in _read(post):
            forms.setdefault(fact.kind, set()).update(fact.forms)
    return FactVocabulary({kind: frozenset(known) for kind, known in forms.items()})


def count_facts(text: str, facts: Sequence[Mapping[str, Any]], vocabulary: FactVocabulary) -> FactCount:
    """Return how much of `facts`, the post's own, `text` states rightly, states wrongly and leaves out.

    `right` and `missing` add up to the number of facts; `wrong` counts distinct statements, by the rules of
    the module. Raises UsageError for anything but facts.
    """
    post = _read(facts)
    parts = {part for fact in post for key in fact.keys for part in key.split()}
    right: set[int] = set()
    wrong: set[tuple[str, str]] = set()
    for mention, person in _mentions(text, parts, vocabulary):
        stated = [n for n, fact in enumerate(post) if mention in fact.keys]
        fitting = [n for n in stated if not post[n].who or person in post[n].who]
        if fitting:
            right.add(next((n for n in fitting if n not in right), fitting[0]))
        else:
            wrong.add((mention, person if stated else ""))
    return FactCount(len(right), len(wrong), len(post) - len(right))


@dataclass(frozen=True)
class Statement:
    """Something that a text states: the form, as one spelling has it, its kinds, and the nearest person before it."""

    form: str
    kinds: frozenset[str]
    person: str


def statements(text: str, vocabulary: FactVocabulary) -> list[Statement]:
    """Return all mentions in a text, in order, by rules 1 and 3 of the module. A number that no post has is an amount
    after a dollar sign, else an age."""
    found = []
    for mention, person in _mentions(text, set(), vocabulary, names=False):
        kinds = vocabulary.kinds.get(mention)
        if kinds is None:
            kinds = frozenset({"amount" if mention.startswith("$") else "age"})
        found.append(Statement(mention, kinds, person))
    return found


def _mentions(
    text: str, parts: set[str], vocabulary: FactVocabulary, *, names: bool = True
) -> Iterator[tuple[str, str]]:
    """Yield what the text states, each with the nearest person before it ("" for none).

    `parts` are the words of the post's own forms, which are never other names; without `names` no word is.
    """
    person = ""
    for match in vocabulary.scanner.finditer(text):
        said = spelling(match[0])
        if match.lastgroup != "word":
            yield said, person
            if said in vocabulary.people:
                person = said
        elif said in PRONOUNS:
            person = said if match[0] != "i" else person
        elif names and said not in parts and _is_name(match):
            yield said, person


def _is_name(word: re.Match[str]) -> bool:
    """Return whether the word can only be a name: capitalised, no abbreviation, not the start of a sentence."""
    capitalised = word[0][0].isupper() and not word[0].isupper()
    return capitalised and not starts_sentence(word.string, word.start())


def _read(column: Sequence[Mapping[str, Any]]) -> list[_Fact]:
    """Return a post's facts. Raises UsageError for anything else, since users' data may hold anything."""
    facts = []
    for fact in column if isinstance(column, list | tuple) else [column]:
        if not (
            isinstance(fact, Mapping)
            and _are_texts([fact.get("kind")])
            and _are_texts(fact.get("forms"))
            and (fact.get("who") == [] or _are_texts(fact.get("who")))
        ):
            raise UsageError(
                f"not a fact: {fact!r}",
                hint='write {"kind": "name", "forms": ["Noah"], "who": []}, or rename the column "facts"',
            )
        forms, who = frozenset(fact["forms"]), frozenset(map(spelling, fact["who"]))
        facts.append(_Fact(fact["kind"], forms, frozenset(map(spelling, forms)), who))
    return facts


def _are_texts(values: object) -> bool:
    """Return whether this is a list, not empty, of texts that are not blank."""
    return isinstance(values, list) and bool(values) and all(isinstance(v, str) and v.strip() for v in values)


@lru_cache(maxsize=10_000)
def spelling(form: str) -> str:
    """Return the one spelling of a form: case folded, single blanks, no commas in numbers."""
    return re.sub(r"(?<=\d),(?=\d)", "", " ".join(form.casefold().split()))


def _pattern(form: str, *, any_case: bool) -> str:
    words = r"\s+".join(re.escape(word) for word in form.split())
    return f"(?i:{words})" if any_case else words
