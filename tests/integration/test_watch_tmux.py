"""The live view in a real terminal next to a real training: true values, resize, pause, resume, stop, crash."""

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from smolsum.files import read_jsonl
from smolsum.linechart.scale import number

pytestmark = [pytest.mark.slow, pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")]
PATIENCE_S = 1800.0


class Terminal:
    """A tmux session with its own server."""

    def __init__(self, folder: Path, width: int, height: int) -> None:
        self._command = ["tmux", "-S", str(folder / "tmux"), "-f", "/dev/null"]
        size = ["-x", str(width), "-y", str(height)]
        shell = "env -u NO_COLOR LC_ALL=C.UTF-8 sh"
        subprocess.run([*self._command, "-u", "new-session", "-d", "-s", "w", *size, shell], check=True)

    def tmux(self, *args: str) -> str:
        return subprocess.run([*self._command, *args], check=True, capture_output=True, text=True).stdout

    def run(self, *command: str) -> None:
        self.tmux("send-keys", "-t", "w", "-l", shlex.join(command))
        self.tmux("send-keys", "-t", "w", "Enter")

    def keys(self, *names: str) -> None:
        self.tmux("send-keys", "-t", "w", *names)

    def resize(self, width: int, height: int) -> None:
        self.tmux("resize-window", "-t", "w", "-x", str(width), "-y", str(height))

    def text(self) -> str:
        return self.tmux("capture-pane", "-p", "-t", "w")

    def until(self, wanted: str) -> str:
        return until(lambda: text if wanted in (text := self.text()) else "", lambda: f"no {wanted!r}:\n{self.text()}")


def until(met: Callable[[], Any], say: Callable[[], str] = lambda: "") -> Any:
    end = time.monotonic() + PATIENCE_S
    while not (found := met()):
        assert time.monotonic() < end, say()
        time.sleep(0.1)
    return found


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    found = Terminal(tmp_path, 120, 40)
    yield found
    found.tmux("kill-server")


def state(run: Path) -> dict[str, Any]:
    path = run / "status.json"
    return dict(json.loads(path.read_text())) if path.exists() else {"state": "", "pid": 0}


def test_beside_a_training(terminal: Terminal, tmp_path: Path) -> None:
    """`train --watch` opens the view, which pauses, resumes and is left; another one is attached, resized and stops the
    run; a second attempt is killed and turns STALE."""
    runs = tmp_path / "runs"
    run = runs / "real"
    smolsum = [sys.executable, "-m", "smolsum"]
    terminal.run(*smolsum, "train", "--watch", "--model", "tiny", "--name", "real", "--runs-dir", str(runs))
    terminal.until("RUNNING")
    until(lambda: (run / "metrics.jsonl").exists() and len(read_jsonl(run / "metrics.jsonl")) > 5)

    terminal.keys("Space")
    until(lambda: state(run)["state"] == "paused")
    terminal.until("PAUSED")
    last = read_jsonl(run / "metrics.jsonl")[-1]
    terminal.until(f"step {last['step']}/")
    for key in ("reward", "completions/mean_length", "loss", "grad_norm"):
        terminal.until(number(last[key]))
    first = json.loads((run / "completions" / f"step-{last['step']:06}.jsonl").read_text().splitlines()[0])
    terminal.until(f"{len(first['token_ids']) - 1}")
    terminal.until(f"{first['advantage']:+.2f}")
    terminal.keys("Tab", "Tab")
    terminal.until("╭─ metrics ")
    for key in ("reward", "reward_std", "entropy", "perf/rollout_s"):  # filtered: a real run has more than fit
        terminal.keys("/")
        terminal.until("metrics with this in their name")
        terminal.keys(*key, "Enter")
        terminal.until(f"/{key} ")
        row = next(line for line in terminal.until(f" {key} ").splitlines() if f" {key} " in line)
        assert number(last[key]) in row
        terminal.keys("Escape")  # which a terminal tells from the beginning of another key by the time after it alone
        until(lambda key=key: f"/{key} " not in terminal.text())
    terminal.keys("BTab", "BTab")
    terminal.until("╭─ loss ")
    for width, height in ((80, 24), (200, 60), (120, 40)):
        terminal.resize(width, height)
        terminal.until("╭─ charts" if width == 80 else "╭─ loss ")
        assert f"step {last['step']}/" in terminal.until("PAUSED")

    terminal.keys("Space")
    until(lambda: len(read_jsonl(run / "metrics.jsonl")) > last["step"])
    terminal.keys("C-c")
    terminal.until("run continues: smolsum watch")
    steps = len(read_jsonl(run / "metrics.jsonl"))
    until(lambda: len(read_jsonl(run / "metrics.jsonl")) > steps)

    terminal.run("clear")
    terminal.run(*smolsum, "watch", "real", "--runs-dir", str(runs))
    terminal.until("RUNNING")
    terminal.keys("S")
    terminal.until("Type stop")
    terminal.keys(*"stop", "Enter")
    until(lambda: state(run)["state"] == "interrupted")
    terminal.until("INTERRUPTED")
    at = state(run)["step"]
    assert (run / "checkpoints" / f"step-{at:06}").is_dir()
    terminal.keys("q")

    resume = subprocess.Popen(
        [*smolsum, "train", "--resume", "real", "--runs-dir", str(runs)], stderr=subprocess.DEVNULL
    )
    until(lambda: state(run)["pid"] == resume.pid and state(run)["step"] > at)
    terminal.run("clear")
    terminal.run(*smolsum, "watch", "real", "--runs-dir", str(runs))
    terminal.until("RUNNING")
    os.kill(resume.pid, signal.SIGKILL)
    resume.wait()
    page = terminal.until("STALE")
    assert f"process {resume.pid} is gone" in page
    terminal.keys("q")
