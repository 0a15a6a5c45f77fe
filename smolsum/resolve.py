"""From presets, files, the environment and flags to one `Config`, with the origin of every value.

Low to high: defaults of the records < profiles/default < model preset < the task's < --preset < --config < environment
(folders and workers, never a hyperparameter) < flags and --set. Which task it is decides what else may be set. A layer
that has stages replaces those below it wholesale, and so do --strategy and --reward. A stage inherits what it leaves
out; and what is typed for the whole run (`--set grpo.beta=0.1`) also replaces what files say of single stages, or it
would do nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

import tomli

from smolsum import shelf, strategies
from smolsum.combinations import check_combinations
from smolsum.config import Config, StageConfig, to_toml
from smolsum.errors import UsageError
from smolsum.presets import Entry, line_numbers, read_file, read_preset, walk
from smolsum.schema import Schema
from smolsum.tasks import DEFAULT_TASK, TASKS
from smolsum.tasks.task import Task
from smolsum.values import StageName, base_type, check_value, nearest

INHERITED = {
    "temperature": "sampling.temperature",
    "learning_rate": "optimizer.learning_rate",
    "schedule": "optimizer.schedule",
    "warmup_steps": "optimizer.warmup_steps",
    "beta": "grpo.beta",
}
"""Where a stage takes what it leaves out."""
ENVIRONMENT = {"SMOLSUM_RUNS_DIR": "run.dir", "SMOLSUM_WORKERS": "workers.urls"}
"""Context that a variable gives."""


@dataclass(frozen=True)
class Resolved:
    """A configuration, and for each dotted key the place that its value came from."""

    config: Config
    sources: Mapping[str, str]


@dataclass(frozen=True)
class Given:
    """A checked value, its source, and what kind of layer gave it: `typed` is for this very run."""

    value: Any
    source: str
    by: Literal["preset", "user", "typed"]


def resolve(
    *,
    model: str | None,
    strategy: str | None,
    reward: str | None,
    presets: Sequence[str],
    config_file: Path | None,
    sets: Sequence[str],
    flags: Mapping[str, Any],
    environ: Mapping[str, str],
) -> Resolved:
    """Returns the configuration of a run and the origin of its values.

    `flags` holds further options by dotted key, None for one that was not given; of `environ` only what
    ENVIRONMENT names is read. UsageError names the source of whatever is wrong, even where a later layer wins.
    """
    own = [] if config_file is None else read_file(config_file)
    named = [Entry(key, value, "flag") for key, value in flags.items() if value is not None]
    task = _find_task([*(entry for text in reversed(sets) for entry in _split_set(text)), *named, *own])
    schema = Schema(task)
    typed = named + [entry for text in sets for entry in _parse_set(text, schema)]
    shipped = [shelf.find(task, name) for name in presets]
    layers = [shelf.read(task, kind, name) for kind, name in shipped if kind != "strategies"]
    if model is not None:
        path, preset = _model_layer(model, task)
        typed.insert(0, Entry("model.path", path, "flag --model"))
        layers.insert(0, preset)
    elif any(entry.key == "model.path" for layer in [*layers, own, typed] for entry in layer):
        layers.insert(0, shelf.defaults(task))
    else:
        layers.insert(0, shelf.read(task, "models", task.model))

    given: dict[str, Given] = {}
    for layer in [read_preset("profiles", "default"), *layers]:
        _lay(given, layer, "preset", schema)
    _lay(given, own, "user", schema)
    for variable, key in ENVIRONMENT.items():
        if environ.get(variable):
            _lay(given, [Entry(key, environ[variable], f"environment {variable}")], "user", schema)
    if strategy is not None or reward is not None or not _stage_names(given):
        chosen = [task.strategy, *(name for kind, name in shipped if kind == "strategies")][-1]
        layer = strategies.layer(chosen if strategy is None else strategy, reward, task)
        _lay(given, [entry for entry in layer if not _is_the_models_own(entry.key, given)], "preset", schema)
    _lay(given, typed, "typed", schema)
    return _build(given, schema)


def _find_task(given: Sequence[Entry]) -> Task:
    """The task that is named first in what is given, the strongest first, or else the default."""
    entry = next((entry for entry in given if entry.key == "task.name"), None)
    if entry is None:
        return TASKS[DEFAULT_TASK]
    return TASKS[check_value("task.name", Literal[tuple(TASKS)], entry.value, entry.source)]


def render_with_sources(resolved: Resolved) -> str:
    """Returns the configuration as TOML with the source of each value in a comment behind it."""
    text = to_toml(resolved.config)
    lines = text.split("\n")
    for key, number in line_numbers(text).items():
        if key in resolved.sources:
            lines[number - 1] = f"{lines[number - 1]:<40}  # {resolved.sources[key]}"
    return "\n".join(lines)


def model_path(model: str) -> str:
    """Returns what `load_policy` takes for a value of --model: a preset's model, a directory or a hub id."""
    task = next((task for task in TASKS.values() if model in task.models), TASKS[DEFAULT_TASK])
    return _model_layer(model, task)[0]


