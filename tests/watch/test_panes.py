"""What each pane shows of a made-up run, to the letter: a change in a golden file is a change that users see."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from msgspec import structs
from support.watching import BEGAN, append, golden, make_run, row, stamp

from smolsum.runs.completion_groups import first_group, read_groups
from smolsum.runs.reader import Run
from smolsum.watch.layout import PANES, Slot, page, pages, pane, slots
from smolsum.watch.pane_text import number
from smolsum.watch.snapshot import Snapshot, ViewOptions

NOW = BEGAN + timedelta(seconds=200)


@pytest.fixture(autouse=True)
def _utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Times of day are shown in the zone of the machine."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def snapshot(folder: Path, options: ViewOptions | None = None, *, state: str = "running", **changes: float) -> Snapshot:
    run = Run(make_run(folder, state=state, **changes))
    run.poll(5)
    return Snapshot(run, options or ViewOptions(), groups=read_groups(run.paths, run.step), now=NOW)


def text(found: Snapshot, name: str, width: int = 60, height: int = 14) -> str:
    return "".join(f"{line.plain}\n" for line in pane(found, Slot(name, 0, 0, width, height)))


@pytest.mark.parametrize("name", [name for name in PANES if name != "config"])
def test_pane(tmp_path: Path, name: str) -> None:
    """Each pane as it looks on a terminal with braille."""
    golden(f"pane-{name}.txt", text(snapshot(tmp_path), name))


def test_ascii(tmp_path: Path) -> None:
    """With --ascii no character is outside ASCII but what was sampled."""
    whole = "\n".join(line.plain for line in page(snapshot(tmp_path, ViewOptions(ascii=True)), "overview", 120, 40))
    golden("page-ascii.txt", whole + "\n")
    assert whole.isascii()


def test_chart_choices(tmp_path: Path) -> None:
    """A log scale, smoothing and a window of the newest steps."""
    found = snapshot(tmp_path)
    parts = [
        text(replace(found, options=options), "chart3")
        for options in (ViewOptions(log=True), ViewOptions(smoothing=0.9), ViewOptions(window=32))
    ]
    golden("chart-choices.txt", "".join(parts))


def test_second_run(tmp_path: Path) -> None:
    """Another run is dotted next to the first, with its own newest value."""
    other = Run(make_run(tmp_path, "other", steps=80, grad_norm=0.7))
    other.poll(5)
    found = replace(snapshot(tmp_path), other=other)
    golden("chart-compared.txt", text(found, "chart3") + text(found, "chart0"))


def test_second_run_in_a_small_terminal(tmp_path: Path) -> None:
    """Where charts are a line each, both runs stand in it: names, values and courses."""
    other = Run(make_run(tmp_path, "other", steps=80, grad_norm=0.7))
    other.poll(5)
    lines = page(replace(snapshot(tmp_path), other=other), "summary", 80, 24)
    golden("page-compared.txt", "".join(f"{line.plain.rstrip()}\n" for line in lines))


def test_a_course_that_is_0_lies_at_the_bottom(tmp_path: Path) -> None:
    """What never differed from 0 does not look like a half."""
    (line,) = [line for line in text(snapshot(tmp_path), "sparklines").splitlines() if "clip fraction" in line]
    assert set(line.split()[-1].strip("│")) == {"⣀"}


@pytest.mark.parametrize(
    ("state", "steps", "said"),
    [
        ("running", 0, "waiting for the first step"),
        ("finished", 0, "no step was finished"),
        ("running", 5, "nothing measured yet"),
        ("finished", 5, "this run did not measure it"),
    ],
)
def test_why_a_chart_is_empty(tmp_path: Path, state: str, steps: int, said: str) -> None:
    """Validations may be to come, or there were none."""
    run = Run(make_run(tmp_path, state=state, steps=steps))
    run.poll(5)
    assert said in text(Snapshot(run, now=BEGAN + timedelta(seconds=60)), "chart7")


def test_another_task(tmp_path: Path) -> None:
    """Signals and headlines of whatever names are shown; without a share on target there is no wanted length."""
    paths = make_run(tmp_path, steps=0, total=80, state="running")
    settings = paths.config.read_text().replace("length = 1.0\nmeteor = 1.0", '"json/valid" = 1.0\nbleu = 1.0')
    paths.config.write_text(settings)
    heads = {"pass@1/schema": "schema", "words": "words"}
    paths.info.write_text(json.dumps({"steps": {"length": 40, "quality": 40}, "headlines": heads}))
    rows = []
    for step in range(1, 31):
        found = {
            key: value for key, value in row(step, 80).items() if not key.startswith(("rewards/", "length/", "val"))
        }
        found |= {"rewards/json/valid/mean": step / 30, "rewards/json/valid/std": 0.2, "rewards/bleu/mean": 0.25}
        found |= {"validation/reward": 0.5, "validation/pass@1/schema": step / 40, "validation/words": 300.0 + step}
        rows.append(found)
    append(paths.metrics, rows)
    run = Run(paths)
    run.poll(5)
    found = Snapshot(run, now=BEGAN + timedelta(seconds=100))
    golden("another-task.txt", "".join(text(found, name) for name in ("chart0", "chart2", "chart7", "results")))


def test_workers(tmp_path: Path) -> None:
    """Workers with their figures; one that is down, with its last error and the remedy."""
    figures = {"workers/mini-2/tok_s": 2120.0, "workers/mini-2/lag": 1.0, "workers/mini-2/queue": 4.0}
    figures |= {"workers/mini-2/bytes_synced": 1.5e6, "workers/mini-3/tok_s": 0.0, "workers/mini-3/lag": 3.0}
    found = snapshot(tmp_path, **figures)
    trouble = {"worker": "mini-3", "message": "refused the connection for 41 s", "hint": "smolsum serve-worker there"}
    append(found.run.paths.events, [{"time": stamp(100), "kind": "worker_down", **trouble}])
    found.run.poll()
    golden("workers-remote.txt", text(found, "workers"))
    append(
        found.run.paths.events, [{"time": stamp(101), "kind": "worker_up", "worker": "mini-3", "message": "is back"}]
    )
    found.run.poll()
    assert "DOWN" not in text(found, "workers")


@pytest.mark.parametrize(("width", "shown"), [(60, "10.0.0.12:8461"), (40, "10.0.0.12:8461"), (30, "…12:8461")])
def test_workers_of_one_machine(tmp_path: Path, width: int, shown: str) -> None:
    """Names are whole as long as a column can give way, and differ where they are not."""
    figures = {f"workers/10.0.0.12:{port}/{key}": 1.0 for port in (8460, 8461) for key in ("tok_s", "lag")}
    lines = text(snapshot(tmp_path, **figures), "workers", width).splitlines()
    assert shown in lines[3]
    assert len({line.split()[0] for line in lines[2:4]}) == 2


def test_difference_and_search(tmp_path: Path) -> None:
    """Words that went and came are marked without colour too; a search leaves the rollouts that have it."""
    found = snapshot(tmp_path, ViewOptions(difference=True, row=1))
    first = first_group(found.run.paths, found.groups[0], 1)
    parts = [
        text(replace(found, first=first), "texts"),
        text(replace(found, options=ViewOptions(query="landlord")), "table"),
    ]
    golden("texts-difference.txt", "".join(parts))


@pytest.mark.parametrize("size", [(40, 12), (80, 24), (120, 40), (200, 60)])
@pytest.mark.parametrize("state", ["running", "waiting"])
def test_pages_fill_the_terminal(tmp_path: Path, size: tuple[int, int], state: str) -> None:
    """Every page of every size has a line for each row, none too long, and panes without overlap or gap."""
    found = snapshot(tmp_path)
    if state == "waiting":
        empty = make_run(tmp_path, "empty", steps=0)
        found = replace(found, run=Run(empty), groups=())
    width, height = size
    for name in (*pages(width, height), "chart"):
        lines = page(found, name, width, height)
        assert len(lines) == height - 1
        assert all(line.cell_len <= width for line in lines), name
        places = [
            (x, y)
            for s in slots(name, width, height)
            for x in range(s.x, s.x + s.width)
            for y in range(s.y, s.y + s.height)
        ]
        assert len(places) == len(set(places)) == width * (height - 4)


def test_a_signal_has_the_only_line(tmp_path: Path) -> None:
    """Where one line is all there is it tells of the run, and not of a key."""
    assert "clipping never changed" in text(snapshot(tmp_path), "alerts", 60, 3)


def test_every_reward_has_its_place(tmp_path: Path) -> None:
    """What the table has no column for stands above the text."""
    found = snapshot(tmp_path)
    rewards = {f"signal_{n}": n / 8 for n in range(7)}
    samples = tuple(structs.replace(sample, rewards=rewards) for sample in found.groups[0].samples)
    found = replace(found, groups=(replace(found.groups[0], samples=samples),))
    assert "signal_6" not in text(found, "table", 46)
    words = text(found, "texts", 46).replace("│", " ").split()
    assert [words[words.index(name) + 1] for name in rewards] == [number(value) for value in rewards.values()]


def test_values_are_those_of_the_file(tmp_path: Path) -> None:
    """The newest numbers on the page are the last line of metrics.jsonl."""
    found = snapshot(tmp_path)
    last = row(60, 80)
    charts = text(found, "chart0", 80) + text(found, "chart2", 80) + text(found, "chart3", 80)
    for key in ("reward", "completions/mean_length", "grad_norm"):
        assert f"{last[key]:.3f}" in charts or f"{last[key]:.1f}" in charts
