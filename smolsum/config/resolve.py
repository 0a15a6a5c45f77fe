"""From presets, files, the environment and flags to one `Config`, with the source of every value.

Low to high: defaults of the records < profiles/default < model preset < the task's < --preset < --config < environment
(folders and workers, never a hyperparameter) < flags and --set. The task decides which other settings exist. A layer
with stages replaces all stages below it, and so do --strategy and --reward. A stage inherits what it leaves out. A
value typed for the whole run (`--set grpo.beta=0.1`) also replaces the values of single stages in files, as it would
have no effect otherwise.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, get_type_hints

import tomli

from smolsum.config.checks import check_together
from smolsum.config.constraints import parse_constraints
from smolsum.config.fields import Share, StageName, base_type, check_value
from smolsum.config.presets import (
    ConfigurableTask,
    Entry,
    entries,
    find_preset,
    line_numbers,
    names_for,
    read_file,
    read_for,
    read_preset,
    task_defaults,
)
from smolsum.config.sections import SECTIONS, STAGE_FIELDS, Config, TaskConfig
from smolsum.config.stage import StageConfig
from smolsum.config.strategies import ChosenStrategy, choose_strategy, missing_stage_hint, strategy_layer
from smolsum.errors import UsageError, nearest

INHERITED = {
    "temperature": "sampling.temperature",
    "learning_rate": "optimizer.learning_rate",
    "schedule": "optimizer.schedule",
    "warmup_steps": "optimizer.warmup_steps",
    "beta": "grpo.beta",
    "hindsight": "grpo.hindsight",
    "hindsight_of": "grpo.hindsight_of",
    "countdown": "grpo.countdown",
    "length_credit": "grpo.length_credit",
    "mask_truncated": "grpo.mask_truncated",
    "constraints": "grpo.constraints",
}
"""Where a stage takes a setting from that it leaves out."""
OWN = {"steps": 0, "epochs": 1.0, "temperature_end": 0.0, "learn": "rewards"} | dict.fromkeys(
    ("temperature_schedule", "rewards_schedule"), "linear"
)
"""What a stage alone has, with the values of those that it leaves out."""
ENVIRONMENT = {"SMOLSUM_RUNS_DIR": "run.dir", "SMOLSUM_WORKERS": "workers.urls"}
"""Variables that are read, with the settings that they give."""


def _hints(section: str, record: type[Any]) -> dict[str, Any]:
    return {f"{section}.{key}": hint for key, hint in get_type_hints(record, include_extras=True).items()}


_GENERAL = {key: hint for name, record in SECTIONS.items() for key, hint in _hints(name, record).items()}


@dataclass(frozen=True)
class Schema:
    """The keys that a configuration of one task may have: those of the sections, and those of the task."""

    task: ConfigurableTask
    tasks: tuple[str, ...]
    """Names of all tasks."""

    @cached_property
    def sections(self) -> dict[str, type[Any]]:
        """The record of each section."""
        return SECTIONS | {"task": self.task.settings}

    @cached_property
    def fields(self) -> dict[str, Any]:
        """Type, with its rule, of every dotted key outside of the stages."""
        return _GENERAL | _hints("task", self.task.settings) | {"task.name": Literal[self.tasks]}

    def expected(self, key: str) -> Any:
        """Return the type of a dotted key: a hint, `dict` for a table, None for an unknown key."""
        match key.split("."):
            case ["stages" | "stage_defaults"] | ["stages" | "stage_defaults", _]:
                return dict
            case [section]:
                return dict if section in self.sections else None
            case ["stages", _, "rewards" | "rewards_end", signal]:
                return float if signal in self.task.rewards.signals else None
            case ["stages", _, "mix" | "mix_end", _]:
                return Share
            case ["stages" | "stage_defaults", _, name]:
                return STAGE_FIELDS.get(name)
            case _:
                return self.fields.get(key)

    def unknown(self, key: str, source: str) -> UsageError:
        """Return the error for an unknown key, with the nearest known one."""
        section, _, name = key.rpartition(".")
        if section.endswith((".rewards", ".rewards_end")):
            hint = nearest(name, self.task.rewards.signals)
            return UsageError(f"{source}: unknown signal {name!r} in {section}", hint=hint)
        stage_keys = [f"{section}.{field}" for field in STAGE_FIELDS] if section.startswith("stages.") else []
        known = [*self.sections, "stages", *self.fields, *stage_keys]
        siblings = {other.rpartition(".")[2]: other for other in known if other.rpartition(".")[0] == section}
        close = [siblings[match] for match in get_close_matches(name, siblings, n=1)]
        close += [other for other in known if other.rpartition(".")[2] == name]
        close += get_close_matches(key, known, n=1)
        choice = ", ".join(siblings.values() or [*self.sections, "stages"])
        hint = f"did you mean {close[0]}?" if close else f"choose from {choice}"
        what = f"unknown key {key!r}" + (f" of task {self.task.name}" if section == "task" else "")
        return UsageError(f"{source}: {what}", hint=hint)


@dataclass(frozen=True)
class Resolved:
    """A configuration, and the source of each dotted key."""

    config: Config
    sources: Mapping[str, str]
    strategy: ChosenStrategy | None = None
    """whose stages these are; None where a file gives the stages"""


@dataclass(frozen=True)
class Given:
    """A checked value, its source, and the kind of layer that gave it; `typed` is a flag of this command."""

    value: Any
    source: str
    by: Literal["preset", "user", "typed"]


def resolve(
    tasks: Mapping[str, ConfigurableTask],
    *,
    model: str | None = None,
    strategy: str | None = None,
    reward: str | None = None,
    presets: Sequence[str] = (),
    config_file: Path | None = None,
    sets: Sequence[str] = (),
    flags: Mapping[str, Any] = MappingProxyType({}),
    environ: Mapping[str, str] = MappingProxyType({}),
) -> Resolved:
    """Return the configuration of a run and the source of each value.

    `tasks` are all tasks by name, the default one first. `flags` holds more options by dotted key, None for those that
    were not given; of `environ` only the keys of ENVIRONMENT are read. UsageError names the source of a wrong value,
    even where a stronger layer replaces it.
    """
    own = [] if config_file is None else read_file(config_file)
    named = [Entry(key, value, "flag") for key, value in flags.items() if value is not None]
    texts = [_split_set(text) for text in sets]
    schema = find_schema(tasks, config_file=config_file, sets=sets, flags=flags)
    task = schema.task
    typed = named + [entry for key, text in texts for entry in _parse_set(key, text, schema)]
    shipped = [found for name in presets for found in find_preset(task, name, tasks)]
    if strategy in names_for(task, "profiles"):
        shipped.insert(0, ("profiles", strategy))
    layers = [read_for(task, kind, name) for kind, name in shipped if kind != "strategies"]
    if model is not None:
        path, preset = _model_layer(model, task)
        typed.insert(0, Entry("model.path", path, "flag --model"))  # first, so that --set model.path is stronger
        layers.insert(0, preset)
    elif any(entry.key == "model.path" for layer in [*layers, own, typed] for entry in layer):
        layers.insert(0, task_defaults(task))
    else:
        layers.insert(0, read_for(task, "models", task.presets.model))

    given: dict[str, Given] = {}
    for layer in [read_preset("profiles", "default"), *layers]:
        _lay(given, layer, "preset", schema)
    _lay(given, own, "user", schema)
    for variable, key in ENVIRONMENT.items():
        if environ.get(variable):
            _lay(given, [Entry(key, environ[variable], f"environment {variable}")], "user", schema)
    chosen = None
    if strategy is not None or reward is not None or not _stage_names(given):
        by_preset = next((name for kind, name in reversed(shipped) if kind == "strategies"), None)
        chosen = choose_strategy(strategy, by_preset, reward, task)
        layer = strategy_layer(chosen.name, reward, task)
        _lay(given, [entry for entry in layer if not _is_the_models_own(entry.key, given)], "preset", schema)
    for key, _, source in typed:
        stage = key.split(".")[1] if key.startswith("stages.") else ""
        if stage and stage not in (there := _stage_names(given)):
            hint = missing_stage_hint(stage, there, [reward], task)
            raise UsageError(f"{source}: {key}: the run has no stage {stage!r}", hint=hint)
    _lay(given, typed, "typed", schema)
    return replace(_build(given, schema), strategy=chosen)


def find_schema(
    tasks: Mapping[str, ConfigurableTask],
    *,
    config_file: Path | None = None,
    sets: Sequence[str] = (),
    flags: Mapping[str, Any] = MappingProxyType({}),
) -> Schema:
    """Return the keys that a configuration may have, which its task decides. Takes and raises what `resolve` does."""
    own = [] if config_file is None else read_file(config_file)
    named = [Entry(key, value, "flag") for key, value in flags.items() if value is not None]
    # the last --set of a key counts, and `_find_task` takes the first
    bare = [Entry(key, text.strip("\"'"), "--set") for key, text in map(_split_set, reversed(sets))]
    return Schema(_find_task([*bare, *named, *own], tasks), tuple(tasks))


def to_toml(config: Config) -> str:
    """Return the whole configuration as TOML; read back as a configuration file it repeats `config`."""
    import tomli_w

    return tomli_w.dumps(asdict(config))


def render_with_sources(resolved: Resolved) -> str:
    """Return the configuration as TOML, each value followed by its source in a comment."""
    text = to_toml(resolved.config)
    lines = text.split("\n")
    for key, number in line_numbers(text).items():
        if key in resolved.sources:
            lines[number - 1] = f"{lines[number - 1]:<40}  # {resolved.sources[key]}"
    return "\n".join(lines)


def model_path(model: str, tasks: Mapping[str, ConfigurableTask]) -> str:
    """Return what `load_policy` takes for a value of --model: a preset's model, a directory, a file or a hub id."""
    return str(model_settings(model, tasks)["path"])


