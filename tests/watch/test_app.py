"""The view, driven by keys in a terminal that is not there."""

import re
import shutil
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest
from support.views import Click, Gone, Looks, On, alive, drive, play, shown, until, walk
from support.watching import append, golden, make_run, row, screen, stamp, status
from textual.color import Color
from textual.events import Key, MouseScrollUp
from textual.pilot import Pilot
from textual.widgets import TabbedContent

from smolsum.files import to_json
from smolsum.runs.control import is_requested
from smolsum.runs.reader import Run, read_run
from smolsum.watch.app import KEYS, WatchApp, plain_page, settled
from smolsum.watch.charts import RunChart
from smolsum.watch.formats import Rows
from smolsum.watch.model import Snapshot, ViewOptions
from smolsum.watch.pages import PAGES
from smolsum.watch.widgets import RowTable, TextView


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 60)])
def test_screens(tmp_path: Path, size: tuple[int, int]) -> None:
    """What is on the screen is the page that --once prints, and a line of keys."""
    paths = make_run(tmp_path)

    async def script(app: WatchApp, pilot: Pilot[None]) -> None:
        await settled(app, pilot)
        text = screen(app)
        golden(f"screen-{size[0]}x{size[1]}.txt", text)
        shown.append(text.splitlines()[:-1])

    shown: list[list[str]] = []
    drive(WatchApp(Run(paths)), script, size)
    assert shown == [plain_page(read_run(paths), (), ViewOptions(), size)]


def test_pages_by_key_and_mouse(tmp_path: Path) -> None:
    """A click on the name of a page opens it, as tab does; one on a key is that key."""
    names = ("charts", "metrics", "completions", "results", "alerts", "log", "config", "overview")
    play(
        make_run(tmp_path),
        *((Click(3, 0, page), On(page)) for page in ("results", "overview")),
        (Click(0, 0, "help"), "quit the view; the run continues"),
        ("question_mark", Gone("quit the view; the run continues")),
        *(("tab", On(page)) for page in names),
        ("shift+tab", "optimizer.max_grad_norm = 1.0"),
        ("2", "target 64, within 59-69", Gone("grad norm")),
        ("escape", "grad norm"),
    )


def test_resize(tmp_path: Path) -> None:
    """The page follows the terminal."""

    async def script(app: WatchApp, pilot: Pilot[None]) -> None:
        await walk(app, pilot, ("tab", On("charts")))
        for size in ((80, 24), (60, 15), (200, 60)):
            await pilot.resize_terminal(*size)
            await shown(app, pilot, "reward")
            await until(pilot, lambda width=size[0]: max(map(len, screen(app).splitlines())) <= width)

    drive(WatchApp(Run(make_run(tmp_path))), script)


def test_follows_a_run(tmp_path: Path) -> None:
    """New steps come by themselves; half a line waits for its end; older steps and back by keys."""
    paths = alive(tmp_path)
    more = to_json(row(61, 80)) + b'{"step": 62, "reward"'
    play(
        paths,
        ("", "step 60/80"),
        (lambda: paths.metrics.write_bytes(paths.metrics.read_bytes() + more), "step 61/80"),
        ("left_curly_bracket", " step 1 prompt"),
        ("right_curly_bracket [", " step 60 prompt"),
    )


def test_browser(tmp_path: Path) -> None:
    """By key and mouse: a click selects the row under the pointer, one on the head sorts."""
    play(
        make_run(tmp_path),
        ("tab tab tab", On("completions")),
        (Click(20, 0, "│ 3 "), "rollout 3 "),
        (Click(20, -2, "│ 3 "), "rollout 1 "),
        (Click(20, -1, "│ 1 "), "by tokens"),
        ("s j", "by length", "rollout 2"),
        ("n", "prompt 2/2"),
        ("p d", "changed since step 1"),
        ("slash", "the number of an example"),
        ("=landlord", "\nlandlord\n"),
        ("enter", "/landlord"),
        ("escape", Gone("/landlord")),
    )


