"""Light and dark colours: which one, and that everything on the screen can be read in both."""

import os
import pty
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from rich.segment import Segment
from support.refusals import refuses
from support.training import PATIENCE_S
from support.views import drive, play, until, walk
from support.watching import append, make_run, row, stamp, status
from textual.containers import Vertical
from textual.pilot import Pilot
from textual.screen import ModalScreen

from smolsum.linechart.zoom import View
from smolsum.runs.reader import Run
from smolsum.watch import themes
from smolsum.watch.app import WatchApp
from smolsum.watch.pages import PAGES
from smolsum.watch.themes import ask_for_background, is_light

TEXT, LINE = 4.5, 3.0
DIALOGS = ("question_mark", "slash", "r")


def contrast(segment: Segment) -> float:
    """Of the text and its background, by WCAG 2.2 (relative luminance)."""
    style = segment.style
    assert style is not None
    assert style.color is not None, segment
    assert style.bgcolor is not None, segment
    found = []
    for color in (style.color, style.bgcolor):
        parts = [part / 255 for part in color.get_truecolor()]
        red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
        found.append(0.2126 * red + 0.7152 * green + 0.0722 * blue)
    return (max(found) + 0.05) / (min(found) + 0.05)


def is_drawing(text: str) -> bool:
    """Whether it is lines of charts, frames and scrollbars."""
    return all(char in " │┃┊·█░▲▼╭╮╰╯─▁▂▃▄▅▆▇▏▎▍▌▋▊▉" or 0x2800 <= ord(char) < 0x2900 for char in text)


def unreadable(app: WatchApp) -> list[tuple[float, str, str]]:
    """All that has too little contrast on the screen; what a dialog covers is out of use, and veiled."""
    found = []
    strips = app.screen._compositor.render_strips()
    if isinstance(app.screen, ModalScreen):
        box = app.screen.query_one(Vertical).region
        strips = [strip.crop(box.x, box.right) for strip in strips[box.y : box.bottom]]
        assert len(strips) > 2
    for strip in strips:
        for segment in strip:
            least = LINE if is_drawing(segment.text) else TEXT
            if segment.text.strip() and contrast(segment) < least:
                found.append((round(contrast(segment), 2), segment.text, str(segment.style)))
    return found


def troubled(folder: Path) -> Run:
    """A run with every colour: warnings, workers in trouble, curves, bands and levels."""
    paths = make_run(folder, steps=0, state="running")
    load = {"system/cpu_percent": 80.0, "workers/w1/lag": 1.0, "workers/w2/lag": 9.0}
    append(paths.metrics, [row(step, 80, **load, reward=-0.5 + (step % 7) / 10) for step in range(1, 61)])
    (paths.root / "completions/step-000060.jsonl").write_bytes((make_run(folder, "b").completions(60)).read_bytes())
    for kind, worker in (("worker_down", "w1"), ("warning", ""), ("failed", "")):
        append(paths.events, [{"time": stamp(9), "kind": kind, "message": f"{kind} it is", "worker": worker}])
    status(paths.root, "failed", 60, 80, error="the disk is full", hint="free space")
    return Run(paths)


@pytest.mark.parametrize("light", [False, True])
@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
def test_everything_can_be_read(tmp_path: Path, light: bool, size: tuple[int, int]) -> None:
    """On every page and in every dialog: text at 4.5:1, lines at 3:1."""
    run = troubled(tmp_path)

    async def script(app: WatchApp, pilot: Pilot[None]) -> None:
        app.options = replace(app.options, smoothing=0.9, view=View(cursor=30))
        for page in PAGES:
            app.action_open(page)
            await until(pilot, lambda page=page: app.at == page and app.page is not None)
            await pilot.pause()
            if page == "completions":
                await walk(app, pilot, ("d slash =heating enter", "hit 1/"))
            assert unreadable(app) == []
        for key in DIALOGS:
            await pilot.press(key)
            await pilot.pause()
            assert unreadable(app) == []
            await pilot.press("escape")

    drive(WatchApp(run, [Run(make_run(tmp_path, name)) for name in ("c", "d", "e", "f")], light=light), script, size)


def test_a_key_changes_the_colours(tmp_path: Path) -> None:
    seen: list[list[str]] = []

    def look(app: WatchApp) -> bool:
        strips = app.screen._compositor.render_strips()
        seen.append([str(segment.style) for strip in strips for segment in strip])
        return True

    play(make_run(tmp_path), ("", look), ("t", look), ("t", look))
    before, after, again = ("|".join(styles) for styles in seen)
    assert "#0066a1" in after
    assert "#0066a1" not in before
    assert "#56b4e9" not in after
    assert "#121212" not in after
    assert again == before


@pytest.mark.parametrize(
    ("choice", "environ", "answer", "light"),
    [
        ("light", {"SMOLSUM_THEME": "dark", "COLORFGBG": "15;0"}, "", True),
        ("dark", {"SMOLSUM_THEME": "light", "COLORFGBG": "0;15"}, "", False),
        ("auto", {"SMOLSUM_THEME": "light", "COLORFGBG": "15;0"}, "", True),
        ("auto", {"SMOLSUM_THEME": "auto", "COLORFGBG": "0;15"}, "", True),
        ("auto", {"COLORFGBG": "0;default;7"}, "", True),
        ("auto", {"COLORFGBG": "7;8"}, "\x1b]11;rgb:ffff/ffff/ffff\x1b\\", False),
        ("auto", {"COLORFGBG": "default;default"}, "\x1b]11;rgb:ffff/ffff/ffff\x1b\\", True),
        ("auto", {}, "\x1b]11;rgb:fd/f6/e3\x07\x1b[?62;c", True),
        ("auto", {}, "\x1b]11;rgba:0000/2b2b/3636/ffff\x1b\\", False),
        ("auto", {}, "\x1b[?62;c", False),
        ("auto", {}, "", False),
    ],
)
def test_which_theme(choice: themes.Choice, environ: dict[str, str], answer: str, light: bool) -> None:
    """The flag, the variable, COLORFGBG, what the terminal answers, dark: the first that says something."""
    assert is_light(choice, environ, lambda: answer) is light


def test_an_unknown_theme_is_refused() -> None:
    with refuses("'sepia'", "auto, dark, light"):
        is_light("auto", {"SMOLSUM_THEME": "sepia"}, str)


@pytest.mark.parametrize("answer", [b"\x1b]11;rgb:ffff/ffff/dddd\x1b\\\x1b[?62;4c", b"\x1b[?62;4c", b""])
def test_the_terminal_is_asked(monkeypatch: pytest.MonkeyPatch, answer: bytes) -> None:
    """One that does not know the question, and one that does not answer, do not stop the view."""
    master, slave = pty.openpty()
    asked: list[bytes] = []

    def terminal() -> None:
        asked.append(os.read(master, 100))
        os.write(master, answer)

    thread = threading.Thread(target=terminal, daemon=True)
    thread.start()
    with open(slave, "r+b", buffering=0) as both:
        monkeypatch.setattr("sys.stdin", both)
        monkeypatch.setattr("sys.stderr", both)
        found = ask_for_background(PATIENCE_S if answer else 0.0)
    thread.join()
    os.close(master)
    assert asked[0].startswith(b"\x1b]11;?")
    assert found.encode() == answer
    assert is_light("auto", {}, lambda: found) is (b"rgb" in answer)