def model_settings(model: str, tasks: Mapping[str, ConfigurableTask]) -> dict[str, Any]:
    """Return the settings of [model] that a value of --model means: the path, and what its preset adds."""
    task = next((task for task in tasks.values() if model in task.presets.models), next(iter(tasks.values())))
    path, layer = _model_layer(model, task)
    own = {entry.key.removeprefix("model."): entry.value for entry in layer if entry.key.startswith("model.")}
    return own | {"path": path}


def _find_task(given: Sequence[Entry], tasks: Mapping[str, ConfigurableTask]) -> ConfigurableTask:
    """Return the task of the strongest entry that names one (`given` has the strongest first), or the default."""
    entry = next((entry for entry in given if entry.key == "task.name"), None)
    if entry is None:
        return next(iter(tasks.values()))
    return tasks[check_value("task.name", Literal[tuple(tasks)], entry.value, entry.source)]


def _model_layer(model: str, task: ConfigurableTask) -> tuple[str, list[Entry]]:
    """Return the model path that --model means, and the entries of its preset, or of the task if it has none."""
    names = names_for(task, "models")
    if model in names:
        preset = read_for(task, "models", model)
        return [entry.value for entry in preset if entry.key == "model.path"][-1], preset
    if "/" in model or model.startswith("builtin:") or Path(model).exists():
        return model, task_defaults(task)
    options = [*names, "a local directory", "a GGUF file", "a hub id (OWNER/NAME)"]
    raise UsageError(f"flag --model: unknown model {model!r}", hint=nearest(model, options))


