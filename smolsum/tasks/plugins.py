"""Plugins: a user's Python files, and packages that declare the entry point `smolsum.plugins`, with rewards (functions
marked with `smolsum.reward`), a task (`TASK`) and criteria for a judge (`CRITERIA`).

`use_plugins` adds them to `TASKS` for the command that runs. A file is executed because the user named it in this
command or in a configuration file; one that a run's directory names, or holds, is not.
"""

import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from hashlib import sha256
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from smolsum import console
from smolsum.config.presets import Entry, read_file
from smolsum.errors import SmolsumError, UsageError
from smolsum.rewards.judge import JudgeSignal
from smolsum.runs.evaluation_records import SCORE_KEYS
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
COLUMNS = {*SCORE_KEYS, "sample", "reward", "tokens", "error", COMPOSITE, PASS_RATE, PASSED}
"""of rows of scores, besides metrics, and of tables that show them"""

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
    known = _KnownNames(_shipped)
    references = dict.fromkeys(split_reference(text) for text in files)
    plugins = [load_file(path, function) for path, function in references]
    plugins += [wrap_function(function) for function in functions]
    for plugin in plugins:
        known.add(plugin)
    for point in installed:
        try:
            plugin = load_package(point)
            known.add(plugin)
        except SmolsumError as error:
            console.warn(f"installed plugin {point.name} is left out: {error.message}")
            continue
        plugins.append(plugin)
    rewards = [reward for plugin in plugins for reward in plugin.rewards]
    named = {reward.name for plugin in plugins if plugin.named for reward in plugin.rewards}
    criteria = tuple(one for plugin in plugins for one in plugin.criteria)
    tasks = {name: _with_criteria(task, criteria) for name, task in known.tasks.items()}
    TASKS.clear()
    TASKS.update({name: with_rewards(task, rewards, named) for name, task in tasks.items()})
    _loaded[:] = plugins


class _KnownNames:
    """The tasks, and the names that their signals, criteria, metrics and columns have; a plugin's rewards and criteria
    join those of every task."""

    def __init__(self, tasks: Mapping[str, Task]) -> None:
        self.tasks = dict(tasks)
        self._taken = {*COLUMNS, *(name for task in tasks.values() for name in _names(task))}
        self._added: set[str] = set()

    def add(self, plugin: Plugin) -> None:
        """Add what a plugin has. Raises UsageError, and adds nothing, where one of its names is taken."""
        kinds = [("reward", one.name) for one in plugin.rewards]
        kinds += [("the criterion", one.name) for one in plugin.criteria]
        own = {name for task in plugin.tasks for name in _names(task)}
        added: set[str] = set()
        for kind, name in kinds:
            if name in self._taken | own | added:
                raise UsageError(
                    f"{plugin.path.name}: {kind} {name!r} has the name of another signal, criterion, metric or column",
                    hint='rename it: @smolsum.reward(name="…")' if kind == "reward" else "give it another name",
                )
            added.add(name)
        for task in plugin.tasks:
            if task.name in self.tasks:
                raise UsageError(
                    f"{plugin.path.name}: the name of task {task.name!r} is taken", hint='rename it: Task(name="…")'
                )
            if shared := sorted(self._added & set(_names(task))):
                raise UsageError(
                    f"{plugin.path.name}: task {task.name} has {shared[0]!r}, which another plugin adds to every task",
                    hint="rename one of the two",
                )
        self._taken |= own | added
        self._added |= added
        self.tasks |= {task.name: task for task in plugin.tasks}


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


def _names(task: Task) -> Iterator[str]:
    """Yield the names of a task's signals, metrics and criteria. Those that ask a judge are not taken: rewards of these
    names are older, and stand in their place."""
    yield from (name for name, signal in task.rewards.signals.items() if not isinstance(signal, JudgeSignal))
    for table in task.evaluation.tables:
        for metric in table.metrics:
            yield metric.column or metric.name
    for criterion in task.evaluation.criteria:
        yield criterion.name


def _with_criteria(task: Task, criteria: tuple[Criterion, ...]) -> Task:
    """Return the task with more criteria for a judge, after its own."""
    if not criteria:
        return task
    evaluation = task.evaluation
    return replace(task, evaluation=replace(evaluation, criteria=(*evaluation.criteria, *criteria)))


def name_plugins(named: Sequence[str], task: str | None, config_file: Path | None) -> tuple[str | None, str | None]:
    """Use the plugins that a command names: with --plugin, as a file with --task, and in `[run] plugins` of its
    configuration file, relative to that. Returns the task's name and the value of `run.plugins`, None where nothing is
    named.

    Raises UsageError where the configuration file is that of a run, and its plugins are not named again.
    """
    files = [*named, *([task] if task and task.endswith(".py") else [])]
    run = RunPaths(config_file.parent) if config_file is not None else None
    if run is not None and run.info.exists():
        recorded = _recorded(run) or [PluginInfo(path=text) for text in _listed_in(config_file)]
        _, unnamed = _paired(recorded, [PluginInfo(path=text) for text in files])
        if unnamed:
            raise _not_named(f"{config_file} is the configuration of a run that executes", unnamed, run)
    elif config_file is not None:
        files += [str(config_file.parent / Path(text).expanduser()) for text in _listed_in(config_file)]
    if commas := [text for text in files if "," in text]:
        raise UsageError(f"the path of plugin {commas[0]!r} has a comma", hint="rename the file")
    use_plugins(files)
    return task_of(task) if task and task.endswith(".py") else task, ",".join(dict.fromkeys(files)) or None


