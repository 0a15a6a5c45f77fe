"""What a configuration will do, before it does it."""

from __future__ import annotations

import math

from smolsum.config import Config


def planned_steps(config: Config, prompts: int) -> dict[str, int]:
    """Optimizer steps of every stage: its own number, or its epochs over so many training prompts."""
    per_step = config.train.prompts_per_step * config.train.accumulation_steps
    return {name: stage.steps or math.ceil(stage.epochs * prompts / per_step) for name, stage in config.stages.items()}


def needs_data(config: Config) -> bool:
    """Whether the number of steps depends on how many prompts there are."""
    return any(stage.steps == 0 for stage in config.stages.values())
