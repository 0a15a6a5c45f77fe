"""What the policy is told before a post."""

from __future__ import annotations

from typing import Literal

from smolsum.config import TaskConfig

SUMMARISE = TaskConfig().system_prompt
"""the prompt that training uses: it states no length (the study's did not)"""


def exactly(count: int, unit: Literal["words", "tokens"]) -> str:
    """The prompt of a zero-shot baseline: the same, with the length asked for."""
    return f"{SUMMARISE} Use exactly {count} {unit}."
