"""The corruptor by rule that a configuration asks for."""

from __future__ import annotations

import random

from smolsum.config import Config
from smolsum.data import Example, Split
from smolsum.errors import UsageError
from smolsum.tasks.ab_judge.corruption import FAULTS, Corruption, corrupt, names_in
from smolsum.tasks.ab_judge.pairs import Corruptor
from smolsum.tasks.ab_judge.settings import settings
from smolsum.values import nearest


def rules(config: Config, texts: Split) -> Corruptor:
    """One fault of the kinds in `task.faults`; names come from the texts themselves. UsageError for an unknown kind."""
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
