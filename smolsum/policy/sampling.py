"""Batched sampling from the policy in this process.

Each prompt is prefilled once for all of its rollouts, and the rollouts of all prompts are decoded together: in C where
the model and the machine allow it (`policy/cpu/decode.py`), else by MLX. Every rollout draws from a random stream that
its seed alone decides: it does not depend on what else is in the batch, and can be replayed.

Axes: B rows of the batch, V vocabulary.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, NamedTuple

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx_lm.models.cache import BatchKVCache, make_prompt_cache

from smolsum.policy import fast_math
from smolsum.policy.cpu import decode
from smolsum.policy.cpu.streams import map_over_streams
from smolsum.types import SamplingProgress, unheard

READ_AT_ONCE = 2
"""prompts whose activations are in memory together, where there are as many streams"""
SCORED_AT_ONCE = 128
"""tokens of a text whose logits are in memory together"""
COMPACT = 0.75
"""finished rollouts leave the batch once no more than this share of it is still running"""


class SampledToken(NamedTuple):
    """A token id, its natural log-prob, and where they are wanted the likeliest tokens in its place with theirs, the
    likeliest first."""

    id: int
    logprob: float
    likeliest: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class Completion:
    """What the sampler returns for one rollout; `token_ids` ends with EOS where finish_reason is "stop"."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: Literal["stop", "length"]
    likeliest: tuple[tuple[tuple[int, float], ...], ...] = ()
    """as in `SampledToken`, for each token; empty where they are not wanted"""

    @property
    def tokens(self) -> list[SampledToken]:
        likeliest = self.likeliest or ((),) * len(self.token_ids)
        return [SampledToken(*each) for each in zip(self.token_ids, self.logprobs, likeliest, strict=True)]


