"""The shipped presets: each resolves, holds the values of the table it reproduces, and is found when installed."""

import re
import zipfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import tomli
from support.places import ROOT
from support.processes import python
from support.refusals import refuses

from smolsum.config.presets import KINDS, QUALITY, find_preset, names_for, preset_names, read_preset, read_table, walk
from smolsum.config.resolve import resolve, to_toml
from smolsum.config.run_labels import REWARD_SETS
from smolsum.config.sections import Config
from smolsum.tasks import TASKS
from smolsum.tasks.tldr.settings import TldrConfig

PRESETS = [(kind, name) for kind in KINDS for name in preset_names(kind)]
FOLDER = ROOT / "presets"
SEEDS = tomli.loads((ROOT / "tests" / "golden" / "seed_settings.toml").read_text(encoding="utf-8"))
SAID, TABLE = SEEDS["said"], SEEDS["presets"]
OF_TASK = ("model", "strategy", "reward", "grid")
"""what the file of a task says of the task itself"""


def config(*, task: str | None = None, **given: Any) -> Config:
    return resolve(TASKS, flags={"task.name": task}, sets=(), **given).config


def test_names() -> None:
    assert preset_names("profiles") == ("default", "kalomaze", "small", "study")
    assert preset_names("models") == (
        "gemma-3-1b", "gemma-3-270m", "gemma-3-4b", "lfm", "lfm2-1.2b", "lfm2-2.6b", "lfm2-700m", "llama-3.2-1b",
        "llama-3.2-3b", "qwen", "qwen2.5-1.5b", "qwen2.5-3b", "qwen2.5-7b", "qwen3-0.6b", "qwen3-1.7b", "qwen3-4b",
        "qwen3-8b", "smollm2-1.7b", "smollm2-360m", "smollm3-3b", "tiny", "tiny-lfm",
    )  # fmt: skip
    assert preset_names("strategies") == (
        "any-length",
        "constrained",
        "finetuned",
        "included",
        "sft-constrained",
        "sft-included",
        "short-sentences",
    )
    assert len(PRESETS) == len({name for _, name in PRESETS})


def shipped() -> dict[str, dict[str, Any]]:
    """The tables of all preset files, as `KIND/NAME`, and of a task's file as `TASK`, `TASK defaults` and
    `TASK KIND/NAME`."""
    found = {f"{kind}/{name}": read_table(kind, name) for kind, name in PRESETS}
    for path in (FOLDER / "tasks").glob("*.toml"):
        table = tomli.loads(path.read_text(encoding="utf-8"))
        found[path.stem] = {key: value for key, value in table.items() if key in OF_TASK}
        if "defaults" in table:
            found[f"{path.stem} defaults"] = table["defaults"]
        for kind in KINDS:
            found |= {f"{path.stem} {kind}/{name}": one for name, one in table.get(kind, {}).items()}
    return found


def flat(table: Mapping[str, Any]) -> dict[str, Any]:
    """Every dotted key with a value that is no table, and every empty table."""
    return {key: value for key, value in walk(table) if not isinstance(value, dict) or not value}


def written(name: str) -> set[str]:
    """The keys of a preset, as a stage has them; the weight of quality, whose signals are not known, as `rewards`."""
    keys = flat(shipped()[name])
    return {key.replace("stage_defaults.", "stages.").removesuffix(f".{QUALITY}") for key in keys}


def resolved(name: str) -> list[dict[str, Any]]:
    """The settings that a preset of the table makes, with each of the models and strategies that it names, without
    what such a strategy says itself."""
    task, _, preset = name.partition(" ")
    if name in TASKS:
        own = TASKS[name].presets
        return [flat({key: getattr(own, key) for key in OF_TASK if getattr(own, key)})]
    chosen = TABLE[name].get("with", {"model": ["qwen"]})
    presets = (chosen["preset"],) if "preset" in chosen else ()
    task_name = task if preset else None
    found = []
    for model in chosen.get("model", [None]):
        for strategy in chosen.get("strategy", [None]):
            made = config(task=task_name, model=model, strategy=strategy, presets=presets, reward=chosen.get("reward"))
            others = {f"strategies/{strategy}", f"tldr profiles/{strategy}"} & {*TABLE} - {name}
            said = set[str]().union(*map(written, others))
            found.append({key: value for key, value in flat(asdict(made)).items() if key not in said})
    return found


