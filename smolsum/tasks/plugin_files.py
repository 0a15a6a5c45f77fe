"""What a plugin is, and how one is loaded: from a Python file, from a function, or from an installed package.

Plugins do not share the modules next to them, so that two folders may use the same names: a file is executed as a
package whose search path is its folder. An import of a name that the folder has goes to that package, everything else
to Python; the imports of these modules do so too.
"""

import ast
import builtins
import hashlib
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import inspect
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import chdir, redirect_stdout
from dataclasses import dataclass, field, replace
from importlib.metadata import EntryPoint
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from smolsum.config.sections import Config
from smolsum.errors import SmolsumError, UsageError, nearest
from smolsum.rewards.custom import OPTIONS, CustomReward, RewardOptions, make_reward
from smolsum.runs.records import PluginInfo
from smolsum.tasks.base import Task
from smolsum.types import Criterion

_PREFIX = "smolsum_plugin_"
"""of the names of modules"""
FORM = "--plugin FILE.py, or FILE.py:FUNCTION for a single reward"


@dataclass(frozen=True)
class Plugin:
    """What a file or an installed package adds."""

    path: Path
    content: bytes
    """of the file"""
    version: str = ""
    modules: Mapping[str, bytes] = field(default_factory=dict)
    """the files of its folder that it imports, by path relative to the folder"""
    rewards: tuple[CustomReward, ...] = ()
    tasks: tuple[Task, ...] = ()
    criteria: tuple[Criterion, ...] = ()
    named: bool = True
    """whether the user named it, rather than a package that is installed"""
    function: str = ""
    """the one function that was chosen from the file"""

    @property
    def reference(self) -> str:
        """The file, and the function if one was chosen, as --plugin takes them."""
        return f"{self.path}{self.function and f':{self.function}'}"

    @property
    def sha256(self) -> str:
        """The digest of the file."""
        return hashlib.sha256(self.content).hexdigest()

    @property
    def digest(self) -> str:
        """The digest of the file and of the modules next to it, that of the file without any."""
        return PluginInfo(sha256=self.sha256, modules=self._digests()).digest

    def _digests(self) -> dict[str, str]:
        return {name: hashlib.sha256(content).hexdigest() for name, content in self.modules.items()}

    def serves(self, config: Config) -> bool:
        """Return whether a run with these settings executes it."""
        signals = {name for stage in config.stages.values() for name in stage.used_signals}
        return (
            self.named
            or any(reward.name in signals for reward in self.rewards)
            or any(task.name == config.task.name for task in self.tasks)
        )

    def record(self) -> PluginInfo:
        """Return what run.json keeps of it."""
        return PluginInfo(
            path=self.reference,
            version=self.version,
            sha256=self.sha256,
            modules=self._digests(),
            rewards=[reward.name for reward in self.rewards],
            tasks=[task.name for task in self.tasks],
        )


def plugin_copies(plugins: Iterable[Plugin]) -> dict[str, bytes]:
    """Return the files to keep, by relative path. A plugin with a file that another one has with another content is in
    a folder named by its digest."""
    found: dict[str, bytes] = {}
    for plugin in plugins:
        files = {plugin.path.name: plugin.content, **plugin.modules}
        same = all(found.get(name, content) == content for name, content in files.items())
        found |= files if same else {f"{plugin.digest[:8]}/{name}": content for name, content in files.items()}
    return found


def load_file(path: Path, function: str) -> Plugin:
    """Execute a file and return what it has, or only this function unless it is empty. Raises UsageError."""
    if not path.is_file():
        raise UsageError(f"no plugin at {path}: no such file", hint=FORM)
    if path.suffix != ".py":
        raise UsageError(f"plugin {path.name} is not a Python file", hint=FORM)
    content = path.read_bytes()
    plugin = Plugin(path, content, modules=_imported_files(path, content))
    module = _executed(plugin)
    plugin = replace(plugin, version=_version(module))
    if not function:
        return _found(module, plugin)
    chosen = getattr(module, function, None)
    if chosen is None:
        names = [name for name, _ in _functions(module)]
        raise UsageError(f"{path.name} has no {function!r}", hint=nearest(function, names) if names else FORM)
    name = getattr(chosen, OPTIONS, RewardOptions()).name or function
    made = make_reward(chosen, file=str(path), sha256=plugin.digest, name=name)
    return replace(plugin, rewards=(made,), function=function)


def split_reference(text: str) -> tuple[Path, str]:
    """Return the file, and the function or nothing, of `FILE.py:FUNCTION`."""
    file, colon, function = text.rpartition(":")
    chosen = bool(colon) and file.endswith(".py") and function.isidentifier()
    return Path(file if chosen else text).expanduser().resolve(), function if chosen else ""