def test_pause_and_stop(tmp_path: Path) -> None:
    """Space asks for a pause and takes it back; S stops only after the word."""
    paths = alive(tmp_path)
    rests = {"state": "paused", "step": 61, "total": 80, "heartbeat": datetime.now(UTC).isoformat()}
    play(
        paths,
        ("space", "PAUSING", "its step is finished and saved first  -> space takes it back", "space resume S stop"),
        ("", lambda _: is_requested(paths, "pause")),
        (lambda: status(paths.root, **rests), "PAUSED", "safe to kill  -> space resumes", Gone(" eta ")),
        ("space", "the run continues", lambda _: not is_requested(paths, "pause")),
        ("S", "Type stop to stop it."),
        ("=no enter", "not stopped", lambda _: not is_requested(paths, "stop")),
        ("S", "Type stop to stop it."),
        ("=stop enter", "STOPPING", lambda _: is_requested(paths, "stop")),
    )


@pytest.mark.parametrize("readonly", [True, False])
def test_asks_nothing_of_others(tmp_path: Path, readonly: bool) -> None:
    """A view that only reads, and one of a run that has ended, offer no key for a pause or a stop, ask for nothing and
    say why."""
    paths = alive(tmp_path) if readonly else make_run(tmp_path)
    why = "--readonly" if readonly else "the run is finished"

    def offers_neither(app: WatchApp) -> bool:
        keys = screen(app).splitlines()[-1]
        return "space" not in keys and "S stop" not in keys and "q quit" in keys

    play(paths, ("", "q quit", offers_neither), ("space", why), ("S", why), readonly=readonly)
    assert not is_requested(paths, "pause")


def test_crash_and_vanishing(tmp_path: Path) -> None:
    """A run whose process is gone turns STALE with the way on, one that fails shows its error and hint, and that it was
    cut where it is long; a directory that vanishes leaves what was read."""
    paths = alive(tmp_path)
    folder = paths.root
    long_ago = partial(status, folder, "running", 60, 80)
    failed = partial(status, folder, "failed", 60, 80, hint="free space")
    play(
        paths,
        ("", "RUNNING", "S stop"),
        (long_ago, "STALE", "-> smolsum train --resume", "!! no heartbeat", Gone("S stop")),
        (partial(failed, error="the disk is full"), "FAILED", "the disk is full  -> free space"),
        (partial(failed, error="a word " * 40), "a word…\n"),
        (lambda: shutil.rmtree(folder), "GONE", "step 60/80"),
    )


@pytest.mark.parametrize("key", ["q", "ctrl+c", "ctrl+q"])
def test_each_way_out_ends_the_view_and_asks_nothing_of_the_run(tmp_path: Path, key: str) -> None:
    paths = alive(tmp_path)
    assert play(paths, (key,))._exit
    assert list(paths.control.iterdir()) == []


def test_redraws_are_few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty keys at once are one drawing; without a change nothing is drawn."""
    drawn: list[object] = []
    show = RunChart.show

    def counted(chart: RunChart, snapshot: Snapshot) -> None:
        drawn.append(chart)
        show(chart, snapshot)

    monkeypatch.setattr(RunChart, "show", counted)

    async def script(app: WatchApp, pilot: Pilot[None]) -> None:
        await pilot.pause()
        drawn.clear()
        app._poll()
        await pilot.pause()
        assert drawn == []
        for _ in range(20):
            app.action_log()
        await pilot.pause()
        assert len(drawn) == len(set(drawn)) > 4

    drive(WatchApp(Run(make_run(tmp_path))), script)


def test_no_color(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With NO_COLOR the terminal gets no colour, and the chosen rollout still stands out."""
    monkeypatch.setenv("NO_COLOR", "1")

    async def script(app: WatchApp, pilot: Pilot[None]) -> None:
        strips = app.screen._compositor.render_strips()
        (filtering,) = app.get_line_filters()
        black = Color(0, 0, 0)
        styles = [s.style for strip in strips for s in strip.apply_filter(filtering, black) if s.style]
        assert any(style.reverse for style in styles)
        used = [color for style in styles for color in (style.color, style.bgcolor) if color]
        assert all(color.is_default for color in used)  # the terminal's own

    drive(WatchApp(Run(make_run(tmp_path))), script)


