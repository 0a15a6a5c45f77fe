"""What a judge is asked about a completion."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Seen = Literal["source", "completion", "reference"]
COMPOSITE = "composite"
"""the column with the sum of all criteria"""


@dataclass(frozen=True)
class Criterion:
    """One judged metric: its column, the steps that a judge follows, and the texts that it is shown."""

    name: str
    steps: tuple[str, ...]
    """sentences; the texts are called Input (source), Actual Output (completion) and Expected Output (reference)"""
    sees: tuple[Seen, ...] = ("source", "completion")
    threshold: float = 0.5
    """a score in [0, 1] passes from here on"""
