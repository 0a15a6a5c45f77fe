"""Sampling in C on a Linux CPU (`decode.c`): the layers of a float32 model and the draw of its tokens, without MLX."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import mlx.nn as nn
import numpy as np
from numpy.typing import NDArray

from smolsum.policy.cpu import native
from smolsum.policy.cpu.native_model import NativeModel, can_run, check_tokens, head_dim
from smolsum.types import SamplingProgress, unheard

BLOCK, LANES, ROWS = 64, 16, 64
"""positions by which a cache grows; the features of a head are a multiple of the lanes; rollouts of a pass"""
CALL_BYTES = 1 << 28
"""weights that one call reads, about: the process can be interrupted between calls"""


class _Sequence(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("shared", "own")),
        *((name, ctypes.c_int64) for name in ("shared_tokens", "shared_room", "own_room")),
        *((name, ctypes.c_void_p) for name in ("uniforms", "tokens", "logprobs", "logits")),
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

    @property
    def positions(self) -> int:
        """The tokens that prompt and rollout may have."""
        return len(self.prompt_ids) + len(self.uniforms)


@dataclass(frozen=True)
class Drawn:
    """A rollout's token ids and their log-probs; `stopped` where the last token is one that ends a text."""

    ids: list[int]
    logprobs: list[float]
    stopped: bool


def can_decode(model: nn.Module) -> bool:
    """Return whether `sample` and `Decoder` take this model."""
    return can_run(model) and head_dim(model) % LANES == 0


def sample(
    model: nn.Module,
    draws: Sequence[Draw],
    end_ids: Collection[int],
    report: Callable[[SamplingProgress], None] = unheard,
) -> list[Drawn]:
    """Return a rollout for each draw. A prompt that several share is read once. A rollout's tokens and log-probs depend
    on nothing but its own draw and the weights, to the bit. `report` is called between the calls of C. Raises
    MemoryError, and ValueError for a prompt without tokens or with an id that the model does not have."""
    decoder = Decoder(model, max(draw.positions for draw in draws), end_ids)
    prompts = sum(map(len, {draw.prompt_ids for draw in draws}))
    whole = prompts + sum(len(draw.uniforms) for draw in draws)
    rollouts = decoder.add(draws, lambda read: report(SamplingProgress(len(draws), 0, 0, read / whole, read)))
    while left := [one for one in rollouts if not one.ended]:
        decoder.step(left, decoder.passes)
        done = prompts + sum(one.limit if one.ended else one.sampled for one in rollouts)
        tokens, ended = sum(one.sampled for one in rollouts), sum(one.ended for one in rollouts)
        report(SamplingProgress(len(draws), ended, tokens, done / whole))
    return [one.drawn for one in rollouts]


class Decoding:
    """A rollout under way, and the arrays that C writes into."""

    def __init__(self, cache: NDArray[np.float32], room: int, ids: Sequence[int], draw: Draw | None) -> None:
        self.cache, self.room = cache, room
        self.tokens = np.array([*ids, *([0] * len(draw.uniforms) if draw else [])], np.int32)
        self.uniforms = np.ascontiguousarray(draw.uniforms, np.float32) if draw else np.zeros(0, np.float32)
        self.logprobs = np.zeros(len(self.uniforms), np.float32)
        self.logits: NDArray[np.float32] | None = None
        """(V,) of the next token at its temperature, where the caller draws (`Decoder.drawn_by_caller`)"""
        self.prefix: Decoding | None = None
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
        """Whether it takes no further token."""
        return bool(self.fields.done) or self.fields.sampled >= self.fields.limit

    @property
    def sampled(self) -> int:
        """The number of its tokens."""
        return int(self.fields.sampled)

    @property
    def limit(self) -> int:
        """The number of tokens that it may have."""
        return int(self.fields.limit)

    @property
    def drawn(self) -> Drawn:
        """Its tokens so far."""
        count = self.fields.sampled
        return Drawn(self.tokens[1 : 1 + count].tolist(), self.logprobs[:count].tolist(), bool(self.fields.done))

    def after(self, count: int) -> list[tuple[int, float]]:
        """Return its tokens after the first `count`, each with its log-prob."""
        end = self.fields.sampled
        return list(zip(self.tokens[1 + count : 1 + end].tolist(), self.logprobs[count:end].tolist(), strict=True))

    def accept(self, token: int, logprob: float) -> None:
        """Take a token that the caller drew."""
        self.tokens[1 + self.fields.sampled], self.logprobs[self.fields.sampled] = token, logprob
        self.fields.sampled += 1


