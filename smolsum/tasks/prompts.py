"""What the policy is told before a post."""

from __future__ import annotations

from typing import Literal

SUMMARISE = "Summarise the post. Keep the key points and who did what."
"""the prompt that training uses: it states no length (the study's did not)"""


def exactly(count: int, unit: Literal["words", "tokens"]) -> str:
    """The prompt of a zero-shot baseline: the same, with the length asked for."""
    return f"{SUMMARISE} Use exactly {count} {unit}."