def test_help_and_palette(tmp_path: Path) -> None:
    """Help has all keys of the page, beside it, until the key comes again, or escape; the palette has every action by
    its name."""
    known = "quit the view; the run continues"
    play(
        make_run(tmp_path),
        ("question_mark", known, Looks("help.txt")),
        ("question_mark", Gone(known)),
        ("question_mark", known),
        ("escape", Gone(known)),
        ("ctrl+p",),
        ("=smooth", "lines, over the measured ones"),
        ("enter enter", "smooth 0.6"),
    )


def test_the_palette_has_every_page(tmp_path: Path) -> None:
    async def script(app: WatchApp, pilot: Pilot[None]) -> None:
        found = {command.title: command for command in app.get_system_commands(app.screen)}
        assert [title for title in found if title.startswith("page ")][:2] == ["page overview", "page charts"]
        assert found["first step"].help == "key: {"
        found["page results"].callback()
        await until(pilot, lambda: app.at == "results")

    drive(WatchApp(Run(make_run(tmp_path))), script)


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
def test_keys_of_every_page(tmp_path: Path, size: tuple[int, int]) -> None:
    """Whatever page, the last line tells how to pause, stop and leave a run that goes on, and how to turn the page; it
    has whole keys only."""
    paths = alive(tmp_path)

    async def script(app: WatchApp, pilot: Pilot[None]) -> None:
        for page in [name for name in PAGES if name not in ("compare", "chart")]:
            own = {"charts": "1-9 enlarge", "metrics": "/ find", "completions": "r runs"}.get(page, "")
            for key in ("tab page", "space pause", "S stop", "q quit", own):
                await until(pilot, lambda page=page, key=key: app.at == page and key in screen(app).splitlines()[-1])
            rest = screen(app).splitlines()[-1]
            for known in sorted((f"{app.get_key_display(key)} {key.description}" for key in KEYS), key=len)[::-1]:
                rest = rest.replace(known, "")
            assert rest.split() == ["^p", "palette"]
            await pilot.press("tab")
        await pilot.press("4")
        await shown(app, pilot, "esc back")

    drive(WatchApp(Run(paths)), script, size)


def test_no_page_turns_behind_a_dialog(tmp_path: Path) -> None:
    play(
        alive(tmp_path),
        ("S", "Type stop to stop it."),
        ("tab shift+tab tab escape", On("overview"), "not stopped"),
        ("r", "type to filter by name"),
        ("tab shift+tab tab escape", On("overview"), Gone("type to filter by name")),
        ("slash", "the number of an example"),
        ("tab shift+tab tab", On("completions")),
    )


def test_charts_by_key_and_mouse(tmp_path: Path) -> None:
    """An enlarged chart: the cursor, zoom, pan, unit and scale by keys; wheel and click do the same. A double click
    enlarges a chart."""

    async def script(app: WatchApp, pilot: Pilot[None]) -> None:
        await walk(
            app,
            pilot,
            ("3 left", "at step 60:"),
            ("shift+left", "at step 50:"),
            ("plus", "step 55"),
            ("<", "step 47"),
            ("0", Gone("at step 50:")),
            ("x", "2m00s"),
            ("x x y", "no logarithmic scale"),
            ("w", "loss smooth 0.6"),
            (Click(9, 12), "at step 1:"),
        )
        await pilot._post_mouse_events([MouseScrollUp], offset=(9, 12))
        await walk(
            app, pilot, ("", "step 30"), ("escape", On("overview")), (Click(100, 8, times=2), On("chart"), "╭─ loss")
        )

    drive(WatchApp(Run(make_run(tmp_path))), script)