def _split_set(text: str) -> tuple[str, str]:
    """Return key and text of one `--set key=value`."""
    key, equals, right = (part.strip() for part in text.partition("="))
    if not (key and equals):
        raise UsageError(f"--set {text}: not of the form key=value", hint="--set grpo.beta=0.05")
    return key, right


def _parse_set(key: str, text: str, schema: Schema) -> list[Entry]:
    """Return the entries of one `--set`; the value is TOML if it parses, else a bare text."""
    value: Any = text
    try:
        document = tomli.loads(f"value = {text}")
    except tomli.TOMLDecodeError:
        document = {}
    # a text may look like a number, and a line break in the value must not become a second key
    if len(document) == 1 and (isinstance(document["value"], str) or base_type(schema.expected(key)) is not str):
        value = document["value"]
    return entries({key: value}, "--set")


def _lay(
    given: dict[str, Given], layer: Sequence[Entry], by: Literal["preset", "user", "typed"], schema: Schema
) -> None:
    """Check a layer and put it over `given`; typed values edit stages, any other layer replaces them."""
    if by != "typed" and any(entry.key.startswith("stages.") for entry in layer):
        _drop(given, "stages.")
    for key, value, source in layer:
        hint = schema.expected(key)
        if hint is None or (key.startswith("stage_defaults") and by != "preset"):
            raise schema.unknown(key, source)
        checked = check_value(key, hint, value, source)
        match key.split("."):
            case ["stages", name]:
                check_value(f"{key}: the name of a stage", StageName, name, source)
                given.setdefault(key, Given(None, source, by))
            case ["stages", _, "rewards" | "mix" | "rewards_end" | "mix_end"]:
                _drop(given, f"{key}.")
        if not isinstance(value, dict):
            given[key] = Given(checked, source, by)


