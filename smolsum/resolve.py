"""From presets, files, the environment and flags to one `Config`, with the origin of every value.

Low to high: defaults of the records < profiles/default < model preset < --preset < --config < environment
(folders and workers, never a hyperparameter) < flags and --set. A layer that has stages replaces those below it
wholesale, and so do --strategy and --reward. A stage inherits what it leaves out; and what is typed for the
whole run (`--set grpo.beta=0.1`) also replaces what files say of single stages, or it would do nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal

import tomli

from smolsum.combinations import check_combinations
from smolsum.config import FIELDS, KNOWN_REWARDS, SECTIONS, STAGE_FIELDS, Config, StageConfig, to_toml
from smolsum.errors import UsageError
from smolsum.presets import Entry, find_preset, line_numbers, preset_names, read_file, read_preset, walk
from smolsum.values import StageName, base_type, check_value, nearest

DEFAULT_MODEL, DEFAULT_STRATEGY, DEFAULT_REWARD = "tiny", "finetuned", "meteor"
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
    shipped = [find_preset(name) for name in presets]
    own = [] if config_file is None else read_file(config_file)
    typed = [Entry(key, value, "flag") for key, value in flags.items() if value is not None]
    for text in sets:
        typed += _parse_set(text)
    layers = [read_preset(kind, name) for kind, name in shipped if kind != "strategies"]
    if model is not None:
        path, preset = _model_layer(model)
        typed.insert(0, Entry("model.path", path, "flag --model"))
        layers.insert(0, preset)
    elif not any(entry.key == "model.path" for layer in [*layers, own, typed] for entry in layer):
        layers.insert(0, read_preset("models", DEFAULT_MODEL))

    given: dict[str, Given] = {}
    for layer in [read_preset("profiles", "default"), *layers]:
        _lay(given, layer, "preset")
    _lay(given, own, "user")
    for variable, key in ENVIRONMENT.items():
        if environ.get(variable):
            _lay(given, [Entry(key, environ[variable], f"environment {variable}")], "user")
    if strategy is not None or reward is not None or not _stage_names(given):
        chosen = [DEFAULT_STRATEGY, *(name for kind, name in shipped if kind == "strategies")][-1]
        _lay(given, _strategy_layer(chosen if strategy is None else strategy, reward), "preset")
    _lay(given, typed, "typed")
    return _build(given)


def parse_reward(text: str, known: Sequence[str] = KNOWN_REWARDS) -> tuple[str, ...]:
    """Returns the signals of a reward such as `meteor-rouge`; UsageError where one is unknown or doubled."""
    signals = tuple(text.split("-"))
    for signal in signals:
        if signal not in known:
            raise UsageError(f"flag --reward: unknown signal {signal!r} in {text!r}", hint=nearest(signal, known))
    if len(set(signals)) < len(signals):
        hint = f"--reward {'-'.join(dict.fromkeys(signals))}, and --set for weights"
        raise UsageError(f"flag --reward: {text!r} names a signal twice", hint=hint)
    return signals


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
    return _model_layer(model)[0]


def _model_layer(model: str) -> tuple[str, list[Entry]]:
    """Returns the model path that --model stands for, and its preset's entries where it is one."""
    names = preset_names("models")
    if model in names:
        preset = read_preset("models", model)
        return next(entry.value for entry in preset if entry.key == "model.path"), preset
    if "/" in model or model.startswith("builtin:") or Path(model).exists():
        return model, []
    options = [*names, "a local directory", "a hub id (OWNER/NAME)"]
    raise UsageError(f"flag --model: unknown model {model!r}", hint=nearest(model, options))


def _strategy_layer(strategy: str, reward: str | None) -> list[Entry]:
    """Returns a strategy's stages with their signals, without the stages that no signal is left for."""
    if strategy not in preset_names("strategies"):
        hint = nearest(strategy, preset_names("strategies"))
        raise UsageError(f"flag --strategy: unknown strategy {strategy!r}", hint=hint)
    signals = parse_reward(DEFAULT_REWARD if reward is None else reward)
    quality = () if signals == ("length",) else signals
    quality_source = f"default reward {DEFAULT_REWARD}" if reward is None else "flag --reward"
    layer, empty = [], set()
    for key, value, source in read_preset("strategies", strategy):
        if not key.endswith(".rewards"):
            layer.append(Entry(key, value, source))
            continue
        weights: dict[str, str] = {}
        for word in value:
            weights |= dict.fromkeys(quality, quality_source) if word == "quality" else {word: source}
        layer += [Entry(f"{key}.{signal}", 1.0, origin) for signal, origin in weights.items()]
        if not weights:
            empty.add(key.removesuffix(".rewards"))
    return [entry for entry in layer if ".".join(entry.key.split(".")[:2]) not in empty]


def _parse_set(text: str) -> list[Entry]:
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
    if len(document) == 1 and (isinstance(document["value"], str) or base_type(_expected(key)) is not str):
        value = document["value"]
    return [Entry(key, value, "--set") for key, value in walk({key: value})]


