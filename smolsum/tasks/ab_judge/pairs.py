"""Pairs of a text and a corrupted one, in random order."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from smolsum.data import Example
from smolsum.tasks.ab_judge.corruption import Corruption

Corruptor = Callable[[Example, random.Random], Corruption | None]
"""a text and what it may draw from, to the corrupted text; None where it cannot be corrupted"""


@dataclass(frozen=True)
class Pairs:
    """Examples whose source is a text, with both samples in their metadata, and how many texts made none."""

    examples: tuple[Example, ...]
    skipped: int


def make_pairs(texts: Sequence[Example], corrupt: Corruptor, *, seed: int) -> Pairs:
    """A pair of each text that can be corrupted; its reference is the letter of the original.

    What is drawn for a text follows from the seed and the text alone, so that a text in two splits is seen to be.
    """
    made = []
    for text in texts:
        rng = random.Random(f"{seed} {text.source}")
        corruption = corrupt(text, rng)
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
    return Pairs(tuple(made), len(texts) - len(made))
