"""Checkpoints of a run: saved whole or not at all, checked by size and checksum, ranked by validation.

    checkpoints/step-000400/   the trainer's files, and meta.json with the size and XXH3-128 of each
    checkpoints/latest      -> step-000400, the last one saved
A name that starts with a dot belongs to a save or a removal that has not ended.
"""

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

from smolsum.config.stage import StageConfig
from smolsum.errors import SmolsumError, UsageError
from smolsum.files import point, sync, to_json, writing
from smolsum.runs.digests import record_files
from smolsum.runs.paths import LATEST, RunPaths, list_runs, open_run
from smolsum.runs.records import SCHEMA_VERSION, CheckpointMeta, StageSettings
from smolsum.runs.typed_json import encode, parse

META = "meta.json"
PROBE_BYTES = 2**26
"""room without which a disk counts as full: a tensor that found none may be larger than what is left"""
_STEP = re.compile(r"step-(\d+)")
_ASIDE = re.compile(r"\.step-(\d+)\.old")


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint on disk: its directory, its step and its meta.json."""

    path: Path
    step: int
    meta: CheckpointMeta


@dataclass(frozen=True)
class NamedCheckpoint:
    """The checkpoint that a reference names, and its run."""

    run: RunPaths
    checkpoint: Checkpoint


def save(paths: RunPaths, step: int, write: Callable[[Path], None], meta: Mapping[str, Any]) -> Path:
    """Make the checkpoint of `step` from the files that `write` puts into the directory it is given; return its path.

    It is complete and on the disk, or does not exist: a full disk is a SmolsumError that leaves earlier checkpoints as
    they were. `meta` has the fields of CheckpointMeta without schema_version, step and files.
    """
    with _building(paths, step) as temporary:
        with full_disk_is_os_error(temporary):
            write(temporary)
        files = {
            path.relative_to(temporary).as_posix(): {"size": path.stat().st_size, "xxh3_128": _checksum(path)}
            for path in sorted(temporary.rglob("*"))
            if path.is_file()
        }
        facts = {"schema_version": SCHEMA_VERSION, "step": step, **meta, "files": files}
        # sealed as a reader gets it: keys as text, tuples as lists
        checksum = _seal(json.loads(encode(CheckpointMeta, facts)))
        (temporary / META).write_bytes(to_json(facts | {"checksum": checksum}, indent=2))
    record_files(paths, paths.checkpoint(step) / META)
    return paths.checkpoint(step)


def copy(checkpoint: Checkpoint, paths: RunPaths) -> Checkpoint:
    """Copy the checkpoint into the run at `paths`, by hard links, which take no space, where the disk allows it."""
    with _building(paths, checkpoint.step) as temporary:
        for name in (*checkpoint.meta.files, META):
            target = temporary / name
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                os.link(checkpoint.path / name, target)
            except OSError:  # another disk, or one without hard links
                shutil.copyfile(checkpoint.path / name, target)
    record_files(paths, paths.checkpoint(checkpoint.step) / META)
    return Checkpoint(paths.checkpoint(checkpoint.step), checkpoint.step, checkpoint.meta)


def verify(path: Path) -> list[str]:
    """Return what is wrong with the checkpoint at `path`, a sentence each, by reading every file to its end."""
    try:
        return list(_problems(path, _read_meta(path)))
    except ValueError as error:
        return [str(error)]
    except OSError as error:
        return [f"{error.filename or path} cannot be read: {error.strerror}"]


def list_checkpoints(paths: RunPaths) -> list[Checkpoint]:
    """Return the checkpoints that have a sound meta.json, by step, without checking their files."""
    found = []
    for _, path in sorted(_directories(paths).items()):
        with suppress(ValueError, OSError):
            meta = _read_meta(path)
            found.append(Checkpoint(path, meta.step, meta))
    return found


def run_and_step(path: Path) -> tuple[RunPaths, int] | None:
    """Return the run and the step of a checkpoint's path, relative if that is; None for any other path."""
    real = path.resolve()
    if real.parent.name != "checkpoints" or not (step := _STEP.fullmatch(real.name)):
        return None
    root = real.parents[1]
    return RunPaths(root if path.is_absolute() else Path(os.path.relpath(root))), int(step[1])


