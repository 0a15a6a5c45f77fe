"""What each pane shows of a made-up run, to the letter: a change in a golden file is a change that users see."""

import json
import os
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.views import Looks, On, alive, play
from support.watching import BEGAN, append, evaluate, golden, make_run, row, screen, stamp, status

from smolsum.linechart.scale import number
from smolsum.linechart.zoom import View
from smolsum.runs.paths import RunPaths
from smolsum.runs.reader import read_run
from smolsum.watch.app import WatchApp, plain_page
from smolsum.watch.charts import CHARTS, RunChart, chart
from smolsum.watch.model import Snapshot, ViewOptions
from smolsum.watch.panes import alerts, constraints, header, message, sparklines, times, workers
from smolsum.watch.results import results
from smolsum.watch.widgets import Pane

NOW = BEGAN + timedelta(seconds=200)
PANES = {
    "alerts": alerts,
    "constraints": constraints,
    "sparklines": sparklines,
    "times": times,
    "workers": workers,
    **{f"chart{number}": partial(chart, spec=spec) for number, spec in enumerate(CHARTS)},
}


def snapshot(
    folder: Path, options: ViewOptions | None = None, *, state: str = "running", settings: str = "", **changes: Any
) -> Snapshot:
    """A run with these settings after the usual ones."""
    paths = make_run(folder, state=state, **changes)
    paths.config.write_text(paths.config.read_text() + settings)
    run = read_run(paths)
    return Snapshot(run, options or ViewOptions(), now=NOW)


def told(found: Snapshot, **event: Any) -> Snapshot:
    """The same once the run has written this event."""
    append(found.run.paths.events, [event])
    found.run.poll(5)
    return found


def text(found: Snapshot, name: str, width: int = 60, height: int = 14) -> str:
    """The title and the note of a pane, and its lines within a frame of this size."""
    drawn = PANES[name](found, width - 2, height - 2)
    note = drawn.note if isinstance(drawn.note, str) else drawn.note.plain
    return "".join(
        f"{line.rstrip()}\n" for line in (f"== {drawn.title} == {note}", *(line.plain for line in drawn.lines))
    )


def head(paths: RunPaths) -> str:
    return header(Snapshot(read_run(paths), now=NOW), 120)[0].plain


@pytest.mark.parametrize("name", PANES)
def test_pane(tmp_path: Path, name: str) -> None:
    golden(f"pane-{name}.txt", text(snapshot(tmp_path), name))


CONSTRAINED = {
    "constraint/cost": 0.02,
    "constraint/length_within_1/share": 0.75, "constraint/length_within_1/multiplier": 2.5,
    "constraint/length_within_tolerance/share": 0.995, "constraint/length_within_tolerance/multiplier": 3.0,
    "constraint/meteor_at_least_0.3/mean": 0.25,
    "constraint/copied_at_most_start/mean": 0.25, "constraint/copied_at_most_start/bound": 0.2,
}  # fmt: skip


CONSTRAINTS = "length within tolerance: 0.99; length within 1: 0.85; meteor >= 0.3; copied <= start"


def constrained(folder: Path, text: str = CONSTRAINTS) -> Snapshot:
    """A run whose stages have four constraints, one of them with a text too long for one line, one under a gate."""
    settings = "".join(f'[stages.{name}]\nconstraints = "{text}"\n' for name in ("length", "quality"))
    return snapshot(folder, settings=settings, **CONSTRAINED)


def test_constraints(tmp_path: Path) -> None:
    """What is met and what is not, with multipliers, in a line or two each; on the first page as news."""
    found = constrained(tmp_path)
    golden("constraints.txt", text(found, "constraints") + text(found, "constraints", 38, 9))
    for size in ((120, 40), (80, 24)):
        play(found.run.paths, ("", lambda app: "constraints" in news(app)), size=size)


def news(app: WatchApp) -> list[str]:
    """The titles of the panes of the first page that have something to say."""
    return [str(pane.border_title) for pane in app.query("Overview #side Pane").results(Pane) if pane.display]


@pytest.mark.parametrize(
    ("constraints", "said"),
    [("facts_wrong <= 0.1", "facts_wrong <= 0.1  no value"), ("length is 64", "this stage has none")],
)
def test_constraints_without_values(tmp_path: Path, constraints: str, said: str) -> None:
    """The data may lack what one bounds: that is said, as nothing else would show it. A view shows a run whose settings
    are damaged as well as it can."""
    assert said in text(constrained(tmp_path, constraints), "constraints")


