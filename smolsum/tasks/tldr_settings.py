"""The settings of a summary of a set length."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from smolsum.config import Config, TaskConfig
from smolsum.values import Count, PositiveCount


@dataclass(frozen=True)
class TldrConfig(TaskConfig):
    """What a summary has to be."""

    system_prompt: str = "Summarise the post. Keep the key points and who did what."
    """System message of every prompt. It states no length: length is learnt from the reward."""
    target_tokens: PositiveCount = 64
    """Length of a perfect completion in tokens, without the end-of-sequence token."""
    tolerance_tokens: Count = 5
    """Distance from the target in tokens that still counts as on target."""


def settings(config: Config) -> TldrConfig:
    """The task's own part of a configuration."""
    return cast(TldrConfig, config.task)