def _is_the_models_own(key: str, given: Mapping[str, Given]) -> bool:
    """Whether a model's preset gave the value. It was chosen for this model, so a strategy does not replace it; stages
    always come from the strategy."""
    return key in given and given[key].source.startswith("preset models/") and not key.startswith("stages.")


def _drop(given: dict[str, Given], prefix: str) -> None:
    for key in [key for key in given if key.startswith(prefix)]:
        del given[key]


def _stage_names(given: Mapping[str, Given]) -> list[str]:
    return [key.split(".")[1] for key in given if key.startswith("stages.") and key.count(".") == 1]


def _build(given: dict[str, Given], schema: Schema) -> Resolved:
    """Return the records with defaults and inherited stage values filled in."""
    adapted = given.get("model.adapter")
    _imply_adapter(given)
    if adapted is None or (adapted.value, adapted.by) != ("lora", "preset"):
        _leave_out_rate(given)
    sources: dict[str, str] = {}
    sections: dict[str, Any] = {}
    if constraints := given.get("grpo.constraints"):
        parse_constraints(constraints.value, constraints.source)
    given.setdefault("task.name", Given(schema.task.name, "default", "preset"))
    for name, record in schema.sections.items():
        values = {}
        for field in fields(record):
            item = given.setdefault(f"{name}.{field.name}", Given(field.default, "default", "preset"))
            values[field.name], sources[f"{name}.{field.name}"] = item.value, item.source
        sections[name] = record(**values)
    for key, (value, source, *instead) in sections["task"].derived.items():
        # nothing is derived in the place of what some layer gave, were it only a preset
        own = all(sources[f"task.{name}"] == "default" for name in (key, *instead))
        if own and value != getattr(sections["task"], key):
            sections["task"] = replace(sections["task"], **{key: value})
            sources[f"task.{key}"] = source
    stages = {name: _stage(name, given, sources, schema, sections["task"]) for name in _stage_names(given)}
    config = Config(**sections, stages=stages)
    check_together(config, sources, schema.task)
    # for its errors alone: `Task.warnings` returns its warnings to those who show them
    schema.task.check(config)
    return Resolved(config, sources)


def _imply_adapter(given: dict[str, Given]) -> None:
    """Turn the adapter on where one of its settings is given, unless as strong a layer gives `model.adapter`."""
    strength = ("preset", "user", "typed").index
    asked = [(strength(item.by), key) for key, item in given.items() if key.startswith("lora.")]
    own = given.get("model.adapter")
    if asked and (own is None or max(asked)[0] > strength(own.by)):
        key = max(asked)[1]
        given["model.adapter"] = Given("lora", f"derived, as {key} is given", given[key].by)


