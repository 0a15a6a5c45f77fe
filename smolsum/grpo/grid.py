"""Grids: the runs that --model, --strategy and --reward select when they are repeated or say `all`, crossed with the
values of `--set KEY=A,B` and the seeds of `--seeds N`, and how far each of them is in a runs directory.

A run is identified by its settings, not by its name: a run that was trained by hand, or by an earlier grid, counts.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, Literal, get_origin

from smolsum.config.fields import base_type
from smolsum.config.resolve import Schema, find_schema, model_path, resolve
from smolsum.config.run_labels import FINETUNED, LENGTH_ONLY, label_of, reward_of, strategy_of
from smolsum.config.sections import Config
from smolsum.config.stages import needs_data, planned_steps
from smolsum.config.strategies import missing_stage_hint
from smolsum.errors import SmolsumError, UnusedSetting, UsageError, nearest
from smolsum.files import digest
from smolsum.grpo.difficulty import planned_kinds
from smolsum.runs.paths import RunPaths, free_name, list_runs, safe_name
from smolsum.runs.records import RunInfo, Status
from smolsum.runs.typed_json import read
from smolsum.tasks import DEFAULT_TASK, TASKS
from smolsum.tasks.base import Task
from smolsum.tasks.data import Split
from smolsum.tasks.plugins import digests

ALL = "all"
PLACE_SECTIONS = ("run", "workers", "engine")
"""Sections that say where and with what a run is trained, not what it learns."""
State = Literal["done", "goes on", "to train"]
Variant = tuple[Sequence[str], Sequence[str]]
"""one combination of a sweep: its `--set` values, and those that differ from other combinations"""


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


@dataclass(frozen=True)
class Planned:
    """One run of a grid: its settings, with its present or future name."""

    config: Config
    state: State
    there: RunPaths | None
    """the run to resume, or that is done"""
    reason: str = ""
    """why a run with these settings does not count, in words"""

    @property
    def name(self) -> str:
        """The run's folder."""
        return self.config.run.name

    @property
    def root(self) -> Path:
        """The run's directory."""
        return self.there.root if self.there else Path(self.config.run.dir) / self.name

    @property
    def step(self) -> int:
        """The steps that the run has taken."""
        return _status(self.there).step if self.there else 0


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


def variants(seeds: int | None, *, sets: Sequence[str], **layers: Any) -> list[Variant]:
    """Return every combination of the values of `sets`, for each of so many seeds, from the run's own on. `layers` are
    the other arguments of `resolve`. Raises UsageError for an empty or repeated value."""
    schema = find_schema(TASKS, config_file=layers["config_file"], sets=sets, flags=layers["flags"])
    choices = [_values(text, schema) for text in sets]
    keys = [text.partition("=")[0].strip() for text in sets]
    for key, among in zip(keys, choices, strict=True):
        if len(among) > 1 and keys.count(key) > 1:
            raise UsageError(f"--set {key} has several values and is given twice", hint="give all values once")
    if seeds is not None and "train.seed" in keys:
        raise UsageError("--seeds and --set train.seed contradict each other", hint="--seed N --seeds M")
    if seeds is not None and seeds > 1:
        first = [texts[0] for texts in choices if not texts[0].startswith("stages.")]  # not all runs have that stage
        start = resolve(TASKS, sets=first, **layers).config.train.seed
        choices.append([f"train.seed={seed}" for seed in range(start, start + seeds)])
    return [
        (texts, [text for text, among in zip(texts, choices, strict=True) if len(among) > 1])
        for texts in product(*choices)
    ]


def _values(text: str, schema: Schema) -> list[str]:
    """Return one `KEY=VALUE` for each value of a `--set`: several are separated by commas, except in a setting that is
    any text (a path may have a comma) and in a TOML value with brackets or quotes."""
    key, equals, right = text.partition("=")
    hint = schema.expected(key.strip())
    free = hint is None or hint is dict or (base_type(hint) is str and get_origin(hint) is not Literal)
    if "," not in right or free or any(mark in right for mark in "[{\"'"):
        return [text]
    values = [value.strip() for value in right.split(",")]
    if not all(values):
        raise UsageError(f"--set {text} has an empty value", hint=f"--set {key}=A,B trains a run for each value")
    if len(set(values)) < len(values):
        raise UsageError(f"--set {text} has a value twice", hint="give each value once")
    return [f"{key}{equals}{value}" for value in values]


def name_suffix(sets: Iterable[str]) -> str:
    """Return settings as the end of a run's name: the last part of each key, and its value."""

    def one(text: str) -> str:
        key, _, value = (part.strip() for part in text.partition("="))
        between = "" if value[:1].isdigit() else "-"
        return "-" + safe_name(f"{key.rpartition('.')[2]}{between}{value}")

    return "".join(map(one, sets))


