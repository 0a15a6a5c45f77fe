"""Adam on float32 masters, on bfloat16 weights with stochastic rounding, or as the study had it."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten, tree_unflatten

from smolsum.config.sections import OptimizerConfig
from smolsum.policy import distributed
from smolsum.policy.cpu import adam
from smolsum.policy.cpu.streams import PART, map_over_streams

CLIP_FLOOR = 1e-6
"""added to a gradient's norm before it divides, as MLX does"""


class Optimizer:
    """Adam (arXiv:1412.6980, algorithm 1) or AdamW (arXiv:1711.05101, algorithm 2) over a model's trainable parameters,
    with state that can be saved and restored bit for bit.

    `masters`: moments and a copy of the weights are float32, the model's own weights their cast (no second copy where
    they are float32 themselves). `stochastic`: no copy; the update is computed in float32, and the weights and the
    first moment are rounded to bfloat16 at random (arXiv:2010.06192), the second moment stays float32. `study`:
    everything has the weights' type, and small updates are lost to rounding.
    """

    def __init__(self, model: nn.Module, config: OptimizerConfig, *, seed: int = 0) -> None:
        self.config, self.seed = config, seed
        # one pass over the arrays where MLX can compile
        self._fused_update = mx.compile(partial(_adam_update, config))
        self.reset(model)

    def reset(self, model: nn.Module) -> None:
        """Begin at the weights of the model."""
        self.steps = 0
        served = dict(tree_flatten(model.trainable_parameters()))
        first, second = {
            "masters": (mx.float32, mx.float32),
            "stochastic": (mx.bfloat16, mx.float32),
            "study": (None, None),
        }[self.config.precision]
        self.m = {name: mx.zeros(p.shape, first or p.dtype) for name, p in served.items()}
        self.v = {name: mx.zeros(p.shape, second or p.dtype) for name, p in served.items()}
        self.masters = {name: p.astype(mx.float32) for name, p in served.items() if self.config.precision == "masters"}
        self._at_rest = True  # the moments are zero

    def step(self, model: nn.Module, gradients: dict[str, Any], rate: float) -> dict[str, float]:
        """Update the model and empty `gradients`, a few tensors at a time, so that the step needs little memory.

        `update/visible_frac` is the share of the model's weights that changed. `update/lost_norm_frac` is the share of
        the intended update, along its own direction, that they do not show: with u the update before any rounding and
        d the weights' change (float32, over all of them) it is 1 - <u, d> / <u, u>. 0: the weights show all of it; 1:
        nothing. With masters it is the part that is not shown yet, and negative in a step that shows what earlier steps
        held back; with stochastic rounding it scatters around 0. A gradient that is not finite changes nothing, and
        `update/skipped` is 1. A gradient of zero is a step like any other: the moments decay, and move the weights. No
        work is done where it provably changes nothing: on a Linux CPU, for the zeros that `gradients` returns, before
        the first other gradient, without weight decay.
        """
        flat = dict(tree_flatten(gradients))
        gradients.clear()  # so that the caller keeps no tensor alive until the last one is done
        served = dict(tree_flatten(model.trainable_parameters()))
        in_c = self.config.precision == "masters" and adam.can_step(served, flat)
        norm = mx.sqrt(mx.array(adam.squares(flat))) if in_c else self._norm(flat)
        metrics = {"grad_norm": float(norm), "learning_rate": rate, "update/skipped": 0.0}
        if not math.isfinite(metrics["grad_norm"]):
            return metrics | {"update/skipped": 1.0, "update/visible_frac": 0.0, "update/lost_norm_frac": 0.0}
        self.steps += 1  # a step that was skipped does not count for the correction of the moments' bias
        total = sum(p.size for p in served.values())
        shared = step_scalars(self.config, norm, rate, self.steps, norm.dtype)
        if in_c and self._at_rest and not _decay(self.config) and adam.changes_nothing(served, flat, self.masters):
            return metrics | {"update/visible_frac": 0.0, "update/lost_norm_frac": 0.0}
        self._at_rest = False
        update = self._step_in_c if in_c else self._step_in_parts
        changed, shown, intended = update(model, served, flat, shared)
        lost = 1.0 - shown / intended if intended else 0.0
        return metrics | {"update/visible_frac": changed / total, "update/lost_norm_frac": lost}

    def _step_in_c(
        self, model: nn.Module, served: dict[str, mx.array], flat: dict[str, mx.array], shared: StepScalars
    ) -> tuple[float, float, float]:
        """Update the tensors, emptying both mappings; returns the sums of `UpdatedParameter`."""
        config, decay = self.config, shared.rate * _decay(self.config)
        numbers = adam.Scalars(
            *mx.stack([shared.clip, decay, 1 - decay, shared.first, shared.second]).tolist(),
            *(config.beta1, 1 - config.beta1, config.beta2, 1 - config.beta2, config.eps),
        )
        changed, shown, intended = 0.0, 0.0, 0.0
        for names in list(adam.batches(flat)):
            new, sums = adam.step(names, served, flat, self.masters, self.m, self.v, numbers)
            changed, shown, intended = changed + sums[0], shown + sums[1], intended + sums[2]
            for name in names:
                del flat[name], served[name]
            model.update(tree_unflatten(list(new.items())))
            # float32 weights are their own masters
            self.masters.update({name: array for name, array in new.items() if array.dtype == mx.float32})
        return changed, shown, intended

    def _step_in_parts(
        self, model: nn.Module, served: dict[str, mx.array], flat: dict[str, mx.array], shared: StepScalars
    ) -> tuple[float, float, float]:
        """`_step_in_c` with MLX, for every type and device."""
        # by size, so that the streams have equal work
        names = sorted(flat, key=lambda name: served[name].size, reverse=True)
        parts = [(name, rows) for name in names for rows in _parts(served[name])]
        changed, shown, intended, fresh = 0.0, 0.0, 0.0, dict[str, mx.array]()

        def work(part: tuple[str, slice]) -> UpdatedParameter:
            name, rows = part
            return self._updated(name, rows, served[name], flat[name], shared)

        for (name, rows), done in zip(parts, map_over_streams(work, parts), strict=True):
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
        return changed, shown, intended

    def _own(self, array: mx.array) -> mx.array:
        return array if self.config.precision == "study" else array.astype(mx.float32)

    def _norm(self, gradients: Mapping[str, mx.array]) -> mx.array:
        """Return the global norm, a few tensors at a time."""

        def squares(gradient: mx.array) -> mx.array:
            own = self._own(gradient)
            # squares of float16 overflow
            own = own.astype(mx.float32) if own.dtype == mx.float16 else own
            # over rows first: one sum of 1e8 values in float32 loses a tenth
            return mx.atleast_1d(own).square().sum(axis=-1).sum()

        return mx.sqrt(sum(map_over_streams(squares, gradients.values())))

    def _updated(
        self, name: str, rows: slice, served: mx.array, gradient: mx.array, shared: StepScalars
    ) -> UpdatedParameter:
        """Some rows of a tensor after the step."""
        old = served[rows]
        weights = self.masters[name][rows] if self.masters else old
        noise = []
        if self.config.precision == "stochastic":
            noise = [random_bits(old.shape, self.seed, self.steps, name, rows.start)]
        m, v = self.m[name][rows], self.v[name][rows]
        return UpdatedParameter(*self._fused_update(old, weights, m, v, self._own(gradient[rows]), shared, *noise))

    def save(self, path: Path) -> None:
        """Write moments, step count and masters to a safetensors file."""
        kinds = {"m": self.m, "v": self.v, "weights": self.masters}
        state = {f"{kind}.{name}": array for kind, arrays in kinds.items() for name, array in arrays.items()}
        mx.save_safetensors(str(path), state | {"step": mx.array(self.steps)})

    def load(self, path: Path, model: nn.Module) -> None:
        """Restore what `save` wrote, and the model's weights from the masters, if any."""
        flat: Mapping[str, mx.array] = mx.load(str(path))
        self.steps, self._at_rest = int(flat["step"].item()), False
        for kind, arrays in (("m", self.m), ("v", self.v), ("weights", self.masters)):
            arrays.update({name: flat[f"{kind}.{name}"] for name in arrays})
        served = dict(tree_flatten(model.trainable_parameters()))
        cast = [(name, master.astype(served[name].dtype)) for name, master in self.masters.items()]
        if cast:
            model.update(tree_unflatten(cast))
        mx.eval(self.m, self.v, self.masters, model.parameters())

    def follow_first(self) -> None:
        """Take the first rank's state, where several ranks train together."""
        self.steps = distributed.gathered(self.steps)[0]
        self._at_rest = self._at_rest and distributed.alone()
        for arrays in (self.m, self.v, self.masters):
            arrays.update({name: distributed.from_first(array) for name, array in arrays.items()})


