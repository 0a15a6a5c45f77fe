"""`import smolsum`: light, lazy, typed, documented, and enough to train with."""

import ast
import inspect
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.places import ROOT
from support.training import SETTINGS

import smolsum
from smolsum.config.sections import Config
from smolsum.grpo import python_api

PAGE = ROOT / "docs" / "python.md"
IMPORT_MODULES = 60


def blocks() -> list[str]:
    """The Python code of the page, block by block."""
    return re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.S)


def run(code: str, folder: Path) -> str:
    """What a new process prints that runs the code."""
    command = [sys.executable, "-W", "error", "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=True, cwd=folder).stdout


def test_import_is_light_and_changes_nothing(tmp_path: Path) -> None:
    """No library is loaded beyond Python's own, and few of those; environment and signal handlers stay."""
    code = """
import json, os, signal, sys
signals = (signal.SIGINT, signal.SIGTERM)
modules, environment, handlers = set(sys.modules), dict(os.environ), [signal.getsignal(n) for n in signals]
import smolsum
new = set(sys.modules) - modules
libraries = {name.split(".")[0] for name in new} - set(sys.stdlib_module_names)
same = environment == dict(os.environ) and handlers == [signal.getsignal(n) for n in signals]
print(json.dumps({"libraries": sorted(libraries), "same": same, "modules": len(new)}))
"""
    found = json.loads(run(code, tmp_path))
    assert found["libraries"] == ["smolsum"]
    assert found["same"]
    assert found["modules"] < IMPORT_MODULES


def test_names_exist_and_have_types() -> None:
    """Each public name can be used and listed, and type checkers find it where it is defined."""
    source = ast.parse((ROOT / "smolsum" / "__init__.py").read_text())
    typed = {
        alias.asname: f"{node.module}.{alias.name}"
        for branch in source.body
        if isinstance(branch, ast.If)
        for node in branch.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert sorted(typed) == smolsum.__all__
    assert typed == {name: f"smolsum.{module}.{name}" for name, module in smolsum._MODULES.items()}
    assert {name for name in smolsum.__all__ if getattr(smolsum, name) is None} == set()
    assert set(smolsum.__all__) <= set(dir(smolsum))
    assert (ROOT / "smolsum" / "py.typed").is_file()
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        smolsum.nothing  # type: ignore[attr-defined]  # noqa: B018


def test_names_are_documented() -> None:
    """Each has a docstring, those that work on arrays name the axes, and the page lists all."""
    objects = {name: getattr(smolsum, name) for name in smolsum.__all__}
    assert [name for name, value in objects.items() if name != "REWARDS" and not inspect.getdoc(value)] == []
    arrays = ("group_advantages", "gdpo_advantages", "group_logprobs", "gradients", "combine", "score_all")
    assert [n for n in arrays if not re.search(r"\(G, T\)|\(P, G\)|PxG", inspect.getdoc(objects[n]) or "")] == []
    listed = set(re.findall(r"`(\w+)`", PAGE.read_text().split("## All names")[1].split("## MLX")[0]))
    assert set(smolsum.__all__) <= listed


def test_page_trains_a_policy_in_40_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its first code runs as it stands, with fewer steps and tokens, and leaves a checkpoint that loads."""
    monkeypatch.chdir(tmp_path)
    code = blocks()[0]
    assert len(code.splitlines()) < 40
    exec(code.replace("STEPS = 10", "STEPS = 2").replace('max_new_tokens": 48', 'max_new_tokens": 12'), {})
    said = capsys.readouterr().out
    assert [line.split(":")[0] for line in said.splitlines()] == ["step 1", "step 2"]
    trained = smolsum.load_policy(str(tmp_path / "my-policy"))
    assert smolsum.make_prompt(trained, "Hello").token_ids


def test_page_runs_reads_and_compares(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its other code: a whole run, its rewards, and a paired test; here with small settings."""
    monkeypatch.chdir(tmp_path)
    small = {key: value for key, value in SETTINGS.items() if not key.startswith("stages.")}
    small |= {"sampling.max_new_tokens": 24, "data.path": str(data), "train.validate_every": 0}
    small |= {"stages.constrained.steps": 2}
    make_config = smolsum.make_config

    def make_small(*, settings: dict[str, Any], **names: str) -> Config:
        return make_config(settings=small | settings, **names)  # type: ignore[arg-type]

    monkeypatch.setattr(smolsum, "make_config", make_small, raising=False)
    names: dict[str, Any] = {"smolsum": smolsum, "Path": Path}
    for code in blocks()[1:]:
        exec(code, names)
    assert names["folder"] == Path("runs/mine")
    assert len(names["run"].series["reward"].points()) == 2
    assert names["result"].n == 4


def test_wrong_setting_is_named() -> None:
    """As on the command line."""
    with pytest.raises(smolsum.SmolsumError, match="tran"):
        python_api.make_config(settings={"tran.seed": 1})


@pytest.mark.skipif(sys.platform != "linux", reason="MLX has a fast BLAS elsewhere")
@pytest.mark.parametrize("blas", ["", "none"])
def test_late_import_warns_once(tmp_path: Path, blas: str) -> None:
    """Where MLX came first its slow BLAS stays: a warning with the remedy, unless the user chose that."""
    code = """
import warnings
import mlx.core
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import smolsum.policy
    import smolsum.policy.load
    smolsum.prepare_cpu()
print([str(w.message) for w in caught if w.category is RuntimeWarning])
"""
    environment = {key: value for key, value in os.environ.items() if key != "SMOLSUM_BLAS"} | {"SMOLSUM_BLAS": blas}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.count("import smolsum.policy first") == (0 if blas else 1)