class Decoder:
    """Decodes rollouts of one model, whose weights must not change meanwhile (`weights_changed`)."""

    def __init__(self, model: nn.Module, positions: int, end_ids: Collection[int]) -> None:
        """`positions` is the number that the longest text has."""
        library = native.library()
        assert library is not None
        library.decode_cache_size.restype = ctypes.c_int64
        library.decode_copy.argtypes = (*[ctypes.c_void_p] * 3, ctypes.c_int64)
        self.model, self._library = model, library
        self._ends = (ctypes.c_int32 * len(end_ids))(*sorted(end_ids))
        self._weights = NativeModel(model, positions)

    @property
    def passes(self) -> int:
        """How many passes a call may make, so that the process can be interrupted between calls."""
        return max(1, CALL_BYTES // int(self._weights.bytes))

    def weights_changed(self) -> None:
        """Take the model's weights of now."""
        self._weights = NativeModel(self.model, self._weights.positions)

    def add(self, draws: Sequence[Draw], report: Callable[[int], None] = lambda read: None) -> list[Decoding]:
        """Return the rollouts, each after its prompt, which those that share it read once, as all do the tokens with
        which all prompts begin. `report` gets the number of tokens of prompts that are read. Raises what `sample`
        raises."""
        if (positions := max(draw.positions for draw in draws)) > self._weights.positions:
            self._weights = NativeModel(self.model, positions)
        for prompt_ids in (prompts := dict.fromkeys(draw.prompt_ids for draw in draws)):
            check_tokens(np.array(prompt_ids), self._weights.embeddings)
        prefixes = {prompt_ids: self._sequence(prompt_ids[:-1]) for prompt_ids in prompts}
        first, *others = prefixes.values()

        def read(sequences: Sequence[Decoding]) -> None:
            while left := [one for one in sequences if not one.ended]:
                self._run(left, None, self.passes)
                report(sum(one.sampled for one in prefixes.values()))

        read([first])
        places = zip(*(prompt_ids[:-1] for prompt_ids in prefixes), strict=False)
        common = len(list(takewhile(lambda ids: len(set(ids)) == 1, places)))  # chat template, and often an instruction
        for other in others:
            pair = (ctypes.byref(one.fields) for one in (first, other))
            self._library.decode_copy(self._weights.address, *pair, common)
        read(others)
        return [self._sequence(draw.prompt_ids[-1:], draw, prefixes[draw.prompt_ids]) for draw in draws]

    def drawn_by_caller(self, rollout: Decoding) -> None:
        """From now on `step` gives the rollout `logits` in place of a token."""
        rollout.logits = np.zeros(self._weights.pointers.vocab, np.float32)
        rollout.fields.logits = rollout.logits.ctypes.data

    def step(self, rollouts: Sequence[Decoding], passes: int = 0) -> None:
        """Sample a token for each of the rollouts, none of which has ended; with `passes` as many as so many passes
        over ROWS of them make. Raises MemoryError."""
        self._run(rollouts, self._ends, passes or -(-len(rollouts) // ROWS))

    def _sequence(self, ids: Sequence[int], draw: Draw | None = None, prefix: Decoding | None = None) -> Decoding:
        """Return a sequence with room for its tokens, after those of `prefix`."""
        room = -(-max(1, len(draw.uniforms) if draw else len(ids)) // BLOCK) * BLOCK
        size = self._library.decode_cache_size(self._weights.address, ctypes.c_int64(room))
        made = Decoding(np.empty(size, np.float32), room, ids, draw)
        if prefix is not None:
            made.prefix = prefix  # C reads its cache for as long as this rollout is decoded
            made.fields.shared, made.fields.shared_room = prefix.cache.ctypes.data, prefix.room
            made.fields.shared_tokens = prefix.fields.sampled
        return made

    def _run(self, sequences: Sequence[Decoding], ends: Any, passes: int) -> None:
        pointers = (ctypes.POINTER(_Sequence) * len(sequences))(*(ctypes.pointer(one.fields) for one in sequences))
        numbers = (ctypes.c_int64(n) for n in (len(ends or ()), passes, self._weights.positions))
        count = ctypes.c_int64(len(sequences))
        if self._library.decode_run(self._weights.address, pointers, count, ends, *numbers, native.threads()):
            raise MemoryError("no memory for sampling")