def _expected(key: str) -> Any:
    """Returns the type of a dotted key: a hint, `dict` for a table, None where there is no such key."""
    match key.split("."):
        case ["stages" | "stage_defaults"] | ["stages" | "stage_defaults", _]:
            return dict
        case [section]:
            return dict if section in SECTIONS else None
        case ["stages", _, "rewards", signal]:
            return float if signal in KNOWN_REWARDS else None
        case ["stages" | "stage_defaults", _, name]:
            return STAGE_FIELDS.get(name)
        case _:
            return FIELDS.get(key)


def _lay(given: dict[str, Given], layer: Sequence[Entry], by: Literal["preset", "user", "typed"]) -> None:
    """Checks a layer and puts it over `given`; what is typed edits stages, any other layer replaces them."""
    if by != "typed" and any(entry.key.startswith("stages.") for entry in layer):
        _drop(given, "stages.")
    for key, value, source in layer:
        hint = _expected(key)
        if hint is None or (key.startswith("stage_defaults") and by != "preset"):
            raise _unknown(key, source)
        checked = check_value(key, hint, value, source)
        match key.split("."):
            case ["stages", name, *_] if by == "typed" and f"stages.{name}" not in given:
                names = _stage_names(given)
                raise UsageError(f"{source}: {key}: the run has no stage {name!r}", hint=nearest(name, names))
            case ["stages", name]:
                check_value(f"{key}: the name of a stage", StageName, name, source)
                given.setdefault(key, Given(None, source, by))
            case ["stages", _, "rewards"]:
                _drop(given, f"{key}.")
        if not isinstance(value, dict):
            given[key] = Given(checked, source, by)


def _drop(given: dict[str, Given], prefix: str) -> None:
    for key in [key for key in given if key.startswith(prefix)]:
        del given[key]


def _unknown(key: str, source: str) -> UsageError:
    """Returns the error for a key that does not exist, with the nearest that does."""
    section, _, name = key.rpartition(".")
    if section.endswith(".rewards"):
        return UsageError(f"{source}: unknown signal {name!r} in {section}", hint=nearest(name, KNOWN_REWARDS))
    stage_keys = [f"{section}.{field}" for field in STAGE_FIELDS] if section.startswith("stages.") else []
    known = [*SECTIONS, "stages", *FIELDS, *stage_keys]
    siblings = {other.rpartition(".")[2]: other for other in known if other.rpartition(".")[0] == section}
    close = [siblings[match] for match in get_close_matches(name, siblings, n=1)]
    close += [other for other in known if other.rpartition(".")[2] == name]
    close += get_close_matches(key, known, n=1)
    choice = ", ".join(siblings.values() or [*SECTIONS, "stages"])
    hint = f"did you mean {close[0]}?" if close else f"choose from {choice}"
    return UsageError(f"{source}: unknown key {key!r}", hint=hint)


def _stage_names(given: Mapping[str, Given]) -> list[str]:
    return [key.split(".")[1] for key in given if key.startswith("stages.") and key.count(".") == 1]


def _build(given: dict[str, Given]) -> Resolved:
    """Returns the records made of what is given, defaults and inherited stage values filled in."""
    _imply_adapter(given)
    sources: dict[str, str] = {}
    sections: dict[str, Any] = {}
    for name, record in SECTIONS.items():
        values = {}
        for field in fields(record):
            item = given.setdefault(f"{name}.{field.name}", Given(field.default, "default", "preset"))
            values[field.name], sources[f"{name}.{field.name}"] = item.value, item.source
        sections[name] = record(**values)
    stages = {name: _stage(name, given, sources) for name in _stage_names(given)}
    config = Config(**sections, stages=stages)
    check_combinations(config, sources)
    return Resolved(config, sources)


def _imply_adapter(given: dict[str, Given]) -> None:
    """A setting of the adapter asks for it, unless `model.adapter` is given by as strong a layer."""
    strength = ("preset", "user", "typed").index
    asked = [(strength(item.by), key) for key, item in given.items() if key.startswith("lora.")]
    own = given.get("model.adapter")
    if asked and (own is None or max(asked)[0] > strength(own.by)):
        key = max(asked)[1]
        given["model.adapter"] = Given("lora", f"derived, as {key} is given", given[key].by)


def _stage(name: str, given: Mapping[str, Given], sources: dict[str, str]) -> StageConfig:
    """Returns one stage and notes its sources; what it is not given itself comes from the run's sections."""
    prefix = f"stages.{name}"
    weights = {key: item for key, item in given.items() if key.startswith(f"{prefix}.rewards.")}
    if not any(item.value for item in weights.values()):
        hint = f"add `rewards = {{ meteor = 1.0 }}` below [{prefix}]"
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
    rewards = {key.rpartition(".")[2]: item.value for key, item in weights.items()}
    return StageConfig(rewards=rewards, **{field: item.value for field, item in chosen.items()})
