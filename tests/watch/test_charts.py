"""Charts that can be read: changes of reward, scales, outliers, zoom, cursor, units, smoothing."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.watching import BEGAN, STEP_S, append, golden, make_run, row

from smolsum.linechart.plot import GUTTER
from smolsum.linechart.zoom import View
from smolsum.runs.reader import Run, read_run
from smolsum.watch.charts import (
    CHARTS,
    MIN_ROWS_WITH_AXIS,
    axis_of,
    chart,
    chart_of,
    letters,
    line_plot,
    log_is_possible,
    parts_of,
    rewards_of,
    sparkline,
)
from smolsum.watch.formats import SKY, PaneText
from smolsum.watch.model import Snapshot, ViewOptions
from smolsum.watch.panes import header, sparklines

NOW = BEGAN + timedelta(seconds=200)
REWARD, TOKENS, LOSS, GRAD, VALIDATION = (CHARTS[n] for n in (0, 1, 2, 3, 5))


def snapshot_of(folder: Path, options: ViewOptions | None = None, *, steps: int = 60, **changes: float) -> Snapshot:
    run = read_run(make_run(folder, steps=steps, total=max(80, steps), **changes))
    return Snapshot(run, options or ViewOptions(), now=NOW)


def long_run(folder: Path, values: Sequence[float]) -> Snapshot:
    """A run of many steps with one metric."""
    paths = make_run(folder, steps=0, total=len(values), state="running")
    rows = [{"step": step, "stage": "length", "grad_norm": value} for step, value in enumerate(values, start=1)]
    append(paths.metrics, rows)
    return Snapshot(read_run(paths), now=NOW)


def two_rewards(
    folder: Path, rows: Sequence[dict[str, Any]] | None = None, options: ViewOptions | None = None
) -> Snapshot:
    """A run whose second stage is rewarded for something else, on another scale, with a validation in each."""
    rows = rows or [row(step, 80, reward=step / 100 if step <= 40 else 5 + step / 100) for step in range(1, 81)]
    paths = make_run(folder, steps=0, total=len(rows))
    first, second = paths.config.read_text().split("[stages.quality.rewards]")
    paths.config.write_text(f"{first}[stages.quality.rewards]\n{second.replace('length = 1.0', 'length = 0.0')}")
    append(paths.metrics, rows)
    return Snapshot(read_run(paths), options or ViewOptions(), now=NOW)


def text(found: Snapshot, spec: object, width: int = 60, height: int = 14) -> str:
    return "".join(f"{line.plain}\n" for line in chart(found, width, height, spec).lines)  # type: ignore[arg-type]


def cells(line: str) -> Sequence[str]:
    return [char if 0x2800 < ord(char) < 0x2900 else " " for char in line]


def inked(pane: PaneText) -> int:
    """The characters of a chart that a curve touches."""
    return sum(char != " " for line in pane.lines[:-1] for char in cells(line.plain))


def test_each_reward_has_its_scale(tmp_path: Path) -> None:
    """Behind a divider the curves begin anew: both rewards use the whole height, under the names of their stages."""
    found = two_rewards(tmp_path)
    shown = text(found, REWARD, 76, 14)
    golden("chart-stages.txt", shown + text(found, VALIDATION, 76, 14) + text(found, GRAD, 76, 14))
    parts = parts_of(found, 76, REWARD)
    spans = [(part.first, part.last, part.name) for part in parts]
    assert spans == [(1, 40, "length"), (41, 80, "quality")]
    assert all(name in shown for name in ("1 length", "41 quality"))
    rewards = [line for line in shown.splitlines() if "┃" in line]
    assert {line.index("┃") for line in rewards} == {parts[1].column - 1}
    assert "5.8" in rewards[0].split("┃")[0][-6:]


@given(
    st.lists(st.tuples(*[st.floats(-1e9, 1e9, allow_subnormal=False)] * 3), min_size=2, max_size=12),
    st.integers(30, 120),
    st.integers(4, 16),
)
def test_every_row_of_a_chart_has_its_width(values: list[tuple[float, float, float]], width: int, height: int) -> None:
    """Wherever the curves end, also two or three of them in one row."""
    half, names = len(values) // 2, ("reward", "rewards/length/mean", "rewards/meteor/mean")
    rows = [
        {"step": step, "stage": "length" if step <= half else "quality", **dict(zip(names, each, strict=True))}
        for step, each in enumerate(values, start=1)
    ]
    with TemporaryDirectory() as folder:
        found = two_rewards(Path(folder), rows)
    lines = [line.plain for line in chart(found, width, height, REWARD).lines]
    drawn = [number for number, line in enumerate(lines) if line[GUTTER - 1 : GUTTER] == "│"]
    axis = [drawn[-1] + 1] if height >= MIN_ROWS_WITH_AXIS else []
    assert {len(lines[number]) for number in (*drawn, *axis)} == {width}
    parts = parts_of(found, width, REWARD)
    assert all(lines[number][part.column - 1] == "┃" for number in drawn for part in parts[1:])


def test_no_line_crosses_a_change_of_reward(tmp_path: Path) -> None:
    """In charts with one scale too: between the last step before and the first one after there is a gap."""
    found = two_rewards(tmp_path)
    run = found.run
    assert [(span.first, span.last) for span in rewards_of(run)] == [(1, 40), (41, 80)]
    lines = chart(replace(found, options=ViewOptions(view=View(4, 42))), 76, 14, GRAD).lines
    drawn = [cells(line.plain[8:74]) for line in lines[:-1]]
    empty = [column for column in range(66) if all(line[column] == " " for line in drawn)]
    assert any(20 < column < 45 for column in empty)
    assert any("┊" in line.plain for line in lines)
    line = next(line.plain for line in sparklines(found, 76, 20).lines if line.plain.startswith("reward"))
    assert "│" in line


def test_stages_with_one_reward_are_one_curve(tmp_path: Path) -> None:
    """A stage that only changes the learning rate has no divider."""
    found = snapshot_of(tmp_path)
    assert len(parts_of(found, 60, REWARD)) == 1
    assert "┃" not in text(found, REWARD)
    assert "┊" not in text(found, GRAD)


def test_a_logarithm_only_where_it_means_something(tmp_path: Path) -> None:
    """A reward below 0 keeps its scale; a gradient norm has powers of ten at its side."""
    found = snapshot_of(tmp_path, ViewOptions(logs=frozenset({"reward", "grad norm"})))
    assert not log_is_possible(found, REWARD)
    assert chart(found, 60, 14, REWARD).title.startswith("reward: ")
    assert text(found, REWARD) == text(replace(found, options=ViewOptions()), REWARD)
    assert log_is_possible(found, GRAD)
    assert chart(found, 60, 14, GRAD).title == "grad norm log"


def test_outliers_do_not_flatten_the_rest(tmp_path: Path) -> None:
    """One gradient of 1e4 is a mark at the upper edge and a number in the legend."""
    pane = chart(long_run(tmp_path, [1e4 if n == 30 else 1 + n / 80 for n in range(1, 81)]), 60, 14, GRAD)
    assert pane.lines[0].plain.split("│")[0].strip() == "2"
    assert "▲" in pane.lines[0].plain
    assert "▲ 10000" in pane.note


def test_zoom_and_pan_reach_every_step(tmp_path: Path) -> None:
    """Of 20,000 steps any few can be looked at, exactly; at the right end the view follows again."""
    found = long_run(tmp_path, [1 + n % 97 for n in range(1, 20_001)])

    ends = found.whole

    def at(view: View) -> Snapshot:
        return replace(found, options=ViewOptions(view=view))

    view = View().pointed(ends, 7000)
    for _ in range(11):
        view = view.zoomed(ends, 0.5)
    first, last = at(view).in_view
    assert first <= 7000 <= last <= first + 9
    assert f"at step 7000:  {1 + 7000 % 97}" in chart(at(view), 100, 20, GRAD).note
    view = view.panned(ends, 1)
    assert view.ends(ends)[0] > first
    view = View(64, 19_990).panned(ends, 1)
    assert view.end is None
    assert at(view).in_view == (20_000 - 63, 20_000)
    assert View(64, 70.0).panned(ends, -1).end == 64
    for _ in range(20):
        view = view.zoomed(ends, 2.0)
    assert (view.steps, view.end) == (0, None)


def test_the_cursor_stays_within_the_run(tmp_path: Path) -> None:
    """It begins at the newest step, stops at both ends, and takes the window along."""
    found = snapshot_of(tmp_path)
    ends = found.whole
    assert View().stepped(ends, -1, 100).cursor == 60
    assert [View().pointed(ends, step).cursor for step in (1000, -5)] == [60, 1]
    assert View(10).pointed(ends, 20).ends(ends) == (20, 29)
    looks = [ViewOptions(view=View(cursor=step)) for step in (20, 25)]
    at_20, at_25 = (text(replace(found, options=look), VALIDATION) for look in looks)
    assert "(20)" not in at_20
    assert f"{row(20, 80)['validation/reward']:.3f} (20)" in at_25


def test_a_column_has_the_step_that_is_drawn_there(tmp_path: Path) -> None:
    plot = line_plot(two_rewards(tmp_path), 76, REWARD)
    ends = [(part.column, part.column + part.columns - 1) for part in plot.parts]
    assert [[plot.step(column) for column in pair] for pair in ends] == [[1, 40], [41, 80]]
    assert [plot.step(column) for column in (0, ends[0][1] + 1)] == [None, None]


@pytest.mark.parametrize(("unit", "end"), [("step", "step 60"), ("time", "2m00s"), ("tokens", "61k tokens")])
def test_by_step_time_or_tokens(tmp_path: Path, unit: str, end: str) -> None:
    """60 steps of 2 s and 1,024 tokens; a place between two steps is in proportion between their ends."""
    found = snapshot_of(tmp_path, ViewOptions(unit=unit))
    assert chart(found, 60, 14, LOSS).lines[-1].plain.strip().endswith(end)
    axis, size = axis_of(found.run, unit), {"step": 1, "time": STEP_S, "tokens": 1024}[unit]
    assert all(axis.step(axis.place(step)) == step for step in (1, 17, 60))
    assert [axis.place(step) for step in (2, 2.5, 3)] == [2 * size, 2.5 * size, 3 * size]


def test_dense_charts_have_a_mean(tmp_path: Path) -> None:
    """With many steps in a column the line is their mean, in front of their range."""
    found = long_run(tmp_path, [float(n % 2) for n in range(4000)])
    lines = chart(found, 60, 14, GRAD).lines
    styles = {span.style for span in lines[6].spans}
    assert f"dim {SKY}" not in {span.style for span in lines[6].spans if span.start >= 8}
    assert SKY in styles
    assert {span.style for span in lines[2].spans if 8 <= span.start < 56} == {f"dim {SKY}"}


def test_smoothing_says_so_and_keeps_what_was_measured(tmp_path: Path) -> None:
    """The title names it as long as it lasts; the measured values stay behind the line."""
    found = snapshot_of(tmp_path, ViewOptions(smoothing=0.97))
    pane = chart(found, 60, 14, LOSS)
    assert pane.title == "loss smooth 0.97"
    assert inked(pane) > inked(chart(replace(found, options=ViewOptions()), 60, 14, LOSS))


def test_several_runs_are_told_apart(tmp_path: Path) -> None:
    others = tuple(
        read_run(make_run(tmp_path, f"other{number}", steps=steps, grad_norm=0.2 + number / 2))
        for number, steps in enumerate((80, 40, 60))
    )
    pane = chart(replace(snapshot_of(tmp_path), others=others), 100, 20, GRAD)
    assert "A 0.460  B 0.200  C 0.700  D 1.200" in pane.note
    ends = "".join(line.plain[-2:] for line in pane.lines[:-1])
    assert sorted(ends.replace(" ", "")) == ["A", "B", "C", "D"]
    assert pane.lines[-1].plain.strip().endswith("step 80")


def test_reading_is_said(tmp_path: Path) -> None:
    """While a long file is read, the header has neither a step nor an end that would be wrong."""
    run = Run(long_run(tmp_path, [1.0] * 30_000).run.paths)
    run.poll(0.0)
    line = header(Snapshot(run, now=NOW), 120)[0].plain
    assert "reading metrics " in line
    assert "step" not in line
    assert "eta" not in line
    while run.poll(5):
        pass
    assert "step 30000/30000" in header(Snapshot(run, now=NOW), 120)[0].plain


def test_every_label_of_a_scale_is_different(tmp_path: Path) -> None:
    """A metric of at most 0.00247, by its name, has ticks at 0.002 and 0.001, and its end is not another 0.002."""
    found = long_run(tmp_path, [0.00247 * (1 - step / 80) for step in range(1, 81)])
    pane = chart(found, 60, 14, chart_of("grad_norm"))
    assert "grad_norm" in pane.title
    labels = [label for line in pane.lines[:-1] if (label := line.plain.split("│")[0].strip())]
    assert labels == ["0.00244", "0.002", "0.001", "0"]


@pytest.mark.parametrize(("unit", "labels"), [("time", ["1:23:25", "1:23:50"]), ("tokens", ["2.565M", "2.570M"])])
def test_labels_of_a_zoomed_axis_are_different(tmp_path: Path, unit: str, labels: list[str]) -> None:
    """Far into a run, with a few steps in view."""
    found = snapshot_of(tmp_path, ViewOptions(unit=unit, view=View(20, 2520.0)), steps=3000)
    line = chart(found, 120, 14, LOSS).lines[-1].plain
    assert [label in line for label in labels] == [True, True], line
    names = line.split()[:-1]
    assert len({*names}) == len(names)


def test_letters() -> None:
    """The first free letter of each name; never a or b, which are runs, whatever the case."""
    assert letters(["length", "bleu", "bleu-2", "Meteor", "ab", "ab", ""], taken="v") == [*"leumcdf"]


@pytest.mark.parametrize("runs", [1, 2, 5, 9])
def test_a_line_without_names_and_values_has_courses(tmp_path: Path, runs: int) -> None:
    """As the table of all metrics shows them, which has few columns for many runs."""
    others = tuple(snapshot_of(tmp_path / str(n)).run for n in range(1, runs))
    now = replace(snapshot_of(tmp_path / "0"), others=others)
    for width in (12, 40):
        line = sparkline(now, width, chart_of("grad_norm"), name_width=0, value_width=0).plain
        assert len(line) <= width
        assert any("\u2800" < char <= "\u28ff" for char in line)
        assert not any(char.isdigit() for char in line)
