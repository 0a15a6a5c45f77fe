"""Stochastic rounding from float32 to bfloat16, from bits that can be drawn again."""

from __future__ import annotations

import hashlib
import math

import mlx.core as mx


def random_bits(shape: tuple[int, ...], seed: int, *place: int | str) -> mx.array:
    """Uniform uint32 values of this shape, the same for the same seed and place whatever else was drawn."""
    digest = hashlib.blake2b(repr((seed, *place)).encode(), digest_size=8).digest()
    # MLX exposes its raw generator only as the splitting of keys: two words for each
    words = mx.random.split(mx.random.key(int.from_bytes(digest, "big")), (math.prod(shape) + 1) // 2)
    return words.reshape(-1)[: math.prod(shape)].reshape(shape)


def round_stochastically(values: mx.array, noise: mx.array) -> mx.array:
    """`values` (float32, finite) as bfloat16: one of the two neighbours, the nearer the likelier, so that the mean is
    the value itself (arXiv:2010.06192, section 3). `noise` is uint32, uniform on 0 to 65535; a value that bfloat16
    holds stays as it is.
    """
    # bfloat16 is the upper half of float32: noise in the lower half carries over as often as that half is full
    return ((values.view(mx.uint32) + noise) >> 16).astype(mx.uint16).view(mx.bfloat16)
