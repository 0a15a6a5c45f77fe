"""Checkpoints: whole or not there, damage found, the right ones kept, a finished stage found again."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.refusals import refuses
from support.training import PATIENCE_S

from smolsum.errors import SmolsumError
from smolsum.runs.checkpoints import (
    Checkpoint,
    check_all,
    copy,
    find_checkpoint,
    find_stage,
    list_checkpoints,
    prune,
    save,
    verify,
)
from smolsum.runs.paths import RunPaths, create_run

FILES = {"model.safetensors": b"weights" * 400, "optimizer.safetensors": b"mv" * 300, "nested/rng": b"\x07"}


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    return create_run(tmp_path / "runs", "a")


def writer(**changes: bytes) -> Callable[[Path], None]:
    def write(directory: Path) -> None:
        for name, content in (FILES | changes).items():
            (directory / name).parent.mkdir(exist_ok=True)
            (directory / name).write_bytes(content)

    return write


def save_steps(paths: RunPaths, *steps: int, **meta: Any) -> None:
    for step in steps:
        save(paths, step, writer(), meta)


def newest_valid(paths: RunPaths) -> tuple[Checkpoint | None, list[tuple[Path, str]]]:
    """The last whole checkpoint, and the damaged ones after it, latest first."""
    whole, damaged = check_all(paths)
    last = whole[-1] if whole else None
    return last, [damaged[step] for step in sorted(damaged, reverse=True) if last is None or step > last.step]


def newest(paths: RunPaths) -> Checkpoint:
    """The last checkpoint, where all are whole."""
    found, damaged = newest_valid(paths)
    assert found is not None
    assert damaged == []
    return found


def names(paths: RunPaths) -> list[str]:
    return sorted(path.name for path in paths.checkpoints.iterdir())


# a whole checkpoint


def test_saved_checkpoint(paths: RunPaths) -> None:
    path = save(paths, 400, writer(), {"cursor": [3, 1], "best": {}, "by_step": {9: 1, 10: 2}})
    assert path == paths.checkpoint(400)
    assert verify(path) == []
    assert {name: (path / name).read_bytes() for name in FILES} == FILES
    found = newest(paths)
    assert (found.path, found.step, found.meta.schema_version) == (path, 400, 1)
    assert json.loads((path / "meta.json").read_bytes())["by_step"] == {"9": 1, "10": 2}
    assert found.meta.files.keys() == FILES.keys()
    assert found.meta.files["nested/rng"].size == 1
    assert os.readlink(paths.checkpoints / "latest") == "step-000400"
    assert names(paths) == ["latest", "step-000400"]


def test_steps_are_numbers(paths: RunPaths) -> None:
    save_steps(paths, 1080, 960, 1_000_000, 999_999)
    assert [checkpoint.step for checkpoint in list_checkpoints(paths)] == [960, 1080, 999_999, 1_000_000]
    assert newest(paths).step == 1_000_000


def test_no_checkpoint(paths: RunPaths) -> None:
    assert newest_valid(paths) == (None, [])
    paths.checkpoints.rmdir()
    assert newest_valid(paths) == (None, [])
    assert list_checkpoints(paths) == []


def test_saving_a_step_again_replaces_it(paths: RunPaths) -> None:
    save(paths, 5, writer(extra=b"old"), {"stage_step": 1})
    save_steps(paths, 5, stage_step=2)
    assert verify(paths.checkpoint(5)) == []
    assert not (paths.checkpoint(5) / "extra").exists()
    assert [checkpoint.meta.stage_step for checkpoint in list_checkpoints(paths)] == [2]
    assert names(paths) == ["latest", "step-000005"]


# damage


def change_facts(path: Path, **changes: int) -> None:
    meta = json.loads((path / "meta.json").read_text())
    (path / "meta.json").write_text(json.dumps(meta | changes))


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (lambda path: flip(path / "model.safetensors"), ["model.safetensors", "checksum"]),
        (lambda path: os.truncate(path / "nested/rng", 0), ["nested/rng", "0 bytes instead of 1"]),
        (lambda path: (path / "nested/rng").unlink(), ["nested/rng", "missing"]),
        (lambda path: (path / "meta.json").unlink(), ["meta.json", "missing"]),
        (lambda path: os.truncate(path / "meta.json", 30), ["meta.json", "not JSON"]),
        (lambda path: (path / "meta.json").write_text("[]"), ["meta.json", "not a JSON object"]),
        (lambda path: change_facts(path, seed=43), ["meta.json", "checksum"]),
        (lambda path: change_facts(path, schema_version=2), ["meta.json", "schema version 2"]),
        (lambda path: shutil.rmtree(path), ["meta.json", "missing"]),
    ],
)
def test_damage_is_found_and_the_one_before_taken(
    damage: Callable[[Path], None], named: list[str], paths: RunPaths
) -> None:
    """Whatever happens to the newest checkpoint, the problem is reported and the one before is taken. The facts are as
    checked as the weights: a resumption from others would not be exact."""
    save_steps(paths, 960, 1080, seed=42)
    damage(paths.checkpoint(1080))
    (problem,) = verify(paths.checkpoint(1080))
    assert all(word in problem for word in named), problem
    paths.checkpoint(1080).mkdir(exist_ok=True)
    found, damaged = newest_valid(paths)
    assert (found and found.step, damaged) == (960, [(paths.checkpoint(1080), problem)])
    listed = [960] if "meta.json" in named else [960, 1080]
    assert [checkpoint.step for checkpoint in list_checkpoints(paths)] == listed


def test_all_problems_are_listed(paths: RunPaths) -> None:
    save_steps(paths, 1)
    flip(paths.checkpoint(1) / "model.safetensors")
    (paths.checkpoint(1) / "nested/rng").unlink()
    problems = verify(paths.checkpoint(1))
    assert [problem.split()[0] for problem in problems] == ["model.safetensors", "nested/rng"]
    assert newest_valid(paths) == (None, [(paths.checkpoint(1), "; ".join(problems))])
    paths.checkpoint(3).write_text("")  # in the place of a checkpoint
    found, [(path, problem), _] = newest_valid(paths)
    assert (found, path) == (None, paths.checkpoint(3))
    assert "cannot be read" in problem


# a save that does not end

KILLED = """
import os, signal, sys
from pathlib import Path
from smolsum.runs import checkpoints
from smolsum.runs.paths import RunPaths

