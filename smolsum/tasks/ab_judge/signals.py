"""What a judgement is rewarded for, over a whole step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache

from smolsum.config import Config
from smolsum.rewards.judgement import Reading, notes_bonus, read, scaled_by_accuracy
from smolsum.rewards.signal import Dependent, Signal, Values
from smolsum.rollout.records import Prompt, Rollout, RolloutGroup
from smolsum.tasks.ab_judge.settings import settings

RIGHT = "right"
Decode = Callable[[Sequence[int]], str]


@cache
def decoder(model: str) -> Decode:
    """What turns the ids that a model sampled into text."""
    from smolsum.policy.load import load_decoder  # takes a second, and settings alone need none of it

    return load_decoder(model)


def is_right(reading: Reading, prompt: Prompt) -> bool:
    """Whether the letter is that of the original."""
    return reading.letter == prompt.references[0]


def notes_tokens(rollout: Rollout, reading: Reading, decode: Decode) -> int | None:
    """How many of the sampled tokens have text of the notes in them; None where there are no notes."""
    if reading.notes is None:
        return None
    start, end = reading.notes
    return _tokens_for(end, rollout, decode) - _tokens_for(start, rollout, decode)


def _tokens_for(place: int, rollout: Rollout, decode: Decode) -> int:
    """The fewest of its first tokens whose text reaches `place`, found by halving."""
    low, high = 0, len(rollout.token_ids)
    while low < high:
        middle = (low + high) // 2
        reached = len(decode(rollout.token_ids[:middle]).lstrip()) >= place  # the outer white space of a text is cut
        low, high = (low, middle) if reached else (middle + 1, high)
    return low


def score_right(groups: Sequence[RolloutGroup], config: Config) -> Values:
    """1 for the letter of the original, else 0: the judgement alone, not scaled."""
    return [[float(is_right(read(r.text), group.prompt)) for r in group.rollouts] for group in groups]


def score_judgement(groups: Sequence[RolloutGroup], config: Config, found: Mapping[str, Values]) -> Values:
    """The accuracy of all that is scored together to `task.accuracy_power` where it is right, else 0."""
    right = [[value == 1 for value in row] for row in found[RIGHT]]
    return [list(row) for row in scaled_by_accuracy(right, settings(config).accuracy_power)]


def score_format(groups: Sequence[RolloutGroup], config: Config, found: Mapping[str, Values]) -> Values:
    """1 for a right judgement in exactly the wanted form, else 0."""
    return _where_right(groups, found, lambda rollout: float(read(rollout.text).well_formed))


def score_notes(groups: Sequence[RolloutGroup], config: Config, found: Mapping[str, Values]) -> Values:
    """1 for a right judgement after notes of `task.notes_tokens` sampled tokens, less for other lengths, else 0."""
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


MEANINGS = {
    RIGHT: ("{0, 1}", "the original is named"),
    "judgement": ("[0, 1]", "the step's accuracy to the power task.accuracy_power, where the judgement is right"),
    "judgement_format": ("{0, 1}", "notes and judgement in their tags and nothing else, where it is right"),
    "notes_length": ("[0, 1]", "notes near task.notes_tokens, where it is right"),
}
SIGNALS: dict[str, Signal] = {
    RIGHT: score_right,
    "judgement": Dependent((RIGHT,), score_judgement),
    "judgement_format": Dependent((RIGHT,), score_format),
    "notes_length": Dependent((RIGHT,), score_notes),
}
