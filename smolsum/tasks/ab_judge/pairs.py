"""Pairs of a text and a corrupted one, in random order, and the corruptor by rule."""

import random
from collections.abc import Callable, Sequence

from smolsum.config.sections import Config
from smolsum.errors import UsageError, nearest
from smolsum.tasks.ab_judge.corruption import FAULTS, Corruption, corrupt, names_in
from smolsum.tasks.ab_judge.settings import settings
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
