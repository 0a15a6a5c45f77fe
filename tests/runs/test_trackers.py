"""What a tracker gets of a run directory, seen in TensorBoard's own event files."""

import os
from functools import partial
from pathlib import Path

import pytest
from support.calls import Call
from support.refusals import assert_refused
from support.reports import edit
from support.tracked import Tracked, read_tracked
from support.watching import append, completions, make_run, measured, row, status, train_again

from smolsum.errors import SmolsumError
from smolsum.files import locked, read_jsonl
from smolsum.runs.paths import RunPaths
from smolsum.runs.trackers import Follower

pytest.importorskip("tensorboard", reason="uv sync --extra tensorboard")


def sent(paths: RunPaths, follower: Follower | None = None) -> Tracked:
    """The run in TensorBoard after all that is new was sent."""
    follower = follower or Follower(paths, "tensorboard")
    follower.send()
    follower.close()
    return read_tracked("tensorboard", paths.root, paths.root)


def steps_of(found: Tracked, curve: str = "reward") -> list[int]:
    return [step for step, _ in found.curves[curve]]


def test_a_run_is_shown_whole(tmp_path: Path) -> None:
    """Every metric under its name and step, the settings, some completions, warnings and evaluations."""
    paths = make_run(tmp_path, "größer", total=60)
    append(paths.events, [{"kind": "worker_down", "message": "wörker 1 is gone", "step": 7, "hint": "start it"}])
    found = sent(paths)
    rows = read_jsonl(paths.metrics)
    assert found.curves["reward"] == [(one["step"], pytest.approx(one["reward"])) for one in rows]
    assert set(found.curves) == {key for one in rows for key in one} - {"step", "stage", "stage_step"}
    assert found.config["task.target_tokens"] == "64"
    assert list(found.tables) == [1, 60]
    assert "The heating failed. The heating failed." in found.tables[1]
    assert found.alerts == ["warning: wörker 1 is gone; start it"]
    assert found.evaluations["eval/length-test/completions/mean_length"] == 64.0
    assert "eval/length-test/meteor" not in found.evaluations


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


@pytest.mark.parametrize("same_process", [False, True])
def test_discarded_steps_are_replaced(tmp_path: Path, same_process: bool) -> None:
    """After a resume that went back, TensorBoard has the values of the new attempt, each step once; also where the same
    process sees the file being cut."""
    paths = make_run(tmp_path, steps=20, state="running")
    follower = Follower(paths, "tensorboard") if same_process else None
    if follower:
        follower.send()
    else:
        sent(paths)
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