def test_all_metrics(tmp_path: Path) -> None:
    """A page has every metric of the run: a filter, charts by key or mouse, pins for the page of charts."""
    known, name = len(row(60, 80)) - 3, "validation/completions/mean_length"
    play(
        make_run(tmp_path),
        ("tab tab", f"{known} of {known}"),
        ("slash", "metrics with this in their name"),
        ("=MEAN_L", "\nMEAN_L\n"),
        ("enter", f"2 of {known}"),
        ("down v", f"*  {name}"),
        ("enter", On("chart"), f"╭─ {name}"),
        ("escape tab", On("charts"), "╭─ validation/completions/mean_l"),
        ("tab slash", On("metrics")),
        ("backspace " * 6 + "=entropy enter", f"1 of {known}"),
        (Click(10, 0, " entropy "), On("metrics")),
        (Click(10, 0, " entropy "), "╭─ entropy"),
    )


def test_a_timer_may_still_call_while_the_view_closes(tmp_path: Path) -> None:
    """When its pages are gone already."""

    async def late(app: WatchApp, pilot: Pilot[None]) -> None:
        await app.query_one(TabbedContent).remove()
        assert app.closes
        app._ticked = 0.0  # long ago, so that the clock would be drawn again
        app._poll()

    drive(WatchApp(Run(make_run(tmp_path))), late)


def test_all_metrics_in_a_small_terminal(tmp_path: Path) -> None:
    """Names are cut so that the course has its place."""
    play(make_run(tmp_path), ("tab tab", " course ", "…pletions/repeated_trigrams "), size=(80, 24))


def test_log_page(tmp_path: Path) -> None:
    """One key opens it, warnings are marked, a traceback stands below its failure, older lines are a page up."""
    paths = make_run(tmp_path, state="failed")
    warning = {"attempt": 1, "kind": "warning", "message": "loss of step 7 not finite", "time": stamp(60)}
    later = [{"attempt": 2, "kind": "checkpoint", "message": f"checkpoint {n} saved"} for n in range(60)]
    end = {"attempt": 2, "kind": "failed", "message": "out of luck", "hint": "try again", "time": stamp(300)}
    append(paths.events, [warning, *(event | {"time": stamp(200 + n)} for n, event in enumerate(later)), end])
    paths.log(2).write_text(f"{stamp(300)} Traceback (most recent call last):\n  in luck()\nLuckError: out of luck\n")
    status(paths.root, "failed", 60, 80, attempt=2)

    async def script(app: WatchApp, pilot: Pilot[None]) -> None:
        await walk(app, pilot, ("l", On("log"), "!! out of luck -> try again"))
        text = screen(app)
        assert text.index("out of luck -> try again") < text.index("Traceback (most") < text.index("LuckError")
        assert "not finite" not in text
        await pilot.resize_terminal(80, 24)
        await until(pilot, lambda: len(screen(app).splitlines()) == 24 and "LuckError" in screen(app))
        await walk(app, pilot, ("pageup " * 5, "!  loss of step 7 not finite", "attempt 1, 2026-11-20"))
        append(paths.events, [{"attempt": 2, "kind": "warning", "message": "one more", "time": stamp(301)}])
        await walk(app, pilot, ("", "66 messages", "attempt 1, 2026-11-20"), ("pagedown " * 6, "one more"))

    drive(WatchApp(Run(paths)), script)


