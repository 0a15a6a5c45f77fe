"""The optimizer's step in C on a Linux CPU (`adam.c`): one pass over weights, gradients and moments, on all cores.

Moments and the masters of bfloat16 weights change in place, as the optimizer alone holds them. Gradients and the
model's weights are only read, as others may hold them: a KL term's reference is the weights of an earlier step.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from smolsum.policy.cpu import native

BLOCK, ROWS, COLUMNS, TAKEN, SUMS = 4096, 16, 1024, 8, 3
"""as in adam.c: values of a block, or its rows and columns; blocks that a thread takes at a time; sums of a block"""
BATCH_BYTES = 1 << 26
"""new weights of a step's tensors that are there together with the old ones, unless one tensor alone has more"""


class Scalars(ctypes.Structure):
    """The numbers that all values of a step share: as in `StepScalars` and `OptimizerConfig`, with `decay` the rate
    times the weight decay, `kept` 1 minus that, and `rest1` and `rest2` 1 minus the betas."""

    _fields_ = tuple(
        (name, ctypes.c_float)
        for name in ("clip", "decay", "kept", "first", "second", "beta1", "rest1", "beta2", "rest2", "eps")
    )


_Bytes = ctypes.c_char * 0


class _Tensor(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int64) for name in ("size", "first_block", "rows", "half")),
        *((name, ctypes.c_void_p) for name in ("old", "gradient", "new", "masters", "m", "v")),
    )


def can_step(served: Mapping[str, mx.array], gradients: Mapping[str, mx.array]) -> bool:
    """Return whether `step` takes these weights and gradients: on the CPU, each float32 or bfloat16, of equal types and
    shapes."""
    if native.library() is None or mx.default_device().type != mx.DeviceType.cpu:
        return False
    pairs = [(served[name], gradient) for name, gradient in gradients.items()]
    return bool(pairs) and all(
        weight.dtype == gradient.dtype and weight.dtype in (mx.float32, mx.bfloat16) and weight.shape == gradient.shape
        for weight, gradient in pairs
    )


