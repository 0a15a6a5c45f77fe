"""The shipped presets: each resolves, holds the study's values, and is found in an installed package."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from itertools import product
from pathlib import Path

import pytest
import tomli
from support.places import ROOT

from smolsum.config.presets import KINDS, preset_names, read_preset
from smolsum.config.resolve import resolve
from smolsum.config.sections import Config, to_toml
from smolsum.tasks import TASKS
from smolsum.tasks.tldr import TldrConfig

PRESETS = [(kind, name) for kind in KINDS for name in preset_names(kind)]
FOLDER = ROOT / "presets"


def config(
    *,
    model: str | None = None,
    strategy: str | None = None,
    reward: str | None = None,
    presets: tuple[str, ...] = (),
    config_file: Path | None = None,
) -> Config:
    return resolve(
        TASKS,
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


@pytest.mark.parametrize(("kind", "name"), PRESETS)
def test_opens_with_a_comment(kind: str, name: str) -> None:
    """Every preset opens with a comment that says what it reproduces or what it is for."""
    assert (FOLDER / kind / f"{name}.toml").read_text(encoding="utf-8").startswith("# ")


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


@pytest.mark.parametrize(("model", "profile"), [*product(preset_names("models"), ("default", "study"))])
def test_table_9_holds(model: str, profile: str) -> None:
    """What the study fixed for all runs holds for its own models, and for any model in its profile."""
    result = config(model=model, presets=(profile,))
    assert (result.grpo.eps_low, result.grpo.eps_high, result.optimizer.max_grad_norm) == (0.2, 0.2, 1.0)
    assert (result.sampling.rollouts, result.data.max_input_tokens) == (8, 512)
    if profile == "study" or model in ("qwen", "lfm"):
        assert (result.optimizer.learning_rate, result.grpo.beta) == (2e-6, 1e-4)
        assert (result.train.prompts_per_step, result.train.accumulation_steps) == (2, 1)
        assert result.optimizer.schedule == "constant"


def test_study_numerics() -> None:
    """The study's profile has the numerics its code had, the default profile the corrected ones."""
    study, default = config(model="qwen", presets=("study",)), config(model="qwen")
    assert (
        study.grpo.loss,
        study.grpo.old_logprobs,
        study.grpo.mask_truncated,
    ) == ("study", "recomputed", False)
    assert (
        default.grpo.loss,
        default.grpo.old_logprobs,
        default.grpo.mask_truncated,
    ) == ("grpo", "sampler", True)
    for result, numerics in ((study, (0.99, 0.1, False, "study")), (default, (0.999, 0.0, True, "masters"))):
        o = result.optimizer
        assert numerics == (o.beta2, o.weight_decay, o.bias_correction, o.precision)
    assert (
        study.model.dtype,
        study.sampling.max_new_tokens,
        study.rewards.length_shape,
    ) == ("bfloat16", 512, "linear")


def test_models() -> None:
    """Each model preset names its model and the data that belongs to it."""
    found = {name: (config(model=name).model.path, config(model=name).data.path) for name in preset_names("models")}
    assert found == {
        "tiny": ("builtin:tiny", "builtin:tldr-mini"),
        "tiny-lfm": ("builtin:tiny-lfm", "builtin:tldr-mini"),
        "qwen": ("Qwen/Qwen2.5-0.5B-Instruct", "mlabonne/smoltldr"),
        "lfm": ("LiquidAI/LFM2.5-350M", "mlabonne/smoltldr"),
    }


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
    code = "from smolsum.config import presets as p; print(p.__file__, p.read_preset('models', 'lfm'))"
    environment = {**os.environ, "PYTHONPATH": str(archive)}
    run = subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout.startswith(str(archive))
    assert "LiquidAI/LFM2.5-350M" in run.stdout
