"""What a file says, where it says it in the right form: a run may be damaged, or written by something else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

LARGEST = 1e300
"""Beyond it a sum of some values has no float."""


def number(value: object) -> float | None:
    """The value as a float, None if it is no number that can be reckoned with."""
    known = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < LARGEST
    return float(value) if known else None  # type: ignore[arg-type]


def whole(value: object) -> int | None:
    """The value if it is an integer that counts something, else None."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53 else None


def table(value: object) -> Mapping[str, Any]:
    """The value if it has keys, else nothing."""
    return value if isinstance(value, Mapping) else {}


def items(value: object) -> Sequence[Any]:
    """The value if it is a list, else nothing."""
    return value if isinstance(value, list) else ()
