"""`train --watch`, and what is said when a view is left, in a real terminal."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.terminals import Terminal
from support.training import PATIENCE_S, arguments, make_data, wait_until
from support.watching import make_run, status

from smolsum.cli import start_trainer
from smolsum.runs.control import is_requested, make_request
from smolsum.runs.paths import RunPaths

SHORT = ("--set", "stages.constrained.steps=4000", "--set", "train.validate_every=0")
ALONE = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
"""Of two processors a trainer leaves one to its view."""


@contextmanager
def watched(*arguments: str, environ: Mapping[str, str] | None = None, code: int = 0) -> Iterator[Terminal]:
    """A view in a terminal, which is left by q."""
    with Terminal(arguments, environ) as terminal:
        yield terminal
        terminal.send("q")
        assert terminal.code() == code


def trainers(folder: Path) -> list[int]:
    """The processes that train below this folder."""
    found = subprocess.run(["ps", "-ww", "-eo", "pid=,args="], capture_output=True, text=True, check=True).stdout
    return [int(line.split()[0]) for line in found.splitlines() if str(folder) in line and "--plain" in line]


@pytest.fixture(autouse=True)
def _no_trainer_is_left(tmp_path: Path) -> Iterator[None]:
    """A trainer outlives its view, but not its test."""
    yield
    for trainer in trainers(tmp_path):
        os.kill(trainer, signal.SIGKILL)


DEAF = """
import signal, sys
heard = []
signal.signal(signal.SIGINT, lambda *_: heard.append(1))
print("ready", flush=True)
while len(heard) < 2:
    signal.pause()
"""


def test_a_ctrl_c_that_is_lost_is_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A trainer that misses the first one is stopped by the second, which nobody has to type."""
    monkeypatch.setattr(start_trainer, "AGAIN_S", 0.0)
    monkeypatch.setattr(start_trainer, "END_TIMEOUT_S", PATIENCE_S)
    monkeypatch.setattr(start_trainer, "POLL_S", 0.05)
    with subprocess.Popen([sys.executable, "-c", DEAF], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        start_trainer._end(start_trainer.Launched(process, process.stdout), [signal.SIGINT])
        assert process.returncode == 0


@pytest.mark.parametrize("after", ["", "starting"])
def test_ctrl_c_while_it_starts(tmp_path: Path, after: str) -> None:
    """Ctrl-C before the view opens leaves no trainer behind, and the output says so."""
    with Terminal(["train", "--watch", "--model", "tiny", "--runs-dir", str(tmp_path)]) as terminal:
        wait_until(lambda: bool(trainers(tmp_path)))
        if after:
            terminal.until(after)
        terminal.send("\x03")
        assert terminal.code() == 130
        assert "interrupted while the training started; the training was stopped too" in terminal.text
    wait_until(lambda: not trainers(tmp_path))


def test_keys_before_the_view_are_forgotten(tmp_path: Path) -> None:
    """A space that was pressed while nothing was there to see pauses nothing."""
    paths = make_run(tmp_path, state="running")
    status(paths.root, "running", 60, 80, heartbeat="2999-01-01T00:00:00.000Z")
    with watched("watch", str(paths.root)) as terminal:
        terminal.send(" ")
        terminal.until("space pause")
    assert not is_requested(paths, "pause")


@pytest.mark.slow
def test_leaving_a_training_under_way(tmp_path: Path) -> None:
    """The view opens with the flags that it was given; Ctrl-C leaves it, names the run, and the run goes on. A run that
    is killed under a view does not continue."""
    command = ["train", "--watch", "--ascii", "--readonly", "--name", "mine", "--runs-dir", str(tmp_path), *SHORT]
    with Terminal(command, ALONE) as terminal:
        terminal.until("tab page")
        terminal.send("\x03")
        assert terminal.code() == 0
    assert f"run continues: smolsum watch {tmp_path / 'mine'}" in terminal.text
    assert "+- " in terminal.text
    assert "╭" not in terminal.text
    assert "space pause" not in terminal.text
    (trainer,) = trainers(tmp_path)
    with watched("watch", str(tmp_path / "mine")) as terminal:
        terminal.until("space pause")
        os.kill(trainer, signal.SIGKILL)
        wait_until(lambda: not trainers(tmp_path))
    assert "run continues" not in terminal.text
    assert f"process {trainer} is gone" in terminal.text
    assert f"hint: smolsum train --resume {tmp_path / 'mine'}" in terminal.text


@pytest.mark.slow
def test_stopping_a_training_from_its_view(tmp_path: Path) -> None:
    """The run says once how it ended, and with what it goes on; nothing is added to that."""
    command = ["train", "--watch", "--name", "mine", "--runs-dir", str(tmp_path), *SHORT]
    with watched(*command, environ=ALONE, code=130) as terminal:
        terminal.until("tab page")
        make_request(RunPaths(tmp_path / "mine"), "stop")
        terminal.until("INTERRUPTED")
        wait_until(lambda: not trainers(tmp_path))
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
    with watched(*command, environ=ALONE) as terminal:
        terminal.until("run 1 of 2")
        terminal.until("tiny-finetuned-rouge")
    assert "grid continues: run 2 of 2" in terminal.text
    assert str(tmp_path / "tiny-length") in terminal.text.splitlines()
    with watched("watch", "--runs-dir", str(tmp_path)) as terminal:
        terminal.until("run 2 of 2")
        terminal.send("S")
        terminal.until("It is the last")
        terminal.send("stop\r")
        wait_until(lambda: not trainers(tmp_path))
        terminal.until("INTERRUPTED")
    assert "grid stopped in run 2" in terminal.text
    assert "hint: smolsum train --model=tiny" in terminal.text
