"""Which checkpoint of a run did best on its validation split."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from smolsum.checkpoints import Checkpoint
from smolsum.config import StageConfig

Validation = Mapping[str, float]
"""The `reward`, and the task's `score` where it is measured; empty where there was no whole validation."""


def validation(metrics: Mapping[str, float], score: str) -> Validation:
    """What a step's metrics have of a validation, the task's score being called `score` there. One that lacks prompts
    has no reward."""
    if "validation/reward" not in metrics:
        return {}
    keys = {"score": f"validation/{score}", "reward": "validation/reward"}
    return {name: metrics[key] for name, key in keys.items() if key in metrics}


def rank(found: Validation) -> tuple[float, float]:
    """What orders the validations of a stage: the task's score, and where that is the same or missing, the reward."""
    return found.get("score", -math.inf), found.get("reward", -math.inf)


def best_of(found: Sequence[Checkpoint], stages: Mapping[str, StageConfig]) -> Checkpoint | None:
    """The first of the checkpoints that did best; None where none was validated. Rewards tell checkpoints of several
    stages apart only where these are rewarded alike; otherwise the last stage counts most."""
    alike, names = comparable(stages), list(stages)

    def place(checkpoint: Checkpoint) -> tuple[float, int, float]:
        score, reward = rank(of_checkpoint(checkpoint))
        stage = checkpoint.meta.get("stage")
        return score, names.index(stage) if stage in names and not alike else 0, reward

    return max((checkpoint for checkpoint in found if of_checkpoint(checkpoint)), key=place, default=None)


def comparable(stages: Mapping[str, StageConfig]) -> bool:
    """Whether a reward means the same in all stages."""
    weights = [stage.rewards for stage in stages.values()]
    return all(other == weights[0] for other in weights)


def of_checkpoint(checkpoint: Checkpoint) -> Validation:
    """The checkpoint's own validation. One that was saved anew before a stop knows it as its stage's best."""
    best = checkpoint.meta.get("best", {})
    known: Validation = checkpoint.meta.get("validation") or (best if best.get("step") == checkpoint.step else {})
    return known
