"""`train --watch`, and what is said when a view is left, in a real terminal."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from support.terminals import Terminal
from support.training import arguments, make_data
from support.watching import make_run, status

from smolsum.runs.control import is_requested

SHORT = ("--set", "stages.length.steps=40", "--set", "stages.quality.steps=1", "--set", "train.validate_every=0")


def trainers(folder: Path) -> list[int]:
    """The processes that train below this folder."""
    found = subprocess.run(["ps", "-ww", "-eo", "pid=,args="], capture_output=True, text=True, check=True).stdout
    return [int(line.split()[0]) for line in found.splitlines() if str(folder) in line and "--plain" in line]


def gone(folder: Path) -> bool:
    end = time.monotonic() + 60
    while trainers(folder) and time.monotonic() < end:
        time.sleep(0.1)
    return not trainers(folder)


@pytest.mark.parametrize("after", ["", "starting"])
def test_ctrl_c_while_it_starts(tmp_path: Path, after: str) -> None:
    """Ctrl-C before the view opens leaves no trainer behind, and the output says so."""
    with Terminal(["train", "--watch", "--model", "tiny", "--runs-dir", str(tmp_path)]) as terminal:
        while not trainers(tmp_path):
            time.sleep(0.05)
        if after:
            terminal.until(after)
        terminal.send("\x03")
        assert terminal.code() == 130
        assert "interrupted while the training started; the training was stopped too" in terminal.text
    assert gone(tmp_path)


def test_keys_before_the_view_are_forgotten(tmp_path: Path) -> None:
    """A space that was pressed while nothing was there to see pauses nothing."""
    paths = make_run(tmp_path, state="running")
    status(paths.root, "running", 60, 80, heartbeat="2999-01-01T00:00:00.000Z")
    with Terminal(["watch", str(paths.root)]) as terminal:
        terminal.send(" ")
        terminal.until("space pause")
        terminal.send("q")
        assert terminal.code() == 0
    assert not is_requested(paths, "pause")


@pytest.mark.slow
def test_leaving_a_training_under_way(tmp_path: Path) -> None:
    """The view opens with the flags that it was given; Ctrl-C leaves it, names the run, and the run goes on. A run that
    is killed under a view does not continue."""
    command = ["train", "--watch", "--ascii", "--readonly", "--name", "mine", "--runs-dir", str(tmp_path), *SHORT]
    with Terminal(command, {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}) as terminal:
        terminal.until("tab page")
        terminal.send("\x03")
        assert terminal.code() == 0
    assert f"run continues: smolsum watch {tmp_path / 'mine'}" in terminal.text
    assert "+- " in terminal.text
    assert "╭" not in terminal.text
    assert "space pause" not in terminal.text
    (trainer,) = trainers(tmp_path)
    with Terminal(["watch", str(tmp_path / "mine")]) as terminal:
        terminal.until("space pause")
        os.kill(trainer, signal.SIGKILL)
        assert gone(tmp_path)
        terminal.send("q")
        assert terminal.code() == 0
    assert "run continues" not in terminal.text
    assert f"process {trainer} is gone" in terminal.text
    assert f"hint: smolsum train --resume {tmp_path / 'mine'}" in terminal.text


@pytest.mark.slow
def test_stopping_a_training_from_its_view(tmp_path: Path) -> None:
    """The run says once how it ended, and with what it goes on; nothing is added to that."""
    command = ["train", "--watch", "--name", "mine", "--runs-dir", str(tmp_path), *SHORT]
    with Terminal(command, {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}) as terminal:
        terminal.until("tab page")
        (tmp_path / "mine" / "control").mkdir(exist_ok=True)
        (tmp_path / "mine" / "control" / "stop").touch()
        terminal.until("INTERRUPTED")
        assert gone(tmp_path)
        terminal.send("q")
        assert terminal.code() == 130
    assert "run interrupted: " in terminal.text
    assert f"smolsum train --resume {tmp_path / 'mine'}" in terminal.text
    assert "error: interrupted" not in terminal.text


@pytest.mark.slow
def test_watching_a_grid(tmp_path: Path) -> None:
    """`train --watch` of several runs goes from run to run; leaving it says how far the grid is, which goes on; a view
    without a name does the same, and its stop ends the grid."""
    single = arguments(make_data(tmp_path / "posts", test=2), tmp_path, "", stages__quality__steps=300)
    place = single.index("--name")
    command = [*single[:place], *single[place + 2 :], "--reward", "length", "--reward", "rouge", "--watch"]
    with Terminal(command, {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}) as terminal:
        terminal.until("run 1 of 2")
        terminal.until("tiny-finetuned-rouge")
        terminal.send("q")
        assert terminal.code() == 0
    assert "grid continues: run 2 of 2" in terminal.text
    assert str(tmp_path / "tiny-length") in terminal.text.splitlines()
    with Terminal(["watch", "--runs-dir", str(tmp_path)]) as terminal:
        terminal.until("run 2 of 2")
        terminal.send("S")
        terminal.until("It is the last")
        terminal.send("stop\r")
        assert gone(tmp_path)
        terminal.until("INTERRUPTED")
        terminal.send("q")
        assert terminal.code() == 0
    assert "grid stopped in run 2" in terminal.text
    assert "hint: smolsum train --model=tiny" in terminal.text