def _listed_in(config_file: Path | None) -> list[str]:
    """Return the plugins that a configuration file lists."""
    entries: list[Entry] = []
    with suppress(UsageError):  # reported where the settings are read
        entries = read_file(config_file) if config_file else []
    values = [entry.value for entry in entries if entry.key == "run.plugins" and isinstance(entry.value, str)]
    return [text.strip() for value in values for text in value.split(",") if text.strip()]


def _recorded(run: RunPaths) -> list[PluginInfo]:
    """Return the plugins that a run began with."""
    with suppress(SmolsumError):  # a damaged file is reported where the run is resumed
        return read(run.info, RunInfo).plugins if run.info.exists() else []
    return []


def require_plugins(run: RunPaths) -> None:
    """Raise UsageError unless the plugins of an existing run are loaded, unchanged."""
    recorded, given = _recorded(run), [plugin.record() for plugin in _loaded]
    lacking = [one for one in recorded if not any(_same_code(one, other) for other in given)]
    others = [one for one in given if not any(_same_code(other, one) for other in recorded)]
    changed, unnamed = _paired(lacking, others)
    if unnamed:
        raise _not_named(f"run {run.name} executes", unnamed, run)
    again = run.restart_command(*(plugin.reference for plugin in _loaded if plugin.named))
    for then, now in changed:
        name = split_reference(then.path)[0].name
        what = f"sha256 {then.sha256[:12]} then, {now.sha256[:12]} now"
        if then.sha256 == now.sha256:
            before, after = then.modules, now.modules
            names = [one for one in {**before, **after} if before.get(one) != after.get(one)]
            what = f"in {', '.join(names)}, which it imports"
        raise UsageError(
            f"plugin {name} has changed since run {run.name} began ({what})",
            hint=f"a new run with the new file: {again}; the file as it was: {_copy_of(then, run)}",
        )


def _same_code(then: PluginInfo, now: PluginInfo) -> bool:
    """Return whether two records are of the same function, or all, of the same files."""
    same = then.sha256 == now.sha256 and split_reference(then.path)[1] == split_reference(now.path)[1]
    return same and then.modules == now.modules


def _paired(
    recorded: Sequence[PluginInfo], given: Sequence[PluginInfo]
) -> tuple[list[tuple[PluginInfo, PluginInfo]], list[PluginInfo]]:
    """Return which given plugin stands for which recorded one, by its path or else by the name of its file, and the
    recorded ones that are left."""
    pairs: list[tuple[PluginInfo, PluginInfo]] = []
    rest, free = list(recorded), list(given)
    for by_name in (False, True):
        for then in list(rest):
            found = next((now for now in free if _place(then, by_name) == _place(now, by_name)), None)
            if found is not None:
                pairs.append((then, found))
                rest.remove(then)
                free.remove(found)
    return pairs, rest


def _place(plugin: PluginInfo, by_name: bool) -> tuple[str, str]:
    path, function = split_reference(plugin.path)
    return path.name if by_name else str(path), function


def _not_named(what: str, unnamed: Sequence[PluginInfo], run: RunPaths) -> UsageError:
    """Return the error about plugins of a run that the command does not name, with the flags for all of them."""
    flags = []
    for one in unnamed:
        path, function = split_reference(one.path)
        same = path.is_file() and sha256(path.read_bytes()).hexdigest() == one.sha256
        text = one.path if same else f"{_copy_of(one, run)}{function and f':{function}'}"
        flags.append(f"--plugin {shlex.quote(text)}")
    names = " and ".join(":".join(filter(None, _place(one, by_name=True))) for one in unnamed)
    return UsageError(
        f"{what} {'the plugin ' if len(unnamed) == 1 else 'the plugins '}{names}, and code that came with a run is "
        "executed only when it is named",
        hint=" ".join(flags),
    )


def _copy_of(plugin: PluginInfo, run: RunPaths) -> Path:
    """Return the copy of a plugin in a run."""
    name = split_reference(plugin.path)[0].name
    own = run.plugins / plugin.digest[:8] / name
    return own if own.is_file() else run.plugins / name


def digests(signals: Iterable[str]) -> Mapping[str, str]:
    """Return the digest of the plugin of each of these signals that has one."""
    known = {reward.name: reward.sha256 for plugin in _loaded for reward in plugin.rewards}
    return {name: known[name] for name in signals if name in known}