def find_checkpoint(reference: str, runs_dir: Path) -> NamedCheckpoint | None:
    """Return the run and checkpoint that `reference` names: a run means its last checkpoint, by name or path; a
    checkpoint's path itself. None for any other text. Raises UsageError for a run without checkpoints, and for a
    damaged one."""
    path = Path(os.path.expanduser(reference))
    named = run_and_step(path)
    if named and (path / META).is_file() and (run := named[0]).config.is_file():
        return NamedCheckpoint(run, whole([c for c in list_checkpoints(run) if c.step == named[1]], path))
    if not any(RunPaths(root).config.is_file() for root in (runs_dir / reference, path)):
        return None
    run = open_run(reference, runs_dir)
    return NamedCheckpoint(run, whole(list_checkpoints(run), run.root))


def whole(found: Sequence[Checkpoint], where: Path) -> Checkpoint:
    """Return the last checkpoint, once its checksums are verified."""
    if not found:
        raise UsageError(f"{where} has no checkpoint yet", hint="train it to its first checkpoint")
    if problems := verify(found[-1].path):
        raise UsageError(
            f"checkpoint {found[-1].path} is damaged: {'; '.join(problems)}", hint="choose another checkpoint"
        )
    return found[-1]


def no_best(reference: str) -> UsageError:
    """Return the error for a run without a best checkpoint."""
    return UsageError(
        f"{reference} has no best checkpoint",
        hint="leave --best out for the last one; only whole validations (train.validate_every above 0) find a best",
    )


def check_all(paths: RunPaths) -> tuple[list[Checkpoint], dict[int, tuple[Path, str]]]:
    """Return the whole checkpoints by step; and for each damaged one, by step, its path and what is wrong."""
    whole: list[Checkpoint] = []
    damaged: dict[int, tuple[Path, str]] = {}
    for step, path in sorted(_directories(paths).items()):
        if problems := verify(path):
            damaged[step] = (path, "; ".join(problems))
        else:
            whole.append(Checkpoint(path, step, _read_meta(path)))
    return whole, damaged


def find_stage(runs_dir: Path, stage_end: str) -> Checkpoint | None:
    """Return a whole checkpoint with this `stage_end`, from the newest run that has one; or None."""
    for run in reversed(list_runs(runs_dir)):
        for checkpoint in reversed(list_checkpoints(run)):
            if checkpoint.meta.stage_end == stage_end and not verify(checkpoint.path):
                return checkpoint
    return None


def prune(paths: RunPaths, keep: int, protect: Collection[int]) -> list[int]:
    """Remove all checkpoints except the newest `keep` and those of the steps in `protect`; return their steps.

    Those after the last one saved do not count and stay: they are the damaged ones that a resumed run went back from,
    and it replaces them when it gets there.
    """
    found = _directories(paths)
    with suppress(OSError):
        newest = _STEP.fullmatch(os.readlink(paths.checkpoints / LATEST))
        found = {step: path for step, path in found.items() if newest is None or step <= int(newest[1])}
    surplus = [step for step in sorted(found)[: max(0, len(found) - keep)] if step not in protect]
    with writing(paths.checkpoints, paths.resume_command):
        for step in surplus:
            doomed = _temporary(paths, step)
            found[step].rename(doomed)  # so that readers never see half of a checkpoint
            _remove(doomed)
    return surplus


@contextmanager
def _building(paths: RunPaths, step: int) -> Iterator[Path]:
    """Yield an empty directory, which becomes the checkpoint of `step` if the block ends without an error."""
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


@contextmanager
def full_disk_is_os_error(directory: Path) -> Iterator[None]:
    """Raise OSError for a full disk, whichever library runs into it as it writes into `directory`."""
    try:
        yield
    except Exception as error:
        if isinstance(error, SmolsumError) or (isinstance(error, OSError) and error.errno):
            raise
        # MLX, safetensors and NumPy have errors of any class, without errno: try the disk itself
        (directory / ".probe").write_bytes(bytes(PROBE_BYTES))
        raise


