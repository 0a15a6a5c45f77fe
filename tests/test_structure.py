"""The structure of the package, besides the import contracts in `pyproject.toml`."""

import ast
import graphlib
from collections import Counter
from pathlib import Path

import pytest
from support.places import ROOT

PACKAGE = ROOT / "smolsum"
FILES = sorted(PACKAGE.rglob("*.py"))


def module_of(path: Path) -> str:
    """The dotted name of a file of the package."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def test_no_public_class_name_is_used_twice() -> None:
    """One word has one meaning: a class name stands for one thing in the whole package."""
    found = [
        node.name
        for path in FILES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    ]
    assert [name for name, times in Counter(found).items() if times > 1] == []


def test_no_files_import_in_circles() -> None:
    """Each file can be read after those it imports, also where an import waits inside a function."""
    modules = {module_of(path): path for path in FILES}
    graph: dict[str, set[str]] = {}
    for name, path in modules.items():
        named = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module:
                named |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
            elif isinstance(node, ast.Import):
                named |= {alias.name for alias in node.names}
        packages = {module for module in named if module in modules and modules[module].name == "__init__.py"}
        graph[name] = {module for module in named & modules.keys() if module not in packages or module != name}
        if path.name == "__init__.py":  # a package's `__init__` may import its modules
            graph[name] = {module for module in graph[name] if not module.startswith(f"{name}.")}
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        pytest.fail(f"imports in a circle: {' -> '.join(error.args[1])}")
