"""The axes of a chart: steps, seconds or tokens along it, which of them are in view (zoom, pan, cursor), its parts by
reward, its scale, and round numbers."""

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from smolsum.console import duration
from smolsum.runs.reader import Run
from smolsum.runs.series import Point
from smolsum.watch.braille import MIN_POSITIVE, bounds, nearest
from smolsum.watch.formats import number, power
from smolsum.watch.model import Snapshot, ViewOptions

UNITS = {"step": "", "time": "perf/step_s", "tokens": "num_tokens"}
"""What a chart can have along it, and the metric whose sum over the steps it is."""
TIME_STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14_400, 21_600, 43_200, 86_400)
ENOUGH = 20
"""Values from which single ones count as outliers."""
MIN_WINDOW = 8
"""Steps below which charts do not zoom in."""
PAN = 0.25
"""Part of the window that a key moves it by."""
OUTLYING = 1.5
"""Distance from the middle 96 % of the values, in parts of their range, beyond which a value is an outlier."""


class Axis:
    """The way from the steps of a run to places along a chart, and back. A run without the metric of a unit has the
    axis of steps."""

    def __init__(self, run: Run, unit: str) -> None:
        series = run.series.get(UNITS[unit])
        self.unit = unit if series is not None and series.count else "step"
        if self.unit != "step" and series is not None:
            self._steps: Sequence[int] = series.steps
            self._ends = list(accumulate(series.values))

    def place(self, step: float) -> float:
        """Return the place of a step: the step, or the seconds or tokens up to its end."""
        if self.unit == "step":
            return step
        after = min(max(bisect_left(self._steps, step), 0), len(self._steps) - 1)
        if self._steps[after] <= step or after == 0:
            return self._ends[after]
        share = (step - self._steps[after - 1]) / (self._steps[after] - self._steps[after - 1])
        return self._ends[after - 1] + share * (self._ends[after] - self._ends[after - 1])

    def step(self, place: float) -> float:
        """Return the nearest step of a place."""
        if self.unit == "step":
            return place
        after = min(bisect_left(self._ends, place), len(self._ends) - 1)
        if after and place - self._ends[after - 1] < self._ends[after] - place:
            after -= 1
        return float(self._steps[after])

    def points(self, points: Sequence[Point]) -> list[Point]:
        if self.unit == "step":
            return list(points)
        return [Point(self.place(p.step), p.low, p.mean, p.high) for p in points]

    def label(self, place: float, apart: float = math.inf) -> str:
        """Return a place for people, with enough digits for places that are so far apart."""
        if self.unit == "time":
            return clock(place) if apart < 60 <= 3600 <= place else duration(place)
        if self.unit == "tokens" and place >= 10_000:
            unit, name, most = (1e6, "M", 2) if place >= 1e6 else (1e3, "k", 0)
            digits = max(most, -math.floor(math.log10(apart / unit) + 1e-9)) if math.isfinite(apart) else most
            return f"{place / unit:.{digits}f}{name}"
        return f"{place:.0f}"


@dataclass(frozen=True)
class Span:
    """Steps of a run, both ends included, and the name of the stages that they belong to."""

    first: float
    last: float
    name: str = ""


def spans_of_rewards(run: Run) -> list[Span]:
    """Return the parts of a run in which one reward holds: neighbouring stages with the same weights are one part."""
    parts: list[tuple[dict[str, tuple[float, float]], int, list[str]]] = []
    for stage, began in sorted(run.stage_began.items(), key=lambda item: item[1]):
        settings = run.settings.stages.get(stage)
        own, later = (settings.rewards, settings.rewards_end) if settings else ({}, {})
        weights = {name: (own.get(name, 0.0), end) for name, end in {**own, **later}.items()}
        if parts and parts[-1][0] == weights:
            parts[-1][2].append(stage)
        else:
            parts.append((weights, began, [stage]))
    ends = [began - 1 for _, began, _ in parts[1:]] + [max(run.step, parts[-1][1])] if parts else []
    return [Span(began, end, ", ".join(names)) for (_, began, names), end in zip(parts, ends, strict=True)]


def window(snapshot: Snapshot) -> tuple[float, float]:
    """Return the first and the last step that charts show, of all shown runs or of the part that was zoomed into."""
    runs, options = [snapshot.run, *snapshot.others], snapshot.options
    first = min((run.first_step for run in runs if run.row), default=0)
    last = max(run.step for run in runs)
    if not options.window:
        return first, max(last, first)
    end = min(options.end if options.end is not None else last, last)
    return max(end - options.window + 1, first), end


def scale(values: Sequence[float], log: bool, least: float | None) -> tuple[float, float]:
    """Return the ends of the scale of a chart; `least` as in `Chart`."""
    if least is None or (least == 0 and log):
        return bounds(values, log=log)
    if log:
        return bounds([max(value, least) for value in values], log=True)
    low, high = min(*values, least, least), max(*values, least, least)
    return (low, high) if low < high else (low, low + 1.0)