def _directories(paths: RunPaths) -> dict[int, Path]:
    """Return the directory of each step; one that a killed save moved aside counts until another replaces it."""
    found: dict[int, Path] = {}
    for pattern in (_ASIDE, _STEP):
        for path in paths.checkpoints.glob("*"):
            if match := pattern.fullmatch(path.name):
                found[int(match[1])] = path
    return found


def _sweep(paths: RunPaths) -> None:
    """Clean up after killed processes: put a checkpoint that was moved aside back, and remove everything else."""
    for path in paths.checkpoints.glob(".step-*"):
        match = _ASIDE.fullmatch(path.name)
        if match and not (target := paths.checkpoint(int(match[1]))).exists():
            path.rename(target)
        else:
            _remove(path)


def _remove(directory: Path) -> None:
    # a network disk keeps files that a reader has open: the next save tries again
    shutil.rmtree(directory, ignore_errors=True)


def _temporary(paths: RunPaths, step: int) -> Path:
    return paths.checkpoints / f".{paths.checkpoint(step).name}.tmp-{os.getpid()}"


def _read_meta(path: Path) -> CheckpointMeta:
    """Return meta.json; ValueError with what is wrong with it, OSError if the disk cannot be read."""
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
    try:
        return parse(meta, CheckpointMeta, META)
    except SmolsumError as error:
        raise ValueError(error.message) from error


def _problems(path: Path, meta: CheckpointMeta) -> Iterator[str]:
    for name, info in meta.files.items():
        file = path / name
        if not file.is_file():
            yield f"{name} is missing"
        elif (size := file.stat().st_size) != info.size:
            yield f"{name} has {size} bytes instead of {info.size}"
        elif _checksum(file) != info.xxh3_128:
            yield f"{name} does not match its checksum"


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, xxhash.xxh3_128).hexdigest()  # reads in blocks


def _seal(facts: Mapping[str, Any]) -> str:
    """The checksum of meta.json itself: over its content, not its spelling."""
    return str(xxhash.xxh3_128(json.dumps(facts, sort_keys=True).encode()).hexdigest())


Validation = Mapping[str, float]
"""The `reward`, and the task's `score` where it is measured; empty without a complete validation."""


def validation(metrics: Mapping[str, float], score: str) -> Validation:
    """Return the validation in the metrics of a step; `score` is the name of the task's score there. A validation that
    lacks prompts has no reward."""
    if "validation/reward" not in metrics:
        return {}
    keys = {"score": f"validation/{score}", "reward": "validation/reward"}
    return {name: metrics[key] for name, key in keys.items() if key in metrics}


def rank(found: Validation) -> tuple[float, float]:
    """Sort key of the validations of a stage: the task's score; the reward where that is equal or missing."""
    return found.get("score", -math.inf), found.get("reward", -math.inf)


def best_of(found: Sequence[Checkpoint], stages: Mapping[str, StageConfig | StageSettings]) -> Checkpoint | None:
    """Return the first of the best checkpoints; None if none was validated. Rewards of different stages are compared
    only if the stages have the same rewards; otherwise the last stage counts most."""
    alike, names = have_same_rewards(stages), list(stages)

    def place(checkpoint: Checkpoint) -> tuple[float, int, float]:
        score, reward = rank(validation_of(checkpoint))
        stage = checkpoint.meta.stage
        return score, names.index(stage) if stage in names and not alike else 0, reward

    return max((checkpoint for checkpoint in found if validation_of(checkpoint)), key=place, default=None)


def have_same_rewards(stages: Mapping[str, StageConfig | StageSettings]) -> bool:
    """Whether all stages have the same rewards, at their ends, so that totals of validations can be compared."""
    weights = [{**stage.rewards, **stage.rewards_end} for stage in stages.values()]
    return all(other == weights[0] for other in weights)


def validation_of(checkpoint: Checkpoint) -> Validation:
    """Return the validation of the checkpoint's own step. A checkpoint that was saved again before a stop has it only
    as the best of its stage."""
    best = checkpoint.meta.best
    return checkpoint.meta.validation or (best if best.get("step") == checkpoint.step else {})
