"""Pairs of a text and a corrupted one, in random order; the settings of the task; the corruptor by rule."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

from smolsum.config.fields import NonNegative, Positive, PositiveCount, Seed, Text
from smolsum.config.sections import Config, TaskConfig
from smolsum.errors import UsageError, nearest
from smolsum.tasks.ab_judge.corruption import FAULTS, Corruption, corrupt, names_in
from smolsum.tasks.data import Example, Split

Corruptor = Callable[[Example, random.Random], Corruption | None]
"""takes a text and a random generator; returns the corrupted text, None where it cannot be corrupted"""


def make_pairs(texts: Sequence[Example], corruptor: Corruptor, *, seed: int) -> list[Example]:
    """Return a pair for each text that can be corrupted; its reference is the letter of the original.

    The draws for a text depend on the seed and the text alone, so that a text in two splits makes the same pair.
    """
    made = []
    for text in texts:
        rng = random.Random(f"{seed} {text.source}")
        corruption = corruptor(text, rng)
        if corruption is None:
            continue
        better = rng.choice("AB")
        samples = (text.source, corruption.text) if better == "A" else (corruption.text, text.source)
        made.append(
            Example(
                id=text.id,
                source=f"[Sample A]:\n{samples[0]}\n\n[Sample B]:\n{samples[1]}",
                references=(better,),
                metadata={"kind": corruption.kind, "before": corruption.before, "after": corruption.after},
            )
        )
    return made


NOTES_TOKENS = "{notes_tokens}"


@dataclass(frozen=True)
class AbJudgeConfig(TaskConfig):
    """What a judgement has to be, and how the pairs are made."""

    system_prompt: str = (
        "You are shown two samples of a text, A and B. One is the original; in the other something was changed for the "
        f"worse. Compare them in notes of {NOTES_TOKENS} tokens, then judge which one is the original. Answer in this "
        "form and add nothing:\n<notes>what you notice</notes>\n<judgement>A or B</judgement>"
    )
    """System message of every prompt; `{notes_tokens}` in it stands for the number."""
    notes_tokens: PositiveCount = 128
    """Length of perfect notes in tokens."""
    notes_width: Positive = 32.0
    """Distance from that length at which the signal `notes_length` has fallen to 0.61."""
    accuracy_power: NonNegative = 4.0
    """Power of the batch's accuracy that a right judgement is worth; 0: always 1."""
    corruptor: Text = "rules"
    """What corrupts the texts: `rules`, or the name of a model behind $OPENAI_BASE_URL."""
    faults: Text = "all"
    """Kinds of fault that the rules may cause, by comma (`swapped,number,name`)."""
    pairs_seed: Seed = 0
    """Seed of the faults and of the order in each pair; that of the run changes neither."""


def settings(config: Config) -> AbJudgeConfig:
    """Return the task's own part of a configuration."""
    return cast(AbJudgeConfig, config.task)


def rules(config: Config, texts: Split) -> Corruptor:
    """Return the corruptor that makes one fault of the kinds in `task.faults`; names come from the texts themselves.
    Raises UsageError for an unknown kind."""
    kinds, names = _kinds(settings(config).faults), names_in(text.source for text in texts.examples)

    def corruptor(text: Example, rng: random.Random) -> Corruption | None:
        return corrupt(text.source, rng, kinds=kinds, names=names)

    return corruptor


def _kinds(text: str) -> tuple[str, ...]:
    if text == "all":
        return tuple(FAULTS)
    kinds = tuple(dict.fromkeys(kind.strip() for kind in text.split(",")))
    for kind in kinds:
        if kind not in FAULTS:
            raise UsageError(f"task.faults: no kind of fault {kind!r}", hint=nearest(kind, FAULTS))
    return kinds