def without_outliers(points: Sequence[Point]) -> list[float]:
    """Return the extremes of the points without those few that would flatten all others."""
    values = [
        value for point in points for value in ((point.low, point.high) if point.low < point.high else (point.low,))
    ]
    if len(values) < ENOUGH:
        return values
    ordered = sorted(values)
    low, high = ordered[len(ordered) // 50], ordered[-1 - len(ordered) // 50]
    reach = OUTLYING * (high - low) or math.inf
    return [value for value in values if low - reach <= value <= high + reach]


def can_be_log(points: Sequence[Point], least: float | None) -> bool:
    """Whether a logarithmic scale has a place for every value: all are positive, or the chart has a floor for them."""
    return bool(least) or all(point.low > MIN_POSITIVE for point in points)


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
    found = [n * step for n in range(first, math.floor(high / step + 1e-9) + 1)]
    return found[:most]


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
    errors = [min((abs(value - other) for other in values if other != value), default=0.0) / 20 for value in values]
    found = [_label(value, error, width) for value, error in zip(values, errors, strict=True)]
    even = [text for text, tick in zip(tick_labels(ticks), ticks, strict=True) if math.isclose(float(text), tick)]
    if len(even) == len(ticks) and all(len(text) <= width for text in even):
        found[2:] = even
    if None in found:
        apart = [_label(value - bottom, error, width - 1) for value, error in zip(values, errors, strict=True)]
        found = [
            f"+{text or min(_forms(value - bottom, width - 1), key=lambda form: abs(float(form) - (value - bottom)))}"
            for text, value in zip(apart, values, strict=True)
        ]
        found[1] = number(bottom)
    return [text or "" for text in found]


def _label(value: float, error: float, width: int) -> str | None:
    """The shortest form of a number that is wrong by at most `error`; None if `width` is too short for it."""
    return next((text for text in _forms(value, width) if abs(float(text) - value) <= error), None)


def _forms(value: float, width: int) -> list[str]:
    """The forms of a number that fit into `width` characters, the short ones first."""
    forms = [number(value), *(f"{value:.{places}f}" for places in range(width)), *(power(value, n) for n in range(4))]
    return [text for text in forms if len(text) <= width]


def tick_labels(values: Sequence[float]) -> list[str]:
    """Return round numbers at equal distances with as many decimals as their distance needs."""
    if len(values) < 2:
        return [number(value) if "e" in f"{value:g}" else f"{value:g}" for value in values]
    gap = abs(values[1] - values[0])
    places = max(0, -math.floor(math.log10(gap) + 1e-9))
    return [f"{value:.{places}f}" for value in values]


def clock(seconds: float) -> str:
    """Return a time as hours, minutes and seconds: `3:05:09`."""
    minutes, second = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{second:02}"


def labels_along(columns: int, x: tuple[float, float], axis: Axis, first: str, last: str) -> str:
    """Return the line below a chart: `first` at its left end, `last` at its right end, round numbers in between as far
    as there is room."""
    line = [" "] * columns
    line[: len(first)] = first[:columns]
    if len(first) + len(last) + 1 <= columns:
        line[columns - len(last) :] = last
    most = columns // 12
    values = round_numbers(*x, most, time=axis.unit == "time")
    apart = values[1] - values[0] if len(values) > 1 else math.inf
    for value in values:
        if axis.unit == "step" and value != round(value):
            continue  # there is no half a step
        label = axis.label(value, apart)
        start = nearest(columns, x, value) - len(label) // 2
        if start > 0 and "".join(line[start - 1 : start + len(label) + 1]).isspace() and start + len(label) < columns:
            line[start : start + len(label)] = label
    return "".join(line)


def zoomed(snapshot: Snapshot, factor: float, around: float | None = None) -> ViewOptions:
    """Return the options with `factor` times as many steps in view; the step `around`, or else the cursor or the newest
    step, stays where it is."""
    options, (first, last) = snapshot.options, window(snapshot)
    begin, end = _whole(snapshot)
    steps = last - first + 1
    wanted = max(round(steps * factor), min(MIN_WINDOW, round(steps)))
    if wanted >= end - begin + 1:
        return replace(options, window=0, end=None)
    fixed = around if around is not None else options.cursor if options.cursor is not None else last
    share = (last - fixed) / steps
    return _moved(snapshot, wanted, fixed + share * wanted)


def panned(snapshot: Snapshot, by: int) -> ViewOptions:
    """Return the options with the window moved by a part of its width; at the end it follows the newest step."""
    first, last = window(snapshot)
    if not snapshot.options.window:
        return snapshot.options
    return _moved(snapshot, snapshot.options.window, last + by * max(1, round(PAN * (last - first + 1))))


def pointed(snapshot: Snapshot, step: float | None) -> ViewOptions:
    """Return the options with the cursor at a step, moved into view."""
    if step is None:
        return replace(snapshot.options, cursor=None)
    begin, end = _whole(snapshot)
    step = min(max(step, begin), end)
    found, (first, last) = replace(snapshot.options, cursor=step), window(snapshot)
    if found.window and not first <= step <= last:
        end_of_window = step if step > last else step + found.window - 1
        return _moved(replace(snapshot, options=found), found.window, end_of_window)
    return found


def stepped(snapshot: Snapshot, by: int, columns: int) -> ViewOptions:
    """Return the options with the cursor moved by that many of `columns` columns, at least a step each; it begins at
    the newest step in view."""
    first, last = window(snapshot)
    cursor = snapshot.options.cursor
    width = max(1, round((last - first) / max(columns, 1)))
    return pointed(snapshot, last if cursor is None else cursor + by * width)


def _whole(snapshot: Snapshot) -> tuple[float, float]:
    return window(replace(snapshot, options=replace(snapshot.options, window=0, end=None)))


def _moved(snapshot: Snapshot, steps: int, end: float) -> ViewOptions:
    """The options with a window of so many steps up to `end`, within the run."""
    begin, newest = _whole(snapshot)
    end = max(round(end), round(begin) + steps - 1)
    return replace(snapshot.options, window=steps, end=None if end >= newest else end)
