"""The trained runs that a selection means, whatever their other settings and seeds.

Many configurations as one command: which are meant, which are there already, and the rest one after another.

What `--model`, `--strategy` and `--reward` select when they are repeated or say `all`.

The runs that a selection means, and how far each of them is in a runs directory.

A run is known by its settings and not by its name: one that was trained by hand, or by an earlier grid, counts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from smolsum import console
from smolsum.config.resolve import model_path, resolve
from smolsum.config.schedule import needs_data, planned_steps
from smolsum.config.sections import Config
from smolsum.config.study import FINETUNED, LENGTH_ONLY, label_of, reward_of, strategy_of
from smolsum.errors import SmolsumError, UsageError, nearest
from smolsum.files import digest
from smolsum.runs.paths import RunPaths, list_runs, plain
from smolsum.tasks import DEFAULT_TASK, TASKS
from smolsum.tasks.base import Task

ALL = "all"


@dataclass(frozen=True)
class Selection:
    """The values of the three flags, each once and in the order given; None alone for a flag that was not."""

    models: tuple[str | None, ...]
    strategies: tuple[str | None, ...]
    rewards: tuple[str | None, ...]

    @property
    def is_grid(self) -> bool:
        """Whether more than one configuration is meant."""
        return len(self.models) * len(self.strategies) * len(self.rewards) > 1


def select(
    models: Sequence[str] | None, strategies: Sequence[str] | None, rewards: Sequence[str] | None, task: str | None
) -> Selection:
    """Returns what the flags mean; `all` stands for what the task says. UsageError for a task that is none, or that has
    nothing that `all` stands for."""
    name = task or DEFAULT_TASK
    if name not in TASKS:
        raise UsageError(f"flag --task: unknown task {name!r}", hint=nearest(name, TASKS))
    found = TASKS[name]
    return Selection(
        _expand("--model", models, found.presets.everything("models"), found),
        _expand("--strategy", strategies, found.presets.everything("strategies"), found),
        _expand("--reward", rewards, found.presets.everything("rewards"), found),
    )


def _expand(flag: str, values: Sequence[str] | None, every: Sequence[str], task: Task) -> tuple[str | None, ...]:
    """Each value once, `all` as what it stands for; UsageError where that is nothing."""
    if not values:
        return (None,)
    if ALL in values and not every:
        hint = f"leave {flag} out, or name {'signals, such as ' + next(iter(task.signals)) if task.signals else 'one'}"
        raise UsageError(f"flag {flag}: the task {task.name} has no list that 'all' stands for", hint=hint)
    return tuple(dict.fromkeys(one for value in values for one in (every if value == ALL else (value,))))


ELSEWHERE = ("run", "workers", "engine")
"""sections that say where and with what a run is trained, not what it learns"""
State = Literal["done", "goes on", "to train"]


@dataclass(frozen=True)
class Planned:
    """One run of a grid: its settings, with the name that it has or will get."""

    config: Config
    state: State
    resume: RunPaths | None
    """the directory to go on in"""

    @property
    def name(self) -> str:
        """The run's folder."""
        return self.config.run.name

    @property
    def strategy(self) -> str:
        """Its strategy in the study's words."""
        return strategy_of(asdict(self.config))

    @property
    def reward(self) -> str:
        """Its reward configuration in the study's words."""
        return reward_of(asdict(self.config))

    @property
    def root(self) -> Path:
        """The run's directory."""
        return self.resume.root if self.resume else Path(self.config.run.dir) / self.name


