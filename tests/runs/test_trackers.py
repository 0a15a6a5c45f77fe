"""What trackers get of a run directory, seen in TensorBoard's own event files, and of a real training, which they cost
nothing, whatever happens to them."""

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
from support.refusals import assert_refused
from support.reports import edit
from support.tracked import Tracked, environment, read_tracked
from support.training import after_step, arguments, learned, trained, wait_until
from support.watching import append, completions, make_run, measured, row, status, train_again

from smolsum.cli.main import main
from smolsum.config.fields import TRACKERS
from smolsum.errors import SmolsumError
from smolsum.files import locked, read_jsonl
from smolsum.runs import trackers
from smolsum.runs.paths import RunPaths
from smolsum.runs.records import TrackedRun
from smolsum.runs.tracker_packages import is_installed
from smolsum.runs.trackers import Follower
from smolsum.runs.typed_json import read

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not all(map(is_installed, TRACKERS)), reason=f"uv sync --extra of {', '.join(TRACKERS)}"),
]
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
from smolsum.runs.writer import RunWriter
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


def sent(paths: RunPaths, follower: Follower | None = None) -> Tracked:
    """The run in TensorBoard after all that is new was sent."""
    follower = follower or Follower(paths, "tensorboard")
    follower.send()
    follower.close()
    return read_tracked("tensorboard", paths.root, paths.root)


def steps_of(found: Tracked, curve: str = "reward") -> list[int]:
    return [step for step, _ in found.curves[curve]]


def test_only_what_is_new_is_sent(tmp_path: Path) -> None:
    """A second process adds new steps and evaluations, and repeats nothing; where nothing is new it opens nothing.
    After a kill, steps that were written after the last record are written once more, and shown once. A store that was
    removed gets everything again."""
    paths = make_run(tmp_path, steps=40)
    append(paths.events, [{"kind": "worker_down", "message": "gone", "step": 7}])
    sent(paths)
    files = set((paths.root / "tensorboard").iterdir())
    sent(paths)
    assert set((paths.root / "tensorboard").iterdir()) == files
    append(paths.metrics, [row(step, 80) for step in range(41, 46)])
    measured(paths, "quality", meteor=0.5)
    found = sent(paths)
    assert steps_of(found) == list(range(1, 46))
    assert found.evaluations["eval/quality-test/meteor"] == 0.5
    edit(paths.tracker("tensorboard"), step=42)
    assert steps_of(sent(paths)) == list(range(1, 46))
    for file in (paths.root / "tensorboard").iterdir():
        file.unlink()
    append(paths.metrics, [row(46, 80)])
    again = sent(paths)
    assert steps_of(again) == list(range(1, 47))
    assert (again.alerts, again.evaluations, again.tables) == (found.alerts, found.evaluations, found.tables)


def test_discarded_steps_are_replaced(tmp_path: Path) -> None:
    """Where the process that follows sees a resume go back, TensorBoard has the values of the new attempt, each step
    once, and every evaluation."""
    paths = make_run(tmp_path, steps=20, state="running")
    follower = Follower(paths, "tensorboard")
    follower.send()
    train_again(paths, 10, 25, reward=0.5)
    found = sent(paths, follower)
    assert steps_of(found) == list(range(1, 26))
    assert {value for step, value in found.curves["reward"] if step > 10} == {0.5}
    assert found.evaluations["eval/start-test/completions/mean_length"] == 94.0


def test_what_is_missing_stays_missing(tmp_path: Path) -> None:
    """A value that was not finite has no point, a damaged or half-written line neither, and a run may lack
    completions."""
    paths = make_run(tmp_path, steps=3)
    for file in (paths.root / "completions").iterdir():
        file.unlink()
    with paths.metrics.open("ab") as file:
        file.write(b'{"step": 4, "reward": null, "loss": 1.0}\nno json\n{"step": 5, "reward": 2.0}\n{"step": 6, "rew')
    found = sent(paths)
    assert steps_of(found) == [1, 2, 3, 5]
    assert steps_of(found, "loss") == [1, 2, 3, 4]
    assert found.tables == {}


