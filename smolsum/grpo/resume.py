"""Where a run continues: its settings, the fingerprints and steps of its stages, the checkpoints that they save and
restore."""

import json
import os
import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from smolsum.config.presets import leaves
from smolsum.config.resolve import resolve
from smolsum.config.sections import Config
from smolsum.errors import UsageError
from smolsum.files import digest, to_json
from smolsum.grpo.guard import LAST, NOTHING_UNDONE, Guard
from smolsum.grpo.optimizer import Optimizer
from smolsum.grpo.setup.fingerprints import stage_fingerprint
from smolsum.policy import distributed
from smolsum.policy.load import Policy
from smolsum.policy.weights import load_trained, save_trained
from smolsum.runs import checkpoints
from smolsum.runs.checkpoints import Checkpoint, Validation, rank
from smolsum.runs.mirror import fetch_run
from smolsum.runs.paths import RunPaths, open_run
from smolsum.runs.typed_json import read_object
from smolsum.runs.writer import FIXED
from smolsum.source import source_digest
from smolsum.tasks import TASKS
from smolsum.tasks.plugins import require_plugins

OPTIMIZER = "optimizer.safetensors"
STATE = "state.json"
"""what a stage needs to continue, apart from weights and optimizer; only in checkpoints of stages that have any"""


def fingerprints(config: Config, provenance: Mapping[str, Any], steps: Mapping[str, int]) -> dict[str, str]:
    """Return the fingerprint of every stage, each over those before it. Raises UsageError if the ranks differ."""
    found: dict[str, str] = {}
    for name in config.stages:
        previous = next(reversed(found.values()), "")
        found[name] = stage_fingerprint(config, provenance, name, steps[name], previous)
    own = {key: provenance[key] for key in FIXED}
    first, *others = distributed.gathered(own | {"settings": found})
    for n, other in enumerate(others, start=1):
        if unlike := [key for key, value in other.items() if value != first[key]]:
            pair = f"{other[unlike[0]]} and {first[unlike[0]]}"
            raise UsageError(
                f"rank {n} has another {', '.join(unlike)} than rank 0: {pair}",
                hint="give every machine the same files, versions and settings",
            )
    return found


def span(steps: Mapping[str, int], name: str) -> tuple[int, int]:
    """Return the run's step just before the stage's first one, and its last step."""
    names = list(steps)
    start = sum(steps[n] for n in names[: names.index(name)])
    return start, start + steps[name]


def resume_point(steps: Mapping[str, int], whole: Sequence[Checkpoint]) -> int:
    """Return the step to continue from, given the run's undamaged checkpoints. A stage starts from the end of the stage
    before it: where that checkpoint is missing or damaged, the run goes back to that stage."""
    point = 0
    for name in steps:
        start, end = span(steps, name)
        point = max([start, *(c.step for c in whole if start < c.step <= end)])
        if point != end:
            break
    return point


def safe_step(config: Config, start: int, step: int, undone: Sequence[int]) -> int:
    """Return the step whose checkpoint a rollback at `step` goes back to, in a stage that begins after step `start`:
    the last that `train.checkpoint_every` asked for before the guard's newest steps, else the stage's start. Others,
    such as those of a pause, do not count: a run that was never paused has none. Nor do those between the two steps of
    the last rollback (`Guard.undone`), to which it went back, and from."""
    every, (back, since) = config.train.checkpoint_every, undone
    found = start + max(0, step - start - LAST) // every * every
    return back if back < found < since else found


def read_state(folder: Path) -> dict[str, Any]:
    """Return the state that a checkpoint keeps, whose checksums were verified."""
    path = folder / STATE
    return dict(json.loads(path.read_bytes())) if path.is_file() else {}