def expected(name: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """What the seeds say of a preset and what is ours instead, for the stages of `settings`."""
    entry, found = TABLE[name], dict[str, Any]()
    said = [key_values for place in entry["from"] for key_values in SAID[place].values()]
    for one in said:
        for key, value in one.items():
            assert key not in found or found[key] == value or key in entry.get("ours", {}), (name, key)
            found[key] = value
    found |= {key: own["value"] for key, own in entry.get("ours", {}).items()}
    stages = dict.fromkeys(key.split(".")[1] for key in settings if key.startswith("stages."))
    spread = {k.replace("*", stage): v for k, v in found.items() for stage in (stages if "*" in k else [""])}
    return flat(spread)


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
    """No preset is without an entry, no entry without a preset, and no place of a seed unused."""
    assert sorted(TABLE) == sorted(shipped())
    assert {place for entry in TABLE.values() for place in entry["from"]} == set(SAID)


@pytest.mark.parametrize("name", TABLE)
def test_presets_hold_what_the_seeds_say(name: str) -> None:
    """Every value that the seeds give for a preset is true of what it resolves to, or has one of ours instead."""
    held = set[str]()
    for settings in resolved(name):
        for key, value in expected(name, settings).items():
            if key in settings:
                held.add(key)
                assert (settings[key], type(settings[key])) == (value, type(value)), key
    missing = set().union(*(expected(name, settings) for settings in resolved(name))) - held
    assert not missing


@pytest.mark.parametrize("name", TABLE)
def test_every_value_of_a_preset_is_in_the_table(name: str) -> None:
    """A value of a preset file is from a seed, or is listed as ours with a reason."""
    known = set[str]().union(*(expected(name, settings) for settings in resolved(name)))
    for key in written(name):
        # a list of rewards, or the weight of quality, stands for a table
        assert key in known or (key.endswith(".rewards") and any(k.startswith(f"{key}.") for k in known)), key


@pytest.mark.parametrize("name", TABLE)
def test_what_is_ours_has_a_reason(name: str) -> None:
    """A deviation is one, and what no seed gives stands in the preset itself; both say why."""
    entry = TABLE[name]
    said = [(key, value) for place in entry["from"] for one in SAID[place].values() for key, value in one.items()]
    own = written(name)
    for key, one in entry.get("ours", {}).items():
        assert one.keys() == {"value", "why"}, key
        assert len(one["why"].split()) > 1, key
        values = [value for other, value in said if other == key]
        listed = own | {key for key in entry["ours"] if key.rpartition(".")[0] in own}  # as above
        assert any(value != one["value"] for value in values) if values else key in listed, key


@pytest.mark.parametrize("name", TASKS)
def test_presets_of_a_task_resolve(name: str) -> None:
    task = TASKS[name]
    for kind in KINDS:
        for one in names_for(task, kind):
            assert (kind, one) in find_preset(task, one)
            chosen: dict[str, Any] = {"model": one} if kind == "models" else {"strategy": one}
            assert config(task=name, **({"presets": (one,)} if kind == "profiles" else chosen)).stages


def test_grid_of_the_study() -> None:
    """`all` means the study's two models, two strategies and six rewards (Table 8), in the order of its tables."""
    grid = {"rewards": tuple(REWARD_SETS), "models": ("qwen", "lfm"), "strategies": ("finetuned", "included")}
    assert {kind: TASKS["tldr"].presets.everything(kind) for kind in grid} == grid


@pytest.mark.parametrize("model", preset_names("models"))
@pytest.mark.parametrize("strategy", preset_names("strategies"))
@pytest.mark.parametrize("profile", preset_names("profiles"))
def test_resolves_and_repeats(model: str, strategy: str, profile: str, tmp_path: Path) -> None:
    """Every model, strategy and profile resolve together, and the result as a file repeats it exactly."""
    file = tmp_path / "config.toml"
    for reward in ("length", "meteor", "bleu-rouge"):
        if (strategy, reward) in (("constrained", "length"), ("sft-constrained", "length")):
            with refuses("quality signal"):
                config(model=model, strategy=strategy, reward=reward)
            continue
        if (strategy, profile) == ("any-length", "study"):  # it leaves out the token that ends a text
            with refuses("hindsight teaches where a text ends", "--set grpo.train_eos=true"):
                config(model=model, strategy=strategy, reward=reward, presets=(profile,))
            continue
        if (strategy, profile) == ("short-sentences", "study"):  # its loss has one ratio for a completion
            with refuses("stages.included.length_credit = 'ends' needs a ratio", "--set grpo.loss=grpo"):
                config(model=model, strategy=strategy, reward=reward, presets=(profile,))
            continue
        first = config(model=model, strategy=strategy, reward=reward, presets=(profile,))
        file.write_text(to_toml(first), encoding="utf-8")
        again = config(config_file=file)
        assert first == again
        assert list(first.stages) == list(again.stages)
        assert "stage_defaults" not in tomli.loads(to_toml(first))


@pytest.mark.parametrize("name", preset_names("strategies"))
def test_strategies_hold_stages_and_objectives_only(name: str) -> None:
    assert {entry.key.split(".")[0] for entry in read_preset("strategies", name)} <= {"stages", "grpo"}


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
    done, out, err = python("-c", code, cwd=tmp_path, PYTHONPATH=str(archive))
    assert (done, out.startswith(str(archive))) == (0, True), err
    assert "LiquidAI/LFM2.5-350M" in out
    assert "ServiceNow/repliqa" in out
