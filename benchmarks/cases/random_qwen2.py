"""The model that the MLX cases update: Qwen2 with tied embeddings and random weights."""

from __future__ import annotations

from shapes import Shape

import smolsum.policy  # noqa: F401  loads a fast BLAS before MLX

# isort: split
import mlx.core as mx
from mlx_lm.models.qwen2 import Model, ModelArgs


def random_qwen2(shape: Shape, dtype: str) -> Model:
    """A model of this shape; seeded."""
    mx.random.seed(0)
    model = Model(
        ModelArgs(
            model_type="qwen2",
            hidden_size=shape.width,
            num_hidden_layers=shape.layers,
            intermediate_size=shape.ff,
            num_attention_heads=shape.heads,
            num_key_value_heads=shape.kv_heads,
            rms_norm_eps=1e-6,
            vocab_size=shape.vocabulary,
            tie_word_embeddings=True,
        )
    )
    model.set_dtype(getattr(mx, dtype))
    mx.eval(model.parameters())
    return model
