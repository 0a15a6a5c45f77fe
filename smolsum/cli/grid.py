"""Grids: which runs `--model`, `--strategy` and `--reward` select when they are repeated or say `all`, for each variant
of a sweep, and how far each of them is in a runs directory.

A run is identified by its settings, not by its name: a run that was trained by hand, or by an earlier grid, counts.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from smolsum import console
from smolsum.cli.sweep import Variant
from smolsum.config.resolve import model_path, resolve
from smolsum.config.run_labels import FINETUNED, LENGTH_ONLY, label_of, reward_of, strategy_of
from smolsum.config.sections import Config
from smolsum.config.stage_steps import needs_data, planned_steps
from smolsum.errors import SmolsumError, UsageError, nearest
from smolsum.files import digest
from smolsum.runs.paths import RunPaths, free_name, list_runs, safe_name
from smolsum.runs.record_io import read
from smolsum.runs.records import RunInfo, Status
from smolsum.tasks import DEFAULT_TASK, TASKS
from smolsum.tasks.base import Task
from smolsum.tasks.data import Split
from smolsum.tasks.plugins import digests

ALL = "all"
PLACE_SECTIONS = ("run", "workers", "engine")
"""Sections that say where and with what a run is trained, not what it learns."""
State = Literal["done", "goes on", "to train"]
_COUNTED = {"done": "done", "goes on": "to go on with", "to train": "to train"}


@dataclass(frozen=True)
class Selection:
    """The values of the three flags, each once and in the order given; `(None,)` for a flag that was not given."""

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
    """Return what the flags mean; the task says what `all` stands for. Raises UsageError for an unknown task, and for
    `all` where the task has no list."""
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
    """Return each value once, with `all` replaced by what it stands for. Raises UsageError where that is nothing."""
    if not values:
        return (None,)
    if ALL in values and not every:
        signals = task.rewards.signals
        hint = f"leave {flag} out, or name {'signals, such as ' + next(iter(signals)) if signals else 'one'}"
        raise UsageError(f"flag {flag}: the task {task.name} has no list that 'all' stands for", hint=hint)
    return tuple(dict.fromkeys(one for value in values for one in (every if value == ALL else (value,))))


@dataclass(frozen=True)
class Planned:
    """One run of a grid: its settings, with its present or future name."""

    config: Config
    state: State
    resume: RunPaths | None
    """The run to resume, or that is done."""
    reason: str = ""
    """why a run with these settings does not count, in words"""

    @property
    def name(self) -> str:
        """The run's folder."""
        return self.config.run.name

    @property
    def root(self) -> Path:
        """The run's directory."""
        return self.resume.root if self.resume else Path(self.config.run.dir) / self.name


def plan(selection: Selection, sweep: Sequence[Variant], **layers: Any) -> list[Planned]:
    """Return every run of the selection in every variant, a model's length-only parent before the runs that begin with
    it. `layers` are the other arguments of `resolve`, and errors are its; a `--set` for a stage applies to the runs
    that have that stage."""
    found: list[tuple[Config, str]] = []
    for variant in sweep:
        found += [(config, variant.suffix) for config in _configs(selection, variant.sets, **layers)]
    code = digests(name for config, _ in found for stage in config.stages.values() for name in stage.used_signals)
    distinct: dict[str, tuple[Config, str]] = {}
    for config, suffix in found:
        distinct.setdefault(_key(config, code), (config, suffix))
    return _found(list(distinct.values()), code)


def _configs(selection: Selection, sets: Sequence[str], **layers: Any) -> list[Config]:
    """Return the settings of every run of the selection in one variant."""
    common = [text for text in sets if _stage(text) is None]

    def resolved(model: str | None, strategy: str | None, reward: str | None, sets: Sequence[str]) -> Config:
        return resolve(TASKS, model=model, strategy=strategy, reward=reward, sets=sets, **layers).config

    wanted = []
    for model in selection.models:
        pairs = [(strategy, reward) for strategy in selection.strategies for reward in selection.rewards]
        several = [resolved(model, *pair, common) for pair in pairs]
        signals = {name for config in several for stage in config.stages.values() for name in stage.trained_rewards}
        if len(pairs) > 1 and "length" in signals and FINETUNED in TASKS[several[0].task.name].presets.strategies:
            # fine-tuned runs begin with the length stage, and all runs are compared with it
            strategies = [_labels(config)[0] for config in several]
            others = [pair for pair, name in zip(pairs, strategies, strict=True) if name != LENGTH_ONLY]
            pairs = [(FINETUNED, "length"), *others]
        wanted += [(model, *pair) for pair in pairs]
    stages = {one: tuple(resolved(*one, common).stages) for one in wanted}
    for text in sets:
        if (stage := _stage(text)) is not None and not any(stage in names for names in stages.values()):
            known = ", ".join(dict.fromkeys(name for names in stages.values() for name in names))
            raise UsageError(f"--set {text}: no run here has a stage {stage!r}", hint=f"choose from {known}")
    return [
        resolved(*one, [text for text in sets if (stage := _stage(text)) is None or stage in stages[one]])
        for one in wanted
    ]


