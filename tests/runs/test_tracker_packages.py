"""What is no tracker, and every tracker with its real package, offline: sent by the command in a process apart, read
back by the package."""

import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from support.calls import Call
from support.refusals import assert_refused, refuses
from support.tracked import Tracked, environment, read_tracked
from support.training import start, wait_until
from support.views import alive
from support.watching import append, make_run, measured, row, status, train_again

from smolsum.config.fields import TRACKERS
from smolsum.files import read_jsonl
from smolsum.runs.paths import RunPaths
from smolsum.runs.records import TrackedRun
from smolsum.runs.tracker_packages import check_tracker, is_installed, without_secrets
from smolsum.runs.typed_json import read

# what the packages warn about is their own affair
pytestmark = pytest.mark.filterwarnings("ignore")
KEEP_FIRST = ("trackio", "wandb", "mlflow")


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


@pytest.fixture(params=TRACKERS)
def tracker(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A tracker that keeps everything below `tmp_path`."""
    name = str(request.param)
    if not is_installed(name):
        pytest.skip(f"uv sync --extra {name}")
    for key, value in environment(name, tmp_path).items():
        monkeypatch.setenv(key, value)
    monkeypatch.chdir(tmp_path)  # MLflow keeps its files in the working directory
    if name == "trackio":  # which reads its variable when it is imported
        monkeypatch.setattr("trackio.sqlite_storage.TRACKIO_DIR", tmp_path / "trackio")
    return name


def send(paths: RunPaths, tracker: str, folder: Path) -> Tracked:
    """The run in the tracker after `smolsum track`."""
    command = [sys.executable, "-m", "smolsum", "track", str(paths.root), "--to", tracker]
    done = subprocess.run(command, capture_output=True, text=True, env=dict(os.environ))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{tracker}: ")
    assert len(done.stdout.splitlines()) == 1
    return read_tracked(tracker, paths.root, folder)


@pytest.mark.slow
def test_a_run_is_shown_and_continued(tracker: str, tmp_path: Path) -> None:
    """Curves, settings, completions, warnings and evaluations arrive. After a resume that went back, the same tracked
    run goes on with each step once: trackers that keep what they have say so."""
    paths = make_run(tmp_path / "runs", "grün", steps=20, reward=0.25)
    append(paths.metrics, [row(21, 80) | {"reward": None, "stage": "length"}])
    append(paths.events, [{"kind": "worker_down", "message": "wörker 1 is gone", "step": 7, "hint": "start it"}])
    found = send(paths, tracker, tmp_path)
    assert found.curves["reward"] == [(step, 0.25) for step in range(1, 21)]
    assert [step for step, _ in found.curves["loss"]] == list(range(1, 22))
    named = {key for one in read_jsonl(paths.metrics) for key in one} - {"step", "stage", "stage_step"}
    assert set(found.curves) == named
    settings = found.config["task"]["target_tokens"] if "task" in found.config else found.config["task.target_tokens"]
    assert int(settings) == 64
    assert set(found.tables) == {1, 20}
    assert "The heating failed. The heating failed." in found.tables[1]
    assert [text.replace("warn:", "warning:") for text in found.alerts] == ["warning: wörker 1 is gone; start it"]
    assert found.evaluations["eval/length-test/completions/mean_length"] == 64.0
    assert "eval/length-test/meteor" not in found.evaluations

    train_again(paths, 10, 25, reward=0.5)
    measured(paths, "quality", meteor=0.5)
    found = send(paths, tracker, tmp_path)
    assert [step for step, _ in found.curves["loss"]] == list(range(1, 26))
    again = 0.25 if tracker in KEEP_FIRST else 0.5
    rewards = dict(found.curves["reward"])
    assert [rewards[step] for step in (10, 11, 20, 22, 25)] == [0.25, again, again, 0.5, 0.5]
    assert found.evaluations["eval/quality-test/meteor"] == 0.5
    assert any("steps 11 to 21 were trained again" in text for text in found.alerts) is (tracker in KEEP_FIRST)
    assert len(found.ids) == 1


@pytest.mark.slow
def test_a_killed_process_loses_nothing(tracker: str, tmp_path: Path) -> None:
    """kill -9 of the process that follows a run; the next one continues the tracked run, with each step once."""
    paths = alive(tmp_path / "runs", steps=200)
    process = start(["track", str(paths.root), "--to", tracker, "--follow"])
    wait_until(lambda: paths.tracker(tracker).exists() and read(paths.tracker(tracker), TrackedRun).step == 200)
    process.kill()
    process.communicate()
    status(paths.root, "finished", 200, 200)
    found = send(paths, tracker, tmp_path)
    assert [step for step, _ in found.curves["loss"]] == list(range(1, 201))
    append(paths.metrics, [row(step, 400) for step in range(201, 221)])
    found = send(paths, tracker, tmp_path)
    assert [step for step, _ in found.curves["loss"]] == list(range(1, 221))
    assert len(found.ids) == 1
