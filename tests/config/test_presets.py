"""The shipped presets: each resolves, holds the values of the table it reproduces, and is found when installed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import tomli
from support.places import ROOT

from smolsum.config.presets import KINDS, find_preset, names_for, preset_names, read_preset
from smolsum.config.resolve import resolve
from smolsum.config.run_labels import REWARD_SETS
from smolsum.config.sections import Config, to_toml
from smolsum.tasks import TASKS
from smolsum.tasks.tldr import TldrConfig

PRESETS = [(kind, name) for kind in KINDS for name in preset_names(kind)]
FOLDER = ROOT / "presets"
TABLE = tomli.loads((ROOT / "tests" / "golden" / "presets.toml").read_text(encoding="utf-8"))


def config(
    *,
    model: str | None = None,
    strategy: str | None = None,
    reward: str | None = None,
    presets: tuple[str, ...] = (),
    config_file: Path | None = None,
    task: str | None = None,
) -> Config:
    return resolve(
        TASKS,
        flags={"task.name": task},
        model=model,
        strategy=strategy,
        reward=reward,
        presets=presets,
        config_file=config_file,
        sets=(),
    ).config


def test_names() -> None:
    """These presets are shipped, and no name stands for two of them."""
    assert preset_names("profiles") == ("default", "kalomaze", "study")
    assert preset_names("models") == ("lfm", "qwen", "tiny", "tiny-lfm")
    assert preset_names("strategies") == ("finetuned", "included")
    assert len(PRESETS) == len({name for _, name in PRESETS})


def own_presets() -> list[str]:
    """The presets in the files of the tasks: `TASK KIND/NAME`, and `TASK defaults`."""
    found = []
    for name, task in TASKS.items():
        own = task.presets
        tables = {"models": own.models, "profiles": own.profiles, "strategies": own.strategies}
        found += [f"{name} defaults"] * bool(own.defaults)
        found += [f"{name} {kind}/{one}" for kind, of_kind in tables.items() for one in of_kind if name != "tldr"]
    return found


def test_opens_with_a_comment() -> None:
    """Every file, and every preset in the file of a task, opens with a comment: what it reproduces or is for."""
    for path in FOLDER.rglob("*.toml"):
        assert path.read_text(encoding="utf-8").startswith("# "), path
    for path in (FOLDER / "tasks").glob("*.toml"):
        seen: set[tuple[str, ...]] = set()
        lines = path.read_text(encoding="utf-8").splitlines()
        for above, line in zip(["", *lines], lines, strict=False):
            if header := re.match(r"\[(models|strategies|profiles)\.(?:\"([^\"]+)\"|([\w-]+))", line):
                preset = header.groups()
                assert preset in seen or above.startswith("# "), (path.name, line)
                seen.add(preset)


def test_every_preset_is_in_the_table() -> None:
    """No preset is without an entry that names its table, and no entry without a preset."""
    assert sorted(TABLE) == sorted([*own_presets(), *(f"{kind}/{name}" for kind, name in PRESETS)])


@pytest.mark.parametrize(
    ("preset", "model"), [(name, model) for name in TABLE for model in TABLE[name]["with"]["model"]]
)
def test_table_holds(preset: str, model: str) -> None:
    """Every preset resolves to the values of its table; where it differs on purpose, the golden file says why."""
    entry, task = TABLE[preset], preset.partition(" ")[0] if " " in preset else None
    chosen = {key: value for key, value in entry["with"].items() if key in ("strategy", "reward")}
    presets = (entry["with"]["preset"],) if "preset" in entry["with"] else ()
    found = asdict(config(task=task, model=model, presets=presets, **chosen))
    for key, expected in entry["values"].items():
        value: Any = found
        for part in key.split("."):
            value = value[part]
        if isinstance(expected, dict) and "ours" in expected:
            assert expected.keys() == {"seed", "ours", "why"}, key
            assert expected["seed"] != expected["ours"], key
            expected = expected["ours"]
        assert (value, type(value)) == (expected, type(expected)), key


@pytest.mark.parametrize("name", TASKS)
def test_presets_of_a_task_resolve(name: str) -> None:
    """Every model, strategy and profile of every task resolves."""
    task = TASKS[name]
    for kind in KINDS:
        for one in names_for(task, kind):
            assert find_preset(task, one)
            chosen: dict[str, Any] = {"model": one} if kind == "models" else {"strategy": one}
            assert config(task=name, **({"presets": (one,)} if kind == "profiles" else chosen)).stages


def test_grid_of_the_study() -> None:
    """`all` means the study's two models, two strategies and six rewards (Table 8), in the order of its tables."""
    assert TASKS["tldr"].presets.everything("rewards") == tuple(REWARD_SETS)
    assert TASKS["tldr"].presets.everything("models") == ("qwen", "lfm")
    assert TASKS["tldr"].presets.everything("strategies") == preset_names("strategies") == ("finetuned", "included")


@pytest.mark.parametrize("model", preset_names("models"))
@pytest.mark.parametrize("strategy", preset_names("strategies"))
@pytest.mark.parametrize("profile", preset_names("profiles"))
def test_resolves_and_repeats(model: str, strategy: str, profile: str, tmp_path: Path) -> None:
    """Every model, strategy and profile resolve together, and the result as a file repeats it exactly."""
    file = tmp_path / "config.toml"
    for reward in ("length", "meteor", "bleu-rouge"):
        first = config(model=model, strategy=strategy, reward=reward, presets=(profile,))
        file.write_text(to_toml(first), encoding="utf-8")
        again = config(config_file=file)
        assert first == again
        assert list(first.stages) == list(again.stages)
        assert "stage_defaults" not in tomli.loads(to_toml(first))


@pytest.mark.parametrize("name", preset_names("strategies"))
def test_strategies_hold_stages_only(name: str) -> None:
    """A strategy holds stages and nothing else, as nothing else of it would be read."""
    assert {"stages"} == {entry.key.split(".")[0] for entry in read_preset("strategies", name)}


def test_system_prompt_states_no_length() -> None:
    """The training prompt gives no number and no unit of length: the reward teaches it."""
    prompt = TldrConfig().system_prompt.lower()
    assert not any(character.isdigit() for character in prompt)
    assert not any(word in prompt for word in ("token", "word", "sentence", "short", "brief", "length"))


def test_presets_are_found_inside_an_archive(tmp_path: Path) -> None:
    """Presets are read as package data: they are found even where the package is not a folder on disk."""
    archive = tmp_path / "package.zip"
    with zipfile.ZipFile(archive, "w") as file:
        for path in (ROOT / "smolsum").rglob("*.py"):
            file.write(path, path.relative_to(ROOT))
        for path in FOLDER.rglob("*.toml"):
            file.write(path, Path("smolsum") / path.relative_to(ROOT))
    shown = "p.__file__, p.read_preset('models', 'lfm'), p.task_presets('doc-qa')"
    code = f"from smolsum.config import presets as p; print({shown})"
    environment = {**os.environ, "PYTHONPATH": str(archive)}
    run = subprocess.run(
        [sys.executable, "-c", code], env=environment, cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert run.stdout.startswith(str(archive))
    assert "LiquidAI/LFM2.5-350M" in run.stdout
    assert "ServiceNow/repliqa" in run.stdout
