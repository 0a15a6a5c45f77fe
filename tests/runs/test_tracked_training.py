"""Trackers of a real training: they cost it nothing, whatever happens to them."""

import os
import signal
import subprocess
import sys
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import pytest
from support.answers import answering
from support.calls import Call
from support.refusals import assert_refused, refuses
from support.tracked import environment, read_tracked
from support.training import after_step, arguments, learned, trained, wait_until

from smolsum.cli.main import main
from smolsum.files import read_jsonl
from smolsum.runs import trackers
from smolsum.runs.paths import RunPaths
from smolsum.runs.record_io import read
from smolsum.runs.records import TrackedRun
from smolsum.runs.tracker_packages import check_tracker, is_installed, without_secrets

STEPS = {"stages__length__steps": 2, "stages__quality__steps": 1}
BROKEN = {
    "raises at import": "raise OSError('a library is missing')",
    "ends the process": "import sys; sys.exit('not on this machine')",
    "crashes": "import os; os.abort()",
    "hangs": "import time; time.sleep(1000)",
}

HELD = """
import sys, threading
from smolsum.cli.main import main
from smolsum.runs.run_writer import RunWriter
write = RunWriter.metrics
def written(writer, row):
    write(writer, row)
    if row["step"] == 6:
        threading.Event().wait(900)
RunWriter.metrics = written
main(sys.argv[1:])
"""


