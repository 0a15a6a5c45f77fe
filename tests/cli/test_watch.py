"""`smolsum watch` where there is no terminal, and what it says of requests that cannot be met."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.watching import append, golden, make_run, row, status

from smolsum.cli.main import main


@pytest.fixture(autouse=True)
def _utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Times of day are shown in the zone of the machine; a page has the size that is asked for."""
    monkeypatch.setenv("TZ", "UTC")
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("LINES", "40")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def test_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The page as plain text, to the letter; nothing else on either stream."""
    make_run(tmp_path)
    assert main(["watch", "made", "--once", "--runs-dir", str(tmp_path)]) == 0
    captured = capsys.readouterr()
    golden("once.txt", captured.out)
    assert captured.err == ""
    assert "\x1b" not in captured.out


def test_once_of_a_copy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A copied run is one by its path, lock or not, and a half written line in it is no error."""
    paths = make_run(tmp_path / "a")
    copy = tmp_path / "b" / "made"
    copy.parent.mkdir()
    paths.root.rename(copy)
    (copy / "run.lock").unlink()
    with (copy / "metrics.jsonl").open("ab") as file:
        file.write(b'{"step": 61, "loss": 0.')
    assert main(["watch", str(copy), "--once"]) == 0
    golden("once.txt", capsys.readouterr().out)


def test_newest_is_the_default(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a name the newest run; a terminal that cannot redraw gets a page and the reason."""
    make_run(tmp_path, "older")
    os.utime(tmp_path / "older" / "run.lock", (1e9, 1e9))
    make_run(tmp_path, "newer")
    assert main(["watch", "--runs-dir", str(tmp_path)]) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith(" newer ")
    assert "not a terminal that can be redrawn" in captured.err


def test_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two runs on one page, or two documents."""
    make_run(tmp_path, "a")
    make_run(tmp_path, "b", steps=30)
    assert main(["watch", "a", "b", "--once", "--ascii", "--runs-dir", str(tmp_path)]) == 0
    assert "B b + FINISHED 30/80" in capsys.readouterr().out
    assert main(["watch", "a", "b", "--json", "--runs-dir", str(tmp_path)]) == 0
    assert [run["step"] for run in json.loads(capsys.readouterr().out)["runs"]] == [60, 30]


def test_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """State, the last line of metrics.jsonl unrounded, signals and events."""
    paths = make_run(tmp_path, state="failed")
    status(paths.root, "failed", 60, 80, error="the disk is full", hint="free space")
    append(paths.metrics, [row(61, 80, loss=None)])
    assert main(["watch", "made", "--json", "--runs-dir", str(tmp_path)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["state"], found["detail"], found["hint"]) == ("failed", "the disk is full", "free space")
    assert found["metrics"] == row(61, 80, loss=None)
    assert (found["step"], found["steps"], found["stages"]) == (61, 80, {"length": 40, "quality": 40})
    assert {signal["level"] for signal in found["signals"]} <= {"trouble", "warning", "note"}


def test_json_is_strict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """NaN and infinities, wherever a run has them, are null: other readers refuse the words."""
    paths = make_run(tmp_path, steps=3)
    with paths.metrics.open("ab") as file:
        file.write(b'{"step": 4, "stage": "length", "loss": NaN, "kl": Infinity, "reward": 1e999, "grad_norm": 1.5}\n')
    with paths.events.open("ab") as file:
        file.write(b'{"kind": "warning", "message": "odd", "step": NaN, "more": [{"x": -Infinity}]}\n')
    assert main(["watch", "made", "--json", "--runs-dir", str(tmp_path)]) == 0

    def refuse(word: str) -> None:
        raise AssertionError(word)

    found = json.loads(capsys.readouterr().out, parse_constant=refuse)
    assert [found["metrics"][key] for key in ("loss", "kl", "reward", "grad_norm")] == [None, None, None, 1.5]
    assert found["events"][-1]["more"] == [{"x": None}]


def test_a_directory_that_is_no_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is said what it lacks; a directory of runs names them."""
    make_run(tmp_path / "elsewhere")
    assert main(["watch", str(tmp_path), "--once", "--runs-dir", str(tmp_path / "elsewhere")]) == 2
    err = capsys.readouterr().err
    assert "is not a run: it has neither run.lock nor config.toml" in err
    assert "hint: choose from made" in err
    assert main(["watch", str(tmp_path / "elsewhere"), "--once", "--runs-dir", str(tmp_path)]) == 2
    err = capsys.readouterr().err
    assert "is a directory of runs, not a run" in err
    assert f"hint: choose one of its runs: {tmp_path / 'elsewhere' / 'made'}" in err


@pytest.mark.parametrize("flag", ["--ascii", "--readonly"])
def test_flags_of_the_view_need_it(tmp_path: Path, capsys: pytest.CaptureFixture[str], flag: str) -> None:
    """`train` has a view only with --watch."""
    assert main(["train", flag, "--runs-dir", str(tmp_path)]) == 2
    assert "hint: add --watch" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (["--once"], "no runs in"),
        (["none", "--once"], "no run 'none' in"),
        (["--once", "--json"], "cannot be combined"),
    ],
)
def test_refusals(tmp_path: Path, capsys: pytest.CaptureFixture[str], line: list[str], said: str) -> None:
    """Requests that cannot be met are errors of usage, with a hint."""
    assert main(["watch", *line, "--runs-dir", str(tmp_path)]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert "hint: " in err


def test_train_and_watch_needs_a_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without one nothing is started."""
    assert main(["train", "--watch", "--runs-dir", str(tmp_path)]) == 2
    assert "hint: leave --watch out" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
