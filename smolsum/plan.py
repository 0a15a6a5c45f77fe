"""What a configuration will do, before it does it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from smolsum.config import Config
from smolsum.configurations import NAMED
from smolsum.mix import epoch_counts
from smolsum.runs import derive_name


def planned_steps(config: Config, kinds: Sequence[str]) -> dict[str, int]:
    """Optimizer steps of every stage: its own number, or its epochs over the training prompts, whose kinds are given.
    UsageError for a stage whose mix is impossible."""
    per_step = config.train.prompts_per_step * config.train.accumulation_steps
    sizes = {name: sum(epoch_counts(name, stage.mix, kinds).values()) for name, stage in config.stages.items()}
    return {
        name: stage.steps or math.ceil(stage.epochs * sizes[name] / per_step) for name, stage in config.stages.items()
    }


def needs_data(config: Config) -> bool:
    """Whether the plan depends on which prompts there are."""
    return any(stage.steps == 0 or stage.mix for stage in config.stages.values())


def planned_name(config: Config, runs_dir: Path) -> str:
    """The run's own name, or one from model, strategy, rewards and the time that `runs_dir` does not have yet."""
    if config.run.name:
        return config.run.name
    rewards = dict.fromkeys(r for stage in config.stages.values() for r in stage.rewards)
    quality = [r for r in rewards if r != "length"] or list(rewards)
    strategy = "finetuned" if list(config.stages) == ["length", "quality"] else "-".join(config.stages)
    what = "-".join(quality) if len(quality) <= NAMED else f"{len(quality)}-signals"
    return derive_name(config.model.path, strategy, what, datetime.now(), runs_dir)
