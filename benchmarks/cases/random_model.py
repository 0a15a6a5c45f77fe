"""The model that the MLX cases train: tied embeddings and random weights."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from shapes import Shape

import smolsum.policy  # loads a fast BLAS before MLX

# isort: split
import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten
from mlx_lm.utils import _get_classes

MEAN_TOKENS = 150
"""of a completion of the model on disk: one in so many token ids ends it"""


def random_model(shape: Shape, dtype: str) -> nn.Module:
    """A model of this shape; seeded."""
    mx.random.seed(0)
    model_class, arguments = _get_classes(shape.settings)
    model = model_class(arguments.from_dict(shape.settings))
    model.set_dtype(getattr(mx, dtype))
    mx.eval(model.parameters())
    return model


def write_random_model(folder: Path, shape: Shape, dtype: str = "bfloat16") -> Path:
    """Write the model as the hub keeps models, with the tokenizer of the built-in one; returns the folder.

    Many token ids end a completion, so that completions differ in length and the reward has something to teach.
    """
    folder.mkdir(parents=True, exist_ok=True)
    weights = dict(tree_flatten(random_model(shape, dtype).parameters()))
    weights = {k: v.transpose(0, 2, 1) if k.endswith("conv.conv.weight") else v for k, v in weights.items()}
    mx.save_safetensors(str(folder / "model.safetensors"), weights, metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps({**shape.settings, "torch_dtype": dtype}))
    ends = list(range(2, 2 + shape.vocabulary // MEAN_TOKENS))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": ends}))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(Path(smolsum.policy.__path__[0]) / "builtin" / "tiny" / name, folder / name)
    return folder
