"""What goes to which stream, and when it has colour."""

import io
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.refusals import assert_refused
from support.training import PATIENCE_S

from smolsum import console
from smolsum.errors import SmolsumError, UsageError

VERSION = [sys.executable, "-m", "smolsum", "--version"]


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("NO_COLOR", "FORCE_COLOR", "COLORTERM", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "80")
    yield
    console.set_plain(False)


def open_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Returns a terminal put in the place of stderr; no fixture, as pytest sets stderr again after those."""
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    return stream


def test_data_goes_to_stdout_and_the_rest_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    """stdout holds data alone, stderr what is said to a person."""
    console.data("runs/x")
    console.narrate("step=1")
    console.warn("no WordNet")
    console.table(["a"], [["1"]])
    out, err = capsys.readouterr()
    assert out == "runs/x\n"
    assert err == "step=1\nwarning: no WordNet\na\n1\n"


def test_error_and_hint(capsys: pytest.CaptureFixture[str]) -> None:
    """An error is one line, then a blank line and the hint where there is one."""
    console.error(UsageError("unknown preset 'x'", hint="did you mean y?"))
    console.error(UsageError("no hint here"))
    console.error(KeyError())
    expected = "error: unknown preset 'x'\n\nhint: did you mean y?\nerror: no hint here\nerror: KeyError\n"
    assert expected == capsys.readouterr().err


def test_terminal_gets_colour(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal labels are coloured and the text is left whole, however long."""
    terminal = open_terminal(monkeypatch)
    text = "a" * 200
    console.warn(text)
    assert "\x1b[" in terminal.getvalue()
    assert text in terminal.getvalue()


@pytest.mark.parametrize("variable", [("NO_COLOR", "1"), ("TERM", "dumb"), None], ids=str)
def test_colour_and_boxes_are_dropped(monkeypatch: pytest.MonkeyPatch, variable: tuple[str, str] | None) -> None:
    """By NO_COLOR and TERM=dumb, whatever FORCE_COLOR says, and by the plain setting, which can be taken back."""
    terminal = open_terminal(monkeypatch)
    assert console.live()
    if variable:
        monkeypatch.setenv("FORCE_COLOR", "1")
        monkeypatch.setenv(*variable)
    else:
        console.set_plain(True)
    console.warn("w")
    console.table(["name", "n"], [["a", "1"]])
    assert terminal.getvalue() == "warning: w\nname  n\na     1\n"
    assert not console.live()
    console.set_plain(False)
    assert console.live() is (variable is None)


def test_force_color_without_a_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """FORCE_COLOR colours labels in a pipe, where tables stay plain and nothing moves; 0 does not force."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    console.warn("w")
    console.table(["n"], [["1"]])
    err = capsys.readouterr().err
    assert "\x1b[" in err
    assert err.endswith("n\n1\n")
    assert not console.live()
    monkeypatch.setenv("FORCE_COLOR", "0")
    console.warn("w")
    assert capsys.readouterr().err == "warning: w\n"


@pytest.mark.parametrize("on_terminal", [True, False])
def test_text_is_never_markup(
    on_terminal: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Brackets and colons of a user's text are printed as they are."""
    terminal = open_terminal(monkeypatch) if on_terminal else None
    text = "[red]x[/red] :smile: [/]"
    console.narrate(text)
    console.warn(text)
    console.error(UsageError(text, hint=text))
    console.table([text], [[text]], title=text)
    out = capsys.readouterr().err if terminal is None else terminal.getvalue()
    assert out.count(text) == 7


def test_plain_table_is_aligned(capsys: pytest.CaptureFixture[str]) -> None:
    """Plain tables align names left and numbers right under their heads."""
    rows = [["start", "47.1", "19.5%"], ["length", "64.0", "-"]]
    console.table(["stage", "mean tokens", "on target"], rows, title="test split")
    assert capsys.readouterr().err.splitlines() == [
        "test split",
        "stage   mean tokens  on target",
        "start          47.1      19.5%",
        "length         64.0          -",
    ]


def test_terminal_table_is_boxed(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal a table has lines around it and all of its cells."""
    terminal = open_terminal(monkeypatch)
    console.table(["stage", "tokens"], [["start", "47.1"]], title="test split")
    text = terminal.getvalue()
    assert all(word in text for word in ("test split", "stage", "tokens", "start", "47.1", "┃"))


def test_narrow_terminal_drops_whole_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal too narrow for a table loses its last columns whole, and a note names them."""
    terminal = open_terminal(monkeypatch)
    monkeypatch.setenv("COLUMNS", "24")
    console.table(["stage", "tokens", "on target", "METEOR"], [["start", "47.1", "19.5%", "0.30"]])
    text = terminal.getvalue()
    assert "47.1" in text
    assert "19.5%" not in text
    assert text.endswith("(not shown in 24 columns: on target, METEOR)\n")


def test_nothing_foreign_steers_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Control characters in errors, tables and results are shown as escapes, with and without colour."""
    foul = "\x1b[2J\x1b]0;mine\x07red\r\x9b31m"
    console.narrate(foul)
    console.warn(foul)
    console.table([foul], [[foul]])
    console.data(foul)
    console.data_table([foul], [[foul]])
    out, err = capsys.readouterr()
    assert not {"\x1b", "\x07", "\r", "\x9b"} & {*out, *err}
    assert r"\x1b[2J\x1b]0;mine\x07red\x0d\x9b31m" in out
    terminal = open_terminal(monkeypatch)
    console.error(UsageError(foul, hint=foul))
    console.table([foul], [[foul]])
    assert "\x1b[2J" not in terminal.getvalue()
    assert "\x07" not in terminal.getvalue()


def test_import_is_cheap() -> None:
    """Importing the console and the configuration loads none of the heavy libraries."""
    code = "import sys, smolsum.console, smolsum.config.resolve; print({'rich', 'numpy', 'mlx'} & set(sys.modules))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=PATIENCE_S)
    assert run.stdout == "set()\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_result_that_cannot_be_written_is_one_error() -> None:
    """A full disk on stdout: exit code 1, `error:` and `hint:`, nothing from Python."""
    with open("/dev/full", "w") as full:
        run = subprocess.run(VERSION, stdout=full, stderr=subprocess.PIPE, text=True, timeout=PATIENCE_S)
    assert_refused((run.returncode, "", run.stderr), "the result cannot be written", error=SmolsumError)
    assert not [said for said in ("Traceback", "Exception ignored") if said in run.stderr]


def test_a_reader_that_has_gone_is_no_failure() -> None:
    """As in `smolsum … | head -0`."""
    reading, writing = os.pipe()
    os.close(reading)
    run = subprocess.run(VERSION, stdout=writing, stderr=subprocess.PIPE, timeout=PATIENCE_S)
    os.close(writing)
    assert (run.returncode, run.stderr) == (0, b"")
