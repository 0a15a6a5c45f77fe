"""Which checkpoint of a run did best on its validation split.

Checkpoints of a run: complete or not there, checked by size and checksum, the newest whole one found.

    checkpoints/step-000400/   what the trainer wrote, and meta.json: its facts, each file's size and XXH3-128
    checkpoints/latest      -> step-000400, the last one saved
A name that starts with a dot belongs to a save, or a removal, that has not ended.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import xxhash

from smolsum.config.sections import StageConfig
from smolsum.files import point, sync, to_json, writing
from smolsum.runs.paths import LATEST, RunPaths, list_runs

SCHEMA_VERSION = 1
META = "meta.json"
_STEP = re.compile(r"step-(\d+)")
_ASIDE = re.compile(r"\.step-(\d+)\.old")


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint on disk: its directory, its step, and the content of its `meta.json`."""

    path: Path
    step: int
    meta: Mapping[str, Any]


def save(paths: RunPaths, step: int, write: Callable[[Path], None], meta: Mapping[str, Any]) -> Path:
    """Makes the checkpoint of `step` from what `write` puts into the directory it is given; returns its path.

    It is there complete and on the disk, or not at all: a full disk is a SmolsumError that leaves earlier
    checkpoints as they were. `write` makes no meta.json; `meta` is JSON without the keys schema_version,
    step, files and checksum.
    """
    with _building(paths, step) as temporary:
        _write(write, temporary)
        files = {
            path.relative_to(temporary).as_posix(): {"size": path.stat().st_size, "xxh3_128": _checksum(path)}
            for path in sorted(temporary.rglob("*"))
            if path.is_file()
        }
        facts = {"schema_version": SCHEMA_VERSION, "step": step, **meta, "files": files}
        checksum = _seal(json.loads(to_json(facts)))  # of what a reader gets: keys as text, tuples as lists
        (temporary / META).write_bytes(to_json(facts | {"checksum": checksum}, indent=2))
    return paths.checkpoint(step)


def copy(checkpoint: Checkpoint, paths: RunPaths) -> Checkpoint:
    """Returns the checkpoint as one of the run at `paths`: as hard links, which take no space, or copies."""
    with _building(paths, checkpoint.step) as temporary:
        for name in (*checkpoint.meta["files"], META):
            target = temporary / name
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                os.link(checkpoint.path / name, target)
            except OSError:  # another disk, or one that has no links
                shutil.copyfile(checkpoint.path / name, target)
    return Checkpoint(paths.checkpoint(checkpoint.step), checkpoint.step, checkpoint.meta)


def verify(path: Path) -> list[str]:
    """Returns what is wrong with the checkpoint at `path`, a sentence each: nothing if it is whole.

    Reads every file to its end.
    """
    try:
        return list(_problems(path, _read_meta(path)))
    except ValueError as error:
        return [str(error)]
    except OSError as error:
        return [f"{error.filename or path} cannot be read: {error.strerror}"]


def list_checkpoints(paths: RunPaths) -> list[Checkpoint]:
    """Returns the run's checkpoints by step, their files not checked; one without a meta.json is none."""
    found = []
    for _, path in sorted(_directories(paths).items()):
        with suppress(ValueError, OSError):
            meta = _read_meta(path)
            found.append(Checkpoint(path, meta["step"], meta))
    return found


def check_all(paths: RunPaths) -> tuple[list[Checkpoint], dict[int, tuple[Path, str]]]:
    """Returns the run's whole checkpoints by step, and the path of every other one, by step, with what is wrong."""
    whole: list[Checkpoint] = []
    damaged: dict[int, tuple[Path, str]] = {}
    for step, path in sorted(_directories(paths).items()):
        if problems := verify(path):
            damaged[step] = (path, "; ".join(problems))
        else:
            whole.append(Checkpoint(path, step, _read_meta(path)))
    return whole, damaged


def find_stage(runs_dir: Path, fingerprint: str) -> Checkpoint | None:
    """Returns the whole checkpoint whose `stage_end` is `fingerprint`, from the run started last; or None."""
    for run in reversed(list_runs(runs_dir)):
        for checkpoint in reversed(list_checkpoints(run)):
            if checkpoint.meta.get("stage_end") == fingerprint and not verify(checkpoint.path):
                return checkpoint
    return None


def prune(paths: RunPaths, keep: int, protect: Collection[int]) -> list[int]:
    """Removes all but the newest `keep` checkpoints and those of the steps in `protect`; returns their steps.

    Those after the last one saved do not count and stay: they are the damaged ones that a resumed run went
    back from, and will be replaced when it gets there.
    """
    found = _directories(paths)
    with suppress(OSError):
        newest = _STEP.fullmatch(os.readlink(paths.checkpoints / LATEST))
        found = {step: path for step, path in found.items() if newest is None or step <= int(newest[1])}
    surplus = [step for step in sorted(found)[: max(0, len(found) - keep)] if step not in protect]
    with writing(paths.checkpoints, paths.resume_command):
        for step in surplus:
            doomed = _temporary(paths, step)
            found[step].rename(doomed)  # so that no half-removed checkpoint is ever seen
            _remove(doomed)
    return surplus


@contextmanager
def _building(paths: RunPaths, step: int) -> Iterator[Path]:
    """Gives an empty directory, which becomes the checkpoint of `step` if the block ends without an error."""
    target, temporary = paths.checkpoint(step), _temporary(paths, step)
    with writing(target, paths.resume_command):
        paths.checkpoints.mkdir(parents=True, exist_ok=True)
        _sweep(paths)
        temporary.mkdir()
        try:
            yield temporary
            for path in (temporary, *temporary.rglob("*")):
                sync(path)
            if paths.metrics.exists():
                sync(paths.metrics)  # a checkpoint is never newer than the metrics that lead to it
            _install(paths, temporary, target)
        except BaseException:
            _remove(temporary)
            raise