def _parts(array: mx.array) -> Iterator[slice]:
    """Yield the rows of an array in parts of about `PART` elements."""
    rows = max(1, PART * len(array) // max(1, array.size))
    for start in range(0, len(array), rows):
        yield slice(start, start + rows)


def _put(arrays: dict[str, mx.array], name: str, rows: slice, value: mx.array, length: int | None = None) -> None:
    """Write rows of an array, which is created with `length` rows if missing; all rows at once replace it."""
    length = length or len(arrays[name])
    if len(value) == length:
        arrays[name] = value
        return
    if name not in arrays:
        arrays[name] = mx.zeros((length, *value.shape[1:]), value.dtype)
        mx.eval(arrays[name])
    arrays[name][rows] = value
    mx.eval(arrays[name])  # in place, as nothing else holds it


# One step of Adam for one array: pure functions


class StepScalars(NamedTuple):
    """The 0-dimensional arrays that all parameters of a step share."""

    clip: mx.array
    """what gradients are multiplied by, so that their global norm stays within its limit"""
    rate: mx.array
    first: mx.array
    """rate / (1 - beta1**t), the step size with the first moment's bias corrected; the rate without correction"""
    second: mx.array
    """1 / sqrt(1 - beta2**t), what the root of the second moment is multiplied by"""


def step_scalars(config: OptimizerConfig, norm: mx.array, rate: float, count: int, kind: mx.Dtype) -> StepScalars:
    """Return the scalars of step `count` (from 1), from the global norm of its gradient; `kind` is the moments' type.

    Not computed in the fused pass, which would compute each power again for every element.
    """
    clip = mx.minimum(config.max_grad_norm / (norm + CLIP_FLOOR), 1.0)
    exact = mx.array(rate, mx.float32)
    first, second = exact.astype(kind), mx.array(1.0, kind)
    if config.bias_correction:
        t = mx.array(count, mx.uint64)
        first = (first / (1 - config.beta1**t)).astype(kind)
        second = mx.rsqrt(1 - config.beta2**t).astype(kind)
    return StepScalars(clip, exact, first, second)


class UpdatedParameter(NamedTuple):
    """One parameter after the step."""

    new: mx.array
    """the model's weights, in their type"""
    weights: mx.array
    """the float32 masters; without masters, the updated weights before rounding"""
    m: mx.array
    v: mx.array
    changed: mx.array
    """how many of the model's weights changed"""
    shown: mx.array
    """<u, d>: u the update before any rounding, d the change of the model's weights"""
    intended: mx.array
    """<u, u>"""


def _adam_update(
    config: OptimizerConfig,
    old: mx.array,
    weights: mx.array,
    m: mx.array,
    v: mx.array,
    gradient: mx.array,
    scalars: StepScalars,
    *noise: mx.array,
) -> tuple[mx.array, ...]:
    """Adam (arXiv:1412.6980, algorithm 1) or AdamW (arXiv:1711.05101, algorithm 2).

    `old` are the model's weights, `weights` the masters: the same array without masters. Everything is computed
    in `gradient`'s type. With `noise` (uint32, uniform) weights and first moment are rounded to bfloat16 at random.
    """
    kind = gradient.dtype
    rate = scalars.rate.astype(kind)
    gradient = (gradient * scalars.clip).astype(kind)
    m = config.beta1 * m.astype(kind) + (1 - config.beta1) * gradient
    v = config.beta2 * v + (1 - config.beta2) * mx.square(gradient)
    move = scalars.first * m / (mx.sqrt(v) * scalars.second + config.eps)
    decay = _decay(config)
    own = weights.astype(kind)
    meant = -(move.astype(mx.float32) + (scalars.rate * decay) * own.astype(mx.float32))
    own = own * (1 - rate * decay) - move
    new = own
    if noise:
        (bits,) = noise
        m, new = round_stochastically(m, bits >> 16), round_stochastically(own, bits & 0xFFFF)
    new = new.astype(old.dtype)
    seen = new.astype(mx.float32) - old.astype(mx.float32)
    return new, own, m, v, mx.sum(new != old), _sum(meant * seen), _sum(meant * meant)


def _decay(config: OptimizerConfig) -> float:
    return config.weight_decay if config.name == "adamw" else 0.0


def _sum(array: mx.array) -> mx.array:
    """Return the sum, over the first axis first, which MLX's CPU backend does three times as fast."""
    return mx.sum(mx.sum(array, axis=0))


# Stochastic rounding


def random_bits(shape: tuple[int, ...], seed: int, *place: int | str) -> mx.array:
    """Uniform uint32 values of this shape; seed and place alone decide them, so that they can be drawn again."""
    digest = hashlib.blake2b(repr((seed, *place)).encode(), digest_size=8).digest()
    # MLX exposes its raw generator only through the splitting of keys, two words for each key
    words = mx.random.split(mx.random.key(int.from_bytes(digest, "big")), (math.prod(shape) + 1) // 2)
    return words.reshape(-1)[: math.prod(shape)].reshape(shape)


def round_stochastically(values: mx.array, noise: mx.array) -> mx.array:
    """`values` (float32, finite) as bfloat16: one of the two neighbours, the nearer one more likely, so that the mean
    is the value itself (arXiv:2010.06192, section 3). `noise` is uint32, uniform on 0 to 65535; values that bfloat16
    can hold stay as they are.
    """
    # bfloat16 is the upper half of float32: noise in the lower half carries over in proportion to that half
    return ((values.view(mx.uint32) + noise) >> 16).astype(mx.uint16).view(mx.bfloat16)