def test_export(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The enlarged chart as SVG and CSV in the current folder, with the raw values; nothing is replaced."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "made-loss.csv").write_text("mine")
    play(
        make_run(tmp_path / "runs"),
        ("3 w E", "made-loss-2.svg and made-loss-2.csv"),
        ("escape tab tab slash", On("metrics")),
        ("=kl enter E", "made-kl.svg"),
        ("slash =zz enter E", "no metric has this in its name"),
        ("slash backspace backspace enter",),
        (lambda: monkeypatch.chdir("/proc/self"),),
        ("E", "cannot write to /proc/"),
    )
    assert (tmp_path / "made-loss.csv").read_text() == "mine"
    head, first, *rest = (tmp_path / "made-loss-2.csv").read_text().splitlines()
    assert head == "run,step,stage,loss"
    assert first == f"made,1,length,{row(1, 80)['loss']}"
    assert len(rest) == 59
    assert rest[-1].split(",")[2] == "quality"
    drawing = (tmp_path / "made-loss-2.svg").read_text()
    assert drawing.startswith("<svg")
    assert "loss&#160;smooth" in drawing
    assert not re.search("https?://", drawing.replace("http://www.w3.org/2000/svg", ""))


def test_a_click_on_the_legend_hides_a_curve(tmp_path: Path) -> None:
    """And shows it again. The last one stays."""
    hidden = {"l length": 1, "m meteor": 2, "v validation": 3, "R total": 3}
    play(
        make_run(tmp_path),
        ("1", Gone("COMPLETION")),
        *(
            (Click(2, 0, word), lambda app, n=n: len(app.options.hidden) == screen(app).count(" off") == n)
            for word, n in [*hidden.items(), ("l length", 2)]
        ),
    )


def test_a_table_is_whole_where_it_is_drawn_at_once(tmp_path: Path) -> None:
    """Textual may draw new rows before it is idle, when it measures them, and keeps what it drew."""

    async def script(app: WatchApp, pilot: Pilot[None]) -> None:
        await walk(app, pilot, ("f", On("results"), "METEOR"))
        table = app.screen.query_one("#results RowTable", RowTable)
        for name in ("a name", "a longer name"):
            table.fill(Rows("", "", ["", "value"], [[name, "2"]]))
            assert f" {name}      2 " in table.render_line(1).text

    drive(WatchApp(Run(make_run(tmp_path))), script)


def test_pages_of_lines_scroll_by_what_fits(tmp_path: Path) -> None:
    paths = make_run(tmp_path)
    paths.config.write_text(paths.config.read_text() + "[more]\n" + "".join(f"key{n} = {n}\n" for n in range(40)))

    def top(app: WatchApp) -> int:
        return round(app.query_one("#config TextView", TextView).scroll_y)

    play(
        paths,
        ("o", "task.target_tokens"),
        ("pagedown", lambda app: top(app) > 10),
        ("u", lambda app: top(app) == 0),
        size=(80, 24),
    )


@pytest.mark.parametrize(
    ("keys", "comes"),
    [
        ("slash 0 0 0 1 enter", "/0001"),
        ("tab tab slash e n t r o p y enter", "1 of "),
        ("r n o n e", "0 of 1 run"),
        ("r q escape 2", "target 64, within 59-69"),
        ("S s t o p enter", "STOPPING"),
    ],
)
def test_keys_right_after_a_line_of_input_are_typed_into_it(tmp_path: Path, keys: str, comes: str) -> None:
    """However fast they come: none is taken for an action of the page."""

    async def script(app: WatchApp, pilot: Pilot[None]) -> None:
        for key in keys.split():
            app.post_message(Key(key, key if len(key) == 1 else "/" if key == "slash" else None))
        await shown(app, pilot, comes)

    drive(WatchApp(Run(alive(tmp_path))), script)


def test_pages_of_a_table(tmp_path: Path) -> None:
    """The bar of metrics moves by a page, and back."""

    def at(app: WatchApp) -> int:
        return app.query_one("#metrics RowTable", RowTable).cursor_row

    play(
        make_run(tmp_path),
        ("tab tab", On("metrics"), "newest", lambda app: at(app) == 0),
        ("pagedown", lambda app: at(app) > 10),
        ("pageup", lambda app: at(app) == 0),
        size=(80, 24),
    )
