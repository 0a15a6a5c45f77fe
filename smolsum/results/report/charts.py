"""Charts as SVG text: pure functions of numbers. Colours are CSS classes, so that the page decides light and dark.

A drawing fills its place, up to the width at which its text is as large as the page's. Text is 11 units high in a
drawing of 310 or 400 units, so that it can be read on a phone.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from typing import TypeAlias

from smolsum.results.report.document import shortened

WIDTH, PANEL = 400.0, 310.0
"""widths of a drawing, and of one of several that are placed next to or below each other"""
REM = 13.0
"""units in 1 rem at a drawing's full width"""
FEW = 14
"""panels of a drawing that are placed two a row"""
MANY = 200
"""points above which a scatter draws them small and faint"""
COLOURS = 8
"""series with a colour of their own; later ones repeat the colours with other strokes"""
STROKES = ("", " dashed", " dotted", " mixed")
LETTER = 6.1
"""mean width of a letter of text"""
LEFT, BOTTOM, TOP = 54.0, 20.0, 22.0
Point: TypeAlias = tuple[float, float]
Box: TypeAlias = tuple[float, float, float, float]
"""left, top, right, bottom"""


@dataclass(frozen=True)
class PlotSeries:
    """A line or a cloud of points with its name; `values` are (x, y). A line has a gap, and the plot a divider, after
    each x in `ends`."""

    name: str
    values: tuple[Point, ...]
    ends: tuple[float, ...] = ()


@dataclass(frozen=True)
class Band:
    """What x should be: a value, and from where to where around it; `name` stands in the legend."""

    name: str
    low: float
    middle: float
    high: float


@dataclass(frozen=True)
class Plot:
    """One small plot; its y axis has per cent where the values are `shares`, and both axes have room for the points of
    `room`, so that several plots can have the same."""

    title: str
    series: tuple[PlotSeries, ...]
    x_title: str = "step"
    shares: bool = False
    band: Band | None = None
    room: tuple[Point, ...] = ()


@dataclass(frozen=True)
class Spot:
    """A point of a trajectory through a plot, with its intervals; ends that are not known are NaN."""

    name: str
    x: float
    y: float
    x_interval: tuple[float, float] = (math.nan, math.nan)
    y_interval: tuple[float, float] = (math.nan, math.nan)


@dataclass(frozen=True)
class Trajectory:
    """Points in the order in which they were reached."""

    name: str
    spots: tuple[Spot, ...]
    best: bool = False


@dataclass(frozen=True)
class AxisText:
    """An axis: its title, how its ticks are shown, and whether lower values are better and so at the far end."""

    title: str
    show: Callable[[float], str]
    lower_is_better: bool = False


def curves(panels: Sequence[Plot], names: Sequence[str], *, alt: str) -> tuple[str, tuple[str, ...]]:
    """Return lines in panels, each with its own y axis, and their legend; `names` fixes the colours. First all in one
    drawing for pages that cannot place them, two panels a row, or three where there are many, so that it is not much
    taller than wide; then a drawing of each."""
    height = 150.0
    band = next((panel.band.name for panel in panels if panel.band), "")
    legend, tall = _legend(names, 2, PANEL, band=band)
    pieces = [(_plot(panel, PANEL, height, names), height + 20, panel.title) for panel in panels]
    pieces.append((legend, tall + 8, f"Legend: {', '.join(names)}"))
    across = 2 if len(pieces) <= FEW else 3
    moved, y, row = [], 0.0, 0.0
    for place, (content, tall, _) in enumerate(pieces):
        if place % across == 0:
            y, row = y + row, 0.0
        row = max(row, tall)
        moved.append(f'<g transform="translate({(place % across) * (PANEL + 20):g} {y:g})">{content}</g>')
    whole = _svg("".join(moved), y + row, alt, across * PANEL + (across - 1) * 20)
    return whole, tuple(_svg(content, tall, title, PANEL) for content, tall, title in pieces)


