"""What a file says, where it says it in the right form: a run may be damaged, or written by something else."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

LARGEST = 1e300
"""Beyond it a sum of some values has no float."""


def number(value: object) -> float | None:
    """The value as a float, None if it is no number that can be reckoned with: NaN, an infinity, true."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if abs(value) < LARGEST and not math.isnan(value) else None


def whole(value: object) -> int | None:
    """The value if it is an integer that counts something, else None."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53 else None


def text(value: object) -> str:
    """The value if it is a text, else an empty one."""
    return value if isinstance(value, str) else ""


def table(value: object) -> Mapping[str, object]:
    """The value if it has keys, else nothing."""
    return value if isinstance(value, Mapping) else {}


def items(value: object) -> Sequence[object]:
    """The value if it is a list, else nothing."""
    return value if isinstance(value, list) else ()
