"""The run directory: names, the `latest` link, finding a run, and one trainer at a time."""

import os
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import pytest
from support.refusals import refuses

from smolsum.errors import SmolsumError
from smolsum.runs.paths import RunPaths, acquire, create_run, derive_name, last_attempt, list_runs, open_run

NOON = datetime(2026, 8, 22, 14, 12)


def started(runs_dir: Path, name: str, at: int) -> RunPaths:
    """A run that was last started `at` seconds after the epoch."""
    paths = create_run(runs_dir, name)
    os.utime(paths.lock, (at, at))
    return paths


# names and paths


def test_layout() -> None:
    """Every file of a run has the place that the README promises."""
    run = RunPaths(Path("runs/x"))
    found = [
        *(run.config, run.info, run.status, run.metrics, run.events, run.lock),
        *(run.completions(400), run.checkpoints, run.checkpoint(400)),
        *(run.evaluation(400), run.evaluation("length"), run.log(2), run.control),
    ]
    assert " ".join(path.relative_to(run.root).as_posix() for path in found) == (
        "config.toml run.json status.json metrics.jsonl events.jsonl run.lock "
        "completions/step-000400.jsonl checkpoints checkpoints/step-000400 "
        "eval/step-000400 eval/length logs/attempt_2.log control"
    )


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("lfm", "lfm-finetuned-meteor-0822-1412"),
        ("builtin:tiny", "tiny-finetuned-meteor-0822-1412"),
        ("Qwen/Qwen2.5-0.5B", "Qwen2.5-0.5B-finetuned-meteor-0822-1412"),
        ("Qwen/Qwen2.5-0.5B@refs/pr/3", "Qwen2.5-0.5B-refs-pr-3-finetuned-meteor-0822-1412"),
        ("../my models/große/", "gro-e-finetuned-meteor-0822-1412"),
        ("..", "model-finetuned-meteor-0822-1412"),
    ],
)
def test_derived_name(model: str, expected: str, tmp_path: Path) -> None:
    """A derived name says model, strategy, rewards and time, in characters that are plain in a file name."""
    assert derive_name(model, "finetuned", "meteor", NOON, tmp_path) == expected


def test_derived_name_is_free(tmp_path: Path) -> None:
    """Runs of the same minute get -2, -3 …"""
    names = []
    for _ in range(3):
        names.append(derive_name("tiny", "included", "bleu", NOON, tmp_path))
        create_run(tmp_path, names[-1])
    base = "tiny-included-bleu-0822-1412"
    assert names == [base, f"{base}-2", f"{base}-3"]


# making runs


def test_latest_follows_the_newest_run(tmp_path: Path) -> None:
    """`latest` is a relative link, which survives a copy of the directory, and is replaced by a new run. A run of that
    name could not be distinguished from it."""
    for name in ("a", "b"):
        create_run(tmp_path / "runs", name)
        assert os.readlink(tmp_path / "runs" / "latest") == name
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["a", "b", "latest"]
    with refuses("'latest'"):
        create_run(tmp_path, "latest")


def test_existing_name_is_refused(tmp_path: Path) -> None:
    paths = create_run(tmp_path, "a")
    paths.config.write_text("x = 1\n")
    with refuses("'a'", f"smolsum train --resume {paths.root}", "--name OTHER"):
        create_run(tmp_path, "a")
    assert paths.config.read_text() == "x = 1\n"


def test_runs_dir_that_cannot_be_made(tmp_path: Path) -> None:
    """A file in the place of the runs directory is one clear error with a remedy. If `latest` cannot be set, the name
    of the run stays free."""
    (tmp_path / "runs").write_text("")
    with refuses(tmp_path / "runs", "--set run.dir=DIR", error=SmolsumError):
        create_run(tmp_path / "runs", "a")
    with refuses(tmp_path / "runs"):
        list_runs(tmp_path / "runs")
    (tmp_path / "latest").mkdir()
    with refuses(tmp_path, "latest", error=SmolsumError):
        create_run(tmp_path, "a")
    assert not (tmp_path / "a").exists()


# finding runs