def _model_layer(model: str, task: Task) -> tuple[str, list[Entry]]:
    """Returns the model path that --model stands for, and the entries of its preset, or of the task where it has
    none."""
    names = shelf.names(task, "models")
    if model in names:
        preset = shelf.read(task, "models", model)
        return [entry.value for entry in preset if entry.key == "model.path"][-1], preset
    if "/" in model or model.startswith("builtin:") or Path(model).exists():
        return model, shelf.defaults(task)
    options = [*names, "a local directory", "a hub id (OWNER/NAME)"]
    raise UsageError(f"flag --model: unknown model {model!r}", hint=nearest(model, options))


def _split_set(text: str) -> list[Entry]:
    """Returns key and bare text of one `--set key=value`; nothing where it is not of that form."""
    key, equals, right = (part.strip() for part in text.partition("="))
    return [Entry(key, right.strip("\"'"), "--set")] if key and equals else []


def _parse_set(text: str, schema: Schema) -> list[Entry]:
    """Returns the entries of one `--set key=value`; the value is TOML where it can be, else a bare text."""
    key, equals, right = (part.strip() for part in text.partition("="))
    if not (key and equals):
        raise UsageError(f"--set {text}: not of the form key=value", hint="--set grpo.beta=0.05")
    value: Any = right
    try:
        document = tomli.loads(f"value = {right}")
    except tomli.TOMLDecodeError:
        document = {}
    # a text may look like a number, and a line break in the value must not become a second key
    if len(document) == 1 and (isinstance(document["value"], str) or base_type(schema.expected(key)) is not str):
        value = document["value"]
    return [Entry(key, value, "--set") for key, value in walk({key: value})]


def _lay(
    given: dict[str, Given], layer: Sequence[Entry], by: Literal["preset", "user", "typed"], schema: Schema
) -> None:
    """Checks a layer and puts it over `given`; what is typed edits stages, any other layer replaces them."""
    if by != "typed" and any(entry.key.startswith("stages.") for entry in layer):
        _drop(given, "stages.")
    for key, value, source in layer:
        hint = schema.expected(key)
        if hint is None or (key.startswith("stage_defaults") and by != "preset"):
            raise schema.unknown(key, source)
        checked = check_value(key, hint, value, source)
        match key.split("."):
            case ["stages", name, *_] if by == "typed" and f"stages.{name}" not in given:
                names = _stage_names(given)
                raise UsageError(f"{source}: {key}: the run has no stage {name!r}", hint=nearest(name, names))
            case ["stages", name]:
                check_value(f"{key}: the name of a stage", StageName, name, source)
                given.setdefault(key, Given(None, source, by))
            case ["stages", _, "rewards" | "mix"]:
                _drop(given, f"{key}.")
        if not isinstance(value, dict):
            given[key] = Given(checked, source, by)


def _is_the_models_own(key: str, given: Mapping[str, Given]) -> bool:
    """Whether a model's preset gave the value, which then stays whatever a strategy has: it was chosen for this model.
    Stages are the strategy's."""
    return key in given and given[key].source.startswith("preset models/") and not key.startswith("stages.")


def _drop(given: dict[str, Given], prefix: str) -> None:
    for key in [key for key in given if key.startswith(prefix)]:
        del given[key]


