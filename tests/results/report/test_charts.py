"""Charts from numbers: what is drawn stays inside, and nothing is made up."""

import math
import re
from itertools import combinations, pairwise
from xml.etree import ElementTree

import pytest

from smolsum.results.report import charts
from smolsum.results.report.charts import AxisText, Band, Plot, PlotSeries, Spot, Trajectory

AXIS = AxisText("x", str)


@pytest.mark.parametrize(
    ("low", "high"), [(0.0, 1.0), (-0.2, 0.31), (5.0, 5.0), (0.0, 0.0), (1e-6, 3e-6), (-900.0, 12000.0)]
)
def test_ticks_hold_the_values(low: float, high: float) -> None:
    """Round, even steps, from below the lowest to above the highest value, few enough to read."""
    found = charts.ticks(low, high)
    steps = [b - a for a, b in pairwise(found)]
    assert found[0] <= low + 1e-12
    assert found[-1] >= high - 1e-12
    assert 2 <= len(found) <= 8
    assert steps == pytest.approx([steps[0]] * len(steps))


def test_lines_place_values() -> None:
    svg = charts.curves([Plot("p", (PlotSeries("a", ((0.0, 0.0), (4.0, 1.0))),))], ["a"], alt="two points")[0]
    (path,) = re.findall(r'class="line c0" d="M([\d.]+) ([\d.]+)L([\d.]+) ([\d.]+)"', svg)
    x1, y1, x2, y2 = map(float, path)
    assert x1 < x2
    assert y1 > y2


def test_values_that_are_none_are_not_drawn() -> None:
    series = PlotSeries("a", ((0.0, math.nan), (1.0, 2.0), (2.0, math.inf)))
    svg = charts.curves([Plot("p", (series,)), Plot("empty", (PlotSeries("a", ()),))], ["a"], alt="x")[0]
    assert "nan" not in svg
    assert "inf" not in svg
    assert "no values" in svg


def test_a_front_goes_down_before_right() -> None:
    """What a front encloses is what its points beat: no corner is better than every point."""
    spots = [Spot("", 0.0, 1.0), Spot("", 1.0, 0.0)]
    points = [Trajectory(name, (spot,)) for name, spot in zip("ab", spots, strict=True)]
    svg = charts.trajectory_plot(points, alt="x", x_axis=AXIS, y_axis=AXIS, front=spots)
    assert re.search(r'class="front" d="M[\d.]+ [\d.]+V[\d.]+H[\d.]+"', svg)
    assert "1 a" in svg


def test_numbers_do_not_cover_one_another() -> None:
    """Of thirteen points of which some coincide, every number is legible and inside the plot."""
    spots = [(0.0, 0.0), (1.0, 1.0), *[(0.5, 0.5)] * 4, *[(0.5 + i / 200, 0.5 - i / 300) for i in range(6)], (1.0, 0.0)]
    points = [Trajectory(f"n{i}", (Spot("", *spot),)) for i, spot in enumerate(spots)]
    svg = charts.trajectory_plot(points, alt="x", x_axis=AXIS, y_axis=AXIS)
    found = re.findall(r'<text x="([\d.]+)" y="([\d.]+)" text-anchor="middle">(\d+)<', svg)
    assert [text for _, _, text in found] == [str(i) for i in range(1, 14)]
    boxes = [(float(x) - len(text) * charts.LETTER / 2, float(y), len(text) * charts.LETTER) for x, y, text in found]
    for one, other in combinations(boxes, 2):
        apart = one[0] + one[2] <= other[0] or other[0] + other[2] <= one[0] or abs(one[1] - other[1]) >= 9
        assert apart
    assert all(x >= 0 and x + wide <= charts.WIDTH and y <= 280 for x, y, wide in boxes)


def test_names_cannot_break_a_drawing() -> None:
    name = 'a<b>&"c"'
    drawings = [
        charts.curves([Plot(name, (PlotSeries(name, ((0.0, 0.0),)),))], [name], alt=name)[0],
        charts.heat([name, "b"], [name, "b"], [[1.0, math.nan], [math.nan, 1.0]], alt=name, show=str),
        charts.bars([name], [name], [[0.5]], alt=name),
        charts.scatter([PlotSeries(name, ((0.0, 0.0),))], alt=name, x_title=name, y_title=name),
        charts.trajectory_plot(
            [Trajectory(name, (Spot(name, 0.0, 0.0), Spot(name, 1.0, 1.0)))],
            alt=name,
            x_axis=AxisText(name, str),
            y_axis=AXIS,
        ),
        charts.spans([name], [(0.0, 0.0, 1.0)], alt=name, x_title=name),
    ]
    for svg in drawings:
        root = ElementTree.fromstring(svg)
        assert root.get("aria-label") == name


def test_more_series_than_colours_differ() -> None:
    """No two of the 26 of a whole study look alike; the ninth has the first's colour and another stroke."""
    names = [f"n{i}" for i in range(26)]
    svg = charts.curves([Plot("p", tuple(PlotSeries(n, ((0.0, 0.0), (1.0, 1.0))) for n in names))], names, alt="x")[0]
    assert svg.count('class="line c0"') == 1
    assert svg.count('class="line c0 dashed"') == 1
    assert len(set(re.findall(r'class="line ([^"]+)"', svg))) == 26