def plan(
    selection: Selection,
    *,
    presets: Sequence[str],
    config_file: Path | None,
    sets: Sequence[str],
    flags: Mapping[str, Any],
    environ: Mapping[str, str],
) -> list[Planned]:
    """Returns every run of the selection, a model's length-only parent before those that begin with it. Arguments and
    errors as of `resolve`; a `--set` for a stage concerns the runs that have it."""

    common = [text for text in sets if _stage(text) is None]

    def resolved(model: str | None, strategy: str | None, reward: str | None, sets: Sequence[str]) -> Config:
        return resolve(
            TASKS,
            model=model,
            strategy=strategy,
            reward=reward,
            presets=presets,
            config_file=config_file,
            sets=sets,
            flags=flags,
            environ=environ,
        ).config

    wanted = []
    for model in selection.models:
        pairs = [(strategy, reward) for strategy in selection.strategies for reward in selection.rewards]
        several = [resolved(model, *pair, common) for pair in pairs]
        signals = {name for config in several for stage in config.stages.values() for name in stage.rewards}
        if len(pairs) > 1 and "length" in signals and FINETUNED in TASKS[several[0].task.name].presets.strategies:
            # the fine-tuned runs begin with length alone, and all are compared with it
            pairs.insert(0, (FINETUNED, "length"))
            alone = [pair for pair, one in zip(pairs[1:], several, strict=True) if _is_length_only(one)]
            pairs = [pair for pair in pairs if pair not in alone or pair == pairs[0]]
        wanted += [(model, *pair) for pair in pairs]
    stages = {one: tuple(resolved(*one, common).stages) for one in wanted}
    for text in sets:
        if (stage := _stage(text)) is not None and not any(stage in names for names in stages.values()):
            known = ", ".join(dict.fromkeys(name for names in stages.values() for name in names))
            raise UsageError(f"--set {text}: no run here has a stage {stage!r}", hint=f"choose from {known}")
    configs = [
        resolved(*one, [text for text in sets if (stage := _stage(text)) is None or stage in stages[one]])
        for one in wanted
    ]
    distinct = list({_key(config): config for config in configs}.values())
    return _found(distinct)


def _is_length_only(config: Config) -> bool:
    return strategy_of(asdict(config)) == LENGTH_ONLY


def _stage(text: str) -> str | None:
    """The stage that one `--set` is about, if it is about one."""
    parts = text.partition("=")[0].strip().split(".")
    return parts[1] if parts[0] == "stages" and len(parts) > 2 else None


def _key(config: Config) -> str:
    """Equal for runs that learn the same."""
    return digest({name: section for name, section in asdict(config).items() if name not in ELSEWHERE})


def _found(configs: Sequence[Config]) -> list[Planned]:
    """What of each is there already; all lie in one directory."""
    runs_dir = Path(configs[0].run.dir)
    known: dict[str, RunPaths] = {}
    for run in list_runs(runs_dir):
        with suppress(SmolsumError):  # a run that cannot be read is none of these
            key = _key(settings_of(run))
            if key not in known or not is_finished(known[key]):
                known[key] = run
    planned, taken = [], {run.name for run in known.values()}
    for config in configs:
        there = known.get(_key(config))
        name = there.name if there else _free_name(config, runs_dir, taken)
        taken.add(name)
        if there is None and (runs_dir / name).is_dir():
            there = RunPaths(runs_dir / name)  # killed as it was made
        state: State = "to train" if there is None else "done" if is_finished(there) else "goes on"
        named = replace(config, run=replace(config.run, name=name))
        planned.append(Planned(named, state, there))
    return planned


def settings_of(run: RunPaths) -> Config:
    """The settings that a run began with. Errors as of `resolve`."""
    return resolve(
        TASKS,
        config_file=run.config,
    ).config


def is_finished(run: RunPaths) -> bool:
    """Whether a run says that it has come to its end."""
    return status_of(run).get("state") == "finished"


def status_of(run: RunPaths) -> dict[str, Any]:
    """What a run says of itself; nothing where that cannot be read."""
    with suppress(OSError, ValueError, TypeError):
        return dict(json.loads(run.status.read_bytes()))
    return {}