@pytest.fixture(scope="module")
def untracked(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(data, tmp_path_factory.mktemp("untracked"), "plain", **STEPS)


def warnings(run: Path) -> list[str]:
    kinds = ("tracker_behind", "tracker_stopped")
    return [one["message"] for one in read_jsonl(run / "events.jsonl") if one["kind"] in kinds]


def needs(name: str) -> None:
    if not is_installed(name):
        pytest.skip(f"uv sync --extra {name}")


def test_what_is_no_tracker(tmp_path: Path, call: Call) -> None:
    """Unknown names, names given twice and `none` among others are refused before anything is loaded."""
    train = partial(call, "train", "--runs-dir", str(tmp_path / "runs"))
    assert_refused(train("--track", "wandbb"), "run.track", "wandb")
    assert_refused(train("--set", "run.track=wandb,wandb"), "run.track", "once")
    assert_refused(train("--track", "none", "--track", "wandb"), "--track none")
    assert not (tmp_path / "runs").exists()


def test_a_missing_package_is_named_with_its_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    """The extra that brings the package, before anything is loaded."""
    monkeypatch.setattr("sys.path", [one for one in sys.path if "site-packages" not in one])
    monkeypatch.delitem(sys.modules, "trackio", raising=False)
    assert not is_installed("trackio")
    done = call("train", "--runs-dir", str(tmp_path), "--track", "trackio")
    assert_refused(done, "--track trackio", "uv sync --extra trackio")
    with refuses("wandbb"):
        check_tracker("wandbb")


def test_secrets_stay_out_of_the_run() -> None:
    assert without_secrets("no answer from http://me:pa55@host:5000/x") == "no answer from http://host:5000/x"
    assert without_secrets("http://host?write_token=abc&x=1") == "http://host?write_token=…&x=1"


@pytest.mark.slow
def test_a_killed_training_goes_on_in_the_same_tracked_runs(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """kill -9 of the trainer between two checkpoints, then --resume: TensorBoard and Trackio have each step once."""
    needs("tensorboard")
    needs("trackio")
    for key, value in environment("trackio", tmp_path).items():
        monkeypatch.setenv(key, value)
    monkeypatch.setattr("trackio.sqlite_storage.TRACKIO_DIR", tmp_path / "trackio")
    paths = RunPaths(tmp_path / "killed")
    trackers = ["--track", "tensorboard", "--track", "trackio"]
    training = [*arguments(data, tmp_path, "killed", train__checkpoint_every=4), *trackers]

    def has(step: int) -> bool:
        places = [paths.tracker(name) for name in ("tensorboard", "trackio")]
        return all(place.exists() and read(place, TrackedRun).step >= step for place in places)

    with subprocess.Popen([sys.executable, "-c", HELD, *training], stderr=subprocess.DEVNULL) as process:
        try:
            wait_until(lambda: has(3) and paths.checkpoint(4).exists())
        finally:
            process.kill()
    assert main(["train", "--resume", "killed", "--runs-dir", str(tmp_path)]) == 0
    for name in ("tensorboard", "trackio"):
        found = read_tracked(name, paths.root, tmp_path)
        assert [step for step, _ in found.curves["loss"]] == list(range(1, 9)), name
        rewards = [(one["step"], pytest.approx(one["reward"])) for one in learned(paths.root)]
        assert found.curves["reward"] == rewards, name
        assert len(found.ids) == 1
        assert "eval/quality-test/meteor" in found.evaluations
        assert set(found.tables) == set(range(1, 9))
    assert warnings(paths.root) == []
    before = paths.events.read_text().count('"tracker"')
    assert main(["train", "--resume", "killed", "--runs-dir", str(tmp_path), "--track", "none"]) == 0
    assert paths.events.read_text().count('"tracker"') == before >= 2


@pytest.mark.slow
def test_a_killed_tracker_is_said_once(data: Path, untracked: Path, tmp_path: Path) -> None:
    """kill -9 of the process that sends: one warning with the command that sends the rest, which does."""
    needs("tensorboard")
    paths = RunPaths(tmp_path / "lone")
    lock = paths.trackers / ".tensorboard.lock"

    def kill(step: int) -> None:
        if step == 2:
            wait_until(lambda: lock.exists() and bool(lock.read_text()))
            os.kill(int(lock.read_text().split()[0]), signal.SIGKILL)

    with after_step(kill):
        trained(data, tmp_path, "lone", "--track", "tensorboard", **STEPS)
    assert learned(paths.root) == learned(untracked)
    (message,) = warnings(paths.root)
    command = f"smolsum track {paths.root} --to tensorboard"
    assert command in message
    assert main(command.split()[1:]) == 0
    assert len(read_tracked("tensorboard", paths.root, tmp_path).curves["loss"]) == 3


@pytest.mark.slow
@pytest.mark.parametrize("how", BROKEN)
def test_a_broken_package_costs_the_run_nothing(
    data: Path, untracked: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """One that cannot be imported, or never answers: the run ends as without it, with one warning."""
    needs("trackio")
    broken = tmp_path / "broken"
    (broken / "trackio").mkdir(parents=True)
    (broken / "trackio" / "__init__.py").write_text(BROKEN[how])
    monkeypatch.setenv("PYTHONPATH", str(broken))
    monkeypatch.setattr(trackers, "DRAIN_S", 20.0 if how != "hangs" else 1.0)
    run = tmp_path / "runs" / how.split()[0]
    trained(data, run.parent, run.name, "--track", "trackio", **STEPS)
    assert learned(run) == learned(untracked)
    messages = warnings(run)
    assert all("trackio" in message for message in messages)
    assert messages[-1].count(f"smolsum track {run} --to trackio") == 1
    assert len(messages) <= 2  # behind while it trains, and at the end what is lacking


@pytest.mark.slow
@pytest.mark.parametrize("answers", [False, True])
def test_a_server_that_fails_costs_the_run_nothing(
    data: Path, untracked: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answers: bool
) -> None:
    """One that nothing listens at, and one that answers 500: the run ends as without it."""
    needs("mlflow")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with answering(500) if answers else nullcontext("http://127.0.0.1:9") as url:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", url.replace("//", "//me:pa55word@"))
        run = trained(data, tmp_path, "away", "--track", "mlflow", **STEPS)
    assert learned(run) == learned(untracked)
    messages = warnings(run)
    assert 1 <= len(messages) <= 2
    assert f"smolsum track {run} --to mlflow" in messages[-1]
    assert ("500" if answers else "127.0.0.1") in messages[-1]
    for file in run.rglob("*"):
        assert not file.is_file() or b"pa55word" not in file.read_bytes(), file
