"""Adam on float32 master weights; the policy's own weights are their cast."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim
from mlx.utils import tree_flatten, tree_map, tree_map_with_path, tree_unflatten

from smolsum.config import OptimizerConfig, StageConfig


def learning_rate(stage: StageConfig, step: int, steps: int) -> float:
    """The step size of a stage's optimizer step (from 0) of `steps`: linear warm-up, then constant, or linear or
    cosine towards 0."""
    if step < stage.warmup_steps:
        return stage.learning_rate * (step + 1) / stage.warmup_steps
    done = (step - stage.warmup_steps) / max(1, steps - stage.warmup_steps)
    course = {"constant": 1.0, "linear": 1.0 - done, "cosine": 0.5 * (1.0 + math.cos(math.pi * done))}
    return stage.learning_rate * course[stage.schedule]


class Optimizer:
    """Adam or AdamW over a model's trainable parameters, with state that can be saved and restored bit for bit.

    With `master_weights` the moments and a copy of the weights are float32 whatever the policy's type; without,
    everything has the policy's type, as the study had it: small updates are then lost to rounding.
    """

    def __init__(self, model: nn.Module, config: OptimizerConfig) -> None:
        self.max_grad_norm = config.max_grad_norm
        self.keeps_masters = config.master_weights
        common = {
            "betas": [config.beta1, config.beta2],
            "eps": config.eps,
            "bias_correction": config.bias_correction,
        }
        if config.name == "adamw":
            self.adam = optim.AdamW(config.learning_rate, weight_decay=config.weight_decay, **common)
        else:
            self.adam = optim.Adam(config.learning_rate, **common)
        self.weights = self._own(model.trainable_parameters())
        self.adam.init(self.weights)

    def _own(self, tree: Any) -> Any:
        return tree_map(lambda p: p.astype(mx.float32), tree) if self.keeps_masters else tree

    def step(self, model: nn.Module, gradients: Any, rate: float) -> dict[str, float]:
        """Update the model in place; the metrics say how large the gradient was and how much of the update the policy
        shows.

        A gradient that is not finite changes nothing, and `update/skipped` is 1.
        """
        gradients, norm = optim.clip_grad_norm(self._own(gradients), self.max_grad_norm)
        metrics = {"grad_norm": float(norm), "learning_rate": rate, "update/skipped": 0.0}
        if not math.isfinite(metrics["grad_norm"]):
            return metrics | {"update/skipped": 1.0, "update/visible_frac": 0.0}
        self.adam.learning_rate = mx.array(rate, dtype=mx.float32)
        self.weights = self.adam.apply_gradients(gradients, self.weights)
        served = model.trainable_parameters()
        updated = tree_map(lambda new, old: new.astype(old.dtype), self.weights, served)
        changed = [mx.sum(a != b) for (_, a), (_, b) in zip(tree_flatten(updated), tree_flatten(served), strict=True)]
        total = sum(p.size for _, p in tree_flatten(served))
        model.update(updated)
        mx.eval(self.weights, self.adam.state, updated, changed)  # the update is one graph: run it here
        return metrics | {"update/visible_frac": sum(c.item() for c in changed) / total}

    def save(self, path: Path) -> None:
        """Write moments, step count and masters to a safetensors file."""
        state = {f"adam.{k}": v for k, v in tree_flatten(self.adam.state)}
        masters = {f"weights.{k}": v for k, v in tree_flatten(self.weights)} if self.keeps_masters else {}
        mx.save_safetensors(str(path), state | masters)

    def load(self, path: Path, model: nn.Module) -> None:
        """Restore what `save` wrote, and the model's weights from the masters where there are any."""
        flat: Mapping[str, mx.array] = mx.load(str(path))
        self.adam.state = tree_unflatten(
            [(k.removeprefix("adam."), v) for k, v in flat.items() if k.startswith("adam.")]
        )
        if self.keeps_masters:
            # on the model's own tree: layers without weights have a place in it that a flat file does not keep
            self.weights = tree_map_with_path(lambda name, _: flat[f"weights.{name}"], model.trainable_parameters())
            model.update(tree_map(lambda new, old: new.astype(old.dtype), self.weights, model.trainable_parameters()))
        else:
            self.weights = model.trainable_parameters()
        mx.eval(self.weights, self.adam.state)