def _stage(text: str) -> str | None:
    """Return the stage that one `--set` is about, None where it is about the whole run."""
    parts = text.partition("=")[0].strip().split(".")
    return parts[1] if parts[0] == "stages" and len(parts) > 2 else None


def _key(config: Config, code: Mapping[str, str]) -> str:
    """Return a fingerprint that is equal for runs that learn the same; `code` has the digests of plugins by signal."""
    own = {name: code[name] for stage in config.stages.values() for name in stage.used_signals if name in code}
    sections = {name: section for name, section in asdict(config).items() if name not in PLACE_SECTIONS}
    return digest(sections | ({"plugins": own} if own else {}))


def _code_of(run: RunPaths) -> dict[str, str]:
    """Return the digests of the plugins that a run began with, by signal."""
    return {name: plugin.digest for plugin in read(run.info, RunInfo).plugins for name in plugin.rewards}


def _changed_code(config: Config, code: Mapping[str, str], run: RunPaths) -> str:
    """Say which plugins have changed since a run with the same settings began."""
    then = _code_of(run)
    signals = dict.fromkeys(name for stage in config.stages.values() for name in stage.used_signals)
    changed = [name for name in signals if then.get(name) != code.get(name)]
    return f"the plugin of {' and '.join(changed)} has changed since {run.name} began"


def _found(configs: Sequence[tuple[Config, str]], code: Mapping[str, str]) -> list[Planned]:
    """Find the run of each configuration in the runs directory, which all share, or name it, with its suffix."""
    runs_dir = Path(configs[0][0].run.dir)
    known: dict[str, RunPaths] = {}
    alike: dict[str, RunPaths] = {}  # by the settings alone
    for run in list_runs(runs_dir):
        with suppress(SmolsumError):  # an unreadable run matches no configuration
            settings = settings_of(run)
            alike[_key(settings, {})] = run
            key = _key(settings, _code_of(run))
            if key not in known or not is_finished(known[key]):
                known[key] = run
    planned, taken = [], {run.name for run in known.values()}
    for config, suffix in configs:
        there = known.get(_key(config, code))
        name = there.name if there else _free_name(config, suffix, runs_dir, taken)
        taken.add(name)
        if there is None and (runs_dir / name).is_dir():
            there = RunPaths(runs_dir / name)  # killed while it was created
        state: State = "to train" if there is None else "done" if is_finished(there) else "goes on"
        named = replace(config, run=replace(config.run, name=name))
        old = alike.get(_key(config, {})) if state == "to train" else None
        planned.append(Planned(named, state, there, _changed_code(config, code, old) if old else ""))
    return planned


def settings_of(run: RunPaths) -> Config:
    """Return the settings that a run began with. Errors as of `resolve`."""
    return resolve(TASKS, config_file=run.config).config


def is_finished(run: RunPaths) -> bool:
    """Return whether a run has recorded its end."""
    return status_of(run).state == "finished"


def status_of(run: RunPaths) -> Status:
    """Return the recorded status, an empty one where it cannot be read."""
    with suppress(SmolsumError):
        return read(run.status, Status)
    return Status()


def _free_name(config: Config, suffix: str, runs_dir: Path, taken: set[str]) -> str:
    """Return `<model>-<strategy>-<reward><suffix>`, with -2, -3 … where another run has that name. A directory whose
    run was killed before it had settings is free."""

    def is_taken(name: str) -> bool:
        run = RunPaths(runs_dir / name)
        return name in taken or (run.root.exists() and (run.config.exists() or not run.lock.exists()))

    strategy, reward = _labels(config)
    parts = ["length"] if strategy == LENGTH_ONLY else [safe_name(strategy), safe_name(reward)]
    return free_name("-".join([safe_name(config.model.path), *parts]) + suffix, is_taken)


def _labels(config: Config) -> tuple[str, str]:
    """Return the names of a run's strategy and reward."""
    settings, presets = asdict(config), TASKS[config.task.name].presets.strategies
    return strategy_of(settings, presets), reward_of(settings, presets)


class Previews:
    """The splits of a plan's runs, for its checks and its steps: what runs share is loaded once."""

    def __init__(self) -> None:
        self._found: dict[str, Split | SmolsumError] = {}

    def split(self, config: Config, name: str) -> Split:
        """Return a split as a dry run of this configuration has it. Raises what loading it raises."""
        key = digest([name, asdict(config.data), asdict(config.task), asdict(config.train)])
        if key not in self._found:
            try:
                self._found[key] = TASKS[config.task.name].prompts.load_preview(config, name)
            except SmolsumError as error:
                self._found[key] = error
        found = self._found[key]
        if isinstance(found, SmolsumError):
            raise found
        return found


