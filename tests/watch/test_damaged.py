"""A run whose files are damaged or of an unexpected shape."""

import json
import math
import random
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.views import drive, until
from support.watching import make_run, screen
from textual.pilot import Pilot

from smolsum.cli.main import main
from smolsum.runs.document import as_document
from smolsum.runs.paths import RunPaths
from smolsum.runs.reader import read_run
from smolsum.watch.app import WatchApp
from smolsum.watch.charts import CHARTS, chart
from smolsum.watch.model import Snapshot
from smolsum.watch.pages import PAGES
from smolsum.watch.panes import alerts, constraints, header, message, run_log, settings, sparklines, times, workers
from smolsum.watch.results import comparison, differences, results, states

JUNK: tuple[Any, ...] = (None, "é\x1b[31m", "", 5, -1, 1e308, 10**400, math.nan, math.inf, True, [1], {"a": 1})
SETTINGS = ('"x"', "nan", "inf", "-inf", "true", "-5", "1e308", "0", "[1]", '{ a = "é" }', "1979-05-27", '""')
KEYS = {
    "task": ("target_tokens", "tolerance_tokens"),
    "optimizer": ("max_grad_norm",),
    "workers": ("max_staleness",),
    "grpo": ("old_logprobs",),
    "stages.length": ("rewards",),
    "stages.quality.rewards": ("length", "meteor"),
    "model": ("path",),
}
CONTENTS = [
    *("".join(f"[{section}]\n" + "".join(f"{key} = {value}\n" for key in keys) for section, keys in KEYS.items())
      for value in SETTINGS),
    "task = 5\noptimizer = []\nstages = 1", "not toml", "", "stages = {length = 3}",
]  # fmt: skip


def mutated(value: Any, draw: random.Random) -> Any:
    """The value with junk at some place in it."""
    if isinstance(value, dict) and value and draw.random() < 0.7:
        key = draw.choice(list(value))
        return value | {key: mutated(value[key], draw)}
    if isinstance(value, list) and value and draw.random() < 0.5:
        place = draw.randrange(len(value))
        return [*value[:place], mutated(value[place], draw), *value[place + 1 :]]
    return draw.choice(JUNK)


def draw_all(paths: RunPaths) -> None:
    """Every pane, every table and the document."""
    run = read_run(paths)
    found = Snapshot(run)
    for draw in (alerts, constraints, workers, times, sparklines, *(partial(chart, spec=spec) for spec in CHARTS)):
        assert "\x1b" not in "".join(line.plain for line in draw(found, 60, 14).lines)
    for width in (80, 120):
        assert "\x1b" not in "".join(line.plain for line in (*header(found, width), message(found, width)))
    for rows in (draw(found, 60) for draw in (results, states, differences, comparison)):
        assert "\x1b" not in "".join(str(cell) for row in rows.rows for cell in row)
    assert not any("\x1b" in line.plain for line in (*settings(found, 60).lines, *run_log(found, 60).lines))
    json.dumps(as_document(run), allow_nan=False)


async def draw_pages(app: WatchApp, pilot: Pilot[None], paths: RunPaths, pages: Iterable[str] = ("overview",)) -> None:
    """The run as it is now, on these pages, without control codes."""
    app.watched = read_run(paths)
    for page in pages:
        app.action_open(page)
        app.draw()
        await until(pilot, lambda page=page: app.at == page and app.page is not None)
        assert app.moment is not None
        assert app.moment.run is app.watched
        text = screen(app)
        assert len(text.splitlines()) == app.size.height
        assert "made" in text
        assert "\x1b" not in text


@pytest.mark.parametrize("seed", range(8))
def test_junk_is_not_known(tmp_path: Path, seed: int) -> None:
    """Values of another kind, at any place of any file, are passed over: panes and pages are drawn after each."""
    draw = random.Random(seed)
    paths = make_run(tmp_path, steps=20)
    files = [path for path in paths.root.rglob("*.json*") if path.is_file()]

    async def script(app: WatchApp, pilot: Pilot[None]) -> None:
        for _ in range(8):  # more of it each time
            path = draw.choice(files)
            lines = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
            place = draw.choice([0, len(lines) - 1])
            lines[place] = json.dumps(mutated(json.loads(lines[place]), draw))
            path.write_text("\n".join(lines) + "\n")
            draw_all(paths)
            await draw_pages(app, pilot, paths)
        await draw_pages(app, pilot, paths, PAGES)
        await pilot.resize_terminal(80, 24)
        await draw_pages(app, pilot, paths)

    drive(WatchApp(read_run(paths)), script)


def test_settings_of_another_kind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every setting that the view reads, with every kind of value, also in the place of sections: panes and pages are
    drawn, and `runs` lists it too."""
    paths = make_run(tmp_path, **{"staleness/max": 5.0, "grad_norm": 3.0})

    async def script(app: WatchApp, pilot: Pilot[None]) -> None:
        for content in CONTENTS:
            paths.config.write_text(content)
            draw_all(paths)
            await draw_pages(app, pilot, paths)
        await draw_pages(app, pilot, paths, PAGES)

    drive(WatchApp(read_run(paths)), script)
    for content in CONTENTS:
        paths.config.write_text(content)
        assert main(["runs", "--runs-dir", str(tmp_path)]) == 0
        assert "made" in capsys.readouterr().out, content
