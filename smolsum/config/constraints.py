"""Constraints on what a stage's rollouts are: read from text such as `length in 59..69: 0.99; bleu >= 0.1`.

NAME in A..B: SHARE     at least that share of the rollouts is from A to B
NAME within N: SHARE    the same for |NAME - target| <= N, of the task's target; N may be the word `tolerance`
NAME >= A: SHARE        the same for a range with one end; <= as well
NAME in A..B            without a share, the rollouts' mean is in the range
NAME >= start           the mean is at least what it was in the stage's first steps; <= as well. `0.9 start` leaves a
                        tenth less, `1.1 start` a tenth more
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product

from smolsum.errors import UsageError

LENGTH = "length"
"""the length in the unit of the task's target, which a constraint means by the name of the reward for it"""
LEAST_UNIT = 0.01
"""unit of what is relative to a start of next to 0, such as a share of wrong words, so that one rollout does not move a
multiplier as far as it goes"""
FORMS = "length in 59..69: 0.99, meteor >= 0.3, meteor >= 0.9 start, or overlong >= 0: 0.95"
_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_ONE_END = rf"(?P<sign>>=|<=)\s*(?P<end>{_NUMBER}|(?:{_NUMBER}\s+)?start)"
_RANGE = rf"(?:in\s+(?P<low>{_NUMBER})\s*\.\.\s*(?P<high>{_NUMBER})|{_ONE_END}"
_FORM = re.compile(
    rf"(?P<name>[A-Za-z_][\w.-]*)\s*{_RANGE}|within\s+(?P<near>{_NUMBER}|tolerance))\s*(?::\s*(?P<share>{_NUMBER})\s*)?"
)


@dataclass(frozen=True)
class Constraint:
    """A range that a measured value has to be in: for at least the share `level` of the rollouts, or, where that is
    None, on average."""

    text: str
    """as the user wrote it, without the share"""
    measured: str
    """what is measured: `LENGTH`, or a signal or measure of the task"""
    low: float = -math.inf
    high: float = math.inf
    level: float | None = None
    from_target: bool = False
    """whether the value's distance from the target is meant"""
    by_tolerance: bool = False
    """whether that distance is the task's tolerance, so that `high` counts tolerances"""
    of_start: bool = False
    """whether the range is relative to what the stage began with; before `relative_to`, 0.9 is a tenth below that, and
    1.1 a tenth above"""

    @cached_property
    def slug(self) -> str:
        """The constraint in the names of metrics."""
        words = self.text.replace(">=", "at_least").replace("<=", "at_most").replace("..", "-").replace(" in ", " ")
        return re.sub(r"[^\w.-]+", "_", words)

    @property
    def unit(self) -> float:
        """The unit of distances from the range, where no target is: its larger end in size, 1 where both are 0; for one
        that is relative to the start at least `LEAST_UNIT`."""
        size = max(abs(end) for end in (self.low, self.high) if math.isfinite(end))
        return max(size, LEAST_UNIT) if self.of_start else size or 1.0

    @property
    def end(self) -> float:
        """The end of a range that is open at the other."""
        return self.low if math.isinf(self.high) else self.high

    def ending_at(self, end: float) -> "Constraint":
        """Return this one-ended range with another end."""
        low, high = (end, self.high) if math.isinf(self.high) else (self.low, end)
        return replace(self, low=low, high=high)

    def relative_to(self, start: float) -> "Constraint":
        """Return the constraint for a stage that began with the mean `start`: 0.9 is a tenth of its size below it, also
        where it is negative."""
        return self.ending_at(start + (self.end - 1.0) * abs(start))

    def shortfall(self, found: float) -> float:
        """Return how much a share or mean misses; negative where there is room to spare."""
        if self.level is not None:
            return self.level - found
        return self.end - found if math.isinf(self.high) else found - self.end

    def error(self, found: float) -> float:
        """Return the shortfall between -1 and 1, that of a mean in multiples of its bound."""
        return min(max(self.shortfall(found) / (1.0 if self.level is not None else self.unit), -1.0), 1.0)


def parse_constraints(text: str, source: str = "") -> tuple[Constraint, ...]:
    """Return the constraints of a text, separated by semicolons; a mean in a range with two ends is two constraints.

    Raises UsageError, which quotes the part that is wrong and names the `source` of the text.
    """
    try:
        found = [part for one in text.split(";") if one.strip() for part in _parse(one.strip())]
        if len({one.text for one in found}) < len(found):
            raise UsageError(f"constraint {text!r} names the same range twice", hint="leave one out")
        _check_means(found)
    except UsageError as error:
        raise UsageError(f"{source}: {error.message}", hint=error.hint) if source else error from None
    return tuple(found)


def _check_means(constraints: Sequence[Constraint]) -> None:
    """Raise UsageError where a mean would have to be in two ranges that have nothing in common."""
    means = [one for one in constraints if one.level is None and not one.of_start]
    for lower, upper in product(means, means):
        if lower.measured == upper.measured and lower.low > upper.high:
            raise UsageError(f"constraints {lower.text!r} and {upper.text!r} exclude each other", hint="leave one out")


def _parse(text: str) -> list[Constraint]:
    match = _FORM.fullmatch(text)
    if match is None:
        raise UsageError(f"constraint {text!r} is not of a known form", hint=FORMS)
    part = match.groupdict()
    name, head = part["name"], text.partition(":")[0].strip()
    level = None if part["share"] is None else float(part["share"])
    if level is not None and not 0 < level <= 1:
        raise UsageError(f"constraint {text!r}: the share {part['share']} is not above 0 and at most 1", hint=FORMS)
    if part["near"] is not None:
        if level is None:
            raise UsageError(f"constraint {text!r}: `within` needs a share of the rollouts", hint=f"{head}: 0.95")
        by_tolerance = part["near"] == "tolerance"
        near = 1.0 if by_tolerance else float(part["near"])
        if near < 0:
            raise UsageError(f"constraint {text!r}: no distance is below 0", hint=f"{name} within {-near:g}: {level}")
        return [Constraint(head, name, high=near, level=level, from_target=True, by_tolerance=by_tolerance)]
    if part["sign"]:
        number, of_start = part["end"].removesuffix("start").strip() or "1", part["end"].endswith("start")
        end = float(number)
        if of_start and (level is not None or end <= 0):
            what = f"{number} is not above 0" if level is None else "`start` bounds a mean, so it takes no share"
            raise UsageError(f"constraint {text!r}: {what}", hint=head if level is not None else f"{name} >= 0.9 start")
        low, high = (end, math.inf) if part["sign"] == ">=" else (-math.inf, end)
        return [Constraint(head, name, low, high, level, of_start=of_start)]
    low, high = float(part["low"]), float(part["high"])
    if low > high:
        raise UsageError(f"constraint {text!r}: {part['low']} is above {part['high']}", hint=FORMS)
    whole = Constraint(head, name, low, high, level)
    if level is not None:
        return [whole]
    lower, upper = f"{name} >= {part['low']}", f"{name} <= {part['high']}"
    return [replace(whole, text=lower, high=math.inf), replace(whole, text=upper, low=-math.inf)]
