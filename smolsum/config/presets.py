"""Presets: TOML files of the folder `presets/` at the top of the repository, those of the tasks among them.

models/       a model with the data and the step sizes that suit it; `[stage_defaults.NAME]` holds values for the stages
              of that name, whichever strategy has them
strategies/   the stages of a run, for tasks without strategies of their own; in `rewards`, with weights or without, and
              in constraints the word "quality" stands for each of the signals of --reward, perhaps none. A constraint
              has it in the form `quality >= SHARE start` alone, as no number fits every signal
profiles/     everything else; every run starts from `default`, and one with the name of a strategy comes with that
tasks/        what a task adds to these: the keys are the fields of `TaskPresets`

To add a preset, add a file, or a table to the file of a task. It opens with a comment that names the table of the study
that it reproduces, or says that it reproduces no table. `read_file` reads a user's own configuration in the same way.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import tomli

from smolsum.config.sections import Config, TaskConfig
from smolsum.errors import UsageError, nearest

KINDS = ("profiles", "models", "strategies")
"""The folders of presets, which are also fields of `TaskPresets`."""
QUALITY = "quality"
"""in a strategy, the signals of --reward"""
Table = Mapping[str, Any]
"""nested tables, as a TOML file has them"""


@dataclass(frozen=True, kw_only=True)
class TaskPresets:
    """What is meant where a run of a task names no model, strategy or reward, and the presets that the task adds."""

    model: str = "tiny"
    """--model where none is given"""
    strategy: str = ""
    """--strategy where none is given; empty: the first of `strategies`"""
    reward: str = ""
    """--reward where none is given; empty: the strategies name all signals"""
    defaults: Table = field(default_factory=dict)
    """settings that override those of the model's shared preset"""
    models: Mapping[str, Table] = field(default_factory=dict)
    """presets for --model; one with the name of a shared preset adds to it"""
    strategies: Mapping[str, Table] = field(default_factory=dict)
    """presets for --strategy: tables with `stages`"""
    profiles: Mapping[str, Table] = field(default_factory=dict)
    """presets for --preset"""
    grid: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """what `all` means for `models`, `strategies` and `rewards`; by default all models and strategies above"""

    def __post_init__(self) -> None:
        object.__setattr__(self, "strategy", self.strategy or next(iter(self.strategies), ""))

    def everything(self, option: str) -> tuple[str, ...]:
        """What `all` means for one of `models`, `strategies` and `rewards`."""
        own: Mapping[str, Iterable[str]] = {"models": self.models, "strategies": self.strategies}
        return tuple(self.grid.get(option) or own.get(option, ()))


def task_presets(task: str) -> TaskPresets:
    """Return what `presets/tasks/TASK.toml` holds, with the shared strategies if it has none."""
    own = read_table("tasks", task)
    if "strategies" not in own:
        own["strategies"] = {name: read_table("strategies", name) for name in preset_names("strategies")}
    return TaskPresets(**own)


class ConfigurableTask(Protocol):
    """What a configuration needs to know of a task; `smolsum.tasks.base.Task`, of a package above this one,
    explains each field."""

    @property
    def name(self) -> str: ...
    @property
    def settings(self) -> type[TaskConfig]: ...
    @property
    def prompts(self) -> Any: ...
    @property
    def rewards(self) -> Any: ...
    @property
    def by_length(self) -> frozenset[str]: ...
    @property
    def evaluation(self) -> Any: ...
    @property
    def check(self) -> Callable[[Config], Sequence[str]]: ...
    @property
    def presets(self) -> TaskPresets: ...


class Entry(NamedTuple):
    """One dotted key, its value (for a table a dict, whose own entries follow) and its source."""

    key: str
    value: Any
    source: str


def preset_names(kind: str) -> tuple[str, ...]:
    """Return the sorted names of the shipped presets of one of `KINDS`."""
    files = (path.name for path in _folder(kind).iterdir())
    return tuple(sorted(name.removesuffix(".toml") for name in files if name.endswith(".toml")))


def read_preset(kind: str, name: str) -> list[Entry]:
    """Return the entries of a shipped preset, each with the source `preset KIND/NAME`."""
    return entries(read_table(kind, name), f"preset {kind}/{name}")


def read_table(kind: str, name: str) -> dict[str, Any]:
    """Return a shipped preset as nested tables."""
    return tomli.loads(_folder(kind).joinpath(f"{name}.toml").read_text(encoding="utf-8"))


def entries(table: Table, source: str) -> list[Entry]:
    """Return the entries of nested tables that come from one place."""
    return [Entry(key, value, source) for key, value in walk(table)]


