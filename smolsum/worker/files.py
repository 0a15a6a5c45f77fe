"""Weights as files that vLLM reads: safetensors, and adapters in PEFT's layout."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from smolsum.config import LoraConfig
from smolsum.disk import writing

TYPES = {"float32": "F32", "float16": "F16", "uint16": "BF16"}
"""safetensors' names of numpy's types; bfloat16, which numpy lacks, is held as uint16"""
HELD = {"float32": "float32", "float16": "float16", "bfloat16": "uint16"}
"""numpy's types that hold the values of a model's"""
REMEDY = "the trainer sends the weights again"


def write_weights(arrays: Mapping[str, Any], path: Path) -> None:
    """Write arrays as safetensors. Raises SmolsumError where the disk refuses; nothing is left then."""
    header, start = {}, 0
    for name, array in arrays.items():
        end = start + array.nbytes
        header[name] = {"dtype": TYPES[str(array.dtype)], "shape": list(array.shape), "data_offsets": [start, end]}
        start = end
    packed = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    packed += b" " * (-len(packed) % 8)
    with writing(path, REMEDY):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("wb") as file:
                file.write(len(packed).to_bytes(8, "little") + packed)
                for array in arrays.values():
                    file.write(np.ascontiguousarray(array).data)
        except BaseException:
            path.unlink(missing_ok=True)
            raise


def write_adapters(arrays: Mapping[str, Any], lora: LoraConfig, folder: Path) -> None:
    """Write mlx-lm's adapters (y += scale * (x A) B) as PEFT's (y += alpha / r * B A x). Raises as `write_weights`."""
    turned = {_peft(name): np.ascontiguousarray(array.T) for name, array in arrays.items()}
    modules = sorted({name.rpartition(".")[0].rpartition(".")[2] for name in arrays})
    facts = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": lora.rank, "lora_alpha": lora.scale * lora.rank}
    facts |= {"target_modules": modules, "bias": "none", "use_dora": False, "use_rslora": False}
    write_weights(turned, folder / "adapter_model.safetensors")
    with writing(folder / "adapter_config.json", REMEDY):
        try:
            (folder / "adapter_config.json").write_text(json.dumps(facts))
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise


def _peft(name: str) -> str:
    """`layers.0.q_proj.lora_a` as `base_model.model.layers.0.q_proj.lora_A.weight`."""
    module, _, kind = name.rpartition(".")
    return f"base_model.model.{module}.{kind.replace('lora_a', 'lora_A').replace('lora_b', 'lora_B')}.weight"
