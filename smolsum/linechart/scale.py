"""Scales of charts: their ends, round numbers on them, and numbers in few characters."""

import math
from bisect import bisect_left
from collections.abc import Sequence

from smolsum.linechart.braille import MIN_POSITIVE, Ends, PlotPoint

TIME_STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14_400, 21_600, 43_200, 86_400)
ENOUGH = 20
"""Values from which single ones count as outliers."""
OUTLYING = 1.5
"""Distance from the middle 96 % of the values, in parts of their range, beyond which a value is an outlier."""


def bounds(values: Sequence[float], *, log: bool = False, least: float | None = None) -> Ends:
    """Return the ends of a scale: the least and the greatest finite value (positive if `log`), widened if they are
    equal; (0, 1) without any value, (0.1, 1) on a log scale. It begins at `least` or below, a log scale there or
    above."""
    kept = [value for value in values if math.isfinite(value) and (value > MIN_POSITIVE or not log)]
    if least is not None and (least or not log):
        kept = [max(value, least) for value in kept] if log else [*kept, least]
    if not kept:
        return (0.1, 1.0) if log else (0.0, 1.0)
    low, high = min(kept), max(kept)
    if low < high:
        return low, high
    if log:
        return low / 2, high * 2
    reach = abs(low) / 2 or 0.5
    return (low, low + 1.0) if low == least else (low - reach, high + reach)


def without_outliers(points: Sequence[PlotPoint]) -> list[float]:
    """Return the extremes of the points without those few that would flatten all others."""
    values = [value for p in points for value in ((p.low, p.high) if p.low < p.high else (p.low,))]
    if len(values) < ENOUGH:
        return values
    ordered = sorted(values)
    low, high = ordered[len(ordered) // 50], ordered[-1 - len(ordered) // 50]
    reach = OUTLYING * (high - low) or math.inf
    return [value for value in values if low - reach <= value <= high + reach]


def can_be_log(least_value: float, least: float | None) -> bool:
    """Whether a logarithmic scale has a place for every value: all are positive, or the chart has a floor for them."""
    return bool(least) or least_value > MIN_POSITIVE


def round_numbers(low: float, high: float, most: int, *, time: bool = False) -> list[float]:
    """Return at most `most` round numbers between two ends, at equal distances."""
    if most < 1 or not high > low:
        return []
    least = (high - low) / most
    if time and least <= TIME_STEPS[-1]:
        step = float(TIME_STEPS[bisect_left(TIME_STEPS, least)])
    else:
        power = 10.0 ** math.floor(math.log10(least))
        step = next(power * factor for factor in (1, 2, 5, 10, 20) if power * factor >= least * (1 - 1e-9))
    first = math.ceil(low / step - 1e-9)
    return [n * step for n in range(first, math.floor(high / step + 1e-9) + 1)][:most]


def round_powers(low: float, high: float, most: int) -> list[float]:
    """Return at most `most` powers of ten between two positive ends."""
    first, last = math.ceil(math.log10(low)), math.floor(math.log10(high))
    stride = max(1, -(-(last - first + 1) // max(most, 1)))
    return [10.0**power for power in range(first, last + 1, stride)]


def scale_labels(top: float, bottom: float, ticks: Sequence[float], width: int) -> list[str]:
    """Return labels of at most `width` characters for both ends of a scale and for its ticks. No two are the same, and
    each is closer to its value than a twentieth of the way to the next one. Where `width` is too short for that, all
    but the lowest are distances from the lowest one, with a plus."""
    values = [top, bottom, *ticks]
    gap = abs(ticks[1] - ticks[0]) if len(ticks) > 1 else abs(ticks[0]) if ticks else 1.0
    even = max(0, -math.floor(math.log10(gap or 1.0) + 1e-9))
    """decimals of the ticks"""
    found = []
    for place, value in enumerate(values):
        error = min((abs(value - other) for other in values if other != value), default=0.0) / 20
        forms = [*([f"{value:.{even}f}"] if place > 1 else []), *_forms(value)]
        found.append(next((t for t in forms if len(t) <= width and abs(float(t) - value) <= error), ""))
    if "" in found:
        for place, apart in enumerate(value - bottom for value in values):
            fitting = [text for text in _forms(apart) if len(text) < width]
            _, nearest_one = min((abs(float(text) - apart), text) for text in fitting)
            found[place] = f"+{nearest_one}"
        found[1] = number(bottom)
    return found


def _forms(value: float) -> list[str]:
    """The forms of a number, the short ones first."""
    return [number(value), *(f"{value:.{places}f}" for places in range(8)), *(power(value, n) for n in range(4))]


def number(value: float | None) -> str:
    """Return a number in at most seven characters: whole numbers as they are, else two or three digits;
    `-` for None."""
    if value is None:
        return "-"
    size = abs(value)
    if value == int(value) and size < 100_000:
        return str(int(value))
    if size < 0.001 or size >= 99_999.5:
        return next(text for places in (1, 0) if len(text := power(value, places)) <= 7)
    if size >= 100:
        return f"{value:.0f}"
    places = 4 if size < 0.01 else 3 if size < 10 else 1
    return f"{value:.{places}f}"


def power(value: float, places: int) -> str:
    """Return a number as a mantissa with so many decimals and the shortest power of ten."""
    mantissa, exponent = f"{value:.{places}e}".split("e")
    return f"{mantissa}e{int(exponent)}"
