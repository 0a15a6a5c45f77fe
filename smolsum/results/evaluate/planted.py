"""Texts whose quality is known because it was made: references that are damaged, padded or reworded by rule.

A reference stands for a good text. Damage makes it a bad one, of a known kind; padding makes it longer and no better; a
paraphrase says the same in other words. What a judge says of them shows how often it is right, and what misleads it.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from smolsum.tasks.ab_judge.corruption import FAULTS, WORD, corrupt, names_in
from smolsum.tasks.data import Example

ORIGINAL, PADDED, PARAPHRASE = "original", "padded", "paraphrase"
MEANING = ("number", "name", "opposite", "negation")
"""faults that leave a fluent text with another meaning"""
LANGUAGE = tuple(kind for kind in FAULTS if kind not in MEANING)
MEANING_FAULTS = 3
WORDS_A_LANGUAGE_FAULT = 4
CUT_TO = 0.4
"""share of the words of a text that is cut off"""
FILLER = (
    "That is what this is about, and it is what has been said here.",
    "All in all, this sums up what there is to say about the matter as a whole.",
    "As was said before, the points above are the ones that are meant here.",
    "It should be noted that these are the things that were to be noted.",
)
SAME_MEANING: Mapping[str, str] = {
    "do not": "don't", "does not": "doesn't", "did not": "didn't", "is not": "isn't", "are not": "aren't",
    "was not": "wasn't", "were not": "weren't", "has not": "hasn't", "have not": "haven't", "had not": "hadn't",
    "will not": "won't", "would not": "wouldn't", "could not": "couldn't", "should not": "shouldn't",
    "don't": "do not", "doesn't": "does not", "didn't": "did not", "isn't": "is not", "aren't": "are not",
    "wasn't": "was not", "weren't": "were not", "hasn't": "has not", "haven't": "have not", "hadn't": "had not",
    "won't": "will not", "wouldn't": "would not", "couldn't": "could not", "shouldn't": "should not", "can't": "cannot",
    "i am": "I'm", "i'm": "I am", "i have": "I've", "i've": "I have", "because": "since", "maybe": "perhaps",
    "began": "started", "bought": "purchased", "wants to": "would like to", "want to": "would like to",
    "wanted to": "wished to", "needs to": "has to", "need to": "have to", "helped": "assisted", "fixed": "repaired",
    "kids": "children", "mom": "mother", "dad": "father", "two": "2", "three": "3", "four": "4", "five": "5",
    "six": "6", "seven": "7", "eight": "8", "nine": "9", "ten": "10", "also": "in addition", "almost": "nearly",
    "however": "still",
    "brought home": "came home with", "apologised": "said sorry", "apologized": "said sorry", "talk to": "speak with",
    "how do i": "how should I", "what should i do": "what am I to do", "told me": "said to me", "roommate": "flatmate",
    "flatmate": "roommate", "my boss": "my manager", "boyfriend": "partner", "girlfriend": "partner",
}  # fmt: skip
"""English words, in lower case, and others that mean the same here"""


@dataclass(frozen=True)
class PlantedText:
    """A text of one example, of a known kind."""

    example: Example
    kind: str
    text: str

    @property
    def good(self) -> bool | None:
        """Whether a judge should pass it; None where that is open, as for a padded text."""
        return None if self.kind == PADDED else self.kind in (ORIGINAL, PARAPHRASE)

    @property
    def id(self) -> str:
        """Its name among the judgements."""
        return f"{self.example.id}/{self.kind}"


@dataclass(frozen=True)
class Planting:
    """What damage needs: the other references and their names, and a source of chance."""

    others: Sequence[str]
    names: Sequence[str]
    rng: random.Random = field(default_factory=random.Random)


def _of_another(text: str, planting: Planting) -> str | None:
    """Return the reference of another example."""
    others = [other for other in planting.others if other != text]
    return planting.rng.choice(others) if others else None


def _wrong_facts(text: str, planting: Planting) -> str | None:
    """Return the text with up to `MEANING_FAULTS` other numbers, names, opposites and denials."""
    return _repeatedly(text, planting, MEANING, MEANING_FAULTS)


def _garbled(text: str, planting: Planting) -> str | None:
    """Return the text with a fault of language for every `WORDS_A_LANGUAGE_FAULT` words."""
    return _repeatedly(text, planting, LANGUAGE, max(2, len(text.split()) // WORDS_A_LANGUAGE_FAULT))


def _cut_off(text: str, planting: Planting) -> str | None:
    """Return the first words of the text, in the middle of a sentence."""
    words = list(WORD.finditer(text))
    kept = int(CUT_TO * len(words))
    return text[: words[kept - 1].end()] if 1 <= kept < len(words) else None


def _repeatedly(text: str, planting: Planting, kinds: Sequence[str], times: int) -> str | None:
    """Return the text with several faults; None where none is possible, or they undo each other."""
    changed = text
    for _ in range(times):
        found = corrupt(changed, planting.rng, kinds=kinds, names=planting.names)
        changed = changed if found is None else found.text
    return changed if changed != text else None


DAMAGE: Mapping[str, Callable[[str, Planting], str | None]] = {
    "of another": _of_another,
    "wrong facts": _wrong_facts,
    "garbled": _garbled,
    "cut off": _cut_off,
}
"""what makes a text bad, by kind"""


def padded(text: str, rng: random.Random) -> str:
    """Return the text with two sentences that say nothing."""
    end = "" if text.rstrip().endswith((".", "!", "?")) else "."
    return f"{text.rstrip()}{end} {' '.join(rng.sample(FILLER, 2))}"


def paraphrased(text: str) -> str | None:
    """Return the text with all words of `SAME_MEANING` exchanged for what means the same; None without any."""
    pattern = "|".join(re.escape(words) for words in sorted(SAME_MEANING, key=len, reverse=True))

    def other(match: re.Match[str]) -> str:
        new = SAME_MEANING[match[0].lower()]
        return new[0].upper() + new[1:] if match[0][0].isupper() else new

    changed = re.sub(rf"(?<![\w'])(?:{pattern})(?![\w'])", other, text, flags=re.IGNORECASE)
    return changed if changed != text else None


def plant(examples: Sequence[Example], *, seed: int) -> list[PlantedText]:
    """Return, for each example with a reference, its first reference with all variants of it that are possible.

    The draws depend on the seed and the example's texts alone; other references come from all `examples`.
    """
    references = [example.references[0] for example in examples if example.references]
    names = names_in([example.source for example in examples])
    planted = []
    for example in examples:
        if not example.references or not example.references[0].strip():
            continue
        text = example.references[0]
        planting = Planting(references, names, random.Random(f"{seed} {example.source} {text}"))
        variants = {kind: damage(text, planting) for kind, damage in DAMAGE.items()}
        variants |= {PADDED: padded(text, planting.rng), PARAPHRASE: paraphrased(text)}
        planted.append(PlantedText(example, ORIGINAL, text))
        planted += [PlantedText(example, kind, new) for kind, new in variants.items() if new is not None]
    return planted