def _stage_names(given: Mapping[str, Given]) -> list[str]:
    return [key.split(".")[1] for key in given if key.startswith("stages.") and key.count(".") == 1]


def _build(given: dict[str, Given], schema: Schema) -> Resolved:
    """Returns the records made of what is given, defaults and inherited stage values filled in."""
    _imply_adapter(given)
    sources: dict[str, str] = {}
    sections: dict[str, Any] = {}
    given.setdefault("task.name", Given(schema.task.name, "default", "preset"))
    for name, record in schema.sections.items():
        values = {}
        for field in fields(record):
            item = given.setdefault(f"{name}.{field.name}", Given(field.default, "default", "preset"))
            values[field.name], sources[f"{name}.{field.name}"] = item.value, item.source
        sections[name] = record(**values)
    stages = {name: _stage(name, given, sources, schema) for name in _stage_names(given)}
    for name, stage in stages.items():
        weights = dict(schema.task.weigh(stage.rewards, sections["task"]))
        if weights != stage.rewards:
            for signal in stage.rewards:
                del sources[f"stages.{name}.rewards.{signal}"]
            sources |= dict.fromkeys(
                (f"stages.{name}.rewards.{s}" for s in weights), f"task {schema.task.name}, derived"
            )
            stages[name] = replace(stage, rewards=weights)
    config = Config(**sections, stages=stages)
    check_combinations(config, sources)
    schema.task.check(config)
    return Resolved(config, sources)


def _imply_adapter(given: dict[str, Given]) -> None:
    """A setting of the adapter asks for it, unless `model.adapter` is given by as strong a layer."""
    strength = ("preset", "user", "typed").index
    asked = [(strength(item.by), key) for key, item in given.items() if key.startswith("lora.")]
    own = given.get("model.adapter")
    if asked and (own is None or max(asked)[0] > strength(own.by)):
        key = max(asked)[1]
        given["model.adapter"] = Given("lora", f"derived, as {key} is given", given[key].by)


def _stage(name: str, given: Mapping[str, Given], sources: dict[str, str], schema: Schema) -> StageConfig:
    """Returns one stage and notes its sources; what it is not given itself comes from the run's sections."""
    prefix = f"stages.{name}"
    weights = {key: item for key, item in given.items() if key.startswith(f"{prefix}.rewards.")}
    if not any(item.value for item in weights.values()):
        hint = f"add `rewards = {{ {next(iter(schema.task.signals))} = 1.0 }}` below [{prefix}]"
        source = next(iter(weights.values()), given[prefix]).source
        raise UsageError(f"{source}: stage {name} has no reward of any weight", hint=hint)
    chosen = {"steps": Given(0, "default", "preset"), "epochs": Given(1.0, "default", "preset")}
    for field, key in INHERITED.items():
        chosen[field] = Given(given[key].value, f"stage default from {key}", given[key].by)
    rank = {}
    for field, inherited in chosen.items():
        own = given.get(f"{prefix}.{field}")
        item = own or given.get(f"stage_defaults.{name}.{field}") or inherited
        rank[field] = (item is not inherited) + (own is not None) + (item.by == "typed")
        if item.by == "typed" or inherited.by != "typed":
            chosen[field] = item
    if rank["epochs"] > rank["steps"]:
        chosen["steps"] = Given(0, f"derived, as {prefix}.epochs is given", "preset")
    for key, item in (*weights.items(), *((f"{prefix}.{field}", item) for field, item in chosen.items())):
        sources[key] = item.source
    rewards, mix = _table(given, f"{prefix}.rewards"), _table(given, f"{prefix}.mix")
    sources.update({f"{prefix}.mix.{kind}": given[f"{prefix}.mix.{kind}"].source for kind in mix})
    return StageConfig(rewards=rewards, mix=mix, **{field: item.value for field, item in chosen.items()})


def _table(given: Mapping[str, Given], section: str) -> dict[str, float]:
    """The values of a table of numbers, by their names."""
    return {key.rpartition(".")[2]: item.value for key, item in given.items() if key.startswith(f"{section}.")}