def test_completions_of_some_steps_are_sent(tmp_path: Path) -> None:
    paths = make_run(tmp_path, steps=80, total=500)
    for step in range(2, 80):
        append(paths.completions(step), completions(step, 500))
    assert list(sent(paths).tables) == [1, *range(10, 81, 10)]


def test_command(tmp_path: Path, call: Call) -> None:
    """The tracker is named once; later the run knows it. A run that is sent elsewhere at the moment is refused."""
    paths = make_run(tmp_path, steps=20)
    track = partial(call, "track", "made", "--runs-dir", str(tmp_path))
    assert_refused(track(), "smolsum track ")
    assert track("--to", "tensorboard")[:2] == (0, f"tensorboard: tensorboard --logdir {tmp_path}\n")
    assert track("--follow")[0] == 0
    with locked(paths.trackers / ".tensorboard.lock", "", ""):
        assert_refused(track(), "'made'", "tensorboard", f"process {os.getpid()}")
    assert steps_of(read_tracked("tensorboard", paths.root, tmp_path)) == list(range(1, 21))


def test_what_cannot_be_sent(tmp_path: Path, call: Call) -> None:
    """A run directory that cannot be written, a damaged record and two trackers to follow are one error each."""
    paths = make_run(tmp_path, steps=3)
    track = partial(call, "track", "made", "--to", "tensorboard", "--runs-dir", str(tmp_path))
    paths.trackers.write_text("in the way")
    assert_refused(track(), paths.trackers, error=SmolsumError)
    paths.trackers.unlink()
    paths.trackers.mkdir()
    paths.tracker("tensorboard").write_text("{")
    assert_refused(track(), f"remove {paths.tracker('tensorboard')}", error=SmolsumError)
    assert_refused(track("--to", "wandb", "--follow"), "--follow")


def test_a_removed_run_is_not_made_again(tmp_path: Path) -> None:
    paths = make_run(tmp_path, steps=3, state="running")
    follower = Follower(paths, "tensorboard")
    follower.send()
    paths.root.rename(tmp_path / "elsewhere")
    status(tmp_path / "elsewhere", "finished", 3, 3)
    append(tmp_path / "elsewhere" / "metrics.jsonl", [row(4, 80)])
    follower.send()
    assert not follower.state().hopeful
    with pytest.raises(SmolsumError, match=f"{paths.root} was removed"):
        follower._save()
    follower.close()
    assert not paths.root.exists()


def test_a_killed_training_goes_on_in_the_same_tracked_runs(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """kill -9 of the trainer between two checkpoints, then --resume: TensorBoard and Trackio have each step once."""
    for key, value in environment("trackio", tmp_path).items():
        monkeypatch.setenv(key, value)
    monkeypatch.setattr("trackio.sqlite_storage.TRACKIO_DIR", tmp_path / "trackio")
    paths = RunPaths(tmp_path / "killed")
    shown = ["--track", "tensorboard", "--track", "trackio"]
    training = [*arguments(data, tmp_path, "killed", train__checkpoint_every=4), *shown]

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


def test_a_killed_tracker_is_said_once(data: Path, untracked: Path, tmp_path: Path) -> None:
    """kill -9 of the process that sends: one warning with the command that sends the rest, which does."""
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


@pytest.mark.parametrize("how", BROKEN)
def test_a_broken_package_costs_the_run_nothing(
    data: Path, untracked: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """One that cannot be imported, or never answers: the run ends as without it, with one warning."""
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


@pytest.mark.parametrize("answers", [False, True])
def test_a_server_that_fails_costs_the_run_nothing(
    data: Path, untracked: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answers: bool
) -> None:
    """One that nothing listens at, and one that answers 500: the run ends as without it."""
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
