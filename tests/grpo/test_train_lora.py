"""Runs that train adapters, through the command line."""

import json
import shutil
from pathlib import Path

import smolsum.policy  # noqa: F401  loads a fast BLAS before MLX

# isort: split
import mlx_lm
import pytest
from mlx.utils import tree_flatten
from safetensors.numpy import load_file
from support.calls import Call, done
from support.refusals import assert_refused
from support.training import arguments, assert_goes_on

from smolsum.files import read_jsonl
from smolsum.policy.load import load_policy

SETTINGS = {
    "lora__rank": 4, "lora__scale": 4.0, "lora__fuse": True, "model__quantize": 4, "optimizer__learning_rate": 4e-4,
    "stages__length__steps": 2, "stages__quality__steps": 1, "train__validate_every": 0,
}  # fmt: skip
"""of a run of two stages over a base of 4 bits, fused at each checkpoint"""
SIZES = {"test": 2}


def test_a_quantised_base_trains_its_adapters(finished: Path) -> None:
    """Every step moves them, the KL to the stage's start begins at 0, and the checkpoint holds them alone."""
    rows = read_jsonl(finished / "metrics.jsonl")
    assert [row["stage"] for row in rows] == ["length"] * 2 + ["quality"]
    assert all(0 < row["update/visible_frac"] <= 1 for row in rows)
    assert all(abs(row["update/lost_norm_frac"]) < 0.01 for row in rows)
    assert rows[0]["kl"] == pytest.approx(0.0, abs=1e-6)
    assert rows[1]["kl"] > 1e-9
    assert rows[2]["kl"] == pytest.approx(0.0, abs=1e-6)
    checkpoint = finished / "checkpoints" / "step-000003"
    assert not (checkpoint / "model.safetensors").exists()
    assert {name.rsplit(".", 1)[1] for name in load_file(checkpoint / "adapters.safetensors")} == {"lora_a", "lora_b"}


def test_checkpoints_load_in_mlx_lm(finished: Path) -> None:
    """The adapter over the base, and the fused model on its own."""
    checkpoint = finished / "checkpoints" / "step-000003"
    base = str(load_policy("builtin:tiny").path)
    adapted, _ = mlx_lm.load(base, adapter_path=str(checkpoint))
    assert any(name.endswith("lora_a") for name, _ in tree_flatten(adapted.parameters()))
    mlx_lm.load(str(checkpoint / "fused"))
    assert "quantization" not in json.loads((checkpoint / "fused" / "config.json").read_text())


def test_a_copied_checkpoint_is_known_as_adapters(
    finished: Path, data: Path, tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Outside its run it says which base it goes with, and what can be evaluated in its place."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(finished / "checkpoints" / "step-000003", tmp_path / "mine")
    assert json.loads((tmp_path / "mine" / "adapter_config.json").read_text())["model"] == "builtin:tiny"
    assert_refused(call("eval", "mine", f"--set=data.path={data}"), "builtin:tiny", "give mine/fused")
    shutil.rmtree(tmp_path / "mine" / "fused")
    assert_refused(call("eval", "mine", f"--set=data.path={data}"), "lora.fuse=true")


@pytest.mark.slow
def test_resume_with_adapters_is_bitwise(finished: Path, data: Path, tmp_path: Path) -> None:
    """Killed after its last checkpoint, the run ends as if nothing had been."""
    assert_goes_on(arguments(data, tmp_path, "killed", **SETTINGS), 3, finished)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"model__quantize": 4}, "adapter"),
        ({"model__quantize": 3}, "4 or 8"),
        ({"lora__rank": 0}, "lora.rank"),
        ({"lora__rank": 4000}, "takes 1 to"),
        ({"lora__keys": "q_proj"}, "'q_proj'"),
        ({"optimizer__precision": "stochastic", "model__dtype": "float32"}, "float32"),
    ],
)
def test_what_cannot_be_trained_is_refused(
    data: Path, tmp_path: Path, call: Call, changes: dict[str, object], named: str
) -> None:
    """With what would fit, and before a run directory is made."""
    assert_refused(call(*arguments(data, tmp_path, "bad", **changes)), named)
    assert not (tmp_path / "bad").exists()


@pytest.mark.parametrize(
    ("sets", "adapter"), [(["lora.rank=4"], "lora"), (["lora.rank=4", "model.adapter=none"], "none"), ([], "none")]
)
def test_a_setting_of_the_adapter_asks_for_it(call: Call, sets: list[str], adapter: str) -> None:
    """`--set lora.rank=4` is enough, and `model.adapter = none` next to it still wins."""
    out, _ = done(call("train", "--dry-run", "--quiet", *(f"--set={one}" for one in sets)))
    assert f'adapter = "{adapter}"' in out
