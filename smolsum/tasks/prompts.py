"""What the policy is told before a post."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Literal, cast

from smolsum.config import TaskConfig
from smolsum.errors import UsageError
from smolsum.tasks.tldr_settings import TldrConfig

SUMMARISE = TldrConfig().system_prompt
"""the prompt that training uses: it states no length (the study's did not)"""


def exactly(count: int, unit: Literal["words", "tokens"]) -> str:
    """The prompt of a zero-shot baseline: the same, with the length asked for."""
    return f"{SUMMARISE} Use exactly {count} {unit}."


def variant(settings: TaskConfig, text: str) -> TaskConfig:
    """The settings with the system prompt that a baseline's `--prompt` means: `<N>-words` or `<N>-tokens` asks for that
    length, anything of several words is the prompt itself. UsageError for another single word."""
    if match := re.fullmatch(r"([1-9]\d*)-(words|tokens)", text):
        return replace(settings, system_prompt=exactly(int(match[1]), cast(Literal["words", "tokens"], match[2])))
    if len(text.split()) < 2:
        raise UsageError(
            f"no prompt {text!r}", hint="give 50-words, 64-tokens (or another number), or a whole instruction"
        )
    return replace(settings, system_prompt=text)
