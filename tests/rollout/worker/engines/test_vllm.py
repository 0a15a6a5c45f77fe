"""The files for vLLM, and new weights in the model of vllm-metal, which hides some of them."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from support.disks import mounted
from support.metal_server import MetalWorker, Paged
from support.models import write

# isort: split
import mlx.core as mx
from mlx.utils import tree_flatten

from smolsum.config.sections import LoraConfig
from smolsum.errors import SmolsumError
from smolsum.policy.load import load_policy
from smolsum.policy.logprobs import group_logprobs
from smolsum.policy.weights import served_arrays
from smolsum.rollout.worker.engines.vllm import shapes_of, type_of, write_adapters, write_weights


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


@pytest.mark.parametrize("wrapped", ["", "_inner", "_wrapped_module"])
@pytest.mark.parametrize("family", ["qwen2", "lfm2", "gemma2"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_plugin_loads_and_checks_an_mlx_model(tmp_path: Path, family: str, dtype: Any, wrapped: str) -> None:
    """It computes with the new weights, bit for bit, also with those that a wrapper hides; the check finds a single
    wrong bit."""
    worker = MetalWorker(write(tmp_path / "old", family, seed=1), wrapped)
    for layer in worker.model.layers:  # what a wrapper holds has no type of its own to set
        for module in [layer, *(vars(part).get(wrapped) for part in layer.values() if isinstance(part, Paged))]:
            module.set_dtype(getattr(mx, dtype))
    worker.model.set_dtype(getattr(mx, dtype))
    new = load_policy(str(write(tmp_path / "new", family, seed=2)), dtype=dtype)
    arrays, path = served_arrays(new), str(tmp_path / "w.safetensors")
    write_weights(arrays, Path(path))
    if wrapped:
        assert len(dict(tree_flatten(worker.model.parameters()))) < len(dict(tree_flatten(new.model.parameters())))
    assert worker.smolsum_misplaced(shapes_of(arrays)) == []
    assert len(worker.smolsum_check(path)["wrong"]) > 3
    worker.smolsum_load(path)
    assert worker.smolsum_check(path) == {"wrong": [], "unseen": []}
    one, other = (group_logprobs(model, [5, 6], [[7, 8, 9]])[0] for model in (worker.model, new.model))
    assert mx.array_equal(one, other)
    name = sorted(arrays)[3]
    arrays[name].reshape(-1)[:1].view(np.uint8)[0] ^= 1
    write_weights(arrays, Path(path))
    assert worker.smolsum_check(path) == {"wrong": [name], "unseen": []}


@pytest.mark.parametrize("family", ["qwen2", "lfm2"])
@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda arrays: arrays | {"model.layers.9.self_attn.q_proj.weight": arrays["model.embed_tokens.weight"]},
         ["model.layers.9.self_attn.q_proj.weight", "no parameter"]),
        (lambda arrays: {name: a for name, a in arrays.items() if "q_proj.weight" not in name}, ["not sent", "q_proj"]),
        (lambda arrays: {name: a[:-1] if "o_proj" in name or "out_proj" in name else a for name, a in arrays.items()},
         ["31, 32] sent", "32, 32] there"]),
    ],
    ids=["unknown", "missing", "shape"],
)  # fmt: skip
def test_weights_without_a_place_change_nothing(
    tmp_path: Path, family: str, change: Callable[[Any], Any], named: list[str]
) -> None:
    """They are named before anything is replaced; a load of them is refused as a whole."""
    worker = MetalWorker(write(tmp_path / "old", family, seed=1), "_inner")
    old = served_arrays(load_policy(str(tmp_path / "old"), dtype="float32"))
    arrays = change(served_arrays(load_policy(str(write(tmp_path / "new", family, seed=2)), dtype="float32")))
    wrong = worker.smolsum_misplaced(shapes_of(arrays))
    assert wrong
    assert all(any(name in line for line in wrong) for name in named), wrong
    path, before = tmp_path / "w.safetensors", tmp_path / "old.safetensors"
    write_weights(arrays, path)
    assert worker.smolsum_check(str(path))["unseen"] == sorted(arrays.keys() - old.keys())
    if arrays.keys() != old.keys():
        with pytest.raises(ValueError, match="no place"):
            worker.smolsum_load(str(path))
    write_weights(old, before)
    assert worker.smolsum_check(str(before)) == {"wrong": [], "unseen": []}


def test_a_reference_to_another_module_is_no_wrapper(tmp_path: Path) -> None:
    """A layer may point to its model, or to another layer's attention, without having weights of its own there."""
    worker = MetalWorker(write(tmp_path / "m", "qwen2", seed=1), "_inner")
    first, second = worker.model.layers
    object.__setattr__(first, "_model", worker.model)
    object.__setattr__(first.self_attn, "_lender", second)
    arrays = served_arrays(load_policy(str(tmp_path / "m"), dtype="float32"))
    assert worker.smolsum_misplaced(shapes_of(arrays)) == []


def test_the_sampler_of_vllm_metal_gets_the_mode_that_it_lacks(tmp_path: Path) -> None:
    """A sampler that has the mode already is left as it is, and so is a worker without one."""
    worker = MetalWorker(write(tmp_path / "m", "qwen2"))
    worker.smolsum_sampler()
    kept = worker.model_runner._sampler
    assert kept.logprobs_mode == "processed_logprobs"
    worker.smolsum_sampler()
    assert worker.model_runner._sampler is kept
    worker.model_runner = SimpleNamespace()
    worker.smolsum_sampler()


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