def squares(gradients: Mapping[str, mx.array]) -> float:
    """Return the sum of the squares of all gradients, float32 or bfloat16."""
    mx.eval(gradients)
    tensors, blocks, kept = (_Tensor * len(gradients))(), 0, list[mx.array]()
    for tensor, gradient in zip(tensors, gradients.values(), strict=True):
        tensor.first_block, tensor.half = blocks, gradient.dtype == mx.bfloat16
        tensor.gradient, tensor.rows = _read(gradient, kept)
        if tensor.gradient is not None:
            tensor.size = gradient.size
            blocks += -(-gradient.size // BLOCK)
    function, sums = _library().adam_squares, np.empty(blocks)
    function.restype = ctypes.c_double
    return float(function(*_shared(tensors, blocks, sums)))


def step(
    names: Sequence[str],
    served: Mapping[str, mx.array],
    gradients: Mapping[str, mx.array],
    masters: dict[str, mx.array],
    m: dict[str, mx.array],
    v: dict[str, mx.array],
    scalars: Scalars,
) -> tuple[dict[str, mx.array], tuple[float, float, float]]:
    """Step once with the tensors of these names. `m`, `v` and `masters` are float32; the moments, and the masters of
    bfloat16 weights, change in place, also in views of them.

    Returns the model's new weights; how many of them changed, <u, d> and <u, u>, where u is the update before any
    rounding, and d the change of the weights.
    """
    new = {name: mx.zeros(served[name].shape, served[name].dtype) for name in names}
    mx.eval(new, [[arrays[name] for name in names] for arrays in (served, gradients, masters, m, v)])
    tensors, blocks, kept = (_Tensor * len(names))(), 0, list[mx.array]()
    for tensor, name in zip(tensors, names, strict=True):
        for arrays in (masters, m, v):
            if not memoryview(arrays[name]).c_contiguous:
                arrays[name] = _in_order(arrays[name], kept)
        old, size = served[name], served[name].size
        tensor.size, tensor.first_block, tensor.half = size, blocks, old.dtype == mx.bfloat16
        tensor.gradient, tensor.rows = _read(gradients[name], kept)
        tensor.old = _address(old if memoryview(old).c_contiguous else _in_order(old, kept))
        tensor.new, tensor.masters = _address(new[name]), _address(masters[name])
        tensor.m, tensor.v = _address(m[name]), _address(v[name])
        rows = tensor.rows
        blocks += -(-rows // ROWS) * -(-(size // rows) // COLUMNS) if rows else -(-size // BLOCK)
    sums, totals = np.empty((blocks, SUMS)), (ctypes.c_double * SUMS)()
    _library().adam_step(*_shared(tensors, blocks, sums), ctypes.byref(scalars), totals)
    changed, shown, intended = totals
    return new, (changed, shown, intended)


def changes_nothing(
    served: Mapping[str, mx.array], gradients: Mapping[str, mx.array], masters: Mapping[str, mx.array]
) -> bool:
    """Return whether a step with moments of zero and without weight decay leaves everything as it is: each gradient is
    a zero that was broadcast, and each weight its own master."""
    mx.eval(served, gradients, masters)
    return all(_is_one_zero(gradient) for gradient in gradients.values()) and all(
        _view(masters[name]).ctypes.data == _view(served[name]).ctypes.data for name in gradients
    )


def batches(arrays: Mapping[str, mx.array]) -> Iterator[list[str]]:
    """Yield all names, some at a time: those of about `BATCH_BYTES`."""
    names, size = list[str](), 0
    for name, array in arrays.items():
        if names and size + array.nbytes > BATCH_BYTES:
            yield names
            names, size = [], 0
        names.append(name)
        size += array.nbytes
    yield names


def _library() -> ctypes.CDLL:
    library = native.library()
    assert library is not None
    return library


def _shared(tensors: Any, blocks: int, sums: NDArray[np.float64]) -> tuple[Any, ...]:
    """Return the arguments that both functions have."""
    threads = max(1, min(native.threads(), blocks // TAKEN))
    numbers = ctypes.c_int64(len(tensors)), ctypes.c_int64(blocks)
    return tensors, *numbers, sums.ctypes.data_as(ctypes.c_void_p), threads


def _view(array: mx.array) -> NDArray[Any]:
    """Return a view of an evaluated array; of bfloat16, which numpy lacks, as uint16."""
    return np.asarray(array.view(mx.uint16) if array.dtype == mx.bfloat16 else array)


def _address(array: mx.array) -> int:
    """Return the address of an evaluated array that is laid out in order."""
    return ctypes.addressof(_Bytes.from_buffer(array))  # four times as fast as numpy, for every tensor of every step


def _in_order(array: mx.array, kept: list[mx.array]) -> mx.array:
    """Return a copy, its last axis stored without gaps, and so on; `kept` keeps it alive."""
    copy = mx.contiguous(array)
    mx.eval(copy)
    kept.append(copy)
    return copy


def _is_one_zero(array: mx.array) -> bool:
    """Return whether it is a zero that was broadcast."""
    return array.size > 0 and not any(memoryview(array).strides or ()) and not _view(array).item(0)


def _read(gradient: mx.array, kept: list[mx.array]) -> tuple[int | None, int]:
    """Return the address of a gradient, None where it is a zero that was broadcast; and its rows where it is a matrix
    stored column by column, as MLX computes gradients of linear layers, else 0. Other orders are copied."""
    memory = memoryview(gradient)
    if memory.c_contiguous and memory.ndim:
        return _address(gradient), 0
    if _is_one_zero(gradient):
        return None, 0
    axes = [(size, stride) for size, stride in zip(gradient.shape, memory.strides or (), strict=True) if size > 1]
    if len(axes) == 2 and [stride for _, stride in axes] == [gradient.itemsize, gradient.itemsize * axes[0][0]]:
        return int(_view(gradient).ctypes.data), axes[0][0]
    return _address(_in_order(gradient, kept)), 0