class StageCheckpoints:
    """The checkpoints of the run at `paths`, whose stages take `steps` and have `fingerprints`.

    `point` is the step to continue from; `damaged` holds path and problem of the damaged checkpoints, by step.
    """

    def __init__(
        self,
        paths: RunPaths,
        config: Config,
        steps: Mapping[str, int],
        fingerprints: Mapping[str, str],
        *,
        busy: Callable[[], Collection[int]],
    ) -> None:
        """`busy` returns the steps whose checkpoints are being read, so that they are not removed."""
        self._paths, self._config, self._steps = paths, config, steps
        code = source_digest()  # now, as a clone may change while the run goes on
        self._ends = {name: digest([fingerprint, code]) for name, fingerprint in fingerprints.items()}
        self._busy = busy
        self._whole, self.damaged = checkpoints.check_all(paths)
        self.point = resume_point(steps, self._whole)
        self._best: dict[str, dict[str, Any]] = {}

    def own(self, name: str) -> Checkpoint | None:
        """Return this run's checkpoint from which the stage continues; None if it has not begun."""
        start, end = span(self._steps, name)
        found = [c for c in self._whole if start < c.step <= end]
        return found[-1] if found else None

    def of_another(self, name: str, runs_dir: Path) -> tuple[Checkpoint, Path] | None:
        """Return the end of the same stage in another run, copied into this one, and its path there. None for the last
        stage: a run always trains that itself."""
        if name == list(self._steps)[-1]:
            return None
        found = checkpoints.find_stage(runs_dir, self._ends[name])
        return (checkpoints.copy(found, self._paths), found.path) if found else None

    def load(self, name: str, found: Checkpoint, policy: Policy) -> None:
        """Give the policy the checkpoint's weights. The best validation so far stays the one to beat."""
        self._best[name] = dict(found.meta.best)
        load_trained(policy, found.path)

    def save(
        self,
        name: str,
        step: int,
        policy: Policy,
        optimizer: Optimizer,
        validation: Validation,
        *,
        state: Mapping[str, Any],
        anyway: bool,
    ) -> bool:
        """Save a step of the stage if that is due; returns whether it was.

        Due are every `train.checkpoint_every`-th step, the stage's last, the one with its best `validation` so far, and
        any step with `anyway`. Old checkpoints are removed, except stage ends, best ones and those being read.
        """
        start, end = span(self._steps, name)
        best = self._best.setdefault(name, {})
        improved = rank(validation) > rank(best)
        if improved:
            self._best[name] = best = {**validation, "step": step}
        if not (improved or anyway or step == end or (step - start) % self._config.train.checkpoint_every == 0):
            return False

        def write(folder: Path) -> None:
            save_trained(policy, folder)
            optimizer.save(folder / OPTIMIZER)
            if state:
                (folder / STATE).write_bytes(to_json(state))

        meta = {
            "stage": name,
            "stage_step": step - start,
            "validation": validation,
            "best": best,
            "model": self._config.model.path,
            "stage_end": self._ends[name] if step == end else None,
        }
        checkpoints.save(self._paths, step, write, meta)
        ends = {span(self._steps, stage)[1] for stage in self._steps}
        kept = ends | {found["step"] for found in self._best.values() if found}
        if self._config.train.guard == "rollback":
            undone = state.get(Guard.name, {}).get("undone", NOTHING_UNDONE)
            kept |= set(range(safe_step(self._config, start, step, undone), step))
        checkpoints.prune(self._paths, self._config.train.keep_checkpoints, kept | set(self._busy()))
        return True


def settings_of(run: str, runs_dir: str, flags: Mapping[str, Any]) -> Config:
    """Return the settings that a run began with, except the given `flags`. `run` is a path, or a name in `runs_dir`."""
    paths = open_run(run, Path(runs_dir))
    require_plugins(paths)
    if not paths.config.is_file():
        raise UsageError(
            f"{paths.root} has no config.toml, so its settings are not known",
            hint="restore config.toml from a copy or the run's mirror, or start a new run",
        )
    return resolve(TASKS, config_file=paths.config, flags={"run.dir": str(paths.root.parent), **flags}).config


def first_folder(run: str, runs_dir: str) -> str:
    """Return a hint to change to the folder in which a run began, where that has a relative path of its settings that
    this folder lacks; empty otherwise."""
    paths = open_run(run, Path(runs_dir))
    settings = leaves(read_object(paths.config))
    root, named = paths.root.resolve(), Path(str(settings.get("run.dir", "runs")))
    if named.is_absolute() or root.parent.parts[-len(named.parts) :] != named.parts:
        return ""
    first = root.parents[len(named.parts)]
    for key in ("data.path", "model.path", "model.chat_template"):
        path = Path(str(settings.get(key, "")))
        if not path.is_absolute() and not path.exists() and (first / path).exists():
            there = f"cd {shlex.quote(str(first))}"
            return f"{there}, where the run began, as {key} = {str(path)!r} is relative to that folder"
    return ""


def fetched(url: str, runs_dir: str, mirror: str | None, note: Callable[[str], None]) -> tuple[str, str]:
    """Copy a run from its mirror. Returns the path of the copy and the mirror from now on: the same, unless `mirror` is
    given."""
    if "MLX_RANK" in os.environ:
        raise UsageError(
            "several processes cannot fetch one run", hint=f"copy it here first, then --resume {Path(runs_dir)}/NAME"
        )
    paths = fetch_run(url, Path(runs_dir), note)
    return str(paths.root), url.rstrip("/").rsplit("/", 1)[0] if mirror is None else mirror
