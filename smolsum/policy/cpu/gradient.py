"""Log-probs of completions and their gradient in C on a Linux CPU (`gradient.c`), for float32 models that are trained
whole or by adapters. A prompt passes through the model once for all its completions.

Axes: G completions of a prompt, T tokens.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import accumulate
from typing import Any, NamedTuple

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_flatten
from numpy.typing import NDArray

from smolsum.policy.cpu import native
from smolsum.policy.cpu.merged import gradient_of_trained, merged, weights_to_train
from smolsum.policy.cpu.native_model import NativeModel, can_run, check_tokens
from smolsum.policy.cpu.streams import blas_threads

PASS_VALUES = 1 << 27
"""float32 values that a pass over several groups holds, at most; a single group may need more"""
KEPT_LOGITS, CHUNK_LOGITS = 1 << 27, 1 << 25
"""logits that are kept for backward, at most; more are computed twice, this many at a time"""

SPARE_VALUES = 1 << 25
"""float32 values whose memory is kept after the last of several passes, at most"""

Floats = NDArray[np.float32]
_most_mapped = 0
_spare = list[Floats]()


class TokenGroup(NamedTuple):
    """The token ids of a prompt and of its completions."""

    prompt_ids: Sequence[int]
    completions_ids: Sequence[Sequence[int]]
    targets_ids: Sequence[Sequence[int]] = ()
    """what is scored in the place of each completion's tokens, as many; empty: these tokens"""


class Scored(NamedTuple):
    """Log-probs (G, T) of a group's tokens and the entropies (G, T) in nats, 0 outside of the completions."""

    logp_GT: mx.array
    entropy_GT: mx.array


class _Batch(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int64) for name in ("groups", "segments", "rows", "scored")),
        *((name, ctypes.c_void_p) for name in ("group", "segment", "tokens", "positions", "targets")),
        *((name, ctypes.c_void_p) for name in ("logprobs", "entropies", "weights")),
        ("temperature", ctypes.c_float),
        ("chunk", ctypes.c_int64),
        ("bfloat16", ctypes.c_int64),
    )


def can_differentiate(model: nn.Module) -> bool:
    """Return whether `GradientSum` takes this model: one that the library has and that is trained whole, or by its
    adapters alone."""
    return weights_to_train(model) is not None and can_run(model)


def why_no_bfloat16() -> str:
    """Return why products cannot round their factors to bfloat16 here, empty where they can."""
    library = native.library()
    if library is None:
        return f"the library in C is not in use{f': {native.reason()}' if native.reason() else ''}"
    known = "the processor or the C compiler here has no products of bfloat16 (AVX-512 BF16)"
    return "" if library.products_have_bfloat16() else known


def score_groups(
    model: nn.Module, groups: Sequence[TokenGroup], temperature: float, *, bfloat16: bool = False
) -> Iterator[Scored]:
    """Yield the log-probs and entropies of each group, without gradient. `bfloat16` rounds the factors of products with
    weights, where nothing speaks against it (`why_no_bfloat16`)."""
    for batch in _batches(model, groups, temperature, bfloat16=bfloat16, backward=False):
        yield from batch.scored()


class GradientSum:
    """The gradient of a loss over groups, by all that is trained of a model, which must not change meanwhile."""

    def __init__(self, model: nn.Module) -> None:
        names = weights_to_train(model)
        assert names is not None
        self.model, self._plain = model, merged(model)
        weights = dict(tree_flatten(self._plain.parameters()))
        self._sum = {name: mx.zeros_like(weights[name]) for name in names}
        mx.eval(self._sum, weights)

    @property
    def gradient(self) -> Any:
        """The sum, like `model.trainable_parameters()`."""
        return gradient_of_trained(self.model, self._sum)

    def batches(self, groups: Sequence[TokenGroup], temperature: float, *, bfloat16: bool = False) -> Iterator[_Pass]:
        """Yield the groups in order, some at a time, with their log-probs. `bfloat16` as in `score_groups`, for the
        gradient too."""
        yield from _batches(self._plain, groups, temperature, bfloat16=bfloat16, backward=True)

    def add(self, batch: _Pass, by_logp: Sequence[mx.array]) -> None:
        """Add the gradient of sum(by_logp * logp), where `by_logp` has (G, T) for each group of the batch."""
        batch.backward(NativeModel(self._plain, 1, self._sum), by_logp)


def _batches(
    model: nn.Module, groups: Sequence[TokenGroup], temperature: float, *, bfloat16: bool, backward: bool
) -> Iterator[_Pass]:
    positions = max(len(g.prompt_ids) + max(map(len, g.completions_ids)) for g in groups)
    weights, waiting, held = NativeModel(model, positions), list[TokenGroup](), 0

    def of(groups: Sequence[TokenGroup]) -> _Pass:
        return _Pass(weights, groups, temperature, bfloat16=bfloat16, backward=backward)

    try:
        for group in groups:
            values = of([group]).values
            if waiting and held + values > PASS_VALUES:
                yield of(waiting).forward()
                waiting, held = [], 0
            waiting.append(group)
            held += values
        yield of(waiting).forward()
    finally:
        _spare[:] = [space for space in _spare if space.size <= SPARE_VALUES]


