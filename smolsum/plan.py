"""What a configuration will do, before it does it."""

from __future__ import annotations

import math
from datetime import datetime
from pathlib import Path

from smolsum.config import Config
from smolsum.runs import derive_name


def planned_steps(config: Config, prompts: int) -> dict[str, int]:
    """Optimizer steps of every stage: its own number, or its epochs over so many training prompts."""
    per_step = config.train.prompts_per_step * config.train.accumulation_steps
    return {name: stage.steps or math.ceil(stage.epochs * prompts / per_step) for name, stage in config.stages.items()}


def needs_data(config: Config) -> bool:
    """Whether the number of steps depends on how many prompts there are."""
    return any(stage.steps == 0 for stage in config.stages.values())


def planned_name(config: Config, runs_dir: Path) -> str:
    """The run's own name, or one from model, strategy, rewards and the time that `runs_dir` does not have yet."""
    if config.run.name:
        return config.run.name
    rewards = dict.fromkeys(r for stage in config.stages.values() for r in stage.rewards)
    quality = [r for r in rewards if r != "length"] or list(rewards)
    strategy = "finetuned" if list(config.stages) == ["length", "quality"] else "-".join(config.stages)
    return derive_name(config.model.path, strategy, "-".join(quality), datetime.now(), runs_dir)
