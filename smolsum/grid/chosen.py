"""The trained runs that a selection means, whatever their other settings and seeds."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from smolsum.configurations import LENGTH_ONLY, label_of, reward_of, strategy_of
from smolsum.errors import SmolsumError
from smolsum.grid.plan import is_finished, settings_of
from smolsum.grid.selection import Selection
from smolsum.resolve import model_path
from smolsum.runs import RunPaths, list_runs


@dataclass(frozen=True)
class Chosen:
    """Runs that have finished, in the selection's order; those that have not; and what no run is."""

    finished: tuple[RunPaths, ...]
    unfinished: tuple[RunPaths, ...]
    absent: tuple[str, ...]


def choose(selection: Selection, runs_dir: Path) -> Chosen:
    """Returns what of the selection lies in `runs_dir`; a flag that was not given selects all, and with more than one
    configuration length alone belongs to it, which the others are compared with. UsageError for an unknown model."""
    models = [None if one is None else model_path(one) for one in selection.models]
    rewards = [None if one is None else _label(one) for one in selection.rewards]
    pairs = [(strategy, reward) for strategy in selection.strategies for reward in rewards]
    if len(pairs) > 1:
        pairs.insert(0, (LENGTH_ONLY, LENGTH_ONLY))
    wanted = [(model, *pair) for model in models for pair in pairs]
    found: dict[int, list[RunPaths]] = {place: [] for place in range(len(wanted))}
    for run in list_runs(runs_dir):
        with suppress(SmolsumError):  # a run that cannot be read is none of these
            config = settings_of(run)
            told = asdict(config)
            is_ = (config.model.path, strategy_of(told), reward_of(told))
            meant = (n for n, one in enumerate(wanted) if all(a in (None, b) for a, b in zip(one, is_, strict=True)))
            if (place := next(meant, None)) is not None:
                found[place].append(run)
    runs = [run for place in found for run in sorted(found[place], key=lambda run: run.name)]
    absent = [" ".join(filter(None, one)) for place, one in enumerate(wanted) if not found[place] and None not in one]
    finished = tuple(run for run in runs if is_finished(run))
    return Chosen(finished, tuple(run for run in runs if run not in finished), tuple(absent))


def _label(reward: str) -> str:
    """A `--reward` in the study's words."""
    return LENGTH_ONLY if reward == "length" else label_of(reward.split("-"))