class _Pass:
    """Some groups on their way through the model, and what backward needs of it."""

    def __init__(
        self, weights: NativeModel, groups: Sequence[TokenGroup], temperature: float, *, bfloat16: bool, backward: bool
    ) -> None:
        library = native.library()
        assert library is not None
        library.gradient_space.restype = ctypes.c_int64
        self._library, self._weights, self._backward, self.groups = library, weights, backward, groups
        pieces = [piece for group in groups for piece in _pieces(group)]
        before = [len(group.prompt_ids) - 1 if n else 0 for group in groups for n in range(1 + len(group[1]))]
        self._arrays: dict[str, NDArray[Any]] = {
            "group": np.array([0, *accumulate(1 + len(group.completions_ids) for group in groups)], np.int64),
            "segment": np.array([0, *accumulate(len(fed) for fed, _ in pieces)], np.int64),
            "tokens": np.array([token for fed, _ in pieces for token in fed], np.int32),
            "targets": np.array([token for _, targets in pieces for token in targets], np.int32),
            "positions": np.concatenate(
                [np.arange(n, n + len(fed), dtype=np.int32) for n, (fed, _) in zip(before, pieces, strict=True)]
            ),
        }
        tokens = self._arrays["tokens"]
        check_tokens(tokens, weights.embeddings)
        check_tokens(np.array([n for group in groups for ids in _targets(group) for n in ids]), weights.pointers.vocab)
        rows, self._threads = len(tokens), native.threads()
        self._arrays |= {name: np.zeros(rows, np.float32) for name in ("logprobs", "entropies", "weights")}
        scored, vocabulary = int((self._arrays["targets"] >= 0).sum()), weights.pointers.vocab
        whole = backward and scored * vocabulary <= KEPT_LOGITS
        self._batch = _Batch(
            groups=len(groups),
            segments=len(pieces),
            rows=rows,
            scored=scored,
            temperature=temperature,
            bfloat16=bfloat16,
            chunk=scored if whole else min(scored, max(1, CHUNK_LOGITS // vocabulary)),
            **{name: array.ctypes.data for name, array in self._arrays.items()},
        )
        self.values = int(
            library.gradient_space(weights.address, ctypes.byref(self._batch), self._threads, int(backward))
        )
        """float32 values that it holds"""
        self._space: Floats | None = None

    def forward(self) -> _Pass:
        """Compute log-probs and entropies; returns itself."""
        self._space = _taken(self.values)
        self._run(None)
        if not self._backward:
            self._release()
        return self

    def scored(self) -> list[Scored]:
        """Return the log-probs and entropies of each group."""
        return [
            Scored(*(mx.array(self._take(p, self._arrays[name])) for name in ("logprobs", "entropies")))
            for p in range(len(self.groups))
        ]

    def backward(self, gradient: NativeModel, by_logp: Sequence[mx.array]) -> None:
        """Add to the gradient, and release the memory."""
        for p, weights_GT in enumerate(by_logp):
            for row, (start, end) in zip(np.array(weights_GT), self._spans(p), strict=True):
                self._arrays["weights"][start:end] = row[: end - start]
        self._run(gradient)
        self._release()

    def _release(self) -> None:
        assert self._space is not None
        _spare[:] = [self._space]
        self._space = None

    def _run(self, gradient: NativeModel | None) -> None:
        assert self._space is not None
        address = ctypes.c_void_p(self._space.ctypes.data)
        given = None if gradient is None else gradient.address
        with blas_threads(1):  # the library's own threads share out the products
            self._library.gradient_run(
                self._weights.address, given, ctypes.byref(self._batch), address, self._threads, int(self._backward)
            )

    def _spans(self, p: int) -> list[tuple[int, int]]:
        """Return the first row of each completion of the group, and the row after its last."""
        segment, (first, last) = self._arrays["segment"], self._arrays["group"][p : p + 2]
        return [(int(segment[s]), int(segment[s + 1])) for s in range(first + 1, last)]

    def _take(self, p: int, values: Floats) -> Floats:
        spans = self._spans(p)
        taken = np.zeros((len(spans), max(end - start for start, end in spans)), np.float32)
        for row, (start, end) in zip(taken, spans, strict=True):
            row[: end - start] = values[start:end]
        return taken


def _taken(values: int) -> Floats:
    """Return memory for float32 values: that of an earlier pass, or in large pages where the system has them, as many
    small ones cost more than what a pass computes in them."""
    global _most_mapped
    _most_mapped = max(_most_mapped, 4 * values)
    while _spare:
        if (found := _spare.pop()).size >= values:
            return found
    space = mmap.mmap(-1, 4 * values)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):
            space.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(space, np.float32)


def most_mapped() -> int:
    """Return the bytes of the largest pass since `forget_most_mapped`, which are outside of MLX's arrays."""
    return _most_mapped


def forget_most_mapped() -> None:
    """Begin a new count of the largest pass."""
    global _most_mapped
    _most_mapped = 0


def _pieces(group: TokenGroup) -> Iterator[tuple[list[int], list[int]]]:
    """Yield the tokens that are fed and those that follow (-1: not scored), for the prompt without its last token and
    for each completion after it."""
    *before, last = group.prompt_ids
    yield before, [-1] * len(before)
    for ids, targets in zip(group.completions_ids, _targets(group), strict=True):
        yield [last, *ids[:-1]][: len(ids)], list(targets)  # an empty completion feeds nothing


def _targets(group: TokenGroup) -> Sequence[Sequence[int]]:
    return group.targets_ids or group.completions_ids