moment, rename = sys.argv[2], Path.rename

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

def write(directory):
    (directory / "model.safetensors").write_bytes(b"new")
    if moment == "between files":
        die()
    (directory / "rng").write_bytes(b"new")

def rename_once(path, target):
    die() if ".tmp-" in path.name else rename(path, target)

own = {"before the facts": "_checksum", "before the first rename": "_install", "before latest": "point",
       "before the old one is removed": "_remove"}
if moment in own:
    setattr(checkpoints, own[moment], die)
if moment == "between the renames":
    Path.rename = rename_once
checkpoints.save(RunPaths(Path(sys.argv[1])), 1080, write, {"stage_step": 2})
"""


@pytest.mark.parametrize(
    ("moment", "survivor"),
    [
        ("between files", 1),
        ("before the facts", 1),
        ("before the first rename", 1),
        ("between the renames", 1),
        ("before latest", 2),
        ("before the old one is removed", 2),
    ],
)
def test_kill_at_any_moment_of_a_save(moment: str, survivor: int, paths: RunPaths) -> None:
    """After a kill -9 that step has its old or its new checkpoint, whole; the next save tidies up."""
    save_steps(paths, 960, 1080, stage_step=1)
    killed = subprocess.run([sys.executable, "-c", KILLED, str(paths.root), moment], check=False, timeout=PATIENCE_S)
    assert killed.returncode == -signal.SIGKILL
    found = newest(paths)
    assert (found.step, found.meta.stage_step, verify(found.path)) == (1080, survivor, [])

    save_steps(paths, 1200)
    assert names(paths) == ["latest", "step-000960", "step-001080", "step-001200"]
    assert [checkpoint.meta.stage_step for checkpoint in list_checkpoints(paths)] == [1, survivor, 0]
    assert verify(paths.checkpoint(1080)) == []


@pytest.mark.parametrize("error", [RuntimeError("of the library"), KeyboardInterrupt()])
def test_writer_that_fails(error: BaseException, paths: RunPaths) -> None:
    """An error of the trainer's own comes out as it is; nothing of the save is left."""

    def fail(directory: Path) -> None:
        writer()(directory)
        raise error

    save_steps(paths, 1)
    with pytest.raises(type(error)) as caught:
        save(paths, 2, fail, {})
    assert caught.value is error
    assert names(paths) == ["latest", "step-000001"]


