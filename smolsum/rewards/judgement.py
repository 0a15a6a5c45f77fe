"""A judgement between two samples, A and B, in tags: read strictly, worth more the better the whole batch judges.

After kalomaze's judge experiments; whatever is wrong gets nothing, so that

    right and well formed > right > wrong, however it is formed

A right judgement is worth the batch's accuracy to a power (4: with 0.4 of the batch right each is worth 0.0256, with
all of it right 1). The bonus for notes is 1 at their wanted length and falls off on both sides; the original's curve is
not published, here it is a Gaussian.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

WELL_FORMED = re.compile(r"\s*<notes>(?P<notes>.*)</notes>\s*<judgement>(?P<letter>[AB])</judgement>\s*", re.DOTALL)
JUDGEMENT = re.compile(r"<judgement>\s*([AB])\s*</judgement>")
NOTES = re.compile(r"<notes>(.*?)</notes>", re.DOTALL)
TAG = re.compile(r"</?(?:notes|judgement)>")


@dataclass(frozen=True)
class Reading:
    """What a completion says: the letter and the notes with their place in the text, None where it cannot be told, and
    whether the whole is formed as it was asked for."""

    letter: str | None
    notes: tuple[int, int] | None
    well_formed: bool


def read(text: str) -> Reading:
    """The reading of a completion.

    The letter counts where `<judgement>` opens and closes exactly once, around A or B and white space; two judgements
    are none. Well formed is `<notes>`, notes that are not blank, `</notes>`, `<judgement>`, the letter, `</judgement>`,
    each tag once, with white space between and around the two and nothing else.
    """
    tags = TAG.findall(text)
    once = tags.count("<judgement>") == tags.count("</judgement>") == 1
    letter = JUDGEMENT.search(text) if once else None
    notes = NOTES.search(text) if tags.count("<notes>") == tags.count("</notes>") == 1 else None
    formed = WELL_FORMED.fullmatch(text) if len(tags) == 4 else None
    return Reading(
        letter=letter[1] if letter else None,
        notes=notes.span(1) if notes else None,
        well_formed=formed is not None and bool(formed["notes"].strip()),
    )


def scaled_by_accuracy(right: Sequence[Sequence[bool]], power: float) -> list[list[float]]:
    """For each right one the share of all that is right, to `power`; 0 for each wrong one. Of the same shape."""
    flat = [one for row in right for one in row]
    worth = (sum(flat) / len(flat)) ** power if flat else 0.0
    return [[worth if one else 0.0 for one in row] for row in right]


def notes_bonus(tokens: int | None, *, target: int, width: float) -> float:
    """exp(-((tokens - target) / width)² / 2): 1 at the target, 0.61 at a distance of `width`; 0 without notes."""
    return 0.0 if tokens is None else math.exp(-(((tokens - target) / width) ** 2) / 2)
