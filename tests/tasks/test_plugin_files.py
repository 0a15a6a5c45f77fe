"""Modules next to plugins: which plugin sees which, and what is recorded of them."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.refusals import refuses

from smolsum.runs.paths import RunPaths
from smolsum.runs.records import RunInfo
from smolsum.runs.typed_json import encode, to_row
from smolsum.tasks.plugin_files import Plugin, load_file, plugin_copies, split_reference
from smolsum.tasks.plugins import require_plugins, use_named_plugins, use_plugins

REWARD = """
import smolsum
{imports}

@smolsum.reward
def {name}(completions):
    {inside}
    return [{value} for _ in completions]
"""
Make = Callable[..., Path]


@pytest.fixture(autouse=True)
def _without_plugins() -> Iterator[None]:
    yield
    use_plugins()


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """A maker of plugins, in a folder, with what they import."""

    def write(file: str, imports: str = "", value: str = "1.0", inside: str = "pass", **modules: str) -> Path:
        path = tmp_path / file
        path.parent.mkdir(exist_ok=True)
        name = f"{path.parent.name}_{path.stem}"
        path.write_text(REWARD.format(imports=imports, value=value, inside=inside, name=name))
        for module, text in modules.items():
            place = path.parent / f"{module.replace('__', '/', 1)}.py"
            place.parent.mkdir(exist_ok=True)
            place.write_text(text)
        return path

    return write


def load(path: Path) -> Plugin:
    return load_file(*split_reference(str(path)))


def called(plugin: Plugin) -> Any:
    """What the plugin's reward returns for one completion."""
    return plugin.rewards[0].function(["a"])[0]


def required(run: RunPaths, *plugins: object) -> None:
    """A command that names these plugins takes the run up."""
    use_plugins([str(one) for one in plugins])
    require_plugins(run)


def test_two_plugins_have_modules_of_one_name(make: Make) -> None:
    """Each has its own, also those that its modules import, and those that it imports later."""
    imports, value = "import helper\nfrom pack.deep import two", "helper.one() + two + later"
    own = {
        name: make(
            f"{name}/p.py", imports, value, "from late import later", late=f"later = {n}000",
            helper="import base\ndef one():\n    return base.n\n", base=f"n = {n}",
            pack____init__="from . import deep as deep", pack__deep=f"from base import n\ntwo = {n}00",
        )
        for n, name in enumerate(("a", "b"), 1)
    }  # fmt: skip
    before = sys.path.copy()
    first, second = load(own["a"]), load(own["b"])
    assert [called(first), called(second), called(first)] == [1101, 2202, 1101]
    assert not {"helper", "base", "pack", "late"} & set(sys.modules)
    assert sys.path == before
    files = {"helper.py", "base.py", "late.py", "pack/__init__.py", "pack/deep.py"}
    assert set(first.modules) == set(second.modules) == files
    assert first.digest != first.sha256


def test_only_what_is_imported_counts(make: Make) -> None:
    """A file next to it that it does not import, and modules of Python and of packages, are no part of a plugin."""
    plugin = load(make("a/p.py", "import json\nimport smolsum.types", json="x = 1", other="y = 1"))
    assert plugin.modules == {}
    assert plugin.digest == plugin.sha256


def test_a_module_that_changes_within_a_second_is_read_anew(make: Make) -> None:
    """No cached compilation stands for the file."""
    path = make("a/p.py", "import helper", "helper.n", helper="n = 1")
    assert called(load(path)) == 1
    make("a/p.py", "import helper", "helper.n", helper="n = 2")
    assert called(load(path)) == 2
    assert not list(path.parent.rglob("*.pyc"))


def test_a_module_that_fails_is_named(make: Make) -> None:
    """With the line of the plugin that imports it."""
    path = make("a/p.py", "import helper", helper="1 / 0")
    with refuses("p.py", "line 3", "ZeroDivisionError"):
        load(path)


def record(root: Path, *plugins: Plugin) -> RunPaths:
    """A run that began with these plugins."""
    run = RunPaths(root)
    run.root.mkdir()
    run.info.write_bytes(encode(RunInfo, {"plugins": [to_row(one.record()) for one in plugins]}))
    run.config.write_text('[run]\nplugins = "gone.py"\n')
    for name, content in plugin_copies(plugins).items():
        (run.plugins / name).parent.mkdir(parents=True, exist_ok=True)
        (run.plugins / name).write_bytes(content)
    return run


def test_a_run_goes_on_only_with_the_same_modules(make: Make, tmp_path: Path) -> None:
    """The error names the module that changed; the copies in the run are the same plugin."""
    path = make("a/p.py", "import helper", "helper.n", helper="n = 1")
    run = record(tmp_path / "run", load(path))
    required(run, path)
    (path.parent / "helper.py").write_text("n = 2")
    with refuses("p.py", "run", "helper.py"):
        required(run, path)
    required(run, run.plugins / "p.py")


def test_plugins_of_one_file_name_are_told_apart(make: Make, tmp_path: Path) -> None:
    """By path and content: all that a command does not name are in one error, and their copies do not meet."""
    first, second = make("a/p.py", value="1.0"), make("b/p.py", value="2.0")
    run = record(tmp_path / "run", load(first), load(second))
    for named, hint in (([], f"--plugin {first} --plugin {second}"), ([first], f"--plugin {second}")):
        with refuses("p.py") as caught:
            required(run, *named)
        assert caught.value.hint == hint
    required(run, first, second)
    for path in (first, second):
        path.unlink()
    with refuses() as caught:
        required(run)
    copies = str(caught.value.hint).split()[1::2]
    assert len(set(copies)) == 2
    required(run, *copies)
    with refuses("p.py"):
        use_named_plugins(copies[:1], None, run.config)
    use_named_plugins(copies, None, run.config)


def test_another_function_of_the_same_file_is_another_plugin(make: Make, tmp_path: Path) -> None:
    """The chosen function belongs to what a run began with."""
    path = make("a/p.py")
    path.write_text("def f(completions): return []\ndef g(completions): return []\n")
    run = record(tmp_path / "run", load_file(path, "f"))
    with refuses("p.py:f"):
        required(run, f"{path}:g")