def _executed(plugin: Plugin) -> ModuleType:
    """Execute a plugin's file as a module, which stays in `sys.modules`. Raises UsageError, with the line, for whatever
    it raises."""
    path, name = plugin.path, f"{_PREFIX}{plugin.path.stem}_{plugin.digest[:12]}"
    _forget(name)
    if not any(isinstance(one, _Finder) for one in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
    loader = _Loader(name, str(path))
    loader.content = plugin.content
    folder = [str(path.parent)]
    spec = importlib.util.spec_from_file_location(name, path, loader=loader, submodule_search_locations=folder)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look it up
    try:
        # stdout belongs to the results of the command; `chdir` undoes a change of the folder by the file
        with redirect_stdout(sys.stderr), chdir("."):
            loader.exec_module(module)
    except BaseException as error:  # sys.exit() in the file, for example
        _forget(name)
        if isinstance(error, KeyboardInterrupt):
            raise
        raise UsageError(f"plugin {path.name} cannot be loaded: {_reason(error, path)}", hint=_hint(error)) from error
    return module


def _reason(error: BaseException, path: Path) -> str:
    """Return what is wrong, with its line. An error's own class may be unable to say it."""
    if isinstance(error, SyntaxError):
        return f"line {error.lineno} of {Path(error.filename or path).name}: {error.msg}"
    lines = [one.lineno for one in traceback.extract_tb(error.__traceback__) if one.filename == str(path)]
    where = f"line {lines[-1]}: " if lines else ""
    try:
        said = str(error)
    except Exception:  # a user's class may raise anything
        said = ""
    return where + said if isinstance(error, SmolsumError) else f"{where}{type(error).__name__}: {said}".rstrip(": ")


def _hint(error: BaseException) -> str:
    if isinstance(error, ModuleNotFoundError) and error.name:
        return f"uv pip install {error.name.partition('.')[0]}, or put {error.name}.py next to the plugin"
    if isinstance(error, SmolsumError) and error.hint:
        return error.hint
    return "correct the file; `python FILE.py` shows the traceback"


def wrap_function(function: Callable[..., Any]) -> Plugin:
    """Return a plugin of one function that Python code passes on; its source text stands for a file."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    file = code.co_filename if code else ""
    try:
        source = inspect.getsource(inspect.unwrap(function))
    except (OSError, TypeError):  # typed into an interpreter: what it compiles to, without addresses in memory
        parts = (code.co_code.hex(), code.co_names, code.co_consts) if code else (type(function).__qualname__,)
        source = re.sub(r" at 0x[0-9a-f]+", "", repr(parts))
    plugin = Plugin(Path(file or "notebook"), source.encode())
    return replace(plugin, rewards=(make_reward(function, file=str(plugin.path), sha256=plugin.sha256),))


def load_package(point: EntryPoint) -> Plugin:
    """Load an installed plugin. Raises UsageError."""
    try:
        found = point.load()
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # sys.exit() in an installed package, for example
        raise UsageError(f"{type(error).__name__}: {error}") from error
    module = found if isinstance(found, ModuleType) else sys.modules[point.module]
    path = Path(module.__file__ or point.module)
    content = path.read_bytes() if path.is_file() else b""
    version = point.dist.version if point.dist else _version(module)
    return _found(module, Plugin(path, content, version, named=False))


def _found(module: ModuleType, plugin: Plugin) -> Plugin:
    """Return the plugin with what its module has. Raises UsageError for nothing."""
    path, marked = plugin.path, [function for _, function in _functions(module) if hasattr(function, OPTIONS)]
    rewards = tuple(make_reward(function, file=str(path), sha256=plugin.digest) for function in marked)
    task, criteria = getattr(module, "TASK", None), getattr(module, "CRITERIA", ())
    if task is not None and not isinstance(task, Task):
        raise UsageError(f"{path.name}: TASK is {type(task).__name__}, not a Task", hint="TASK = smolsum.Task(…)")
    if not isinstance(criteria, list | tuple) or not all(isinstance(one, Criterion) for one in criteria):
        raise UsageError(f"{path.name}: CRITERIA is not a list of criteria", hint="CRITERIA = [smolsum.Criterion(…)]")
    if not (rewards or task or criteria):
        names = [name for name, _ in _functions(module)]
        first = f"--plugin {path.name}:{names[0]}" if names else "write @smolsum.reward above a function"
        raise UsageError(
            f"plugin {path.name} has no function marked with @smolsum.reward, no TASK and no CRITERIA", hint=first
        )
    return replace(plugin, rewards=rewards, tasks=(task,) if task else (), criteria=tuple(criteria))


def _functions(module: ModuleType) -> Iterator[tuple[str, Any]]:
    """Yield the functions and other callables of a module that were made or marked there, each once, with its name."""
    seen: set[int] = set()
    for name, value in vars(module).items():
        made = getattr(value, "__module__", None) == module.__name__ and not name.startswith("_")
        own = (made or hasattr(value, OPTIONS)) and callable(value) and not inspect.isclass(value)
        if own and id(value) not in seen:
            seen.add(id(value))
            yield name, value


def _version(module: ModuleType) -> str:
    return str(getattr(module, "__version__", ""))


def _imported_files(path: Path, content: bytes) -> dict[str, bytes]:
    """Return the files of the folder that a plugin imports, and that these import, by path relative to the folder; also
    those that a function imports when it is called."""
    found: dict[str, bytes] = {}
    waiting = [(path, content)]
    while waiting:
        file, text = waiting.pop()
        for imported in _imported_by(file, text, path.parent):
            name = imported.relative_to(path.parent).as_posix()
            if name not in found and imported != path:
                found[name] = imported.read_bytes()
                waiting.append((imported, found[name]))
    return dict(sorted(found.items()))


def _imported_by(file: Path, content: bytes, folder: Path) -> Iterator[Path]:
    """Yield the files of a folder that the import statements of one of its files execute."""
    try:
        nodes = list(ast.walk(ast.parse(content)))
    except (SyntaxError, ValueError):  # reported where it is executed
        return
    for node in nodes:
        if isinstance(node, ast.Import):
            names = [(folder, one.name.split(".")) for one in node.names if _has_module(folder, one.name)]
        elif isinstance(node, ast.ImportFrom) and (node.level or _has_module(folder, node.module or "")):
            start = file.parents[node.level - 1] if node.level else folder
            base = node.module.split(".") if node.module else []
            names = [(start, [*base, *part]) for part in ([], *([one.name] for one in node.names))]
        else:
            continue
        for start, parts in names:
            for depth in range(len(parts) + 1):
                place = start.joinpath(*parts[:depth])
                files = (place.with_suffix(".py") if depth else None, place / "__init__.py")
                inside = place.is_relative_to(folder) and place != folder
                yield from (one for one in files if inside and one is not None and one.is_file())


def _has_module(folder: Path, name: str) -> bool:
    """Return whether an import of this name in a plugin means a module of its folder, as for a script, rather than one
    of Python or one that is imported from there already."""
    top = name.partition(".")[0]
    there = [file for file in (folder / f"{top}.py", folder / top / "__init__.py") if file.is_file()]
    if not top or not there or top in sys.stdlib_module_names or top == "smolsum":
        return False
    imported = str(getattr(sys.modules.get(top), "__file__", ""))
    return imported not in [str(file) for file in there]


def _forget(name: str) -> None:
    """Remove a plugin and its modules."""
    for one in [one for one in sys.modules if one == name or one.startswith(f"{name}.")]:
        del sys.modules[one]


class _Loader(importlib.machinery.SourceFileLoader):
    """Executes a file with imports from its plugin's folder. What is executed is what the file has now, not a cached
    compilation, which a file that changes twice in a second would be taken for."""

    content: bytes | None = None
    """of the plugin's own file, as it was read"""

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self.content or Path(self.path).read_bytes(), self.path)

    def exec_module(self, module: ModuleType) -> None:
        package = module.__name__.partition(".")[0]
        folder = Path(str(sys.modules[package].__file__)).parent

        def import_own(
            name: str,
            globals: Mapping[str, Any] | None = None,
            locals: Mapping[str, Any] | None = None,
            fromlist: Sequence[str] | None = (),
            level: int = 0,
        ) -> ModuleType:
            if level or not _has_module(folder, name):
                return builtins.__import__(name, globals, locals, fromlist or (), level)
            inside = f"{package}.{name}"
            if fromlist:
                return builtins.__import__(inside, globals, locals, fromlist, 0)
            importlib.import_module(inside)
            return sys.modules[f"{package}.{name.partition('.')[0]}"]

        module.__dict__["__builtins__"] = {**vars(builtins), "__import__": import_own}
        super().exec_module(module)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the modules next to plugins."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if not fullname.startswith(_PREFIX) or path is None:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and isinstance(spec.loader, importlib.machinery.SourceFileLoader):
            spec.loader = _Loader(spec.loader.name, spec.loader.path)
        return spec