def test_pieces_fit_a_phone() -> None:
    """Each panel and the legend come as a drawing of their own, narrow enough to be read at 360 px, with nothing beyond
    its edge."""
    names = [f"tiny-lfm-included-meteor-rouge-{i}" for i in range(26)]
    curves = tuple(PlotSeries(name, ((0.0, 0.0), (1000.0, -2.5e-7))) for name in names)
    pieces = charts.curves([Plot("loss", curves), Plot("reward", curves)], names, alt="x")[1]
    assert len(pieces) == 3
    for piece in pieces:
        root = ElementTree.fromstring(piece)
        width, height = map(float, (root.get("viewBox") or "").split()[2:])
        assert width <= 340
        for text in root.iter("{http://www.w3.org/2000/svg}text"):
            wide = len(text.text or "") * charts.LETTER
            x = float(text.get("x") or 0)
            left = {"start": x, "middle": x - wide / 2, "end": x - wide}[text.get("text-anchor") or "start"]
            assert left >= 0
            assert left + wide <= width + 1
            assert 0 <= float(text.get("y") or 0) <= height


@pytest.mark.parametrize("largest", [70.0, 1024.0, 8192.0])
@pytest.mark.parametrize("kind", ["histogram", "heat"])
def test_texts_do_not_cover_one_another(kind: str, largest: float) -> None:
    """Titles, names and numbers of the drawings with the longest texts: each is inside, and none on another."""
    name = "think-curriculum with 7 signal…, share"
    if kind == "histogram":
        series = PlotSeries("before training", ((0.0, 0.0), (0.0, 0.125), (largest, 0.125), (largest, 0.0)))
        band = Band("target 64 ±5 tokens", 58.5, 64.0, 69.5)
        pieces = charts.curves(
            [Plot(name, (series,), "tokens", True, band)], ["before training", "after training"], alt="x"
        )[1]
    else:
        stages = ["untrained", "format_basics", "a stage of very many letters", "x" * 40]
        values = [[-1.0, 0.5, math.nan, 1.0]] * 3
        titles = ("difficulty", "after stage")
        pieces = (
            charts.heat(["simple", "medium", "hard"], stages, values, alt="x", show="{:.1%}".format, titles=titles),
        )
    for piece in pieces:
        root = ElementTree.fromstring(piece)
        width, height = map(float, (root.get("viewBox") or "").split()[2:])
        boxes = []
        for text in root.iter("{http://www.w3.org/2000/svg}text"):
            wide, x = len(text.text or "") * charts.LETTER, float(text.get("x") or 0)
            left = {"start": x, "middle": x - wide / 2, "end": x - wide}[text.get("text-anchor") or "start"]
            boxes.append((left, float(text.get("y") or 0), left + wide))
        assert all(left >= 0 and right <= width + 1 and 9 <= y <= height for left, y, right in boxes)
        for one, other in combinations(boxes, 2):
            assert one[2] <= other[0] or other[2] <= one[0] or abs(one[1] - other[1]) >= 9


def test_a_scatter_survives_1600_points() -> None:
    """All points are drawn, in little more than their figures, small enough to be told apart; both axes have names."""
    series = [PlotSeries(f"n{i}", tuple((j / 200, (i + j % 7) / 15) for j in range(200))) for i in range(8)]
    svg = charts.scatter(series, alt="x", x_title="rouge", y_title="composite")
    ElementTree.fromstring(svg)
    assert svg.count("h0") == 1600
    assert svg.count(" many") == 8
    assert len(svg) < 32_000
    assert ">rouge<" in svg
    assert ">composite<" in svg


@pytest.mark.parametrize("last", [1.0, 2.0, 4.0, 6.0, 10.0, 37.0, 170.0, 1000.0])
def test_steps_have_whole_ticks(last: float) -> None:
    found = charts.ticks(1.0, last, whole=True)
    assert all(tick == round(tick) for tick in found)
    assert found[-1] >= last
    assert 2 <= len(found) <= 7
    svg = charts.curves([Plot("p", (PlotSeries("a", ((1.0, 0.0), (last, 1.0))),))], ["a"], alt="x")[0]
    assert ">step<" in svg


def test_better_is_up_and_right() -> None:
    spots = (Spot("worse", 0.9, 0.9), Spot("better", 0.1, 0.1))
    axis = AxisText("x", str, lower_is_better=True)
    svg = charts.trajectory_plot([Trajectory("a", spots)], alt="x", x_axis=axis, y_axis=axis)
    found = re.findall(r'<title>(\w+)</title><circle cx="([\d.]+)" cy="([\d.]+)"', svg)
    places = {name: (float(x), float(y)) for name, x, y in found}
    assert places["better"][0] > places["worse"][0]
    assert places["better"][1] < places["worse"][1]


def test_spans_are_where_their_values_are() -> None:
    """A higher value is further right, a dot is on its own line, everything inside the drawing."""
    svg = charts.spans(["a", "b"], [(0.2, 0.1, 0.3), (0.8, 0.7, 0.9)], alt="x", x_title="x")
    lines = [tuple(map(float, m)) for m in re.findall(r'class="line c0" d="M([\d.]+) [\d.]+H([\d.]+)"', svg)]
    dots = [float(x) for x in re.findall(r'cx="([\d.]+)"', svg)]
    assert lines[0][0] < dots[0] < lines[0][1] < lines[1][0] < dots[1] < lines[1][1] < charts.WIDTH
