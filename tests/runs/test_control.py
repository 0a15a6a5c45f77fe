"""Pause, resume and stop, by files, of a real training process."""

import errno
import json
import signal
import threading
import time
from pathlib import Path
from unittest.mock import Mock

import pytest
from support.refusals import refuses
from support.training import PATIENCE_S, after_step, arguments, events, learned, start, state, wait_until

from smolsum.cli.main import main
from smolsum.errors import SmolsumError
from smolsum.runs import control
from smolsum.runs.control import Heartbeat, is_requested, make_request, take_request, wait_while_paused, withdraw
from smolsum.runs.paths import RunPaths, create_run
from smolsum.runs.writer import RunWriter

ENDS = ("paused", "resumed", "interrupted")


def test_requests(tmp_path: Path) -> None:
    """Asked, taken back, answered; asking twice is asking once. Waiting ends when a pause is taken back, or by a stop.
    On a medium that refuses it is an error."""
    paths = create_run(tmp_path, "run")
    make_request(paths, "pause")
    make_request(paths, "pause")
    assert is_requested(paths, "pause")
    assert take_request(paths, "pause")
    assert not take_request(paths, "pause")
    withdraw(paths, "pause")
    make_request(paths, "pause")
    threading.Timer(0.05, withdraw, [paths, "pause"]).start()
    assert wait_while_paused(paths, lambda: False)
    make_request(paths, "pause")
    make_request(paths, "stop")
    assert not wait_while_paused(paths, lambda: is_requested(paths, "stop"))
    (tmp_path / "file").write_text("no directory")
    with refuses(tmp_path / "file", error=SmolsumError):
        make_request(RunPaths(tmp_path / "file"), "stop")


def test_pulse(tmp_path: Path) -> None:
    """While a step takes its time the heartbeat is renewed and a request is reported; then nothing more is written."""
    paths = create_run(tmp_path, "run")
    with RunWriter(paths, 1) as writer:
        writer.status("running", step=3, phase="training", stage="length", steps=9)
        with Heartbeat(paths, writer, lambda: False, listen_s=0.02):
            make_request(paths, "pause")
            wait_until(lambda: state(paths) == "pausing")
            withdraw(paths, "pause")
            wait_until(lambda: state(paths) == "running")
            assert json.loads(paths.status.read_text())["step"] == 3
        writer.status("finished", step=3, phase="finished", stage="length")
        before = paths.status.read_bytes()
        writer.beat()
        assert paths.status.read_bytes() == before


def test_pause_resume_stop(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run pauses after a step, saved; it resumes; it stops as after Ctrl-C, and resumed it ends with the numbers of a
    run that was never disturbed."""
    runs = tmp_path / "runs"
    settings = {"stages__length__steps": 3, "stages__quality__steps": 3}
    assert main(arguments(data, runs, "calm", **settings)) == 0
    apart = tmp_path / "apart"  # next to the other it would take over its length stage
    paths = RunPaths(apart / "asked")
    rests, asks = Mock(side_effect=lambda _: withdraw(paths, "pause")), {1: "pause", 5: "stop"}

    def rest(_: float) -> None:
        assert state(paths) == "paused"
        assert paths.checkpoint(1).is_dir()
        rests(_)

    with monkeypatch.context() as patched, after_step(lambda n: n in asks and make_request(paths, asks[n])):
        patched.setattr(control, "time", Mock(wraps=time, sleep=rest))
        assert main(arguments(data, apart, "asked", **settings)) == 130
    assert rests.call_count == 1
    assert state(paths) == "interrupted"
    assert "stopped after step 5; a checkpoint is saved" in capsys.readouterr().err
    assert not is_requested(paths, "stop")
    assert [kind for kind in events(paths.root) if kind in ENDS] == ["paused", "resumed", "interrupted"]
    assert main(["train", "--resume", "asked", "--runs-dir", str(apart)]) == 0
    assert learned(paths.root) == learned(runs / "calm")


@pytest.mark.parametrize("way", ["file", "signal"])
def test_stop_while_paused(data: Path, tmp_path: Path, way: str) -> None:
    """Whichever way the user asks, a resting run leaves as after a step: saved, with the code of an interruption."""
    process = start(arguments(data, tmp_path / "runs", "asked", stages__length__steps=400))
    paths = RunPaths(tmp_path / "runs" / "asked")
    wait_until(lambda: paths.metrics.exists() and paths.metrics.stat().st_size > 0)
    make_request(paths, "pause")
    wait_until(lambda: state(paths) == "paused")
    at = json.loads(paths.status.read_text())["step"]
    if way == "file":
        make_request(paths, "stop")
    else:
        process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130, err
    assert f"stopped after step {at}; a checkpoint is saved" in err
    assert state(paths) == "interrupted"
    assert "resumed" not in events(paths.root)


def test_a_disk_that_does_not_answer_for_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A network disk's error while requests are looked for or the heartbeat is written: the heartbeat goes on."""
    paths, fails = create_run(tmp_path, "run"), threading.Event()
    assert not is_requested(RunPaths(Path("\0")), "pause")
    with RunWriter(paths, 1) as writer:
        writer.status("running", step=3, phase="training", stage="length", steps=9)
        beat = writer.beat

        def refuse(*, pausing: bool = False) -> None:
            if not fails.is_set():
                fails.set()
                raise OSError(errno.ESTALE, "Stale file handle")
            beat(pausing=pausing)

        monkeypatch.setattr(writer, "beat", refuse)
        with Heartbeat(paths, writer, lambda: False, listen_s=0.02):
            make_request(paths, "pause")
            wait_until(lambda: state(paths) == "pausing")
        assert fails.is_set()