def test_ascii(tmp_path: Path) -> None:
    whole = "\n".join(plain_page(snapshot(tmp_path, state="finished").run, (), ViewOptions(ascii=True), (120, 40)))
    golden("page-ascii.txt", whole + "\n")
    assert whole.isascii()


def test_chart_choices(tmp_path: Path) -> None:
    found = snapshot(tmp_path)
    choices = ViewOptions(logs=frozenset({"grad norm"})), ViewOptions(smoothing=0.9), ViewOptions(view=View(32))
    golden("chart-choices.txt", "".join(text(replace(found, options=options), "chart3") for options in choices))


def test_second_run(tmp_path: Path) -> None:
    """Another run is dotted next to the first, with its own newest value. In a small terminal, where charts are a line
    each, both runs stand in it: names, values and courses."""
    other = read_run(make_run(tmp_path, "other", steps=80, grad_norm=0.7))
    found = replace(snapshot(tmp_path, state="finished"), others=(other,))
    golden("chart-compared.txt", text(found, "chart3") + text(found, "chart0"))
    lines = plain_page(found.run, found.others, ViewOptions(), (80, 24))
    golden("page-compared.txt", "".join(f"{line}\n" for line in lines))


def test_a_course_that_is_0_lies_at_the_bottom(tmp_path: Path) -> None:
    """What never differed from 0 does not look like a half."""
    (line,) = [line for line in text(snapshot(tmp_path), "sparklines").splitlines() if "clip fraction" in line]
    assert set(line.split()[-1]) == {"⣀"}


@pytest.mark.parametrize(
    ("changes", "name", "said"),
    [
        ({"steps": 0}, "chart5", "waiting for the first step"),
        ({"steps": 0, "state": "finished"}, "chart5", "no step was finished"),
        ({"steps": 5}, "chart5", "nothing measured yet"),
        ({"steps": 5, "state": "finished"}, "chart5", "this run did not measure it"),
        ({"steps": 0, "settings": "[train]\nvalidate_every = 0\n"}, "chart5", "does not validate: train.validate_ev"),
        ({}, "alerts", "clipping never changed"),  # where one line is all there is: of the run, and not of a key
    ],
)
def test_what_a_small_pane_says(tmp_path: Path, changes: dict[str, Any], name: str, said: str) -> None:
    assert said in text(snapshot(tmp_path, **changes), name, 60, 14 if name == "chart5" else 3)


def test_another_task(tmp_path: Path) -> None:
    """Signals and headlines of whatever names are shown; without a share on target there is no wanted length."""
    paths = make_run(tmp_path, steps=0, total=80, state="running")
    settings = paths.config.read_text().replace("length = 1.0\nmeteor = 1.0", '"json/valid" = 1.0\nbleu = 1.0')
    paths.config.write_text(settings)
    heads = {"pass@1/schema": "schema", "words": "words"}
    paths.info.write_text(json.dumps({"steps": {"length": 40, "quality": 40}, "headlines": heads}))
    for step in range(1, 31):
        kept = {k: value for k, value in row(step, 80).items() if not k.startswith(("rewards/", "length/", "val"))}
        kept |= {"rewards/json/valid/mean": step / 30, "rewards/json/valid/std": 0.2, "rewards/bleu/mean": 0.25}
        kept |= {"validation/reward": 0.5, "validation/pass@1/schema": step / 40, "validation/words": 300.0 + step}
        append(paths.metrics, [kept])
    found = Snapshot(read_run(paths), now=BEGAN + timedelta(seconds=100))
    golden("another-task.txt", "".join(text(found, name) for name in ("chart0", "chart1", "chart5")))
    assert [row[0] for row in results(found, 58).rows] == ["reward ", "schema ", "words "]


def test_workers(tmp_path: Path) -> None:
    """Workers with their figures; one that is down, with its last error and the remedy."""
    figures = {"workers/mini-2/tok_s": 2120.0, "workers/mini-2/lag": 1.0, "workers/mini-2/queue": 4.0}
    figures |= {"workers/mini-2/bytes_synced": 1.5e6, "workers/mini-3/tok_s": 0.0, "workers/mini-3/lag": 3.0}
    found = snapshot(tmp_path, **figures)
    trouble = {"message": "refused the connection for 41 s", "hint": "smolsum serve-worker there"}
    told(found, time=stamp(100), kind="worker_down", worker="mini-3", **trouble)
    golden("workers-remote.txt", text(found, "workers"))
    told(found, time=stamp(160), kind="worker_silent", worker="mini-2", message="has not answered for 8 s")
    assert "40s ago: has not answered for 8 s" in text(found, "workers")
    assert "2,120" not in text(found, "workers")
    told(found, time=stamp(101), kind="worker_up", worker="mini-3", message="is back")
    assert "DOWN" not in text(found, "workers")


