"""Plugins: a user's Python files, and packages that declare the entry point `smolsum.plugins`, with rewards (functions
marked with `smolsum.reward`), a task (`TASK`) and criteria for a judge (`CRITERIA`).

`use_plugins` adds them to `TASKS` for the command that runs. A file is executed because the user named it in this
command or in a configuration file; one that a run's directory names, or holds, is not.
"""

import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from smolsum import console
from smolsum.config.presets import Entry, read_file
from smolsum.errors import SmolsumError, UsageError
from smolsum.runs.paths import RunPaths
from smolsum.runs.record_io import read
from smolsum.runs.records import PluginInfo, RunInfo
from smolsum.tasks import TASKS
from smolsum.tasks.base import Task
from smolsum.tasks.custom_rewards import with_rewards
from smolsum.tasks.plugin_files import Plugin, load_file, load_package, split_reference, wrap_function
from smolsum.types import COMPOSITE, PASS_RATE, PASSED, Criterion

GROUP = "smolsum.plugins"
"""of entry points"""
RENAME = "give it another name"

_shipped: dict[str, Task] = {}
"""the tasks of this package, as they are without plugins"""
_loaded: list[Plugin] = []


def loaded_plugins() -> tuple[Plugin, ...]:
    """Return the plugins of this command, those that were named first."""
    return tuple(_loaded)


def use_plugins(files: Sequence[str] = (), functions: Sequence[Callable[..., Any]] = ()) -> None:
    """Load these files (`FILE.py` or `FILE.py:FUNCTION`) and the installed plugins, make rewards of the functions, and
    give `TASKS` what they add, in place of what an earlier call added.

    Raises UsageError for a file that cannot be loaded or adds nothing, and for names that are taken. An installed
    plugin that fails is left out with a warning.
    """
    installed = entry_points(group=GROUP)
    if not (files or functions or installed or _loaded):
        return
    if not _shipped:
        _shipped.update(TASKS)
    taken = {name for task in _shipped.values() for name in (*task.rewards.signals, *_columns(task))}
    plugins: list[Plugin] = []
    for text in dict.fromkeys(files):
        plugins.append(load_file(text, taken))
        taken |= {reward.name for reward in plugins[-1].rewards}
    for function in functions:
        plugins.append(wrap_function(function, taken))
        taken |= {reward.name for reward in plugins[-1].rewards}
    for point in installed:
        try:
            plugins.append(load_package(point, taken))
        except SmolsumError as error:
            console.warn(f"installed plugin {point.name} is left out: {error.message}")
            continue
        taken |= {reward.name for reward in plugins[-1].rewards}
    tasks = dict(_shipped)
    for plugin in plugins:
        for task in plugin.tasks:
            if task.name in tasks:
                raise UsageError(
                    f"{plugin.path.name}: the name of task {task.name!r} is taken", hint='rename it: Task(name="…")'
                )
            tasks[task.name] = task
    rewards = [reward for plugin in plugins for reward in plugin.rewards]
    named = {reward.name for plugin in plugins if plugin.named for reward in plugin.rewards}
    criteria = tuple(one for plugin in plugins for one in plugin.criteria)
    names = [one.name for one in criteria]
    for name in names:
        if names.count(name) > 1 or name in taken or name in (COMPOSITE, PASS_RATE, PASSED):
            raise UsageError(
                f"the criterion {name!r} has the name of another one, or of a signal or metric", hint=RENAME
            )
    extended = {name: with_rewards(_with_criteria(task, criteria), rewards, named) for name, task in tasks.items()}
    TASKS.clear()
    TASKS.update(extended)
    _loaded[:] = plugins


def signal_of(function: Callable[..., Any]) -> str:
    """Return the name of the signal that `use_plugins` made of a function."""
    return next(reward.name for plugin in _loaded for reward in plugin.rewards if reward.function is function)


def task_of(text: str) -> str:
    """Return the name of the task that a plugin's file `text` has. Raises UsageError unless it has one."""
    path = Path(text).expanduser().resolve()
    names = [task.name for plugin in _loaded if plugin.path == path for task in plugin.tasks]
    if len(names) != 1:
        raise UsageError(f"--task {text}: the file has no TASK", hint="TASK = smolsum.Task(name=…, rewards=…, …)")
    return names[0]