def _install(paths: RunPaths, temporary: Path, target: Path) -> None:
    aside = target.with_name(f".{target.name}.old")
    if target.exists():
        target.rename(aside)
    temporary.rename(target)
    point(paths.checkpoints / LATEST, target.name)
    sync(paths.checkpoints)
    _remove(aside)


def _write(write: Callable[[Path], None], directory: Path) -> None:
    """Calls `write`; if it fails on a full disk, the error is an OSError whatever library it came from."""
    try:
        write(directory)
    except OSError:
        raise
    except Exception:
        # MLX and safetensors have errors of their own that hold no errno, so ask the disk itself
        (directory / ".probe").write_bytes(bytes(2**16))
        raise


def _directories(paths: RunPaths) -> dict[int, Path]:
    """Step -> directory. One that a killed save had moved aside counts while no other took its place."""
    found: dict[int, Path] = {}
    for pattern in (_ASIDE, _STEP):
        for path in paths.checkpoints.glob("*"):
            if match := pattern.fullmatch(path.name):
                found[int(match[1])] = path
    return found


def _sweep(paths: RunPaths) -> None:
    """Ends what killed processes left: a checkpoint moved aside for nothing is put back, the rest removed."""
    for path in paths.checkpoints.glob(".step-*"):
        match = _ASIDE.fullmatch(path.name)
        if match and not (target := paths.checkpoint(int(match[1]))).exists():
            path.rename(target)
        else:
            _remove(path)


def _remove(directory: Path) -> None:
    # a reader may hold a file open, which network disks do not let go: the next save tries again
    shutil.rmtree(directory, ignore_errors=True)


def _temporary(paths: RunPaths, step: int) -> Path:
    return paths.checkpoints / f".{paths.checkpoint(step).name}.tmp-{os.getpid()}"


def _read_meta(path: Path) -> dict[str, Any]:
    """The checkpoint's facts; ValueError with what is wrong with them, OSError if the disk cannot be read."""
    try:
        meta = json.loads((path / META).read_bytes())
    except FileNotFoundError as error:
        raise ValueError(f"{META} is missing") from error
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{META} is not JSON") from error
    if not isinstance(meta, dict):
        raise ValueError(f"{META} is not a JSON object")
    if meta.get("schema_version") != SCHEMA_VERSION:
        raise ValueError(f"{META} has schema version {meta.get('schema_version')}, not {SCHEMA_VERSION}")
    if meta.pop("checksum", None) != _seal(meta):
        raise ValueError(f"{META} does not match its checksum")
    return meta


def _problems(path: Path, meta: Mapping[str, Any]) -> Iterator[str]:
    for name, fact in meta["files"].items():
        file = path / name
        if not file.is_file():
            yield f"{name} is missing"
        elif (size := file.stat().st_size) != fact["size"]:
            yield f"{name} has {size} bytes instead of {fact['size']}"
        elif _checksum(file) != fact["xxh3_128"]:
            yield f"{name} does not match its checksum"


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, xxhash.xxh3_128).hexdigest()  # reads in blocks


def _seal(facts: Mapping[str, Any]) -> str:
    """The checksum of meta.json itself, over its content and not its spelling."""
    return str(xxhash.xxh3_128(json.dumps(facts, sort_keys=True).encode()).hexdigest())


Validation = Mapping[str, float]
"""The `reward`, and the task's `score` where it is measured; empty where there was no whole validation."""


def validation(metrics: Mapping[str, float], score: str) -> Validation:
    """What a step's metrics have of a validation, the task's score being called `score` there. One that lacks prompts
    has no reward."""
    if "validation/reward" not in metrics:
        return {}
    keys = {"score": f"validation/{score}", "reward": "validation/reward"}
    return {name: metrics[key] for name, key in keys.items() if key in metrics}


def rank(found: Validation) -> tuple[float, float]:
    """What orders the validations of a stage: the task's score, and where that is the same or missing, the reward."""
    return found.get("score", -math.inf), found.get("reward", -math.inf)


def best_of(found: Sequence[Checkpoint], stages: Mapping[str, StageConfig]) -> Checkpoint | None:
    """The first of the checkpoints that did best; None where none was validated. Rewards tell checkpoints of several
    stages apart only where these are rewarded alike; otherwise the last stage counts most."""
    alike, names = comparable(stages), list(stages)

    def place(checkpoint: Checkpoint) -> tuple[float, int, float]:
        score, reward = rank(of_checkpoint(checkpoint))
        stage = checkpoint.meta.get("stage")
        return score, names.index(stage) if stage in names and not alike else 0, reward

    return max((checkpoint for checkpoint in found if of_checkpoint(checkpoint)), key=place, default=None)


def comparable(stages: Mapping[str, StageConfig]) -> bool:
    """Whether a reward means the same in all stages."""
    weights = [stage.rewards for stage in stages.values()]
    return all(other == weights[0] for other in weights)


def of_checkpoint(checkpoint: Checkpoint) -> Validation:
    """The checkpoint's own validation. One that was saved anew before a stop knows it as its stage's best."""
    best = checkpoint.meta.get("best", {})
    known: Validation = checkpoint.meta.get("validation") or (best if best.get("step") == checkpoint.step else {})
    return known