def scatter(series: Sequence[PlotSeries], *, alt: str, x_title: str, y_title: str) -> str:
    """Return points by series; small and faint where there are many."""
    names = [one.name for one in series]
    drawn = _plot(Plot(y_title, tuple(series), x_title), WIDTH, 280, names, dots=True)
    legend, tall = _legend(names, 312, WIDTH)
    return _svg(drawn + legend, 318 + tall, alt)


def trajectory_plot(
    trajectories: Sequence[Trajectory], *, alt: str, x_axis: AxisText, y_axis: AxisText, front: Sequence[Spot] = ()
) -> str:
    """Return trajectories as arrows from point to point, each point with a cross of its intervals; better is up and
    right. The best one's last point has a ring. A single one has names at its points, several have numbers and a
    legend; steps join `front` from the left."""
    spots = [spot for trajectory in trajectories for spot in trajectory.spots]
    xs = [value for spot in spots for value in (spot.x, *spot.x_interval) if math.isfinite(value)]
    ys = [value for spot in spots for value in (spot.y, *spot.y_interval) if math.isfinite(value)]
    height = 290.0
    frame = (LEFT, 26.0, WIDTH - 12, height - BOTTOM)
    axes = _Axes(frame, ticks(min(xs), max(xs)), ticks(min(ys), max(ys)), x_axis, y_axis)
    parts = [_text(4, 13, y_axis.title, "start", "title"), _text(frame[2], height + 18, x_axis.title, "end", "title")]
    parts += axes.y_grid()
    for tick in axes.x_ticks:
        x = axes.place(tick, axes.y_ticks[0])[0]
        parts.append(axes.upright(x))
        parts.append(_text(x, frame[3] + 14, x_axis.show(tick), "middle" if x < frame[2] - 20 else "end", "faint"))
    if len(front) > 1:
        first, *others = (axes.place(spot.x, spot.y) for spot in front)
        steps = "".join(f"V{y:.1f}H{x:.1f}" for x, y in others)
        parts.append(_path("front", f"M{first[0]:.1f} {first[1]:.1f}{steps}"))
    labels: dict[tuple[str, Point], None] = {}
    taken: list[Point] = []
    arrows: set[tuple[Point, Point]] = set()
    dots: set[Point] = set()
    for number, trajectory in enumerate(trajectories, start=1):
        colour, points = _class(number - 1), [axes.place(spot.x, spot.y) for spot in trajectory.spots]
        for start, end in pairwise(points):
            if (start, end) not in arrows and math.dist(start, end) > 8:
                parts.append(f'<g class="way {colour}">{_arrow(start, end)}</g>')
                shares = [part / 20 for part in range(21)]
                taken += [(start[0] + s * (end[0] - start[0]), start[1] + s * (end[1] - start[1])) for s in shares]
            arrows.add((start, end))
        for spot, (x, y) in zip(trajectory.spots, points, strict=True):
            last = spot is trajectory.spots[-1]
            if (x, y) not in dots or last:
                parts.append(_cross(spot, axes, colour))
                title = escape(f"{trajectory.name}: {spot.name}" if last and len(trajectories) > 1 else spot.name)
                kind = "end" if last else "from"
                ring = f'<circle class="ring" cx="{x:.1f}" cy="{y:.1f}" r="7.5"/>' if trajectory.best and last else ""
                parts.append(
                    f'<g class="dot {colour} {kind}"><title>{title}</title>{ring}'
                    f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4"/></g>'
                )
            dots.add((x, y))
            labels[spot.name if len(trajectories) == 1 or not last else str(number), (x, y)] = None
    parts.append(_labels(list(labels), frame, taken))
    if len(trajectories) == 1:
        return _svg("".join(parts), height + 26, alt)
    names = [
        f"{number} {trajectory.name}{' (best)' * trajectory.best}"
        for number, trajectory in enumerate(trajectories, start=1)
    ]
    legend, tall = _legend(names, height + 26, WIDTH)
    return _svg("".join(parts) + legend, height + 30 + tall, alt)


