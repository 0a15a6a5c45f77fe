"""The checkpoints of one run as its stages need them: where a stage goes on, which steps are saved, what is kept."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from smolsum import checkpoints
from smolsum.best import Validation, rank
from smolsum.checkpoints import Checkpoint
from smolsum.config import Config
from smolsum.grpo.optimizer import Optimizer
from smolsum.policy.load import Policy
from smolsum.policy.save import load_trained, save_trained
from smolsum.runs import RunPaths
from smolsum.stages import resume_point, span

OPTIMIZER = "optimizer.safetensors"


class Savepoints:
    """Those of the run at `paths`, whose stages take `steps` and have `fingerprints`.

    `point` is the step to go on from; `damaged` are checkpoints that are not as they were saved, by step.
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
        """`busy` tells the steps whose checkpoints are being read, and so stay."""
        self._paths, self._config, self._steps, self._fingerprints = paths, config, steps, fingerprints
        self._busy = busy
        self._whole, self.damaged = checkpoints.check_all(paths)
        self.point = resume_point(steps, self._whole)
        self._best: dict[str, dict[str, Any]] = {}

    def own(self, name: str) -> Checkpoint | None:
        """This run's checkpoint from which the stage goes on, if it has begun."""
        start, end = span(self._steps, name)
        found = [c for c in self._whole if start < c.step <= end]
        return found[-1] if found else None

    def of_another(self, name: str, runs_dir: Path) -> tuple[Checkpoint, Path] | None:
        """The end of the same stage in another run, copied into this one, and where it was; None for the last stage,
        which is what a run is for."""
        if name == list(self._steps)[-1]:
            return None
        found = checkpoints.find_stage(runs_dir, self._fingerprints[name])
        return (checkpoints.copy(found, self._paths), found.path) if found else None

    def load(self, name: str, found: Checkpoint, policy: Policy) -> None:
        """Bring the policy to where a stage goes on; the best validation before counts on."""
        self._best[name] = dict(found.meta.get("best", {}))
        load_trained(policy, found.path)

    def save(
        self, name: str, step: int, policy: Policy, optimizer: Optimizer, validation: Validation, *, anyway: bool
    ) -> bool:
        """Save a step of the stage if it is due: every so many steps, at the stage's end, at its best `validation`
        so far, or `anyway`; whether it was. Old checkpoints are removed, but for those that are still of
        use."""
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

        meta = {
            "stage": name,
            "stage_step": step - start,
            "validation": validation,
            "best": best,
            "model": self._config.model.path,
            "stage_end": self._fingerprints[name] if step == end else None,
        }
        checkpoints.save(self._paths, step, write, meta)
        ends = {span(self._steps, stage)[1] for stage in self._steps}
        kept = ends | {found["step"] for found in self._best.values() if found}
        checkpoints.prune(self._paths, self._config.train.keep_checkpoints, kept | set(self._busy()))
        return True
