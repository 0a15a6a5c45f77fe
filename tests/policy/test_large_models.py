"""The presets of models above half a billion parameters, whose weights are out of reach here: their architectures in
the dimensions that are published, and as tiny models with random weights."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.models import write
from support.places import ROOT
from support.training import make_data

from smolsum.cli.main import main
from smolsum.config.resolve import resolve
from smolsum.config.sections import Config
from smolsum.files import read_jsonl
from smolsum.grpo.learning_rate import default_rate
from smolsum.policy.lora import add_adapters, count_parameters, quantise
from smolsum.policy.memory import MaxLengths, estimate, shape_of, ways
from smolsum.tasks import TASKS

# isort: split
import mlx.core as mx
import mlx.nn as nn
from mlx_lm.utils import _get_classes
from safetensors.numpy import load_file

GIB = 2**30
OF_MEMORY = 2 / 3
"""what macOS lets a GPU have of the memory of a small machine (`max_recommended_working_set_size`)"""
SPARE = 0.95


def llama_like(family: str, sizes: tuple[int, int, int, int, int], **more: Any) -> dict[str, Any]:
    """A config.json of width, layers, feed-forward width, heads and key-value heads."""
    names = ("hidden_size", "num_hidden_layers", "intermediate_size", "num_attention_heads", "num_key_value_heads")
    shared = {"rms_norm_eps": 1e-6, "rope_theta": 1e6, "tie_word_embeddings": True, "max_position_embeddings": 32768}
    return {"model_type": family, **dict(zip(names, sizes, strict=True)), **shared, **more}


def lfm2(width: int, ff: int, heads: int, attention: tuple[int, ...], layers: int, *, adjusted: bool) -> dict[str, Any]:
    """A config.json of LFM2, with the places of its attention layers."""
    kinds = ["full_attention" if n in attention else "conv" for n in range(layers)]
    return {
        "model_type": "lfm2", "hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads,
        "num_key_value_heads": 8, "vocab_size": 65536, "max_position_embeddings": 128000, "norm_eps": 1e-5,
        "conv_bias": False, "conv_L_cache": 3, "block_dim": width, "block_ff_dim": ff, "block_multiple_of": 256,
        "block_ffn_dim_multiplier": 1.0, "block_auto_adjust_ff_dim": adjusted, "layer_types": kinds, "rope_theta": 1e6,
    }  # fmt: skip


def gemma3(sizes: tuple[int, int, int, int, int], vocabulary: int, window: int) -> dict[str, Any]:
    more = {"head_dim": 256, "query_pre_attn_scalar": 256, "sliding_window_pattern": 6, "rope_local_base_freq": 1e4}
    return llama_like("gemma3_text", sizes, vocab_size=vocabulary, sliding_window=window, **more)


QWEN, LLAMA = {"vocab_size": 151936}, {"vocab_size": 128256}
SIXTEEN, THIRTY = (2, 5, 8, 10, 12, 14), (2, 6, 10, 14, 18, 22, 25, 28)
PUBLISHED: dict[str, tuple[float, dict[str, Any]]] = {
    "qwen2.5-1.5b": (1.54e9, llama_like("qwen2", (1536, 28, 8960, 12, 2), **QWEN)),
    "qwen2.5-3b": (3.09e9, llama_like("qwen2", (2048, 36, 11008, 16, 2), **QWEN)),
    "qwen2.5-7b": (7.61e9, llama_like("qwen2", (3584, 28, 18944, 28, 4), vocab_size=152064, tie_word_embeddings=False)),
    "qwen3-0.6b": (0.6e9, llama_like("qwen3", (1024, 28, 3072, 16, 8), head_dim=128, **QWEN)),
    "qwen3-1.7b": (1.72e9, llama_like("qwen3", (2048, 28, 6144, 16, 8), head_dim=128, **QWEN)),
    "qwen3-4b": (4.02e9, llama_like("qwen3", (2560, 36, 9728, 32, 8), head_dim=128, **QWEN)),
    "qwen3-8b": (
        8.19e9,
        llama_like("qwen3", (4096, 36, 12288, 32, 8), head_dim=128, **QWEN, **{"tie_word_embeddings": False}),
    ),
    "llama-3.2-1b": (1.24e9, llama_like("llama", (2048, 16, 8192, 32, 8), head_dim=64, **LLAMA)),
    "llama-3.2-3b": (3.21e9, llama_like("llama", (3072, 28, 8192, 24, 8), head_dim=128, **LLAMA)),
    "lfm2-700m": (0.742e9, lfm2(1536, 10240, 24, SIXTEEN, 16, adjusted=True)),
    "lfm2-1.2b": (1.17e9, lfm2(2048, 12288, 32, SIXTEEN, 16, adjusted=True)),
    "lfm2-2.6b": (2.57e9, lfm2(2048, 10752, 32, THIRTY, 30, adjusted=False)),
    "gemma-3-270m": (0.268e9, gemma3((640, 18, 2048, 4, 1), 262144, 512)),
    "gemma-3-1b": (1.0e9, gemma3((1152, 26, 6912, 4, 1), 262144, 512)),
    "gemma-3-4b": (
        3.88e9,
        {"model_type": "gemma3", "text_config": gemma3((2560, 34, 10240, 8, 4), 262208, 1024), "vocab_size": 262208},
    ),
    "smollm2-360m": (0.362e9, llama_like("llama", (960, 32, 2560, 15, 5), vocab_size=49152)),
    "smollm2-1.7b": (1.71e9, llama_like("llama", (2048, 24, 8192, 32, 32), vocab_size=49152)),
    "smollm3-3b": (3.08e9, llama_like("smollm3", (2048, 36, 11008, 16, 4), no_rope_layer_interval=4, **LLAMA)),
}
"""by preset: the number of parameters that the model's card gives (of the text model), and the dimensions"""