@dataclass(frozen=True)
class _Axes:
    """Two axes, in a frame of the drawing."""

    frame: Box
    x_ticks: Sequence[float]
    y_ticks: Sequence[float]
    x: AxisText
    y: AxisText

    def place(self, x: float, y: float) -> Point:
        """Where values are in the drawing."""
        left, top, right, bottom = self.frame
        across = (x - self.x_ticks[0]) / (self.x_ticks[-1] - self.x_ticks[0])
        up = (y - self.y_ticks[0]) / (self.y_ticks[-1] - self.y_ticks[0])
        across = 1 - across if self.x.lower_is_better else across
        up = 1 - up if self.y.lower_is_better else up
        return left + across * (right - left), bottom - up * (bottom - top)

    def y_grid(self) -> Iterator[str]:
        """The lines and numbers of the y axis."""
        for tick in self.y_ticks:
            y = self.place(self.x_ticks[0], tick)[1]
            yield _path("grid", f"M{self.frame[0]:.1f} {y:.1f}H{self.frame[2]:.1f}")
            yield _text(self.frame[0] - 4, y + 3.5, self.y.show(tick), "end", "faint")

    def upright(self, x: float, kind: str = "grid") -> str:
        """A line from top to bottom."""
        return _path(kind, f"M{x:.1f} {self.frame[1]:.1f}V{self.frame[3]:.1f}")


def _arrow(start: Point, end: Point) -> str:
    """A line with a head, both ends a little off their points."""
    length = math.dist(start, end)
    across, down = (end[0] - start[0]) / length, (end[1] - start[1]) / length
    tip = (end[0] - 5 * across, end[1] - 5 * down)
    neck = (tip[0] - 7 * across, tip[1] - 7 * down)
    line = f"M{start[0] + 5 * across:.1f} {start[1] + 5 * down:.1f}L{neck[0]:.1f} {neck[1]:.1f}"
    wings = [(neck[0] - 3 * side * down, neck[1] + 3 * side * across) for side in (1, -1)]
    head = "L".join(f"{x:.1f} {y:.1f}" for x, y in (tip, *wings))
    return _path("shaft", line) + _path("head", f"M{head}Z")


def _cross(spot: Spot, axes: _Axes, colour: str) -> str:
    """The intervals of a point, as far as they are known."""
    (left, right), (low, high) = spot.x_interval, spot.y_interval
    ends = [((left, spot.y), (right, spot.y)), ((spot.x, low), (spot.x, high))]
    lines = [(axes.place(*a), axes.place(*b)) for a, b in ends if all(map(math.isfinite, (*a, *b)))]
    path = "".join(f"M{a:.1f} {b:.1f}L{c:.1f} {d:.1f}" for (a, b), (c, d) in lines)
    return _path(f"span {colour}", path) if path else ""