def plan(selection: Selection, sweep: Iterable[Variant], **layers: Any) -> list[Planned]:
    """Return every run of the selection in every variant, a model's length-only parent before the runs that begin with
    it, each with its run in the runs directory, which all share, or with a name. `layers` are the other arguments of
    `resolve`, and errors are its; a `--set` applies to the runs that have the stage it names, or a use for it."""
    configs = [
        (config, name_suffix(text for text in varied if text in used))
        for sets, varied in sweep
        for config, used in _configs(selection, sets, **layers)
    ]
    code = digests(name for config, _ in configs for name in _signals(config))
    distinct: dict[str, tuple[Config, str]] = {}
    for config, suffix in configs:
        distinct.setdefault(_key(config, code), (config, suffix))
    runs_dir = Path(configs[0][0].run.dir)
    known: dict[str, RunPaths] = {}
    alike: dict[str, RunPaths] = {}  # by the settings alone
    for run in list_runs(runs_dir):
        with suppress(SmolsumError):  # an unreadable run matches no configuration
            settings = _settings(run)
            alike[_key(settings, {})] = run
            key = _key(settings, _code(run))
            if key not in known or not is_finished(known[key]):
                known[key] = run
    planned, taken = [], {run.name for run in known.values()}
    for key, (config, suffix) in distinct.items():
        there = known.get(key)
        name = there.name if there else _free_name(config, suffix, runs_dir, taken)
        taken.add(name)
        if there is None and (runs_dir / name).is_dir():
            there = RunPaths(runs_dir / name)  # killed while it was created
        state: State = "to train" if there is None else "done" if is_finished(there) else "goes on"
        reason = ""
        if state == "to train" and (old := alike.get(_key(config, {}))):
            then = _code(old)
            changed = [signal for signal in _signals(config) if then.get(signal) != code.get(signal)]
            reason = f"the plugin of {' and '.join(changed)} has changed since {old.name} began"
        planned.append(Planned(replace(config, run=replace(config.run, name=name)), state, there, reason))
    return planned


def _configs(selection: Selection, sets: Sequence[str], **layers: Any) -> list[tuple[Config, Sequence[str]]]:
    """Return the settings of every run of the selection in one variant, each with the `sets` that it has a use for."""
    common = [text for text in sets if _stage(text) is None]

    unused: dict[str, dict[tuple[str | None, ...], UnusedSetting]] = defaultdict(dict)

    def resolved(
        model: str | None, strategy: str | None, reward: str | None, sets: Sequence[str]
    ) -> tuple[Config, Sequence[str]]:
        try:
            return resolve(TASKS, model=model, strategy=strategy, reward=reward, sets=sets, **layers).config, sets
        except UnusedSetting as error:
            kept = [text for text in sets if text.partition("=")[0].strip() != error.key]
            if len(kept) == len(sets):
                raise
            unused[error.key][model, strategy, reward] = error
            return resolved(model, strategy, reward, kept)

    found: dict[tuple[str | None, str | None, str | None], Config] = {}
    for model in selection.models:
        pairs = {pair: resolved(model, *pair, common)[0] for pair in product(selection.strategies, selection.rewards)}
        stages = [stage for config in pairs.values() for stage in config.stages.values()]
        strategies = TASKS[next(iter(pairs.values())).task.name].presets.strategies
        if len(pairs) > 1 and FINETUNED in strategies and any("length" in stage.trained_rewards for stage in stages):
            # fine-tuned runs begin with the length stage, and all runs are compared with it
            others = {pair: config for pair, config in pairs.items() if labels(config)[0] != LENGTH_ONLY}
            parent = (FINETUNED, "length")
            pairs = {parent: resolved(model, *parent, common)[0], **others}
        found |= {(model, *pair): config for pair, config in pairs.items()}
    names = list(dict.fromkeys(name for config in found.values() for name in config.stages))
    for text in sets:
        if (stage := _stage(text)) is not None and stage not in names:
            task = TASKS[next(iter(found.values())).task.name]
            hint = missing_stage_hint(stage, names, selection.rewards, task)
            raise UsageError(f"--set {text}: no run here has a stage {stage!r}", hint=hint)
    for errors in unused.values():
        if errors.keys() >= found.keys():
            raise next(iter(errors.values()))
    return [
        resolved(*one, [text for text in sets if _stage(text) in (None, *config.stages)])
        for one, config in found.items()
    ]