def rollout_seed(run_seed: int, *place: int | str) -> int:
    """Return a 63-bit seed for one rollout, from the run's seed and its (step, prompt, sample) place."""
    digest = hashlib.blake2b(repr((run_seed, *place)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def generate(
    model: nn.Module,
    prompts: Sequence[Sequence[int]],
    seeds: Sequence[Sequence[int]],
    *,
    eos_ids: frozenset[int],
    temperature: float,
    max_new_tokens: int,
    report: Callable[[SamplingProgress], None] = unheard,
) -> list[list[Completion]]:
    """Return completions of each prompt, one for each of its seeds; temperature 0 is greedy.

    Log-probs are float32 natural logs at the sampling temperature (at 1 when greedy), of the full distribution:
    nothing is truncated or penalised. `report` is called after each prompt that was read and each token of all
    completions or, in C, after as many as one call takes.
    """
    sequences = [
        ActiveSequence(tuple(prompt), seed, temperature, max_new_tokens)
        for prompt, row in zip(prompts, seeds, strict=True)
        for seed in row
    ]
    if decode.can_decode(model):
        done = iter(_decoded(model, sequences, eos_ids, report))
    else:
        batch = DecodeBatch(model, eos_ids)
        whole = sum(map(len, {one.prompt_ids for one in sequences})) + sum(one.max_new_tokens for one in sequences)
        batch.add(sequences, lambda read: report(SamplingProgress(len(sequences), 0, 0, read / whole, read)))
        while batch.rows:
            batch.step()
            tokens, ended = sum(len(one.ids) for one in sequences), sum(one.ended for one in sequences)
            left = sum(one.max_new_tokens - len(one.ids) for one in sequences if not one.ended)
            report(SamplingProgress(len(sequences), ended, tokens, 1 - left / whole))
        done = iter(sequence.completion for sequence in sequences)
    return [[next(done) for _ in row] for row in seeds]


def _decoded(
    model: nn.Module,
    sequences: Sequence[ActiveSequence],
    eos_ids: frozenset[int],
    report: Callable[[SamplingProgress], None],
) -> list[Completion]:
    """Return the completions, sampled in C."""
    draws = [decode.Draw(one.prompt_ids, one.uniforms, one.temperature) for one in sequences]
    return [
        Completion(tuple(one.ids), tuple(one.logprobs), "stop" if one.stopped else "length")
        for one in decode.sample(model, draws, eos_ids, report)
    ]


@dataclass
class ActiveSequence:
    """A rollout that is being decoded."""

    prompt_ids: tuple[int, ...]
    seed: int
    temperature: float
    """0 is greedy"""
    max_new_tokens: int
    on_token: Callable[[SampledToken], None] | None = None
    """called with each token as it is sampled"""
    top_p: float = 1.0
    """share of the probability that is sampled, from the likeliest tokens; 1: the full distribution"""
    wanted: int = 0
    """number of likeliest tokens to keep for each token"""
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    likeliest: list[tuple[tuple[int, float], ...]] = field(default_factory=list)
    stopped: bool = False
    """EOS was sampled"""
    abandoned: bool = False
    """no client waits for it any more"""

    @cached_property
    def uniforms(self) -> Any:
        """A random number in [0, 1) for each token that may come, (max_new_tokens,) float32."""
        return np.random.default_rng(self.seed).random(self.max_new_tokens, dtype=np.float32)

    @property
    def ended(self) -> bool:
        """Whether it takes no further token."""
        return self.stopped or self.abandoned or len(self.ids) >= self.max_new_tokens

    @property
    def completion(self) -> Completion:
        """The result, once it has ended."""
        reason: Literal["stop", "length"] = "stop" if self.stopped else "length"
        return Completion(tuple(self.ids), tuple(self.logprobs), reason, tuple(self.likeliest))

    def accept(self, token: SampledToken, eos_ids: frozenset[int]) -> None:
        """Append a sampled token, unless the rollout has ended."""
        if not self.ended:
            self.ids.append(token.id)
            self.logprobs.append(token.logprob)
            if self.wanted:
                self.likeliest.append(token.likeliest[: self.wanted])
            self.stopped = token.id in eos_ids
            if self.on_token:
                self.on_token(token._replace(likeliest=token.likeliest[: self.wanted]))


class DecodeBatch:
    """Rollouts that are decoded together, with the model's caches: some leave when they end, others may join."""

    def __init__(self, model: nn.Module, eos_ids: frozenset[int]) -> None:
        self.model, self.eos_ids = model, eos_ids
        self.rows: list[ActiveSequence] = []
        self._cache: list[Any] = []
        self._logits = mx.array(0.0)

    def can_join(self) -> bool:
        """Return whether rollouts may be added now: always to an empty batch, later if the model's caches allow it."""
        return not self.rows or all(hasattr(layer, "extend") for layer in self._cache)

    def add(self, sequences: Sequence[ActiveSequence], report: Callable[[int], None] = lambda read: None) -> None:
        """Add rollouts; a prompt that several share is prefilled once. `report` gets the tokens of prompts that are
        read."""
        cache, logits = prefill(self.model, [sequence.prompt_ids for sequence in sequences], report)
        if self.rows:
            for layer, other in zip(self._cache, cache, strict=True):
                layer.extend(other)
            logits = mx.concatenate([self._logits, logits])
        else:
            self._cache = cache
        self._logits = logits
        self.rows += sequences

    def step(self) -> None:
        """Sample a token for every row. Rows that have ended leave, at once or with others a little later; `rows` is
        empty when all have ended."""
        # a row that has ended stays until the batch is compacted: it draws too, and nothing takes its token
        uniforms = [sequence.uniforms[min(len(sequence.ids), sequence.max_new_tokens - 1)] for sequence in self.rows]
        temperatures = [sequence.temperature for sequence in self.rows]
        logits = self._logits
        if any(sequence.top_p < 1 for sequence in self.rows):
            logits = nucleus(logits, temperatures, [sequence.top_p for sequence in self.rows])
        token, logp = sample(logits, temperatures, mx.array(np.array(uniforms)))
        mx.eval(token, logp)  # the host must see every token to know which rows have ended
        wanted = max(sequence.wanted for sequence in self.rows)
        likeliest = top_tokens(_scaled(logits, temperatures), wanted) if wanted else [()] * len(self.rows)
        for sequence, *sampled in zip(self.rows, token.tolist(), logp.tolist(), likeliest, strict=True):
            sequence.accept(SampledToken(*sampled), self.eos_ids)
        alive = [row for row, sequence in enumerate(self.rows) if not sequence.ended]
        if not alive:
            self.clear()
            return
        if len(alive) <= COMPACT * len(self.rows):
            kept = mx.array(alive)
            for layer in self._cache:
                layer.filter(kept)
            self.rows, token = [self.rows[row] for row in alive], token[kept]
        self._logits = self.model(token[:, None], cache=self._cache)[:, -1]

    def clear(self) -> None:
        """Drop all rows."""
        self.rows, self._cache, self._logits = [], [], mx.array(0.0)

    def weights_changed(self) -> None:
        """Continue with the model's present weights, which MLX reads at every step."""


def prefill(
    model: nn.Module, prompts: Sequence[tuple[int, ...]], report: Callable[[int], None] = lambda read: None
) -> tuple[list[Any], mx.array]:
    """Return the merged caches of all rows, each its prompt's, and the logits (B, V) that follow the prompts. `report`
    gets the tokens of prompts that are read."""
    filled = dict[tuple[int, ...], tuple[list[Any], mx.array]]()

    def read(prompt: tuple[int, ...]) -> tuple[list[Any], mx.array]:
        cache = make_prompt_cache(model)
        if len(prompt) > 1:
            model(mx.array(list(prompt[:-1]))[None], cache=cache)  # nothing reads these logits, so none is computed
        filled[prompt] = cache, model(mx.array(list(prompt[-1:]))[None], cache=cache)[:, -1]
        return [layer.state for layer in cache], filled[prompt][1]

    tokens, different = 0, list(dict.fromkeys(prompts))
    for start in range(0, len(different), READ_AT_ONCE):
        together = different[start : start + READ_AT_ONCE]
        for prompt, _ in zip(together, map_over_streams(read, together), strict=True):
            report(tokens := tokens + len(prompt))
    merged = [type(layer[0]).merge(list(layer)) for layer in zip(*(cache for cache, _ in filled.values()), strict=True)]
    if len(filled) < len(prompts):
        place = {prompt: row for row, prompt in enumerate(filled)}
        rows = mx.array([place[prompt] for prompt in prompts])
        for layer in merged:
            layer.filter(rows)  # takes a row as often as it is named; `merge` copies each by itself
    if getattr(model, "model_type", "") == "gemma2" and model.args.num_attention_heads > model.args.num_key_value_heads:
        for layer in merged:
            layer.__class__ = _GroupedHeadsCache
    return merged, mx.concatenate([filled[prompt][1] for prompt in prompts])


class _GroupedHeadsCache(BatchKVCache):  # type: ignore[misc]  # mlx_lm has no types
    """For Gemma 2, whose attention scores have the axes (B, key-value heads, heads of each, new tokens, tokens)."""

    def make_mask(self, *args: Any, **kwargs: Any) -> mx.array:
        return super().make_mask(*args, **kwargs)[:, :, None]


def sample(logits_BV: mx.array, temperature_B: Sequence[float], uniform_B: mx.array) -> tuple[mx.array, mx.array]:
    """Return tokens (B,) by inversion of the cumulative distribution, and their log-probs (B,) float32 at the sampling
    temperature; a row of temperature 0 takes the likeliest token, with its log-prob at 1."""
    logits_BV = _scaled(logits_BV, temperature_B)
    logp_BV = logits_BV - fast_math.logsumexp(logits_BV)
    greedy = [t == 0 for t in temperature_B]
    if all(greedy):
        token = mx.argmax(logp_BV, axis=-1)
    else:
        cdf = mx.cumsum(fast_math.exp(logp_BV), axis=-1)
        # the last sum differs from 1 by rounding, so the number is scaled to it, and held to the last token
        token = mx.minimum(mx.sum(cdf <= uniform_B[:, None] * cdf[:, -1:], axis=-1), logp_BV.shape[-1] - 1)
        if any(greedy):
            token = mx.where(mx.array(greedy), mx.argmax(logp_BV, axis=-1), token)
    return token, mx.take_along_axis(logp_BV, token[:, None], -1)[:, 0]


def _scaled(logits_BV: mx.array, temperature_B: Sequence[float]) -> mx.array:
    divisor = mx.array([t or 1.0 for t in temperature_B])
    return logits_BV.astype(mx.float32) / divisor[:, None]


def nucleus(logits_BV: mx.array, temperature_B: Sequence[float], top_p_B: Sequence[float]) -> mx.array:
    """Return logits (B, V) float32 that leave each row its likeliest tokens of `top_p` of the probability at the
    sampling temperature, at least one (Holtzman et al. 2020, arXiv 1904.09751, section 3.1); rows of `top_p` 1 stay."""
    scaled_BV = _scaled(logits_BV, temperature_B)
    order_BV = mx.argsort(-scaled_BV, axis=-1)
    p_BV = mx.softmax(mx.take_along_axis(scaled_BV, order_BV, -1), axis=-1)
    before_BV = mx.cumsum(p_BV, axis=-1) - p_BV
    top_p_B1 = mx.array(top_p_B)[:, None]
    kept_BV = (before_BV < top_p_B1) | (top_p_B1 >= 1) | (mx.arange(order_BV.shape[-1]) == 0)
    kept_BV = mx.take_along_axis(kept_BV, mx.argsort(order_BV, axis=-1), -1)
    return mx.where(kept_BV, logits_BV.astype(mx.float32), fast_math.MASKED)


def top_tokens(logits_NV: mx.array, count: int) -> list[tuple[tuple[int, float], ...]]:
    """Return the `count` likeliest tokens of each row with their log-probs, the likeliest first."""
    logp_NV = logits_NV - fast_math.logsumexp(logits_NV)
    best_NK = mx.argsort(-logp_NV, axis=-1)[:, :count]
    rows = zip(best_NK.tolist(), mx.take_along_axis(logp_NV, best_NK, -1).tolist(), strict=True)
    return [tuple(zip(*row, strict=True)) for row in rows]


def score_text(model: nn.Module, ids: Sequence[int], wanted: int) -> list[SampledToken]:
    """Return the tokens of a text after its first one, with their log-probs float32 at temperature 1 and the `wanted`
    likeliest tokens in the place of each."""
    cache, scored = make_prompt_cache(model), list[SampledToken]()
    for start in range(0, len(ids) - 1, SCORED_AT_ONCE):
        chunk = list(ids[start : start + SCORED_AT_ONCE + 1])
        logits_NV = model(mx.array(chunk[:-1])[None], cache=cache)[0].astype(mx.float32)
        logp_N1 = mx.take_along_axis(logits_NV - fast_math.logsumexp(logits_NV), mx.array(chunk[1:])[:, None], -1)
        likeliest = top_tokens(logits_NV, wanted) if wanted else [()] * (len(chunk) - 1)
        scored += map(SampledToken, chunk[1:], logp_N1[:, 0].tolist(), likeliest)
    return scored