def read_file(path: Path) -> list[Entry]:
    """Return the entries of a configuration file, each with the source `PATH:LINE`.

    Raises UsageError where the file is missing, unreadable or not TOML (with line and column).
    """
    try:
        text = path.read_text(encoding="utf-8-sig")  # some editors begin a file with a byte order mark
        document = tomli.loads(text)
    except tomli.TOMLDecodeError as error:
        raise UsageError(
            f"{path}:{error.lineno}:{error.colno}: not TOML: {_lower(error.msg)}",
            hint='a line is a [section] or `key = value`, with texts in "quotes"',
        ) from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: not UTF-8 text", hint="save the file as UTF-8") from error
    except OSError as error:
        inside = path / "config.toml"
        hint = f"--config {inside}" if inside.is_file() else "check the path given with --config"
        raise UsageError(
            f"cannot read the configuration file {path}: {_lower(str(error.strerror))}", hint=hint
        ) from error
    lines = line_numbers(text)
    return [Entry(key, value, f"{path}:{lines[key]}" if key in lines else str(path)) for key, value in walk(document)]


def walk(table: Table, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every dotted key with its value, a table before what is in it."""
    for name, value in table.items():
        key = f"{prefix}{name}"
        yield key, value
        if isinstance(value, dict):
            yield from walk(value, f"{key}.")


def leaves(table: Table) -> dict[str, Any]:
    """Return every dotted key whose value is not a table, with its value."""
    return {key: value for key, value in walk(table) if not isinstance(value, dict)}


def line_numbers(text: str) -> dict[str, int]:
    """Return the line, from 1, on which each dotted key of a valid TOML text first appears.

    tomli gives no positions. A statement ends where the lines since the last one parse below their header, so
    strings and arrays over several lines need no care.
    """
    found: dict[str, int] = {}
    header, statement, start = "", "", 1
    for number, line in enumerate(text.split("\n"), start=1):
        statement += line + "\n"
        is_header = statement.lstrip().startswith("[")
        try:
            table = tomli.loads(statement if is_header else header + statement)
        except tomli.TOMLDecodeError:
            continue
        for key, _ in walk(table):
            found.setdefault(key, start)
        header = statement if is_header else header
        statement, start = "", number + 1
    return found


def _lower(sentence: str) -> str:
    return sentence[:1].lower() + sentence[1:]


def _folder(kind: str) -> Traversable:
    """Inside the package in a wheel, otherwise next to it, at the top of the repository."""
    packed = resources.files("smolsum") / "presets"
    root = packed if packed.is_dir() else Path(str(packed)).parents[1] / "presets"
    return root / kind


def names_for(task: ConfigurableTask, kind: str) -> tuple[str, ...]:
    """Return the sorted names of one of `KINDS`; strategies are the task's alone."""
    shipped = () if kind == "strategies" else preset_names(kind)
    return tuple(sorted({*shipped, *getattr(task.presets, kind)}))


def find_preset(
    task: ConfigurableTask, name: str, tasks: Mapping[str, ConfigurableTask] | None = None
) -> list[tuple[str, str]]:
    """Return kind and name of a preset, and where a strategy has a profile of its name, of both. UsageError for an
    unknown one, with the nearest name, and for one of another of the `tasks`, with its name."""
    if found := [(kind, name) for kind in KINDS if name in names_for(task, kind)]:
        return found
    if owners := [key for key, one in (tasks or {}).items() if any(name in names_for(one, kind) for kind in KINDS)]:
        raise UsageError(
            f"preset {name!r} belongs to the task {' and '.join(owners)}, not to {task.name}",
            hint=f"--task {owners[0]}, or leave --preset {name} out",
        )
    hint = "a file of your own is given with --config" if name.endswith(".toml") else None
    known = [name for kind in KINDS for name in names_for(task, kind)]
    raise UsageError(f"unknown preset {name!r}", hint=hint or nearest(name, known))


def read_for(task: ConfigurableTask, kind: str, name: str) -> list[Entry]:
    """Return the entries of a preset, each with the source `preset KIND/NAME`, later ones override earlier ones: the
    shared preset, for a model the task's defaults, and the task's own preset of this name."""
    shipped = read_preset(kind, name) if kind != "strategies" and name in preset_names(kind) else []
    own = getattr(task.presets, kind).get(name, {})
    return shipped + (task_defaults(task) if kind == "models" else []) + entries(own, f"preset {kind}/{name}")


def task_defaults(task: ConfigurableTask) -> list[Entry]:
    """Return what the task sets for every model."""
    return entries(task.presets.defaults, f"task {task.name}")