def _free_name(config: Config, runs_dir: Path, taken: set[str]) -> str:
    """`<model>-<strategy>-<reward>`, or with -2, -3 … where that is another run; one that was killed before it had any
    content is nobody's."""
    settings = asdict(config)
    strategy, reward = strategy_of(settings), reward_of(settings)
    base = "-".join(
        [plain(config.model.path), *(["length"] if strategy == LENGTH_ONLY else [plain(strategy), plain(reward)])]
    )
    name, number = base, 1
    while name in taken or ((runs_dir / name).exists() and not _is_void(RunPaths(runs_dir / name))):
        number += 1
        name = f"{base}-{number}"
    return name


def _is_void(run: RunPaths) -> bool:
    """Whether the directory was made for a run that never got its settings."""
    return run.lock.exists() and not run.config.exists()


def steps_of(planned: Sequence[Planned]) -> list[dict[str, int] | None]:
    """Optimizer steps of every stage of each; None where they follow from data that are not to be had here."""
    found: list[dict[str, int] | None] = []
    prompts: dict[str, tuple[str, ...] | None] = {}
    for one in planned:
        task = TASKS[one.config.task.name]
        key = digest([asdict(one.config.data), asdict(one.config.task)])
        if not needs_data(one.config):
            found.append(planned_steps(one.config, ()))
            continue
        if key not in prompts:
            try:
                prompts[key] = task.kinds(task.load(one.config, "train").examples)
            except SmolsumError:
                prompts[key] = None
        kinds = prompts[key]
        found.append(None if kinds is None else planned_steps(one.config, kinds))
    return found


@dataclass(frozen=True)
class Chosen:
    """Runs that have finished, in the selection's order; those that have not; and what no run is."""

    finished: tuple[RunPaths, ...]
    unfinished: tuple[RunPaths, ...]
    absent: tuple[str, ...]


def choose(selection: Selection, runs_dir: Path) -> Chosen:
    """Returns what of the selection lies in `runs_dir`; a flag that was not given selects all, and with more than one
    configuration length alone belongs to it, which the others are compared with. UsageError for an unknown model."""
    models = [None if one is None else model_path(one, TASKS) for one in selection.models]
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


def show_plan(planned: Sequence[Planned]) -> None:
    """Prints a line for each run: what it is, its steps, and how far it is."""
    from smolsum.cli.grid import status_of, steps_of

    rows, left, unknown = [], 0, False
    trained: set[tuple[object, ...]] = set()
    for one, steps in zip(planned, steps_of(planned), strict=True):
        stages, told = one.config.stages, []
        for name, stage in stages.items():
            count = steps[name] if steps else 0
            first = name == next(iter(stages))
            key = (one.config.model.path, tuple(sorted(stage.rewards.items())), count)
            shared = first and len(stages) > 1 and key in trained
            if first:
                trained.add(key)
            told.append(f"{name} {count or f'{stage.epochs:g} of the data'}{' (shared)' if shared else ''}")
            left += 0 if shared or one.state == "done" else count
            unknown = unknown or steps is None
        step = status_of(one.resume).get("step") if one.resume else None
        state = f"goes on at step {step}" if one.state == "goes on" and step else one.state
        rows.append([one.name, state, " > ".join(told), one.strategy, one.reward, one.config.model.path])
    console.data_table(["name", "state", "steps", "strategy", "reward", "model"], rows)
    states = [one.state for one in planned]
    counts = ", ".join(f"{states.count(state)} {what}" for state, what in _STATES.items() if state in states)
    console.narrate(
        f"{len(planned)} runs: {counts}; {'steps known once the data are here' if unknown else f'{left} steps at most'}"
    )


_STATES = {"done": "done", "goes on": "to go on with", "to train": "to train"}


def refuse_single(flags: Sequence[str]) -> None:
    """UsageError for flags that are about one run."""
    if flags:
        raise UsageError(
            f"{', '.join(flags)} {'is' if len(flags) == 1 else 'are'} for one run, and several are selected",
            hint="give one --model, --strategy and --reward; smolsum watch shows the run under way",
        )