@pytest.mark.parametrize(("width", "shown"), [(60, "10.0.0.12:8461"), (40, "10.0.0.12:8461"), (30, "…12:8461")])
def test_workers_of_one_machine(tmp_path: Path, width: int, shown: str) -> None:
    """Names are whole as long as a column can give way, and differ where they are not."""
    figures = {f"workers/10.0.0.12:{port}/{key}": 1.0 for port in (8460, 8461) for key in ("tok_s", "lag")}
    lines = text(snapshot(tmp_path, **figures), "workers", width).splitlines()
    assert shown in lines[3]
    assert len({line.split()[0] for line in lines[2:4]}) == 2


def test_values_are_those_of_the_file(tmp_path: Path) -> None:
    """The newest numbers on the page are the last line of metrics.jsonl."""
    found = snapshot(tmp_path)
    last = row(60, 80)
    charts = text(found, "chart0", 80) + text(found, "chart1", 80) + text(found, "chart3", 80)
    for key in ("reward", "completions/mean_length", "grad_norm"):
        assert f"{last[key]:.3f}" in charts or f"{last[key]:.1f}" in charts


CARD_TITLES = ("reward", "length in tokens", "loss", "grad norm", "clip fraction")


def charts(app: WatchApp) -> dict[str, RunChart]:
    """The charts of the open page, by title."""
    assert app.page is not None
    return {one.spec.title: one for one in app.page.query(RunChart) if one.display}


@pytest.mark.parametrize("size", [(100, 30), (120, 40), (200, 60)])
@pytest.mark.parametrize("case", ["alone", "compared", "workers", "in trouble"])
def test_the_card_is_on_the_first_page(tmp_path: Path, size: tuple[int, int], case: str) -> None:
    """Reward, generation lengths, loss, grad norm and clip fraction are charts of the first page, whatever happens."""
    lags = {f"workers/10.0.0.12:{port}/lag": 1.0 for port in range(8460, 8463) if case == "workers"}
    found = snapshot(tmp_path, state="failed" if case == "in trouble" else "running", **lags)
    others = [read_run(make_run(tmp_path, "other"))] if case == "compared" else []

    def has_all(app: WatchApp) -> bool:
        shown = [charts(app)[title].outer_size for title in CARD_TITLES]
        titles = news(app)
        assert "alerts" in titles
        assert ("workers" in titles) is (case == "workers")
        return all(size.height >= 7 and size.width >= 32 for size in shown)

    play(found.run.paths, ("", has_all), size=size, others=others)


def test_the_card_in_a_small_terminal(tmp_path: Path) -> None:
    """At 80x24 the first page has a line for each, and the next page their charts."""
    found = snapshot(tmp_path)
    lines = plain_page(found.run, (), ViewOptions(), (80, 24))
    rows = [next(line for line in lines if line.startswith(f"│{title}")) for title in CARD_TITLES]
    assert all(len(set(row) & set(map(chr, range(0x2801, 0x2900)))) > 0 for row in rows)
    play(found.run.paths, ("tab", On("charts"), lambda app: set(CARD_TITLES) <= {*charts(app)}), size=(80, 24))


def test_a_pane_without_news_gives_its_room_away(tmp_path: Path) -> None:
    """With neither alerts nor workers nor steps there are charts in their place; with a step, its times."""
    empty = make_run(tmp_path, steps=0, state="finished")
    play(empty, ("", lambda app: (news(app), len(charts(app))) == ([], 6)))
    quiet = snapshot(tmp_path / "quiet", state="finished", **{"clip_ratio/region_mean": 0.01}).run.paths
    play(quiet, ("", lambda app: (news(app), len(charts(app))) == (["step time"], 5)))


