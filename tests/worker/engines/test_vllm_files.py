"""The files for vLLM, and new weights in the model of vllm-metal."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from support.disks import mounted
from support.models import write

import smolsum.policy

# isort: split
import mlx.core as mx
from mlx_lm.utils import load_model

import smolsum.worker
from smolsum.config.sections import LoraConfig
from smolsum.errors import MachineError, SmolsumError
from smolsum.policy.load import load_policy
from smolsum.policy.logprobs import group_logprobs
from smolsum.policy.weights import served_arrays
from smolsum.worker.engines.vllm import type_of, write_adapters, write_weights
from smolsum.worker.engines.vllm_process import installed

sys.path.insert(0, str(Path(smolsum.worker.__file__).with_name("vllm_plugin")))
from smolsum_vllm import WeightsExtension  # as vLLM finds it


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_weights_file_has_every_bit(tmp_path: Path, dtype: Any) -> None:
    """Every bit is in the file, under safetensors' own name of the type."""
    arrays = served_arrays(load_policy(str(write(tmp_path / "m", "lfm2")), dtype=dtype))
    write_weights(arrays, tmp_path / "w.safetensors")
    read = mx.load(str(tmp_path / "w.safetensors"))
    assert read.keys() == arrays.keys()
    for name, array in arrays.items():
        assert str(read[name].dtype).endswith(dtype)
        assert np.array(read[name].view(mx.uint8)).tobytes() == array.tobytes()


def test_adapters_are_written_as_peft(tmp_path: Path) -> None:
    """PEFT's alpha / r * B A is mlx-lm's scale * (A B)."""
    lora = LoraConfig(rank=2, keys="self_attn.q_proj")
    policy = load_policy(str(write(tmp_path / "m", "qwen2")), dtype="float32", lora=lora, seed=1)
    arrays = {name: a + 1 for name, a in served_arrays(policy).items()}
    write_adapters(arrays, lora, tmp_path)
    facts = json.loads((tmp_path / "adapter_config.json").read_text())
    assert facts["target_modules"] == ["q_proj"]
    place = "model.layers.0.self_attn.q_proj"
    with safe_open(str(tmp_path / "adapter_model.safetensors"), "np") as file:
        a, b = (file.get_tensor(f"base_model.model.{place}.lora_{x}.weight") for x in "AB")
    assert a.shape[0] == b.shape[1] == 2
    expected = lora.scale * (arrays[f"{place}.lora_a"] @ arrays[f"{place}.lora_b"])
    assert facts["lora_alpha"] / facts["r"] * (b @ a).T == pytest.approx(expected, rel=1e-5)


def test_full_disk_is_one_error(tmp_path: Path) -> None:
    arrays = {"w": np.zeros(1_000_000, np.float32)}
    with mounted(tmp_path / "disk", 1000) as disk:
        with pytest.raises(SmolsumError, match="full") as error:
            write_weights(arrays, disk / "w.safetensors")
        assert error.value.hint
        assert list(disk.iterdir()) == []


class Worker(WeightsExtension):
    """Stands for vllm-metal's worker, which has a model of mlx-lm."""

    def __init__(self, folder: Path) -> None:
        self.model, _ = load_model(folder)
        self.get_model = lambda: self.model


@pytest.mark.parametrize("family", ["qwen2", "lfm2", "gemma2"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_plugin_loads_and_checks_an_mlx_model(tmp_path: Path, family: str, dtype: Any) -> None:
    """It computes with the new weights, bit for bit; the check finds a single wrong bit."""
    worker = Worker(write(tmp_path / "old", family, seed=1))
    worker.model.set_dtype(getattr(mx, dtype))
    new = load_policy(str(write(tmp_path / "new", family, seed=2)), dtype=dtype)
    arrays, path = served_arrays(new), str(tmp_path / "w.safetensors")
    write_weights(arrays, Path(path))
    assert len(worker.smolsum_check(path)["wrong"]) > 3
    worker.smolsum_load(path)
    assert worker.smolsum_check(path) == {"wrong": [], "unseen": []}
    one, other = (group_logprobs(model, [5, 6], [[7, 8, 9]])[0] for model in (worker.model, new.model))
    assert mx.array_equal(one, other)
    name = sorted(arrays)[3]
    arrays[name].reshape(-1)[:1].view(np.uint8)[0] ^= 1
    write_weights(arrays, Path(path))
    assert worker.smolsum_check(path) == {"wrong": [name], "unseen": []}


def test_python_without_vllm_is_one_error() -> None:
    for python in (sys.executable, "/nowhere/python", "/bin/true"):
        with pytest.raises(MachineError) as error:
            installed(python)
        assert "--vllm-python" in str(error.value.hint)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"dtype": "float16"}, "float16"),
        ({"torch_dtype": "float32"}, "float32"),
        ({"text_config": {"dtype": "float16"}}, "float16"),
        ({"text_config": {"torch_dtype": "float32"}, "dtype": None}, "float32"),
        ({"dtype": "bfloat16", "text_config": {"torch_dtype": "float32"}}, "bfloat16"),
        ({"dtype": "float8_e4m3fn"}, "bfloat16"),
        ({"text_config": None}, "bfloat16"),
    ],
)
def test_the_type_of_a_checkpoint(config: dict[str, Any], expected: str) -> None:
    """Wherever its config.json has it; a type that smolsum does not compute in is none."""
    assert type_of(config) == expected