def _columns(task: Task) -> Iterator[str]:
    """Yield the columns that rows of scores have already."""
    yield from ("id", "split", "data", "text", "judge", "reward")
    for table in task.evaluation.tables:
        for metric in table.metrics:
            yield metric.column or metric.name
    for criterion in task.evaluation.criteria:
        yield criterion.name


def _with_criteria(task: Task, criteria: tuple[Criterion, ...]) -> Task:
    """Return the task with more criteria for a judge, after its own."""
    if not criteria:
        return task
    own = {one.name for one in task.evaluation.criteria}
    if double := [one.name for one in criteria if one.name in own]:
        raise UsageError(f"task {task.name} has a criterion {double[0]!r} already", hint=RENAME)
    evaluation = task.evaluation
    return replace(task, evaluation=replace(evaluation, criteria=(*evaluation.criteria, *criteria)))


def name_plugins(named: Sequence[str], task: str | None, config_file: Path | None) -> tuple[str | None, str | None]:
    """Use the plugins that a command names: with --plugin, as a file with --task, and in `[run] plugins` of its
    configuration file. Returns the task's name and the value of `run.plugins`, None where nothing is named.

    Raises UsageError where the configuration file is that of a run, and its plugins are not named again.
    """
    files = [*named, *([task] if task and task.endswith(".py") else [])]
    listed = _listed_in(config_file)
    if config_file is not None and (config_file.resolve().parent / "run.json").exists():
        known = {split_reference(text)[0].name for text in files}
        if lacking := [text for text in listed if split_reference(text)[0].name not in known]:
            raise UsageError(
                f"{config_file} is the configuration of a run that executes {lacking[0]}, and code that came with "
                "a run is executed only when it is named",
                hint=f"--plugin {shlex.quote(lacking[0])}",
            )
    else:
        files += listed
    if commas := [text for text in files if "," in text]:
        raise UsageError(f"the path of plugin {commas[0]!r} has a comma", hint="rename the file")
    use_plugins(files)
    return task_of(task) if task and task.endswith(".py") else task, ",".join(files) or None


def _listed_in(config_file: Path | None) -> list[str]:
    """Return the plugins that a configuration file lists."""
    entries: list[Entry] = []
    with suppress(UsageError):  # reported where the settings are read
        entries = read_file(config_file) if config_file else []
    values = [entry.value for entry in entries if entry.key == "run.plugins" and isinstance(entry.value, str)]
    return [text.strip() for value in values for text in value.split(",") if text.strip()]


def require_plugins(run: RunPaths) -> None:
    """Raise UsageError unless the plugins of an existing run are loaded, unchanged."""
    recorded_plugins: list[PluginInfo] = []
    with suppress(SmolsumError):  # a damaged file is reported where the run is resumed
        recorded_plugins = read(run.info, RunInfo).plugins if run.info.exists() else []
    given = {plugin.sha256 for plugin in _loaded}
    for recorded in recorded_plugins:
        if recorded.sha256 in given:
            continue
        path = split_reference(recorded.path)[0]
        copy = run.plugins / path.name
        changed = next((one for one in _loaded if one.path.name == path.name), None)
        if changed is not None:
            raise UsageError(
                f"plugin {path.name} has changed since run {run.name} began (sha256 {recorded.sha256[:12]} then, "
                f"{changed.sha256[:12]} now)",
                hint=f"a new run with the new file: smolsum train --config {shlex.quote(str(run.config))} --plugin "
                f"{shlex.quote(changed.reference)} --name OTHER; the file as it was: {copy}",
            )
        raise UsageError(
            f"run {run.name} executes the plugin {path.name}, and code that came with a run is executed only "
            "when it is named",
            hint=f"--plugin {shlex.quote(recorded.path if path.exists() else str(copy))}",
        )


def digests(signals: Iterable[str]) -> Mapping[str, str]:
    """Return the sha256 of the plugin of each of these signals that has one."""
    known = {reward.name: reward.sha256 for plugin in _loaded for reward in plugin.rewards}
    return {name: known[name] for name in signals if name in known}
