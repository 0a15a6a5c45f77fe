"""Adam on float32 masters, on bfloat16 weights with stochastic rounding, or as the study had it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten, tree_unflatten

from smolsum.config import StageConfig
from smolsum.grpo.adam import Scalars, Stepped, compiled_step, scalars
from smolsum.grpo.rounding import random_bits
from smolsum.objective import OptimizerConfig
from smolsum.policy import ranks
from smolsum.policy.streams import spread

PART = 1 << 23
"""elements updated at once on a stream"""


def learning_rate(stage: StageConfig, step: int, steps: int) -> float:
    """The step size of a stage's optimizer step (from 0) of `steps`: linear warm-up, then constant, or linear or
    cosine towards 0."""
    if step < stage.warmup_steps:
        return stage.learning_rate * (step + 1) / stage.warmup_steps
    done = (step - stage.warmup_steps) / max(1, steps - stage.warmup_steps)
    course = {"constant": 1.0, "linear": 1.0 - done, "cosine": 0.5 * (1.0 + math.cos(math.pi * done))}
    return stage.learning_rate * course[stage.schedule]


class Optimizer:
    """Adam (arXiv:1412.6980, algorithm 1) or AdamW (arXiv:1711.05101, algorithm 2) over a model's trainable parameters,
    with state that can be saved and restored bit for bit.

    `masters`: moments and a copy of the weights are float32, the model's own weights their cast (no second copy where
    they are float32 themselves). `stochastic`: no copy; the update is computed in float32, and the weights and the
    first moment are rounded to bfloat16 at random (arXiv:2010.06192), the second moment stays float32. `study`:
    everything has the weights' type, and small updates are lost to rounding.
    """

    def __init__(self, model: nn.Module, config: OptimizerConfig, *, seed: int = 0) -> None:
        self.config, self.seed, self.steps = config, seed, 0
        served = dict(tree_flatten(model.trainable_parameters()))
        first, second = {
            "masters": (mx.float32, mx.float32),
            "stochastic": (mx.bfloat16, mx.float32),
            "study": (None, None),
        }[config.precision]
        self.m = {name: mx.zeros(p.shape, first or p.dtype) for name, p in served.items()}
        self.v = {name: mx.zeros(p.shape, second or p.dtype) for name, p in served.items()}
        self._step = compiled_step(config)
        self.masters = {name: p.astype(mx.float32) for name, p in served.items() if config.precision == "masters"}

    def step(self, model: nn.Module, gradients: dict[str, Any], rate: float) -> dict[str, float]:
        """Update the model in place, and empty `gradients`: tensor by tensor, so that the step needs little memory.

        `update/visible_frac` is the share of the model's weights that changed. `update/lost_norm_frac` is the share of
        the intended update, along its own direction, that they do not show: with u the update before any rounding and
        d the weights' change (float32, over all of them) it is 1 - <u, d> / <u, u>. 0: all of it is seen; 1: nothing.
        With masters it is what is not seen yet, and negative in a step that shows what earlier ones held back; with
        stochastic rounding it scatters around 0. A gradient that is not finite changes nothing, and `update/skipped`
        is 1.
        """
        flat = dict(tree_flatten(gradients))
        gradients.clear()  # or the caller would keep every tensor alive until the last one is done
        norm = self._norm(flat)
        metrics = {"grad_norm": float(norm), "learning_rate": rate, "update/skipped": 0.0}
        if not math.isfinite(metrics["grad_norm"]):
            return metrics | {"update/skipped": 1.0, "update/visible_frac": 0.0, "update/lost_norm_frac": 0.0}
        self.steps += 1
        shared = scalars(self.config, norm, rate, self.steps, norm.dtype)
        served = dict(tree_flatten(model.trainable_parameters()))
        total = sum(p.size for p in served.values())
        # by size, so that the streams have as much to do
        names = sorted(flat, key=lambda name: served[name].size, reverse=True)
        parts = [(name, rows) for name in names for rows in _parts(served[name])]
        changed, shown, intended, fresh = 0.0, 0.0, 0.0, dict[str, mx.array]()

        def work(part: tuple[str, slice]) -> Stepped:
            name, rows = part
            return self._stepped(name, rows, served[name], flat[name], shared)

        for (name, rows), done in zip(parts, spread(work, parts), strict=True):
            changed, shown, intended = (
                a + b.item() for a, b in zip((changed, shown, intended), done[-3:], strict=True)
            )
            old = served[name]
            _put(self.m, name, rows, done.m)
            _put(self.v, name, rows, done.v)
            _put(fresh, name, rows, done.new, len(old))
            if self.masters and old.dtype != mx.float32:
                _put(self.masters, name, rows, done.weights)
            del done
            if rows.stop >= len(old):
                del flat[name], served[name]
                new = fresh.pop(name)
                model.update(tree_unflatten([(name, new)]))
                if self.masters and old.dtype == mx.float32:
                    self.masters[name] = new  # float32 weights are their own masters
        lost = 1.0 - shown / intended if intended else 0.0
        return metrics | {"update/visible_frac": changed / total, "update/lost_norm_frac": lost}

    def _own(self, array: mx.array) -> mx.array:
        return array if self.config.precision == "study" else array.astype(mx.float32)

    def _norm(self, gradients: Mapping[str, mx.array]) -> mx.array:
        """The global norm, a few tensors at a time."""

        def squares(gradient: mx.array) -> mx.array:
            own = self._own(gradient)
            # the squares of float16 overflow
            return (own.astype(mx.float32) if own.dtype == mx.float16 else own).square().sum()

        return mx.sqrt(sum(spread(squares, gradients.values())))

    def _stepped(self, name: str, rows: slice, served: mx.array, gradient: mx.array, shared: Scalars) -> Stepped:
        """Some rows of a tensor after the step."""
        old = served[rows]
        weights = self.masters[name][rows] if self.masters else old
        noise = []
        if self.config.precision == "stochastic":
            noise = [random_bits(old.shape, self.seed, self.steps, name, rows.start)]
        return self._step(
            old, weights, self.m[name][rows], self.v[name][rows], self._own(gradient[rows]), shared, *noise
        )

    def save(self, path: Path) -> None:
        """Write moments, step count and masters to a safetensors file."""
        kinds = {"m": self.m, "v": self.v, "weights": self.masters}
        state = {f"{kind}.{name}": array for kind, arrays in kinds.items() for name, array in arrays.items()}
        mx.save_safetensors(str(path), state | {"step": mx.array(self.steps)})

    def load(self, path: Path, model: nn.Module) -> None:
        """Restore what `save` wrote, and the model's weights from the masters where there are any."""
        flat: Mapping[str, mx.array] = mx.load(str(path))
        self.steps = int(flat["step"].item())
        for kind, arrays in (("m", self.m), ("v", self.v), ("weights", self.masters)):
            arrays.update({name: flat[f"{kind}.{name}"] for name in arrays})
        served = dict(tree_flatten(model.trainable_parameters()))
        cast = [(name, master.astype(served[name].dtype)) for name, master in self.masters.items()]
        if cast:
            model.update(tree_unflatten(cast))
        mx.eval(self.m, self.v, self.masters, model.parameters())

    def follow_first(self) -> None:
        """Take the first rank's state, where several train together."""
        self.steps = ranks.gathered(self.steps)[0]
        for arrays in (self.m, self.v, self.masters):
            arrays.update({name: ranks.from_first(array) for name, array in arrays.items()})


def _parts(array: mx.array) -> Iterator[slice]:
    """The rows of an array in parts of about `PART` elements."""
    rows = max(1, PART * len(array) // max(1, array.size))
    for start in range(0, len(array), rows):
        yield slice(start, start + rows)


def _put(arrays: dict[str, mx.array], name: str, rows: slice, value: mx.array, length: int | None = None) -> None:
    """Write rows of an array; made `length` rows long where there is none yet. All rows at once replace it."""
    length = length or len(arrays[name])
    if len(value) == length:
        arrays[name] = value
        return
    if name not in arrays:
        arrays[name] = mx.zeros((length, *value.shape[1:]), value.dtype)
        mx.eval(arrays[name])
    arrays[name][rows] = value
    mx.eval(arrays[name])  # in place, as nothing else holds it