def steps_of(planned: Sequence[Planned], previews: Previews) -> list[dict[str, int] | None]:
    """Return the optimizer steps of every stage of each run; None where they depend on data that are not here."""
    from smolsum.training.difficulty import planned_kinds  # loads MLX

    found: list[dict[str, int] | None] = []
    for one in planned:
        kinds: tuple[str, ...] = ()
        if needs_data(one.config):
            try:
                examples = previews.split(one.config, "train").examples
            except SmolsumError:
                found.append(None)
                continue
            kinds = planned_kinds(one.config, TASKS[one.config.task.name], examples)
        found.append(planned_steps(one.config, kinds))
    return found


def shared_stages(planned: Sequence[Planned], counted: Sequence[dict[str, int] | None]) -> list[str | None]:
    """Return the first stage of each run whose end is copied from a run before it, None for a run that has none."""
    found: list[str | None] = []
    trained: set[str] = set()
    for one, steps in zip(planned, counted, strict=True):
        name, stage = next(iter(one.config.stages.items()))
        sections = {k: v for k, v in asdict(one.config).items() if k not in (*PLACE_SECTIONS, "stages")}
        key = digest([sections, asdict(stage), steps[name] if steps else 0])
        found.append(name if len(one.config.stages) > 1 and key in trained else None)
        trained.add(key)
    return found


def steps_to_train(planned: Sequence[Planned], previews: Previews) -> list[int | None]:
    """Return the optimizer steps that are left for each run; None where they depend on data that are not here."""
    counted = steps_of(planned, previews)
    found: list[int | None] = []
    for one, steps, shared in zip(planned, counted, shared_stages(planned, counted), strict=True):
        behind = status_of(one.resume).step if one.resume else 0
        first = steps[shared] if steps and shared else 0
        if one.state == "done":
            found.append(0)
        else:
            found.append(None if steps is None else max(sum(steps.values()) - max(behind, first), 0))
    return found


def show_plan(planned: Sequence[Planned], previews: Previews) -> None:
    """Print a line for each run with its state and steps, and their total."""
    rows, left, unknown = [], 0, False
    counted = steps_of(planned, previews)
    for one, steps, shared in zip(planned, counted, shared_stages(planned, counted), strict=True):
        parts = []
        for name, stage in one.config.stages.items():
            count = steps[name] if steps else 0
            parts.append(f"{name} {count or _epochs(stage.epochs)}{' (shared)' if name == shared else ''}")
            left += 0 if name == shared or one.state == "done" else count
            unknown = unknown or steps is None
        step = status_of(one.resume).step if one.resume else 0
        state = f"goes on at step {step}" if one.state == "goes on" and step else one.state
        rows.append([one.name, state, " > ".join(parts), *_labels(one.config), one.config.model.path])
    console.data_table(["name", "state", "steps", "strategy", "reward", "model"], rows)
    states = [one.state for one in planned]
    counts = ", ".join(f"{states.count(state)} {text}" for state, text in _COUNTED.items() if state in states)
    total = "steps known once the data are here" if unknown else f"{left} steps at most"
    console.narrate(f"{len(planned)} runs: {counts}; {total}")
    for one in planned:
        if one.reason:
            console.narrate(f"{one.name} is to train: {one.reason}")


def _epochs(number: float) -> str:
    return f"{number:g} {'epoch' if number == 1 else 'epochs'}"


@dataclass(frozen=True)
class Chosen:
    """The runs of a selection in its order, finished and unfinished, and the combinations that have no run."""

    finished: tuple[RunPaths, ...]
    unfinished: tuple[RunPaths, ...]
    absent: tuple[str, ...]


def choose(selection: Selection, runs_dir: Path) -> Chosen:
    """Return the runs of the selection in `runs_dir`. A flag that was not given selects all. More than one
    configuration includes length alone, which the others are compared with. Raises UsageError for an unknown model."""
    models = [None if one is None else model_path(one, TASKS) for one in selection.models]
    rewards = [LENGTH_ONLY if one == "length" else one and label_of(one.split("-")) for one in selection.rewards]
    pairs = [(strategy, reward) for strategy in selection.strategies for reward in rewards]
    if len(pairs) > 1:
        pairs.insert(0, (LENGTH_ONLY, LENGTH_ONLY))
    wanted = [(model, *pair) for model in models for pair in pairs]
    found: dict[int, list[RunPaths]] = {place: [] for place in range(len(wanted))}
    for run in list_runs(runs_dir):
        with suppress(SmolsumError):  # an unreadable run matches no configuration
            config = settings_of(run)
            actual = (config.model.path, *_labels(config))
            matches = (
                n for n, one in enumerate(wanted) if all(a in (None, b) for a, b in zip(one, actual, strict=True))
            )
            if (place := next(matches, None)) is not None:
                found[place].append(run)
    runs = [run for place in found for run in sorted(found[place], key=lambda run: run.name)]
    absent = [" ".join(filter(None, one)) for place, one in enumerate(wanted) if not found[place] and None not in one]
    finished = tuple(run for run in runs if is_finished(run))
    return Chosen(finished, tuple(run for run in runs if run not in finished), tuple(absent))