def shapes(sizes: dict[str, Any], config: Config) -> tuple[nn.Module, int]:
    """The model of a preset in bfloat16 with nothing computed, and its number of parameters before adapters."""
    model_class, arguments = _get_classes(sizes)
    model = model_class(arguments.from_dict(sizes))
    if sizes["model_type"].startswith("gemma3"):  # the weights have no head, and loading ties it to the embedding
        text = getattr(model, "language_model", model)
        text.pop("lm_head")
        text.tie_word_embeddings = True
    model.set_dtype(mx.bfloat16)
    parameters = count_parameters(model)
    if config.model.quantize:
        quantise(model, sizes, config.model.quantize)
    add_adapters(model, config.lora, dtype=mx.bfloat16, seed=0)
    return model, parameters


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_preset_fits_the_machine_that_it_names(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By smolsum's own estimate for the published dimensions, which have the published number of parameters, on a GPU,
    which has one stream. The peak is that which the preset states, the rate that of the rule."""
    monkeypatch.setattr("smolsum.policy.memory.streams", lambda: ["one"])
    config = resolve(TASKS, model=name, strategy="included").config
    published, sizes = PUBLISHED[name]
    model, parameters = shapes(sizes, config)
    assert parameters == pytest.approx(published, rel=0.01)
    config = replace(config, model=replace(config.model, dtype="bfloat16"))
    shape, lengths = shape_of(model), MaxLengths(config.data.max_input_tokens, config.sampling.max_new_tokens)
    least = min(sum(estimate(shape, config, way, lengths).values()) for way in ways(shape, config))
    text = (ROOT / "presets" / "models" / f"{name}.toml").read_text()
    said = re.search(r"machine of (\d+) GB: the memory plan needs at least ([\d.]+) GB", text)
    assert said
    assert least / 1e9 == pytest.approx(float(said[2]), abs=0.06)
    assert least < SPARE * OF_MEMORY * int(said[1]) * GIB
    assert int(said[1]) == 16 or least > SPARE * OF_MEMORY * 16 * GIB  # no smaller machine is enough
    assert default_rate(parameters, config.lora)[0] == (1e-5 if parameters > 0.7e9 else round(1e4 / parameters, 5))


def test_every_large_preset_has_its_dimensions() -> None:
    """And a model that can think is trained without thoughts."""
    chosen = {name: resolve(TASKS, model=name).config.model for name in PUBLISHED}
    found = {path.stem for path in (ROOT / "presets" / "models").glob("*.toml")} - {"tiny", "tiny-lfm", "qwen", "lfm"}
    assert found == set(PUBLISHED)
    assert {name for name, model in chosen.items() if model.thinking == "off"} == {
        name for name in PUBLISHED if name.startswith(("qwen3", "smollm3"))
    }


@pytest.mark.parametrize(
    ("family", "bits"),
    [
        *((family, 0) for family in ("qwen2", "qwen3", "llama", "lfm2", "gemma3_text", "gemma3", "smollm3")),
        ("qwen2", 8),
        ("qwen3", 4),
    ],
)
def test_a_tiny_model_of_the_family_trains_adapters(family: str, bits: int, tmp_path: Path) -> None:
    """Two steps through the command line on random weights: adapters move, and a checkpoint keeps them alone."""
    wide = {"hidden_size": 64, "intermediate_size": 128}  # quantised in groups of 64
    model = write(tmp_path / "model", family, max_position_embeddings=2048, **(wide if bits else {}))
    data = make_data(tmp_path / "data", train=4, validation=1, test=1)
    sets = {
        "data.path": str(data), "data.max_input_tokens": 1024, "model.adapter": "lora", "lora.rank": 4,
        "lora.scale": 2.0, "sampling.rollouts": 8, "sampling.max_new_tokens": 40, "train.prompts_per_step": 1,
        "train.validate_every": 0, "stages.length.steps": 2, "optimizer.learning_rate": 1e-3,
        "model.quantize": bits,
    }  # fmt: skip
    given = [f"--set={key}={value}" for key, value in sets.items()]
    asked = ["train", "--model", str(model), "--strategy=finetuned", "--reward=length", "--runs-dir", str(tmp_path)]
    assert main([*asked, "--name=mine", "--quiet", *given]) == 0
    rows = read_jsonl(tmp_path / "mine" / "metrics.jsonl")
    assert len(rows) == 2
    adapters = load_file(tmp_path / "mine" / "checkpoints" / "step-000002" / "adapters.safetensors")
    moved = [key for key, value in adapters.items() if key.endswith("lora_b") and abs(value).max() > 0]
    assert any(row.get("grad_norm", 0) > 0 for row in rows)
    assert moved
    assert not any("lora" not in key for key in adapters)
