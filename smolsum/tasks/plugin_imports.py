"""The modules next to a plugin: plugins do not share them, so that two folders may use the same names.

A plugin is executed as a package whose search path is its folder. An import of a name that the folder has goes to that
package, everything else to Python; the imports of these modules do so too.
"""

from __future__ import annotations

import ast
import builtins
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

_PREFIX = "smolsum_plugin_"


def execute(path: Path, content: bytes, digest: str) -> ModuleType:
    """Execute a file as a module, which stays in `sys.modules`. Raises whatever the file raises."""
    name = f"{_PREFIX}{path.stem}_{digest[:12]}"
    _forget(name)
    if not any(isinstance(one, _Finder) for one in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
    spec = importlib.util.spec_from_loader(name, _Loader(name, str(path), content), is_package=True)
    assert spec is not None
    assert spec.loader is not None
    spec.origin, spec.submodule_search_locations = str(path), [str(path.parent)]
    module = importlib.util.module_from_spec(spec)
    module.__file__ = str(path)
    sys.modules[name] = module  # dataclasses and pickle look it up
    try:
        spec.loader.exec_module(module)
    except BaseException:
        _forget(name)
        raise
    return module


def imported_files(path: Path, content: bytes) -> dict[str, bytes]:
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
            names = [(folder, one.name.split(".")) for one in node.names if has_module(folder, one.name)]
        elif isinstance(node, ast.ImportFrom) and (node.level or has_module(folder, node.module or "")):
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


def has_module(folder: Path, name: str) -> bool:
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

    def __init__(self, fullname: str, path: str, content: bytes | None = None) -> None:
        super().__init__(fullname, path)
        self._content = content

    def get_code(self, fullname: str) -> CodeType:
        content = Path(self.path).read_bytes() if self._content is None else self._content
        return self.source_to_code(content, self.path)

    def exec_module(self, module: ModuleType) -> None:
        plugin = sys.modules[module.__name__.partition(".")[0]]
        own = _Import(plugin.__name__, Path(str(plugin.__file__)).parent)
        module.__dict__["__builtins__"] = {**vars(builtins), "__import__": own}
        super().exec_module(module)


class _Import:
    """The function behind `import` in a plugin's modules."""

    def __init__(self, package: str, folder: Path) -> None:
        self._package, self._folder = package, folder

    def __call__(
        self,
        name: str,
        globals: Mapping[str, Any] | None = None,
        locals: Mapping[str, Any] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> ModuleType:
        if level or not has_module(self._folder, name):
            return builtins.__import__(name, globals, locals, fromlist or (), level)
        inside = f"{self._package}.{name}"
        if fromlist:
            return builtins.__import__(inside, globals, locals, fromlist, 0)
        importlib.import_module(inside)
        return sys.modules[f"{self._package}.{name.partition('.')[0]}"]


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
