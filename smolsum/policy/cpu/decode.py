"""Sampling in C on a Linux CPU (`decode.c`): the layers of a float32 model and the draw of its tokens, without MLX."""

from __future__ import annotations

import ctypes
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import mlx.nn as nn
import numpy as np
from numpy.typing import NDArray

from smolsum.policy.cpu import native
from smolsum.policy.cpu.native_model import NativeModel, can_run, check_tokens, head_dim

BLOCK, LANES = 64, 16
"""positions by which a cache grows; the features of a head are a multiple of the lanes"""
CALL_BYTES = 1 << 28
"""weights that one call reads, about: the process can be interrupted between calls"""


class _Sequence(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("shared", "own")),
        *((name, ctypes.c_int64) for name in ("shared_tokens", "shared_room", "own_room")),
        *((name, ctypes.c_void_p) for name in ("uniforms", "tokens", "logprobs")),
        *((name, ctypes.c_int64) for name in ("sampled", "limit")),
        ("temperature", ctypes.c_float),
        ("done", ctypes.c_int32),
    )


@dataclass(frozen=True)
class Draw:
    """A rollout to sample: the ids of its prompt, a uniform number (float32) for each token that it may have, and its
    temperature, 0 for the likeliest tokens."""

    prompt_ids: tuple[int, ...]
    uniforms: NDArray[np.float32]
    temperature: float


@dataclass(frozen=True)
class Drawn:
    """A rollout's token ids and their log-probs; `stopped` where the last token is one that ends a text."""

    ids: list[int]
    logprobs: list[float]
    stopped: bool


def can_decode(model: nn.Module) -> bool:
    """Return whether `sample` takes this model."""
    return can_run(model) and head_dim(model) % LANES == 0


def sample(model: nn.Module, draws: Sequence[Draw], end_ids: Collection[int]) -> list[Drawn]:
    """Return a rollout for each draw. A prompt that several share is read once. A rollout's tokens and log-probs depend
    on nothing but its own draw and the weights, to the bit. Raises MemoryError, and ValueError for a
    prompt without tokens or with an id that the model does not have."""
    positions = max(len(draw.prompt_ids) + len(draw.uniforms) for draw in draws)
    weights = NativeModel(model, positions)
    for prompt_ids in (prompts := dict.fromkeys(draw.prompt_ids for draw in draws)):
        check_tokens(np.array(prompt_ids), weights)
    decoder = _Decoder(weights)
    prefixes = {prompt_ids: decoder.sequence(prompt_ids[:-1]) for prompt_ids in prompts}
    decoder.run(list(prefixes.values()), None)
    rollouts = [decoder.sequence(draw.prompt_ids[-1:], draw, prefixes[draw.prompt_ids]) for draw in draws]
    decoder.run(rollouts, sorted(end_ids))
    return [one.drawn for one in rollouts]


class _Cached:
    """A sequence and the arrays that it points to."""

    def __init__(self, cache: NDArray[np.float32], room: int, ids: Sequence[int], draw: Draw | None) -> None:
        self.cache, self.room = cache, room
        self.tokens = np.array([*ids, *([0] * len(draw.uniforms) if draw else [])], np.int32)
        self.uniforms = np.ascontiguousarray(draw.uniforms, np.float32) if draw else np.zeros(0, np.float32)
        self.logprobs = np.zeros(len(self.uniforms), np.float32)
        self.fields = _Sequence(
            own=cache.ctypes.data,
            own_room=room,
            tokens=self.tokens.ctypes.data,
            uniforms=self.uniforms.ctypes.data,
            logprobs=self.logprobs.ctypes.data,
            limit=len(self.uniforms) if draw else len(ids),
            temperature=draw.temperature if draw else 1.0,
        )

    @property
    def ended(self) -> bool:
        return bool(self.fields.done) or self.fields.sampled >= self.fields.limit

    @property
    def drawn(self) -> Drawn:
        count = self.fields.sampled
        return Drawn(self.tokens[1 : 1 + count].tolist(), self.logprobs[:count].tolist(), bool(self.fields.done))


class _Decoder:
    """The sequences of one model."""

    def __init__(self, model: NativeModel) -> None:
        library = native.library()
        assert library is not None
        library.decode_cache_size.restype = ctypes.c_int64
        self._library, self._model = library, model

    def sequence(self, ids: Sequence[int], draw: Draw | None = None, prefix: _Cached | None = None) -> _Cached:
        """Return a sequence with room for its tokens, after those of `prefix`."""
        room = -(-max(1, len(draw.uniforms) if draw else len(ids)) // BLOCK) * BLOCK
        size = self._library.decode_cache_size(self._model.address, ctypes.c_int64(room))
        made = _Cached(np.empty(size, np.float32), room, ids, draw)
        if prefix is not None:
            made.fields.shared, made.fields.shared_room = prefix.cache.ctypes.data, prefix.room
            made.fields.shared_tokens = prefix.fields.sampled
        return made

    def run(self, sequences: list[_Cached], end_ids: Sequence[int] | None) -> None:
        """Feed what the sequences have, or with `end_ids` sample until each has ended. Raises MemoryError."""
        ends = None if end_ids is None else (ctypes.c_int32 * len(end_ids))(*end_ids)
        passes = max(1, CALL_BYTES // self._model.bytes)
        while left := [one for one in sequences if not one.ended]:
            pointers = (ctypes.POINTER(_Sequence) * len(left))(*(ctypes.pointer(one.fields) for one in left))
            numbers = (ctypes.c_int64(n) for n in (len(end_ids or ()), passes, self._model.positions))
            count = ctypes.c_int64(len(left))
            if self._library.decode_run(self._model.address, pointers, count, ends, *numbers, native.threads()):
                raise MemoryError("no memory for sampling")
