"""Which of a run's evaluations stands for the run, and how the others differ from it.

A training evaluates its own test split greedily, with its own settings. `smolsum eval` adds evaluations to the same
folder: of other data, another split, sampled, with other settings. They are named, and represent the run nowhere.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from smolsum.errors import SmolsumError
from smolsum.runs.evaluation_records import Summary
from smolsum.runs.paths import RunPaths
from smolsum.runs.records import RunInfo, SplitInfo
from smolsum.runs.typed_json import read, read_object

SPLIT, SAMPLER = "test", "greedy"
"""what a training evaluates, and how"""


@dataclass(frozen=True)
class RunOrigin:
    """What the evaluations that a training makes have in common. What is not known agrees with everything."""

    config: Mapping[str, Any]
    """config.toml"""
    data: Mapping[str, SplitInfo]
    """fingerprints by split"""
    labels: tuple[str, ...]
    """of the evaluations that the training makes: `start`, and its stages"""

    @classmethod
    def of(cls, config: Mapping[str, Any], info: RunInfo) -> "RunOrigin":
        """Return the origin of a run with these settings."""
        stages = config.get("stages")
        return cls(config, info.data, ("start", *(stages if isinstance(stages, Mapping) else ())))

    @classmethod
    def read(cls, paths: RunPaths) -> "RunOrigin":
        """Return the origin of a run on the disk; a file that cannot be read says nothing."""
        try:
            config = read_object(paths.config)
        except SmolsumError:
            config = {}
        try:
            return cls.of(config, read(paths.info, RunInfo))
        except SmolsumError:
            return cls.of(config, RunInfo())

    def differences(self, folder: Path, summary: Summary) -> list[str]:
        """Return in words how an evaluation differs from those that the training makes; empty for the run's own."""
        split = split_of(folder, summary)
        found = [] if split in (SPLIT, "") else [f"{split} split"]
        if self.is_other_data(folder, summary):
            found.append("other data")
        if summary.sampler not in (SAMPLER, None):
            found.append(summary.sampler)
        ours = self._section("task")
        for key, value in (summary.task or {}).items():
            if key in ours and ours[key] != value:
                found.append(f"task.{key} {value}")
        longest = self._section("sampling").get("max_new_tokens")
        if summary.max_new_tokens is not None and longest not in (None, summary.max_new_tokens):
            found.append(f"sampling.max_new_tokens {summary.max_new_tokens}")
        return found

    def is_other_data(self, folder: Path, summary: Summary) -> bool:
        """Return whether an evaluation is of a split that has the name of one of the run's and another content."""
        split = split_of(folder, summary)
        ours, theirs = self.data.get(split), summary.data.get(split)
        return ours is not None and theirs is not None and ours.fingerprint != theirs.fingerprint

    def rank(self, folder: Path, summary: Summary) -> tuple[int, bool, bool, bool]:
        """Return how well an evaluation stands for the run: the last step first, then one that does not differ from
        the training's; of these one with a judge, then the training's. Equal ranks are a tie."""
        own = not self.differences(folder, summary)
        trained = any(folder.name == RunPaths(Path()).stage_evaluation(label).name for label in self.labels)
        step = -1 if summary.step is None else summary.step
        return step, own, own and summary.judge is not None, own and trained

    def _section(self, name: str) -> Mapping[str, Any]:
        section = self.config.get(name)
        return section if isinstance(section, Mapping) else {}


def split_of(folder: Path, summary: Summary) -> str:
    """Return the split of an evaluation: by its summary, else by its folder, `<label>-<split>`; empty if unknown."""
    return summary.split or folder.name.rpartition("-")[2]


def representatives(evaluations: Mapping[Path, Summary], origin: RunOrigin) -> list[Path]:
    """Return the folder of the evaluation that stands for the run; several in a tie, none of none."""
    ranks = {folder: origin.rank(folder, summary) for folder, summary in evaluations.items()}
    return [folder for folder, rank in ranks.items() if rank == max(ranks.values())]