@pytest.mark.parametrize("foreign", [False, True], ids=["OSError", "error of a library"])
@pytest.mark.parametrize("left", [False, True], ids=["nothing left", "a little left"])
def test_full_disk(foreign: bool, left: bool, small_disk: Path) -> None:
    """A disk that is full in the middle of a save costs only that save, whatever the library raises then, and where a
    smaller file would still find room."""
    paths = create_run(small_disk, "a")
    save_steps(paths, 1, 2)

    def write(directory: Path) -> None:
        with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)) as full:
            writer(big=bytes(2**18))(directory)
        if left:
            (directory / "big").unlink()
        raise RuntimeError("unable to write 1234 bytes") if foreign else full.value

    with refuses("full", paths.checkpoint(3), "free space", f"--resume {paths.root}", error=SmolsumError):
        save(paths, 3, write, {})
    assert names(paths) == ["latest", "step-000001", "step-000002"]
    assert newest(paths).step == 2
    assert os.readlink(paths.checkpoints / "latest") == "step-000002"
    save_steps(paths, 3)
    assert newest(paths).step == 3


# which ones stay


def test_prune_keeps_the_newest_and_the_protected(paths: RunPaths) -> None:
    """The newest `keep` stay, and those of protected steps; the rest is gone, and its steps are returned. A copy that
    lost the link counts every checkpoint."""
    save_steps(paths, 960, 980, 1000, 1020, 1040, 1080)
    assert prune(paths, 2, {980, 5}) == [960, 1000, 1020]
    assert names(paths) == ["latest", "step-000980", "step-001040", "step-001080"]
    assert prune(paths, 9, ()) == []
    (paths.checkpoints / "latest").unlink()
    assert prune(paths, 1, {980}) == [1040]


def test_prune_does_not_count_damaged_later_ones(paths: RunPaths) -> None:
    """A run that went back behind damaged checkpoints keeps what it saves now, not those."""
    save_steps(paths, 960, 1080, 1200)
    for step in (1080, 1200):
        flip(paths.checkpoint(step) / "model.safetensors")
    save_steps(paths, 1000)
    assert prune(paths, 1, ()) == [960]
    found, damaged = newest_valid(paths)
    assert (found and found.step, len(damaged)) == (1000, 2)


# stages


def test_finished_stage_is_found_in_any_run(tmp_path: Path) -> None:
    """The checkpoint that ended a stage is found by its fingerprint, in the run that was started last."""
    runs_dir = tmp_path / "runs"
    for at, name in enumerate(("old", "new", "other")):
        run = create_run(runs_dir, name)
        save(run, 100, writer(), {"stage_end": "other" if name == "other" else "f1"})
        save_steps(run, 200)
        os.utime(run.lock, (at, at))
    for name in ("new", "old"):
        found = find_stage(runs_dir, "f1")
        assert found is not None
        assert found.path == runs_dir / name / "checkpoints" / "step-000100"
        flip(found.path / "model.safetensors")
    assert find_stage(runs_dir, "f2") is None
    assert find_stage(tmp_path / "none", "f1") is None


def test_copy_takes_no_space_and_outlives_its_source(paths: RunPaths, small_disk: Path) -> None:
    """A stage's checkpoint becomes another run's by hard links, and is whole when the first run is gone. Where no hard
    link can be made the bytes are copied."""
    save_steps(paths, 100, stage_end="f1")
    [source] = list_checkpoints(paths)
    target = create_run(paths.root.parent, "b")
    made, far = copy(source, target), copy(source, create_run(small_disk, "b"))
    assert made == Checkpoint(target.checkpoint(100), 100, source.meta)
    own = source.path / "model.safetensors"
    assert [(copied.path / own.name).samefile(own) for copied in (made, far)] == [True, False]
    shutil.rmtree(paths.root)
    assert newest(target) == made
    assert verify(far.path) == []


def test_a_relative_checkpoint_is_of_a_relative_run(paths: RunPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a run that is named is, so that commands print the paths that were typed; a link counts as what it names."""
    save_steps(paths, 2, 4)
    paths.config.write_text("")
    monkeypatch.chdir(paths.root.parent)
    for name, step in (("step-000002", 2), ("latest", 4)):
        named = find_checkpoint(f"a/checkpoints/{name}", Path("runs"))
        assert named is not None
        assert (named.run.root, named.checkpoint.step) == (Path("a"), step)
        by_path = find_checkpoint(f"{paths.root}/checkpoints/{name}", Path("runs"))
        assert by_path is not None
        assert by_path.run == paths
