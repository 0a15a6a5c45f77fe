"""Prompts from a seed: as many of each level as asked for, no two alike, none in two splits."""

from __future__ import annotations

from functools import lru_cache
from random import Random
from typing import Any

from smolsum.data import Example, Split, generated_split
from smolsum.errors import UsageError
from smolsum.mix import apportion
from smolsum.tasks.strict_json.settings import StrictJsonConfig
from smolsum.tasks.strict_json.templates import HELD_OUT, LEVELS, TEMPLATES, Template

SPLITS = ("test", "validation", "train")
"""in the order in which they are drawn: a larger training split leaves the others as they are"""
PATIENCE = 60
"""drawings in a row that bring nothing new, of each of its templates, before a level counts as exhausted"""


def check_mix(task: StrictJsonConfig) -> dict[str, float]:
    """The share of each level. UsageError unless they make 1."""
    mix = {level: getattr(task, level) for level in LEVELS}
    if abs(sum(mix.values()) - 1) > 1e-6:
        shares = ", ".join(f"task.{level} = {share:g}" for level, share in mix.items())
        raise UsageError(
            f"the shares of the levels make {sum(mix.values()):g}, not 1: {shares}",
            hint="--set task.simple=0.2 --set task.medium=0.3 --set task.hard=0.5",
        )
    return mix


def split_of(task: StrictJsonConfig, split: str) -> Split:
    """The split of prompts that these settings make. UsageError for shares that do not make 1, and where a level has
    not as many different prompts."""
    sizes = tuple(getattr(task, f"{name}_prompts") for name in SPLITS)
    shares = tuple(check_mix(task).values())
    return _splits(task.data_seed, sizes, shares, task.held_out_templates)[split]


@lru_cache(maxsize=4)
def _splits(seed: int, sizes: tuple[int, ...], shares: tuple[float, ...], disjoint: bool) -> dict[str, Split]:
    known: set[str] = set()
    made = {}
    for name, size in zip(SPLITS, sizes, strict=True):
        rng, examples = Random(f"{seed} {name}"), []
        for level, count in apportion(size, dict(zip(LEVELS, shares, strict=True))).items():
            own = [t for t in TEMPLATES if t.level == level]
            if disjoint:
                own = [t for t in own if (t.name in HELD_OUT) == (name != "train")]
            examples += [_draw(own, rng, known, level, n) for n in range(count)]
        rng.shuffle(examples)
        made[name] = generated_split(
            name, (Example(f"{name}-{n}", text, (), metadata) for n, (text, metadata) in enumerate(examples, start=1))
        )
    return made


def _draw(own: list[Template], rng: Random, known: set[str], level: str, made: int) -> tuple[str, dict[str, Any]]:
    """A prompt that there was not yet, its templates taking turns."""
    for attempt in range(PATIENCE * len(own)):
        template = own[(made + attempt) % len(own)]
        asked = template.draw(rng)
        if asked.text not in known:
            known.add(asked.text)
            depth = {"depth": asked.depth} if asked.depth else {}
            return asked.text, {"level": level, "template": template.name, "schema": asked.schema} | depth
    raise UsageError(
        f"the {len(own)} templates of level {level} make no more than about {made} different prompts a split",
        hint="ask for fewer prompts (task.train_prompts), or for less of that level",
    )
