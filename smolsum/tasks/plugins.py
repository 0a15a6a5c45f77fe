"""Plugins: a user's Python files, and packages that declare the entry point `smolsum.plugins`, with rewards (functions
marked with `smolsum.reward`), a task (`TASK`) and criteria for a judge (`CRITERIA`).

`use_plugins` adds them to `TASKS` for the command that runs. A file is executed because the user named it in this
command or in a configuration file; one that a run's directory names, or holds, is not.
"""

import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import sha256
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from smolsum import console
from smolsum.config.presets import Entry, read_file
from smolsum.config.sections import Config
from smolsum.config.targets import TARGET
from smolsum.errors import SmolsumError, UsageError
from smolsum.rewards.combine import score_all
from smolsum.rewards.custom import CustomReward
from smolsum.rewards.judge import JudgeSignal
from smolsum.runs.evaluation_records import SCORE_KEYS
from smolsum.runs.paths import RunPaths
from smolsum.runs.records import PluginInfo, RunInfo
from smolsum.runs.typed_json import read
from smolsum.tasks import TASKS
from smolsum.tasks.base import Measure, Metric, MetricRow, MetricTable, Summary, Task, mean
from smolsum.tasks.data import Split
from smolsum.tasks.plugin_files import Plugin, load_file, load_package, split_reference, wrap_function
from smolsum.types import COMPOSITE, PASS_RATE, PASSED, Prompt, Rollout, RolloutGroup

GROUP = "smolsum.plugins"
"""of entry points"""
COLUMNS = {*SCORE_KEYS, "sample", "reward", "tokens", "error", COMPOSITE, PASS_RATE, PASSED}
"""of rows of scores, besides metrics, and of tables that show them"""
Completion = tuple[str, tuple[int, ...], str]

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
    # `_loaded`: an earlier call may have added what this one does not name
    if not (files or functions or installed or _loaded):
        return
    if not _shipped:
        _shipped.update(TASKS)
    references = dict.fromkeys(split_reference(text) for text in files)
    plugins = [load_file(path, function) for path, function in references]
    plugins += [wrap_function(function) for function in functions]
    for place, plugin in enumerate(plugins):
        _check_names(plugin, plugins[:place])
    for point in installed:
        try:
            plugin = load_package(point)
            _check_names(plugin, plugins)
            plugins.append(plugin)
        except SmolsumError as error:
            console.warn(f"installed plugin {point.name} is left out: {error.message}")
    tasks = {name: _with_plugins(task, plugins) for name, task in _tasks(plugins).items()}
    TASKS.clear()
    TASKS.update(tasks)
    _loaded[:] = plugins


def _check_names(plugin: Plugin, before: Sequence[Plugin]) -> None:
    """Raise UsageError where a name of a plugin is taken: by a task with its signals, criteria, metrics and columns, or
    by a reward or criterion of the plugins `before` it, which join those of every task."""
    tasks = _tasks(before)
    added = {name for other in before for _, name in _added(other)}
    taken = {*COLUMNS, *added, *(name for task in (*tasks.values(), *plugin.tasks) for name in _names(task))}
    for kind, name in _added(plugin):
        if name in taken:
            raise UsageError(
                f"{plugin.path.name}: {kind} {name!r} has the name of another signal, criterion, metric or column",
                hint='rename it: @smolsum.reward(name="…")' if kind == "reward" else "give it another name",
            )
        taken.add(name)
    for task in plugin.tasks:
        if task.name in tasks:
            raise UsageError(
                f"{plugin.path.name}: the name of task {task.name!r} is taken", hint='rename it: Task(name="…")'
            )
        if shared := sorted(added & set(_names(task))):
            raise UsageError(
                f"{plugin.path.name}: task {task.name} has {shared[0]!r}, which another plugin adds to every task",
                hint="rename one of the two",
            )


def _added(plugin: Plugin) -> list[tuple[str, str]]:
    """Return what a plugin adds to every task, each as its kind and name."""
    return [
        *(("reward", one.name) for one in plugin.rewards),
        *(("the criterion", one.name) for one in plugin.criteria),
    ]


def _tasks(plugins: Iterable[Plugin]) -> dict[str, Task]:
    """Return the tasks of this package, and those of plugins."""
    return {**_shipped, **{task.name: task for plugin in plugins for task in plugin.tasks}}


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


