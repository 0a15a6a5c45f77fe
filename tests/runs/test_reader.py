"""Files that grow while they are read, and a metric over all steps as few points."""

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.watching import make_run

from smolsum.files import replace
from smolsum.runs.reader import Document, Tail, read_run
from smolsum.runs.records import Status
from smolsum.runs.series import MOST_POINTS, Point, Series, smoothed


def test_only_new_lines(tmp_path: Path) -> None:
    """Each line is read once; one without its end waits for it; what is no object is passed over; a missing file is an
    empty one. A resumed run takes lines back by replacing the file: it is read from its start."""
    path = tmp_path / "lines.jsonl"
    tail = Tail(path)
    assert list(tail.read()) == []
    path.write_bytes(b'{"a": 1}\n\x00\xff\n[1]\n{"a": 2}\n{"a":')
    assert list(tail.read()) == [{"a": 1}, {"a": 2}]
    assert list(tail.read()) == []
    assert not tail.more()
    with path.open("a") as file:
        file.write(" 3}\n")
    assert list(tail.read()) == [{"a": 3}]
    assert not tail.more()
    replace(path, b'{"a": 1}\n', "")
    assert tail.more()
    assert tail.restarts == 1
    assert list(tail.read()) == [{"a": 1}]


def test_what_comes_after_a_look_is_for_the_next(tmp_path: Path) -> None:
    """A run at work writes all the time: what a page shows is whole once all was read that there was at the last
    look."""
    paths = make_run(tmp_path)
    run = read_run(paths)
    with paths.metrics.open("a") as file:
        file.write('{"step": 61, "stage": "quality", "reward": 0.5}\n')
    assert (run.reading, run.step) == (False, 60)
    assert run.behind()
    assert run.reading
    run.poll()
    assert (run.reading, run.step) == (False, 61)


def test_document(tmp_path: Path) -> None:
    """Parsed when it changed; gone or half written, the last value stays."""
    path = tmp_path / "status.json"
    document = Document(path, Status)
    assert not document.refresh()
    path.write_text('{"step": 1}')
    assert document.refresh()
    assert not document.refresh()
    path.write_text('{"step": ')
    assert not document.refresh()
    path.unlink()
    assert not document.refresh()
    assert document.value == Status(step=1)


def series_of(values: list[float | None]) -> Series:
    found = Series()
    for start in range(0, len(values), 7):  # in pieces, as they are read
        part = values[start : start + 7]
        found.extend(range(start + 1, start + 1 + len(part)), part)
    return found


@pytest.mark.parametrize("steps", [100, 1000, 20_000])
def test_points_stay_few_and_lose_no_extreme(steps: int) -> None:
    """Any number of steps is at most MOST_POINTS points, with the least and the greatest value among them, in order."""
    values = [math.sin(n / 50) for n in range(steps)]
    values[steps // 3] = 9.0
    found = series_of(list(values))
    points = found.points()
    assert len(points) <= MOST_POINTS
    assert max(p.high for p in points) == 9.0
    assert min(p.low for p in points) == min(values)
    assert [p.step for p in points] == sorted(p.step for p in points)
    assert found.last == values[-1]


@given(st.integers(1, 3000), st.integers(0, 3000), st.integers(0, 3000), st.integers(1, 600))
def test_every_window_is_whole(steps: int, since: int, until: int, most: int) -> None:
    """A window anywhere has each of its steps in one point, in order, and no other step."""
    found = series_of([float(n) for n in range(1, steps + 1)])
    points = found.points(since, until, most)
    wanted = range(since + 1, min(until, steps) + 1)
    assert len(points) <= most + 1
    assert [p.low for p in points] == sorted(p.low for p in points)
    assert sum(p.high - p.low + 1 for p in points) == len(wanted)
    if wanted:
        assert (points[0].low, points[-1].high) == (wanted[0], wanted[-1])


def test_a_window_is_exact_wherever_it_is() -> None:
    found = series_of([float(n) for n in range(20_000)])
    for since, until in ((300, 400), (19_900, 20_000)):
        assert found.points(since, until) == [Point(n + 1, n, n, n) for n in range(since, until)]
    assert found.points(19_900) == found.points(19_900, 20_000)
    assert found.at(301.5) == (301, 300.0)
    assert found.at(0) is None
    assert found.recent(3) == [19_997.0, 19_998.0, 19_999.0]
    assert found.recent(10, since=19_999) == [19_998.0, 19_999.0]


def test_missing_values_are_counted() -> None:
    found = series_of([1.0, None, float("nan"), 3.0])
    assert (found.count, found.missing, found.last) == (2, 2, 3.0)


def test_smoothing() -> None:
    """By hand: with weight 0.5 the second mean is (0.5 * 1 + 4) / 1.5; without weight nothing changes."""
    points = [Point(1, 1, 1, 1), Point(2, 4, 4, 4)]
    assert smoothed(points, 0.0) == points
    assert smoothed(points, 0.5)[1].mean == pytest.approx(3.0)