def _stage(text: str) -> str | None:
    """Return the stage that one `--set` is about, None where it is about the whole run."""
    parts = text.partition("=")[0].strip().split(".")
    return parts[1] if parts[0] == "stages" and len(parts) > 2 else None


def _signals(config: Config) -> list[str]:
    return list(dict.fromkeys(name for stage in config.stages.values() for name in stage.used_signals))


def _key(config: Config, code: Mapping[str, str]) -> str:
    """Return a fingerprint that is equal for runs that learn the same; `code` has the digests of plugins by signal."""
    own = {name: code[name] for name in _signals(config) if name in code}
    sections = {name: section for name, section in asdict(config).items() if name not in PLACE_SECTIONS}
    return digest(sections | {"judge": config.judge.measures} | ({"plugins": own} if own else {}))


def _code(run: RunPaths) -> dict[str, str]:
    """Return the digests of the plugins that a run began with, by signal."""
    return {name: plugin.digest for plugin in read(run.info, RunInfo).plugins for name in plugin.rewards}


def _settings(run: RunPaths) -> Config:
    """Return the settings that a run began with. Raises what `resolve` raises."""
    return resolve(TASKS, config_file=run.config).config


def _status(run: RunPaths) -> Status:
    """Return the recorded status, an empty one where it cannot be read."""
    with suppress(SmolsumError):
        return read(run.status, Status)
    return Status()


def is_finished(run: RunPaths) -> bool:
    """Return whether a run has recorded its end."""
    return _status(run).state == "finished"


def _free_name(config: Config, suffix: str, runs_dir: Path, taken: set[str]) -> str:
    """Return `<model>-<strategy>-<reward><suffix>`, with -2, -3 … where another run has that name. A directory whose
    run was killed before it had settings is free."""

    def is_taken(name: str) -> bool:
        run = RunPaths(runs_dir / name)
        return name in taken or (run.root.exists() and (run.config.exists() or not run.lock.exists()))

    strategy, reward = labels(config)
    parts = ["length"] if strategy == LENGTH_ONLY else [safe_name(strategy), safe_name(reward)]
    return free_name("-".join([safe_name(config.model.path), *parts]) + suffix, is_taken)


def labels(config: Config) -> tuple[str, str]:
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


def steps_of(planned: Sequence[Planned], previews: Previews) -> list[tuple[dict[str, int] | None, str | None]]:
    """Return, for each run, the optimizer steps of every stage, None where they depend on data that are not here; and
    its first stage where the end of that is copied from a run before it, else None."""
    found: list[tuple[dict[str, int] | None, str | None]] = []
    trained: set[str] = set()
    for config in (one.config for one in planned):
        steps = None
        try:
            examples = previews.split(config, "train").examples if needs_data(config) else None
        except SmolsumError:
            pass
        else:
            kinds = () if examples is None else planned_kinds(config, TASKS[config.task.name], examples)
            steps = planned_steps(config, kinds)
        name, stage = next(iter(config.stages.items()))
        sections = {k: v for k, v in asdict(config).items() if k not in (*PLACE_SECTIONS, "stages")}
        key = digest([sections, asdict(stage), steps[name] if steps else 0])
        found.append((steps, name if len(config.stages) > 1 and key in trained else None))
        trained.add(key)
    return found


def choose(selection: Selection, runs_dir: Path) -> tuple[list[RunPaths], list[RunPaths], list[str]]:
    """Return the runs of the selection in `runs_dir`, finished and unfinished, and the combinations that have no run. A
    flag that was not given selects all. More than one configuration includes length alone, which the others are
    compared with. Raises UsageError for an unknown model."""
    models = [None if one is None else model_path(one, TASKS) for one in selection.models]
    rewards = [LENGTH_ONLY if one == "length" else one and label_of(one.split("-")) for one in selection.rewards]
    pairs: list[tuple[str | None, str | None]] = list(product(selection.strategies, rewards))
    if len(pairs) > 1:
        pairs.insert(0, (LENGTH_ONLY, LENGTH_ONLY))
    wanted = {(model, *pair): list[RunPaths]() for model in models for pair in pairs}
    for run in list_runs(runs_dir):
        with suppress(SmolsumError):  # an unreadable run matches no configuration
            config = _settings(run)
            actual = (config.model.path, *labels(config))
            matches = (one for one in wanted if all(a in (None, b) for a, b in zip(one, actual, strict=True)))
            if (first := next(matches, None)) is not None:
                wanted[first].append(run)
    runs = [run for found in wanted.values() for run in sorted(found, key=lambda run: run.name)]
    absent = [" ".join(filter(None, one)) for one, found in wanted.items() if not found and None not in one]
    return list(filter(is_finished, runs)), [run for run in runs if not is_finished(run)], absent
