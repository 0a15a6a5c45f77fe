"""The model that the MLX cases update: Qwen2 with tied embeddings and random weights."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from shapes import Shape

import smolsum.policy  # loads a fast BLAS before MLX

# isort: split
import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_lm.models.qwen2 import Model, ModelArgs

MEAN_TOKENS = 150
"""of a completion of the model on disk: one in so many token ids ends it"""


def random_qwen2(shape: Shape, dtype: str) -> Model:
    """A model of this shape; seeded."""
    mx.random.seed(0)
    model = Model(ModelArgs(**settings(shape)))
    model.set_dtype(getattr(mx, dtype))
    mx.eval(model.parameters())
    return model


def settings(shape: Shape) -> dict[str, object]:
    """The `config.json` of the model."""
    return {
        "model_type": "qwen2",
        "hidden_size": shape.width,
        "num_hidden_layers": shape.layers,
        "intermediate_size": shape.ff,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "rms_norm_eps": 1e-6,
        "vocab_size": shape.vocabulary,
        "tie_word_embeddings": True,
    }


def write_random_qwen2(folder: Path, shape: Shape) -> Path:
    """Write the model in bfloat16, as the hub keeps models, with the tokenizer of the built-in one; returns the folder.

    Many token ids end a completion, so that completions differ in length and the reward has something to teach.
    """
    folder.mkdir(parents=True, exist_ok=True)
    weights = dict(tree_flatten(random_qwen2(shape, "bfloat16").parameters()))
    mx.save_safetensors(str(folder / "model.safetensors"), weights, metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps({**settings(shape), "torch_dtype": "bfloat16"}))
    ends = list(range(2, 2 + shape.vocabulary // MEAN_TOKENS))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": ends}))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(Path(smolsum.policy.__path__[0]) / "builtin" / "tiny" / name, folder / name)
    return folder