def _with_plugins(task: Task, plugins: Sequence[Plugin]) -> Task:
    """Return the task with more criteria for a judge, after its own, and more signals. Evaluations measure those that
    the user named, and those that a stage of the run uses."""
    if not plugins:
        return task
    signals = {reward.name: reward for plugin in plugins for reward in plugin.rewards}
    named = {reward.name for plugin in plugins if plugin.named for reward in plugin.rewards}
    criteria = (*task.evaluation.criteria, *(one for plugin in plugins for one in plugin.criteria))
    base, found = replace(task.evaluation, criteria=criteria), dict[Completion, dict[str, float | None]]()
    if not signals:
        return replace(task, evaluation=base)

    def measured(config: Config) -> list[str]:
        used = {name for stage in config.stages.values() for name in stage.used_signals}
        return [name for name in signals if name in named or name in used]

    def ask_ahead(completions: Sequence[tuple[Prompt, Rollout]], config: Config) -> None:
        base.ask_ahead(completions, config)
        found.clear()
        groups = [RolloutGroup(prompt, (rollout,)) for prompt, rollout in completions]
        names = measured(config)
        values = score_all(groups, dict.fromkeys(names, 1.0), config, signals) if groups else {}
        for place, (prompt, rollout) in enumerate(completions):
            found[_key(prompt, rollout)] = {name: values[name][place][0] for name in names}

    def measurer(splits: Sequence[Split], config: Config) -> Measure:
        own = base.measurer(splits, config)

        def measure(prompt: Prompt, rollout: Rollout) -> dict[str, Any]:
            if _key(prompt, rollout) not in found:
                ask_ahead([(prompt, rollout)], config)
            values, added = own(prompt, rollout), found[_key(prompt, rollout)]
            if shared := sorted(values.keys() & added.keys()):
                raise UsageError(
                    f"reward {shared[0]!r} has the name of something that task {task.name} measures",
                    hint='rename it: @smolsum.reward(name="…")',
                )
            return {**values, **added}

        return measure

    def summarise(rows: Sequence[MetricRow]) -> Summary:
        return base.summarise(rows) | {name: mean(rows, name) for name in signals if any(name in row for row in rows)}

    metrics = tuple(Metric(name, name, ".3f", better=one.options.better) for name, one in signals.items())
    evaluation = replace(
        base,
        code=lambda config: {f"plugin {name}": signals[name].sha256 for name in measured(config)},
        ask_ahead=ask_ahead,
        measurer=measurer,
        summarise=summarise,
        headlines=(*base.headlines, *metrics),
        tables=(*base.tables, MetricTable("rewards of plugins", metrics)),
    )
    return replace(
        task, rewards=replace(task.rewards, signals={**task.rewards.signals, **signals}), evaluation=evaluation
    )


def check_columns(task: Task, splits: Mapping[str, Split], config: Config) -> None:
    """Raise UsageError where a reward that a stage uses asks for a column that a split does not have."""
    used = dict.fromkeys(name for stage in config.stages.values() for name in stage.used_signals)
    for name, split in splits.items():
        columns = dict.fromkeys(column for example in split.examples for column in example.metadata)
        columns |= {config.data.completion_column: None}
        columns |= {TARGET: None} if task.targets.of(config) else {}
        for signal in (task.rewards.signals.get(one) for one in used):
            if isinstance(signal, CustomReward):
                signal.check_columns(name, columns)


def _key(prompt: Prompt, rollout: Rollout) -> Completion:
    return prompt.id, rollout.token_ids, rollout.text


@dataclass(frozen=True)
class NamedPlugins:
    """What a command names: its task, by name, and the value of `run.plugins`; None where it names nothing."""

    task: str | None
    files: str | None


def use_named_plugins(named: Sequence[str], task: str | None, config_file: Path | None) -> NamedPlugins:
    """Execute the plugins that a command names: with --plugin, as a file with --task, and in `[run] plugins` of its
    configuration file, relative to that.

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
    name = task_of(task) if task and task.endswith(".py") else task
    return NamedPlugins(name, ",".join(dict.fromkeys(files)) or None)


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
    name = split_reference(plugin.path)[0].name
    own = run.plugins / plugin.digest[:8] / name
    return own if own.is_file() else run.plugins / name


def digests(signals: Iterable[str]) -> Mapping[str, str]:
    """Return the digest of the plugin of each of these signals that has one."""
    known = {reward.name: reward.sha256 for plugin in _loaded for reward in plugin.rewards}
    return {name: known[name] for name in signals if name in known}