@pytest.mark.parametrize(
    ("tabs", "page"), [(2, "metrics"), (3, "completions"), (4, "results"), (5, "alerts"), (6, "log")]
)
def test_page(tmp_path: Path, tabs: int, page: str) -> None:
    """What each page has of a made-up run."""
    play(make_run(tmp_path), ("tab " * tabs, On(page)), ("", Looks(f"page-{page}.txt")))


@pytest.mark.parametrize("size", [(40, 12), (80, 24), (120, 40), (200, 60)])
def test_every_page_fits(tmp_path: Path, size: tuple[int, int]) -> None:
    """No pane reaches beyond the terminal, also before the first step."""

    def fits(app: WatchApp) -> bool:
        assert app.page is not None
        return all(one.region in app.page.region for one in app.page.children if one.region.area)

    for paths in (make_run(tmp_path), make_run(tmp_path, "empty", steps=0)):
        play(paths, ("", fits), *[("tab", fits)] * 8, size=size)


def test_every_reward_has_its_place(tmp_path: Path) -> None:
    """Also what rewards logged of a rollout; what the table has no room for stands above the text."""
    paths = make_run(tmp_path)
    rewards = {f"signal_{n}": n / 8 for n in range(7)}
    lines = [json.loads(line) for line in paths.completions(60).read_text().splitlines()]
    written = [json.dumps(line | {"rewards": rewards, "extra": {"judged": "too long", "words": 12}}) for line in lines]
    paths.completions(60).write_text("\n".join(written) + "\n")

    def all_there(app: WatchApp) -> bool:
        words = screen(app).replace("│", " ").split()
        places = [words.index(name) for name in rewards if name in words]
        return all(number(value) in words for value in rewards.values()) and len(places) == len(rewards)

    play(
        paths,
        ("tab tab tab", On("completions"), "signal_6", all_there),
        ("", "judged too long", "words 12"),
        size=(200, 60),
    )


def test_a_step_that_is_overdue(tmp_path: Path) -> None:
    """Steps of 2 s: after 7 s nothing is said, after 40 s when the last one ended; not in a run that has ended."""
    paths = make_run(tmp_path, state="running")
    wrote = BEGAN.timestamp() + 150
    os.utime(paths.metrics, (wrote, wrote))
    run = read_run(paths)

    def line(seconds: float) -> str:
        return header(Snapshot(run, now=BEGAN + timedelta(seconds=150 + seconds)), 120)[0].plain

    assert "ago" not in line(7)
    assert "last step 40s ago" in line(40)
    status(paths.root, "finished", 60, 80)
    run.poll()
    assert "ago" not in line(40)


def test_what_has_no_steps_yet_counts(tmp_path: Path) -> None:
    """The seconds before the first step, and the completions of the evaluation at the start, with their pace."""
    paths = make_run(tmp_path, steps=0, state="running")
    run = read_run(paths)
    found = Snapshot(run, now=BEGAN + timedelta(seconds=7))
    assert message(found, 120).plain.startswith(" waiting for the first step, 7s so far")
    count = {"completions": 200, "done": 50, "tok_s": 1234.4, "left_s": 75.2}
    for phase, stage, now in (
        ("evaluating", "start", "evaluating on the test split: start, 50 of 200 completions, 1,234 tok/s, 1m15s left"),
        ("training", "length", "sampling step 1: 50 of 200 completions, 1,234 tok/s, 1m15s left"),
        ("updating", "length", "update of step 1: 50 of 200 groups, 1,234 tok/s, 1m15s left"),
    ):
        status(paths.root, "running", 0, 80, phase=phase, stage=stage, **count)
        assert run.poll()
        assert message(Snapshot(run, now=BEGAN + timedelta(seconds=9)), 120).plain.strip() == now
    status(paths.root, "running", 0, 80, phase="evaluating", stage="start")
    assert run.poll()
    said = message(Snapshot(run, now=BEGAN + timedelta(seconds=9)), 120).plain
    assert said.strip() == "evaluating on the test split: start, 0 completions"


def test_the_rollouts_of_a_quick_step_are_no_news(tmp_path: Path) -> None:
    found = snapshot(tmp_path)
    status(found.run.paths.root, "running", 60, 80, completions=16, done=5)
    found.run.poll(5)
    assert "sampling" not in message(found, 120).plain