def _leave_out_rate(given: dict[str, Given]) -> None:
    """Leave the learning rates of a model's preset out where the user adds an adapter: they are for all weights."""
    if given.get("model.adapter", Given("none", "", "preset")).value != "lora":
        return
    for key in [key for key in given if key.endswith(".learning_rate")]:
        if given[key].source.startswith("preset models/"):
            given[key] = Given(0.0, f"left out, as that of {given[key].source} is for all weights", "preset")


def _stage(
    name: str, given: Mapping[str, Given], sources: dict[str, str], schema: Schema, task: TaskConfig
) -> StageConfig:
    """Return one stage and record its sources; settings that it lacks come from the run's sections."""
    prefix, adjust = f"stages.{name}", schema.task.rewards.adjust_weights
    tables = {table: _table(given, f"{prefix}.{table}") for table in ("rewards", "rewards_end", "mix", "mix_end")}
    weights, ends = tables["rewards"], tables["rewards_end"]
    if not any(weights.values()):
        hint = f"add `rewards = {{ {next(iter(schema.task.rewards.signals))} = 1.0 }}` below [{prefix}]"
        if f"{prefix}.learn" in given:  # not from rewards
            hint += ", which choose the best of its checkpoints"
        source = given[f"{prefix}.rewards.{next(iter(weights))}" if weights else prefix].source
        raise UsageError(f"{source}: stage {name} has no reward of any weight", hint=hint)
    chosen = {field: Given(value, "default", "preset") for field, value in OWN.items()}
    for field, key in INHERITED.items():
        chosen[field] = Given(given[key].value, f"stage default from {key}", given[key].by)
    rank = {}
    for field, inherited in chosen.items():
        stated = given.get(f"{prefix}.{field}")
        item = stated or given.get(f"stage_defaults.{name}.{field}") or inherited
        # how near a value is: typed over the stage's own over `stage_defaults`; of steps and epochs the nearer counts
        rank[field] = (item is not inherited) + (stated is not None) + (item.by == "typed")
        if item.by == "typed" or inherited.by != "typed":
            chosen[field] = item
    if rank["epochs"] > rank["steps"]:
        chosen["steps"] = Given(0, f"derived, as {prefix}.epochs is given", "preset")
    rewards = tables["rewards"] = dict(adjust(weights, task))
    if ends:
        moved = adjust({**weights, **ends}, task).items()
        ends = {signal: weight for signal, weight in moved if signal in ends or weight != rewards.get(signal)}
        tables["rewards_end"] = ends
    if chosen["mask_truncated"].value == "auto":
        trained = {**ends, **{signal: weight for signal, weight in rewards.items() if weight}}
        bounded = [one.measured for one in parse_constraints(chosen["constraints"].value, chosen["constraints"].source)]
        chosen["mask_truncated"] = _auto_mask([*trained, *bounded], schema.task)
    sources |= {f"{prefix}.{field}": item.source for field, item in chosen.items()}
    for table, content in tables.items():
        for key in (f"{prefix}.{table}.{entry}" for entry in content):
            derived = key not in given or (table == "rewards" and rewards != weights)
            sources[key] = f"task {schema.task.name}, derived" if derived else given[key].source
    settings: dict[str, Any] = {**tables, **{field: item.value for field, item in chosen.items()}}
    return StageConfig(**settings)


def _auto_mask(names: Iterable[str], task: ConfigurableTask) -> Given:
    """Return whether a stage that rewards or bounds what has these names leaves out truncated completions."""
    found = [name for name in names if name in task.by_length]
    what = "signal" if found and found[0] in task.rewards.signals else "constraint on"
    reason = f"{what} {found[0]} depends" if found else "no signal depends"
    return Given(not found, f"derived, as {reason} on length or truncation", "preset")


def _table(given: Mapping[str, Given], section: str) -> dict[str, float]:
    return {key.rpartition(".")[2]: item.value for key, item in given.items() if key.startswith(f"{section}.")}