@pytest.mark.parametrize(
    ("here", "reference", "found"),
    [
        *((".", reference, "runs/a") for reference in ("a", "runs/a", "runs/a/", "latest", "runs/latest")),
        # the current directory can be in the run
        ("runs/a", ".", "{root}"),
        ("runs/a/checkpoints", "..", "{root}"),
        # short, without detours, also where the directory of runs exists
        *(
            ("here", f"{way}/a", "../runs/a")
            for way in ("../runs", "runs/../../runs", "./../runs/.", "../link/../runs")
        ),
    ],
)
def test_open_by_name_or_path(
    here: str, reference: str, found: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run is found by name, by path and by `latest`, and always has its own name."""
    paths = create_run(tmp_path / "runs", "a")
    for name in ("here/runs", "link"):
        (tmp_path / name).mkdir(parents=True)
    monkeypatch.chdir(tmp_path / here)
    run = open_run(reference, Path("runs"))
    assert (run.root, run.name) == (Path(found.format(root=paths.root)), "a")


def test_a_path_behind_a_link_leads_to_the_same_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`..` after a link is the parent of what the link names, so it is not taken away."""
    create_run(tmp_path / "there", "a")
    create_run(tmp_path / "here", "a")
    (tmp_path / "there" / "deep").mkdir()
    (tmp_path / "here" / "link").symlink_to(tmp_path / "there" / "deep")
    monkeypatch.chdir(tmp_path / "here")
    assert open_run("link/../a", Path("runs")).root == tmp_path / "there" / "a"
    assert open_run("../there/a", Path("../there")).root == Path("../there/a")


def test_open_a_partial_copy(tmp_path: Path) -> None:
    """A copy made by hand is a run if it has the configuration."""
    (tmp_path / "copied").mkdir()
    (tmp_path / "copied" / "config.toml").write_text("")
    assert open_run("copied", tmp_path).name == "copied"


@pytest.mark.parametrize(
    ("reference", "hint"),
    [
        ("tiny-finetuned-metro", "did you mean tiny-finetuned-meteor?"),
        ("xyz", "choose from lfm-included-bleu, tiny-finetuned-meteor"),
        ("", "choose from lfm-included-bleu, tiny-finetuned-meteor"),
        ("latest", "tiny-finetuned-meteor"),
    ],
)
def test_unknown_run(reference: str, hint: str, tmp_path: Path) -> None:
    """An unknown run is answered with the nearest name, or with what there is; so is the link to a run that is gone.
    Without any run the hint makes one."""
    with refuses(f"'{reference}'", "smolsum train --model tiny"):
        open_run(reference, tmp_path / "runs")
    for at, name in enumerate(("lfm-included-bleu", "tiny-finetuned-meteor")):
        started(tmp_path, name, at)
    create_run(tmp_path, "gone").root.rename(tmp_path / "elsewhere.bak")
    with refuses(f"'{reference}'", hint):
        open_run(reference, tmp_path)


def test_list_is_by_last_start(tmp_path: Path) -> None:
    """Runs are listed by the time they were last started; other directories and `latest` are not."""
    started(tmp_path, "new", 300)
    started(tmp_path, "old", 100)
    resumed = started(tmp_path, "resumed", 200)
    (tmp_path / "notes").mkdir()
    (tmp_path / "table.csv").write_text("")
    assert [run.name for run in list_runs(tmp_path)] == ["old", "resumed", "new"]
    with acquire(resumed):
        assert [run.name for run in list_runs(tmp_path)] == ["old", "new", "resumed"]
    assert list_runs(tmp_path / "none") == []


def test_last_attempt(tmp_path: Path) -> None:
    """Attempts are counted by their logs, as numbers, and a file of discarded metrics does not count."""
    paths = create_run(tmp_path, "a")
    assert last_attempt(paths) == 0
    for path in (paths.log(9), paths.log(10), paths.discarded(11)):
        path.write_text("")
    assert last_attempt(paths) == 10


# one trainer at a time

HOLD = """
import sys, time
from pathlib import Path
from smolsum.runs.paths import RunPaths, acquire
with acquire(RunPaths(Path(sys.argv[1]))):
    print("held", flush=True)
    time.sleep(900)
"""


def test_second_trainer_is_refused_until_the_first_is_dead(tmp_path: Path) -> None:
    """The error names the process that holds the run; a kill -9 of it lets go. In one process the run is free after the
    block, and an error in it comes out as it is."""
    paths = create_run(tmp_path, "a")
    command = [sys.executable, "-c", HOLD, str(paths.root)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        try:
            assert other.stdout is not None
            assert other.stdout.readline() == "held\n"
            with refuses("'a'", f"process {other.pid} on ", f"kill -INT {other.pid}"), acquire(paths):
                pass
        finally:
            other.kill()
    with pytest.raises(OSError, match="of the block"), acquire(paths):
        raise OSError("of the block")
    with acquire(paths), refuses(f"process {os.getpid()} on "), acquire(paths):
        pass


def test_resume_command_is_short_where_the_name_suffices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the directory that smolsum looks in by itself a run's name is enough; elsewhere the hint gives the path."""
    assert RunPaths(Path("runs/a")).resume_command == "smolsum train --resume a"
    assert RunPaths(tmp_path / "a").resume_command == f"smolsum train --resume {tmp_path / 'a'}"
    monkeypatch.setenv("SMOLSUM_RUNS_DIR", str(tmp_path))
    assert RunPaths(tmp_path / "a").resume_command == "smolsum train --resume a"