def test_the_load_of_the_machine_is_shown_where_it_was_recorded(tmp_path: Path) -> None:
    """The mean share of the processor, the newest memory; without them nothing is said."""
    load = {"system/cpu_percent": 87.4, "system/memory_rss_gb": 1.234, "system/gpu_memory_gb": 3.0}
    shown = text(snapshot(tmp_path, **load), "times")
    assert all(value in shown for value in ("87% CPU", "1.23 GB in RAM", "3.00 GB on the GPU"))
    assert "process" not in text(snapshot(tmp_path / "before"), "times")


def test_what_training_did_is_on_every_page(tmp_path: Path) -> None:
    """The constraint at the start and now, in the header where there is room, and below the lines of a small page: now
    is the newest evaluation, or a validation after it."""
    run = snapshot(tmp_path / "run").run
    for size in ((120, 40), (80, 24)):
        play(
            run.paths,
            ("tab", lambda app: "start → val. 60: on target 4.5% → 75.0%" in screen(app).splitlines()[0]),
            size=size,
        )
    page = plain_page(run, (), ViewOptions(), (80, 24))
    assert any(line.startswith("│start → val. 60: on target 4.5%") for line in page)
    found = snapshot(tmp_path / "running")
    assert "start → val. 60: on target 4.5% → 75.0%" in header(found, 120)[0].plain
    summary = found.run.paths.stage_evaluation("length") / "summary.json"
    summary.write_text(json.dumps(json.loads(summary.read_text()) | {"step": 60}))
    assert "after length: on target 4.5% → 54.5%" in head(found.run.paths)
    rows = [json.loads(line) for line in found.run.paths.metrics.read_text().splitlines()]
    kept = [{k: v for k, v in row.items() if not k.startswith("validation/")} for row in rows]
    found.run.paths.metrics.write_text("".join(f"{json.dumps(row)}\n" for row in kept))
    summary.unlink()
    assert "at the start: on target 4.5%  " in head(found.run.paths)


def test_what_training_did_stays_while_it_is_measured_anew(tmp_path: Path) -> None:
    """The count is in the last line but one."""
    found = snapshot(tmp_path)
    status(found.run.paths.root, "running", 60, 80, phase="evaluating", stage="length", completions=200, done=50)
    found.run.poll(5)
    assert "on target 4.5% → 75.0%" in header(found, 120)[0].plain
    assert "evaluating on the test split: length, 50 of 200 completions" in message(found, 120).plain


def test_a_stage_of_another_run_names_it(tmp_path: Path) -> None:
    found = snapshot(tmp_path)
    told(found, time=stamp(1), kind="stage_reused", message="reused", stage="length", origin="yesterday")
    assert "length 40/40 from yesterday" in header(found, 120)[1].plain
    assert ["stage length: from yesterday"] in [row[:1] for row in results(found, 58).rows]


def test_no_tick_is_half_a_step(tmp_path: Path) -> None:
    axis = text(snapshot(tmp_path, ViewOptions(view=View(3)), steps=22), "chart0", 100, 14).splitlines()
    labels = next(line for line in axis if "step 22" in line).strip("│ ").split()
    assert labels == ["20", "21", "step", "22"]


def test_arrows_in_ascii(tmp_path: Path) -> None:
    """What became of a value is no comparison, in tables and in the header; keys with arrows have their names."""
    paths = make_run(tmp_path)
    evaluate(paths, "start", {"test-0001": "one two three"})
    evaluate(paths, "length", {"test-0001": "one"})
    play(
        paths,
        ("b", "2-> 2", "on target 4.5%-> 75.0%"),
        ("1", "left right cursor", lambda app: screen(app).isascii()),
        options=ViewOptions(ascii=True),
    )


def test_parts_of_a_step_that_overlap_say_so(tmp_path: Path) -> None:
    """With workers, weights go out while the update runs: the parts are more than the whole."""
    assert "parts overlap" not in text(snapshot(tmp_path / "one"), "times")
    found = snapshot(tmp_path / "two", **{"perf/weight_sync_s": 1.5})
    assert "parts overlap: what workers do goes on beside the update" in text(found, "times", 80)


def test_alerts_leave_room_for_workers(tmp_path: Path) -> None:
    """On the first page, by leaving their advice out."""
    figures = {f"workers/mini-{n}/{key}": 1.0 for n in (2, 3) for key in ("tok_s", "lag")}
    paths = alive(tmp_path, **figures)
    told(Snapshot(read_run(paths)), time=stamp(1), kind="worker_down", worker="mini-2", message="refused")
    play(paths, ("", "mini-2 has been down since", "╭─ workers", "mini-3   ok"))
