"""The stages of a run on its way: what identifies each, which steps it spans, and where a run goes on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from smolsum import manifest
from smolsum.checkpoints import Checkpoint
from smolsum.config import Config
from smolsum.errors import UsageError
from smolsum.materials import stage_fingerprint
from smolsum.policy import ranks


def fingerprints(config: Config, provenance: Mapping[str, Any], steps: Mapping[str, int]) -> dict[str, str]:
    """The fingerprint of every stage, each over those before it; UsageError where another rank has others."""
    found: dict[str, str] = {}
    for name in config.stages:
        previous = next(reversed(found.values()), "")
        found[name] = stage_fingerprint(config, provenance, name, steps[name], previous)
    own = {key: provenance[key] for key in manifest.FIXED}
    every = ranks.gathered(own | {"settings": found})
    for n, other in enumerate(every):
        if unlike := [key for key, value in other.items() if value != every[0][key]]:
            pair = f"{other[unlike[0]]} and {every[0][unlike[0]]}"
            raise UsageError(
                f"rank {n} has another {', '.join(unlike)} than rank 0: {pair}",
                hint="give every machine the same files, versions and settings",
            )
    return found


def span(steps: Mapping[str, int], name: str) -> tuple[int, int]:
    """The run's steps before the stage's first and at its last."""
    names = list(steps)
    start = sum(steps[n] for n in names[: names.index(name)])
    return start, start + steps[name]


def resume_point(steps: Mapping[str, int], whole: Sequence[Checkpoint]) -> int:
    """The step to go on from, by the run's whole checkpoints. A stage needs the whole end of the stage before it:
    without that, the run goes back to there."""
    point = 0
    for name in steps:
        start, end = span(steps, name)
        point = max([start, *(c.step for c in whole if start < c.step <= end)])
        if point != end:
            break
    return point
