"""What a plugin is, and how one is loaded: from a Python file, from a function, or from an installed package."""

import hashlib
import importlib.util
import inspect
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import chdir, redirect_stdout
from dataclasses import dataclass, replace
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType
from typing import Any

from smolsum.config.sections import Config
from smolsum.errors import UsageError, nearest
from smolsum.rewards.custom import OPTIONS, CustomReward, RewardOptions, make_reward
from smolsum.tasks.base import Task
from smolsum.types import Criterion

FORM = "--plugin FILE.py, or FILE.py:FUNCTION for a single reward"


@dataclass(frozen=True)
class Plugin:
    """What a file or an installed package adds."""

    path: Path
    version: str
    content: bytes
    """of the file"""
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
        return _digest(self.content)

    def serves(self, config: Config) -> bool:
        """Return whether a run with these settings executes it."""
        signals = {name for stage in config.stages.values() for name in stage.rewards}
        return (
            self.named
            or any(reward.name in signals for reward in self.rewards)
            or any(task.name == config.task.name for task in self.tasks)
        )

    def record(self) -> dict[str, Any]:
        """Return what run.json keeps of it."""
        return {
            "path": self.reference,
            "version": self.version,
            "sha256": self.sha256,
            "rewards": [reward.name for reward in self.rewards],
            "tasks": [task.name for task in self.tasks],
        }


def plugin_copies(plugins: Iterable[Plugin]) -> dict[str, bytes]:
    """Return the files to keep, by name; of several with one name the later ones begin with their digest."""
    found: dict[str, bytes] = {}
    for plugin in plugins:
        name = plugin.path.name
        same = found.get(name, plugin.content) == plugin.content
        found[name if same else f"{plugin.sha256[:8]}-{name}"] = plugin.content
    return found


def load_file(text: str, taken: Iterable[str]) -> Plugin:
    """Execute a file and return what it has. Raises UsageError."""
    path, function = split_reference(text)
    if not path.is_file():
        raise UsageError(f"no plugin at {path}: no such file", hint=FORM)
    if path.suffix != ".py":
        raise UsageError(f"plugin {path.name} is not a Python file", hint=FORM)
    content = path.read_bytes()
    module = _executed(path, content)
    if not function:
        return _found(module, path, content, taken)
    chosen = getattr(module, function, None)
    if chosen is None:
        names = [name for name, _ in _functions(module)]
        raise UsageError(f"{path.name} has no {function!r}", hint=nearest(function, names) if names else FORM)
    name = getattr(chosen, OPTIONS, RewardOptions()).name or function
    made = make_reward(chosen, file=str(path), sha256=_digest(content), taken=taken, name=name)
    return Plugin(path, _version(module), content, (made,), function=function)


def split_reference(text: str) -> tuple[Path, str]:
    """Return the file, and the function or nothing, of `FILE.py:FUNCTION`."""
    file, colon, function = text.rpartition(":")
    chosen = bool(colon) and file.endswith(".py") and function.isidentifier()
    return Path(file if chosen else text).expanduser().resolve(), function if chosen else ""


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _executed(path: Path, content: bytes) -> ModuleType:
    """Execute a file as a module. Raises UsageError, with the line, for whatever it raises."""
    name = f"smolsum_plugin_{path.stem}_{_digest(content)[:12]}"
    if str(path.parent) not in sys.path:  # for modules next to it, as Python does for a script
        sys.path.append(str(path.parent))
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look it up
    try:
        with redirect_stdout(sys.stderr), chdir("."):  # stdout belongs to the results of the command
            spec.loader.exec_module(module)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        del sys.modules[name]
        raise UsageError(f"plugin {path.name} cannot be loaded: {_reason(error, path)}", hint=_remedy(error)) from error
    return module


def _reason(error: BaseException, path: Path) -> str:
    if isinstance(error, SyntaxError):
        return f"line {error.lineno} of {Path(error.filename or path).name}: {error.msg}"
    lines = [one.lineno for one in traceback.extract_tb(error.__traceback__) if one.filename == str(path)]
    where = f"line {lines[-1]}: " if lines else ""
    return f"{where}{type(error).__name__}: {error}".rstrip(": ")


def _remedy(error: BaseException) -> str:
    if isinstance(error, ModuleNotFoundError) and error.name:
        return f"uv pip install {error.name.partition('.')[0]}, or put {error.name}.py next to the plugin"
    return "correct the file; `python FILE.py` shows the traceback"


def wrap_function(function: Callable[..., Any], taken: Iterable[str]) -> Plugin:
    """Return a plugin of one function that Python code passes on; its source text stands for a file."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    file = code.co_filename if code else ""
    try:
        source = inspect.getsource(inspect.unwrap(function))
    except (OSError, TypeError):  # typed into an interpreter: what it compiles to, without addresses in memory
        parts = (code.co_code.hex(), code.co_names, code.co_consts) if code else (type(function).__qualname__,)
        source = re.sub(r" at 0x[0-9a-f]+", "", repr(parts))
    content = source.encode()
    made = make_reward(function, file=file or "notebook", sha256=_digest(content), taken=taken)
    return Plugin(Path(file or "notebook"), "", content, (made,))


def load_package(point: EntryPoint, taken: Iterable[str]) -> Plugin:
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
    return replace(_found(module, path, content, taken), version=version, named=False)


def _found(module: ModuleType, path: Path, content: bytes, taken: Iterable[str]) -> Plugin:
    """Return what a module has. Raises UsageError for nothing."""
    known = set(taken)
    rewards: list[CustomReward] = []
    for _, function in _functions(module):
        if hasattr(function, OPTIONS):
            rewards.append(make_reward(function, file=str(path), sha256=_digest(content), taken=known))
            known.add(rewards[-1].name)
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
    return Plugin(path, _version(module), content, tuple(rewards), (task,) if task else (), tuple(criteria))


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