def heat(
    rows: Sequence[str],
    columns: Sequence[str],
    values: Sequence[Sequence[float]],
    *,
    alt: str,
    show: Callable[[float], str],
    titles: tuple[str, str] = ("", ""),
) -> str:
    """Return a grid of numbers in [-1, 1]: green above 0, red below, grey for NaN. `titles` are those of the rows and
    of the columns; a long name of a column is broken at a space, a hyphen or an underscore."""
    label, size = 78.0, 74.0
    heads = [_broken(name, int(size / LETTER)) for name in columns]
    above = 14.0 * any(titles)
    top = above + 11 + 13 * max(len(lines) for lines in heads)
    width = label + size * len(columns)
    parts = [_text(label - 6, 11, titles[0], "end", "title"), _text(width, 11, titles[1], "end", "title")] * any(titles)
    for column, lines in enumerate(heads):
        for line, text in enumerate(reversed(lines)):
            parts.append(_text(label + column * size + size / 2, top - 8 - 13 * line, text, "middle"))
    for row, name in enumerate(rows):
        parts.append(_text(label - 6, top + row * 34 + 21, name, "end"))
        for column, value in enumerate(values[row]):
            x, y = label + column * size, top + row * 34
            known = not math.isnan(value)
            kind = "none" if not known else "pos" if value >= 0 else "neg"
            opacity = f' fill-opacity="{0.12 + 0.6 * min(1.0, abs(value)):.2f}"' if known else ""
            parts.append(f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{size - 2:g}" height="32"{opacity}/>')
            parts.append(_text(x + size / 2 - 1, y + 20, show(value) if known else "\N{EN DASH}", "middle"))
    return _svg("".join(parts), top + 34 * len(rows) + 4, alt, width)


def _broken(name: str, letters: int) -> list[str]:
    """A name in one line, or in two of at most so many letters each."""
    if len(name) <= letters:
        return [name]
    ends = [place + 1 for place, letter in enumerate(name) if letter in " -_" and place < letters]
    end = ends[-1] if ends else letters
    return [name[:end].strip(), shortened(name[end:], letters)]


def bars(names: Sequence[str], parts: Sequence[str], shares: Sequence[Sequence[float]], *, alt: str) -> str:
    """Return a bar below each name, cut into `parts` by their shares in [0, 1]; the rest up to 1 stays blank."""
    drawn = []
    for row, name in enumerate(names):
        y, x = row * 36.0, 0.0
        drawn.append(_text(0, y + 13, name, "start"))
        drawn.append(f'<rect class="blank" x="0" y="{y + 18:g}" width="{WIDTH:g}" height="12"/>')
        for place, share in enumerate(shares[row]):
            wide = share * WIDTH
            if wide > 0:
                title = f"<title>{escape(parts[place])}: {100 * share:.1f}%</title>"
                drawn.append(
                    f'<rect class="fill c{place % COLOURS}" x="{x:.1f}" y="{y + 18:g}" width="{wide:.1f}" height="12">'
                    f"{title}</rect>"
                )
            x += wide
    bottom = 36.0 * len(names)
    for share, anchor in ((0.0, "start"), (0.5, "middle"), (1.0, "end")):
        drawn.append(_text(share * WIDTH, bottom + 8, f"{share:.0%}", anchor, "faint"))
    legend, tall = _legend(parts, bottom + 18, WIDTH, 0)
    return _svg("".join(drawn) + legend, bottom + 24 + tall, alt)


def spans(names: Sequence[str], values: Sequence[tuple[float, float, float]], *, alt: str, x_title: str) -> str:
    """Return a dot for each name with a line from low to high, on one axis; `values` are (middle, low, high), all
    finite."""
    label = min(270.0, max((len(name) for name in names), default=0) * LETTER + 10)
    axis = ticks(min(low for _, low, _ in values), max(high for _, _, high in values))
    left, bottom = label + 8, 22.0 * len(names)

    def place(value: float) -> float:
        return left + (value - axis[0]) / (axis[-1] - axis[0]) * (WIDTH - 24 - left)

    drawn = []
    for tick in axis:
        drawn.append(_path("grid", f"M{place(tick):.1f} 0V{bottom:g}"))
        drawn.append(_text(place(tick), bottom + 16, tick_text(tick), "middle", "faint"))
    for row, (name, (middle, low, high)) in enumerate(zip(names, values, strict=True)):
        y = row * 22.0 + 11
        drawn.append(_text(label, y + 4, shortened(name, int(label / LETTER / 1.12)), "end"))
        drawn.append(_path("line c0", f"M{place(low):.1f} {y:g}H{place(high):.1f}"))
        drawn.append(f'<circle class="dot c0" cx="{place(middle):.1f}" cy="{y:g}" r="4"/>')
    drawn.append(_text(WIDTH - 6, bottom + 32, x_title, "end", "title"))
    return _svg("".join(drawn), bottom + 38, alt)


def _plot(panel: Plot, width: float, height: float, names: Sequence[str], *, dots: bool = False) -> str:
    """The content of a plot: lines over whole numbers, or with `dots` a scatter."""
    finite = [[point for point in one.values if all(map(math.isfinite, point))] for one in panel.series]
    points = [point for values in finite for point in values]
    parts = [_text(LEFT, 13, panel.title, "start", "title")]
    frame = left, top, right, bottom = LEFT, TOP, width - 6, height - BOTTOM
    if not points:
        return "".join([*parts, _text((left + right) / 2, (top + bottom) / 2, "no values", "middle", "faint")])
    band = (panel.band.low, panel.band.high) if panel.band else ()
    xs, ys = ([one[axis] for one in (*points, *panel.room)] for axis in (0, 1))
    x_ticks, y_ticks = ticks(min([*xs, *band]), max([*xs, *band]), whole=not dots), ticks(min(ys), max(ys))
    x_axis, y_axis = AxisText(panel.x_title, tick_text), AxisText("", percent_text if panel.shares else tick_text)
    axes = _Axes(frame, x_ticks, y_ticks, x_axis, y_axis)
    if panel.band:
        ends = (panel.band.low, panel.band.middle, panel.band.high)
        first, middle, last = (axes.place(x, y_ticks[0])[0] for x in ends)
        box = f'x="{first:.1f}" y="{top:g}" width="{last - first:.1f}" height="{bottom - top:g}"'
        parts.append(f'<rect class="blank" {box}><title>{escape(panel.band.name)}</title></rect>')
        parts.append(axes.upright(middle, "front"))
    parts += axes.y_grid()
    for tick in x_ticks:
        anchor = "end" if tick == x_ticks[-1] else "middle"
        parts.append(_text(axes.place(tick, y_ticks[0])[0], bottom + 15, tick_text(tick), anchor, "faint"))
    parts.append(_text(right, height + 6 if dots or panel.shares else 13, panel.x_title, "end", "faint"))
    for end in sorted({end for one in panel.series for end in one.ends}):
        parts.append(axes.upright(axes.place(end, y_ticks[0])[0], "grid dashed"))
    many = " many" if len(points) > MANY else ""
    for one, values in zip(panel.series, finite, strict=True):
        colour, inside = _class(names.index(one.name)), [axes.place(x, y) for x, y in values]
        if dots and inside:
            # a line of no length has round ends: a point in a third of the bytes of a circle
            path = "".join(f"M{x:.1f} {y:.1f}h0" for x, y in inside)
            parts.append(_path(f"points {colour}{many}", path, one.name))
        elif inside:
            gaps = [True, *(any(a <= end < b for end in one.ends) for (a, _), (b, _) in pairwise(values))]
            path = "".join(f"{'LM'[gap]}{x:.1f} {y:.1f}" for gap, (x, y) in zip(gaps, inside, strict=True))
            parts.append(_path(f"line {colour}", path, one.name))
    return "".join(parts)


def _labels(labels: Sequence[tuple[str, Point]], frame: Box, avoided: Sequence[Point]) -> str:
    """Short texts near their points: each at the nearest place that covers neither points (also those `avoided`) nor
    other texts, with a thin line to its point if that is far."""
    dots = [(x - 3.2, y - 3.2, x + 3.2, y + 3.2) for x, y in (*(point for _, point in labels), *avoided)]
    taken, parts = list(dots), []
    for name, (x, y) in labels:
        wide, tall = len(name) * LETTER + 1, 9.0
        places = [
            (x + (reach + wide / 2 - 4) * math.cos(turn * math.pi / 8), y - reach * math.sin(turn * math.pi / 8))
            for reach in range(11, 111, 5)
            for turn in (2, 6, 14, 10, 0, 8, 4, 12, 1, 3, 5, 7, 9, 11, 13, 15)
        ]
        boxes = [(a - wide / 2, b - tall / 2, a + wide / 2, b + tall / 2) for a, b in places]
        inside = [box for box in boxes if _within(box, frame)]
        box = next((box for box in inside if not any(_meet(box, other) for other in taken)), boxes[0])
        taken.append(box)
        a, b = (box[0] + box[2]) / 2, (box[1] + box[3]) / 2
        if math.dist((a, b), (x, y)) > 16:
            parts.append(_path("grid", f"M{x:.1f} {y:.1f}L{a:.1f} {b:.1f}"))
        parts.append(_text(a, b + 4, name, "middle"))
    return "".join(parts)


def _within(box: Box, frame: Box) -> bool:
    return box[0] >= frame[0] and box[1] >= frame[1] and box[2] <= frame[2] and box[3] <= frame[3]


def _meet(one: Box, other: Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def ticks(low: float, high: float, *, whole: bool = False) -> list[float]:
    """Return at least two round numbers, about four steps, from at or below `low` to at or above `high`; `whole`:
    whole numbers."""
    if high - low < 1e-12 * max(1.0, abs(high)):
        pad = abs(high) * 0.1
        low, high = (low - pad, high + pad) if pad else (0.0, 1.0)
    raw = max(1.0, (high - low) / 4) if whole else (high - low) / 4
    power = 10.0 ** math.floor(math.log10(raw))
    units = (1, 2, 5, 10) if whole and power == 1 else (1, 2, 2.5, 5, 10)
    step = next(power * unit for unit in units if power * unit >= raw * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [index * step for index in range(first, max(last, first + 1) + 1)]


def tick_text(value: float) -> str:
    """Return the label of a tick."""
    return f"{value:.4g}".replace("-", "\N{MINUS SIGN}").replace("e\N{MINUS SIGN}0", "e\N{MINUS SIGN}")


def percent_text(value: float) -> str:
    """Return the label of a tick of shares."""
    return f"{round(100 * value, 2):g}%"


def _legend(names: Sequence[str], top: float, width: float, left: float = 8.0, *, band: str = "") -> tuple[str, float]:
    """The names with their colours, and that of a band, in rows, and the height of them all."""
    x, y, parts = left, top + 10, []
    for place, name in enumerate((*names, *([band] if band else []))):
        wide = len(name) * LETTER + 30
        if x > left and x + wide > width:
            x, y = left, y + 16
        text = _text(x + 18, y, name, "start")
        if place < len(names):
            key = _path(f"key {_class(place)}", f"M{x:.1f} {y - 4:.1f}h14")
            parts.append(f'<g class="entry {_class(place)}">{key}{text}</g>')
        else:
            parts.append(f'<rect class="blank" x="{x:.1f}" y="{y - 9:.1f}" width="14" height="10"/>')
            parts.append(_path("front", f"M{x + 7:.1f} {y - 9:.1f}V{y + 1:.1f}") + text)
        x += wide
    return "".join(parts), (y - top + 6 if names else 0.0)


def _class(place: int) -> str:
    return f"c{place % COLOURS}{STROKES[place // COLOURS % len(STROKES)]}"


def _path(kind: str, steps: str, title: str = "") -> str:
    inside = f"><title>{escape(title)}</title></path>" if title else "/>"
    return f'<path class="{kind}" d="{steps}"{inside}'


def _text(x: float, y: float, text: str, anchor: str, kind: str = "") -> str:
    styled = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{styled}>{escape(text)}</text>'


def _svg(content: str, height: float, alt: str, width: float = WIDTH) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" role="img" '
        f'style="max-width:{width / REM:.1f}rem" aria-label="{escape(alt)}"><title>{escape(alt)}</title>{content}</svg>'
    )
