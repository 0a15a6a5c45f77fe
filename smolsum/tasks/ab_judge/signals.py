"""Reads a judgement between two samples, A and B, and rewards it more when the whole step judges well.

After kalomaze's judge experiments. A wrong judgement gets nothing, so that

    right and well formed > right > wrong, however it is formed

A right judgement is worth the batch's accuracy to a power (4: with 0.4 of the batch right each is worth 0.0256, with
all of it right 1). The bonus for notes is 1 at their wanted length and falls off on both sides; the original's curve is
not published, here it is a Gaussian.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from smolsum.config.sections import Config
from smolsum.rewards import REWARDS
from smolsum.rewards.signal import Dependent, Facts, Signal, Values, described
from smolsum.tasks.ab_judge.settings import settings
from smolsum.types import Prompt, Rollout, RolloutGroup

WELL_FORMED = re.compile(r"\s*<notes>(?P<notes>.*)</notes>\s*<judgement>(?P<letter>[AB])</judgement>\s*", re.DOTALL)
JUDGEMENT = re.compile(r"<judgement>\s*([AB])\s*</judgement>")
NOTES = re.compile(r"<notes>(.*?)</notes>", re.DOTALL)
TAG = re.compile(r"</?(?:notes|judgement)>")


@dataclass(frozen=True)
class ParsedJudgement:
    """A completion taken apart: the letter, and the place of the notes in the text, None where unclear; and whether the
    whole has the form that was asked for."""

    letter: str | None
    notes: tuple[int, int] | None
    well_formed: bool


def read(text: str) -> ParsedJudgement:
    """Return the reading of a completion.

    The letter counts if `<judgement>` opens and closes exactly once, around A or B and white space; two judgements do
    not count. Well formed is `<notes>`, notes that are not blank, `</notes>`, `<judgement>`, the letter,
    `</judgement>`, each tag once, with white space between and around the two and nothing else.
    """
    tags = TAG.findall(text)
    once = tags.count("<judgement>") == tags.count("</judgement>") == 1
    letter = JUDGEMENT.search(text) if once else None
    notes = NOTES.search(text) if tags.count("<notes>") == tags.count("</notes>") == 1 else None
    formed = WELL_FORMED.fullmatch(text) if len(tags) == 4 else None
    return ParsedJudgement(
        letter=letter[1] if letter else None,
        notes=notes.span(1) if notes else None,
        well_formed=formed is not None and bool(formed["notes"].strip()),
    )


def scaled_by_accuracy(right: Sequence[Sequence[bool]], power: float) -> Values:
    """Return PxG rewards: the share of right judgements to `power` for a right one, 0 for a wrong one."""
    flat = [one for row in right for one in row]
    worth = (sum(flat) / len(flat)) ** power if flat else 0.0
    return [[worth if one else 0.0 for one in row] for row in right]


def notes_bonus(tokens: int | None, *, target: int, width: float) -> float:
    """Return exp(-((tokens - target) / width)² / 2): 1 at the target, 0.61 `width` away; 0 without notes."""
    return 0.0 if tokens is None else math.exp(-(((tokens - target) / width) ** 2) / 2)


RIGHT = "right"
Decode = Callable[[Sequence[int]], str]


@cache
def decoder(model: str) -> Decode:
    """Return the function that turns token ids of a model into text."""
    from smolsum.policy.load import load_decoder  # takes a second

    return load_decoder(model)


def is_right(reading: ParsedJudgement, prompt: Prompt) -> bool:
    """Return whether the letter is that of the original."""
    return reading.letter == prompt.references[0]


def notes_tokens(rollout: Rollout, reading: ParsedJudgement, decode: Decode) -> int | None:
    """Return how many of the sampled tokens have text of the notes in them, if only in part; None without notes."""
    if reading.notes is None:
        return None
    start, end = reading.notes
    before = _tokens_for(start + 1, rollout, decode) - 1  # a token that ends the opening tag may begin the notes
    return _tokens_for(end, rollout, decode) - before if end > start else 0


def _tokens_for(place: int, rollout: Rollout, decode: Decode) -> int:
    """Return how many of the first tokens it takes until their text reaches `place`, found by halving."""
    low, high = 0, len(rollout.token_ids)
    while low < high:
        middle = (low + high) // 2
        reached = len(decode(rollout.token_ids[:middle]).lstrip()) >= place  # the outer white space of a text is cut
        low, high = (low, middle) if reached else (middle + 1, high)
    return low


@described("{0, 1}", "the original is named")
def score_right(groups: Sequence[RolloutGroup], config: Config) -> Values:
    """Return 1 for the letter of the original, else 0: the judgement alone, not scaled."""
    return [[float(is_right(read(r.text), group.prompt)) for r in group.rollouts] for group in groups]


def score_judgement(groups: Sequence[RolloutGroup], config: Config, found: Mapping[str, Values]) -> Values:
    """Return the accuracy of all that is scored together to `task.accuracy_power` where it is right, else 0."""
    right = [[value == 1 for value in row] for row in found[RIGHT]]
    return scaled_by_accuracy(right, settings(config).accuracy_power)


def score_format(groups: Sequence[RolloutGroup], config: Config, found: Mapping[str, Values]) -> Values:
    """Return 1 for a right judgement in exactly the wanted form, else 0."""
    return _where_right(groups, found, lambda rollout: float(read(rollout.text).well_formed))


def score_notes(groups: Sequence[RolloutGroup], config: Config, found: Mapping[str, Values]) -> Values:
    """Return 1 for a right judgement after notes of `task.notes_tokens` sampled tokens, less for others, else 0."""
    task, decode = settings(config), decoder(config.model.path)

    def worth(rollout: Rollout) -> float:
        tokens = notes_tokens(rollout, read(rollout.text), decode)
        return notes_bonus(tokens, target=task.notes_tokens, width=task.notes_width)

    return _where_right(groups, found, worth)


def _where_right(
    groups: Sequence[RolloutGroup], found: Mapping[str, Values], worth: Callable[[Rollout], float]
) -> Values:
    return [
        [worth(rollout) if right else 0.0 for rollout, right in zip(group.rollouts, row, strict=True)]
        for group, row in zip(groups, found[RIGHT], strict=True)
    ]


SIGNALS: dict[str, Signal] = {
    RIGHT: score_right,
    "judgement": Dependent(
        (RIGHT,),
        score_judgement,
        Facts("", "[0, 1]", "the step's accuracy to the power task.accuracy_power, where the judgement is right"),
    ),
    "judgement_format": Dependent(
        (RIGHT,),
        score_format,
        Facts("", "{0, 1}", "notes and judgement in their tags and nothing else, where it is right"),
    ),
    "notes_length": Dependent(
        (RIGHT,), score_notes, Facts("", "[0, 1]", "notes near task.notes_tokens, where it is right", by_length=True)
    ),
    "overlong": REWARDS["overlong"],
}
