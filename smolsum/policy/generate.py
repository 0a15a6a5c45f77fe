"""Batched sampling from the policy in this process.

Each prompt is prefilled once; its caches are copied to its rollouts, and the rollouts of all prompts are decoded together. Every rollout draws
from a random stream of its own seed, so that it does not depend on what else is in the batch and can be replayed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx_lm.models.cache import make_prompt_cache

COMPACT = 0.75
"""finished rollouts leave the batch once no more than this share of it is still running"""


@dataclass(frozen=True)
class Completion:
    """What the sampler returns for one rollout; `token_ids` ends with EOS when finish_reason is "stop"."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: Literal["stop", "length"]


def rollout_seed(run_seed: int, *place: int | str) -> int:
    """A 63-bit seed for one rollout, from the run's seed and its (step, prompt, sample) place."""
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
) -> list[list[Completion]]:
    """Completions of each prompt, one for each of its seeds; temperature 0 is greedy.

    Log-probs are float32 natural logs at the sampling temperature (at 1 when greedy), of the full distribution: nothing is truncated or
    penalised.
    """
    rows = [(p, s) for p, row in enumerate(seeds) for s in row]
    cache, logits = _prefill(model, prompts, [len(row) for row in seeds])
    uniforms = np.stack([np.random.default_rng(seed).random(max_new_tokens, dtype=np.float32) for _, seed in rows])
    ids: list[list[int]] = [[] for _ in rows]
    logps: list[list[float]] = [[] for _ in rows]
    stopped = [False] * len(rows)
    alive = list(range(len(rows)))  # batch row -> rollout
    for t in range(max_new_tokens):
        token, logp = _sample(logits, temperature, mx.array(uniforms[alive, t]))
        mx.eval(token, logp)
        keep: list[int] = []
        for row, (rollout, i, lp) in enumerate(zip(alive, token.tolist(), logp.tolist(), strict=True)):
            if not stopped[rollout]:
                ids[rollout].append(i)
                logps[rollout].append(lp)
                stopped[rollout] = i in eos_ids
            if not stopped[rollout]:
                keep.append(row)
        if not keep:
            break
        if len(keep) <= COMPACT * len(alive):
            rows_kept = mx.array(keep)
            for layer in cache:
                layer.filter(rows_kept)
            alive, token = [alive[row] for row in keep], token[rows_kept]
        if t + 1 < max_new_tokens:
            logits = model(token[:, None], cache=cache)[:, -1]
    done = iter(
        Completion(tuple(i), tuple(lp), "stop" if stop else "length")
        for i, lp, stop in zip(ids, logps, stopped, strict=True)
    )
    return [[next(done) for _ in row] for row in seeds]


def _prefill(model: nn.Module, prompts: Sequence[Sequence[int]], counts: Sequence[int]) -> tuple[list[Any], mx.array]:
    """The merged caches, each prompt's repeated `counts` times, and the logits (rows, V) after each prompt."""
    caches, logits = [], []
    for prompt in prompts:
        cache = make_prompt_cache(model)
        last = model(mx.array(prompt)[None], cache=cache)[:, -1]
        mx.eval(last, [layer.state for layer in cache])  # one prompt's activations at a time
        caches.append(cache)
        logits.append(last)
    per_row = [cache for cache, n in zip(caches, counts, strict=True) for _ in range(n)]
    merged = [type(layers[0]).merge(list(layers)) for layers in zip(*per_row, strict=True)]
    return merged, mx.concatenate([mx.repeat(last, n, axis=0) for last, n in zip(logits, counts, strict=True)])


def _sample(logits_BV: mx.array, temperature: float, uniform_B: mx.array) -> tuple[mx.array, mx.array]:
    """Tokens (B,) by inversion of the cumulative distribution, and their log-probs (B,) float32."""
    logits_BV = logits_BV.astype(mx.float32) / (temperature or 1.0)
    logp_BV = logits_BV - mx.logsumexp(logits_BV, axis=-1, keepdims=True)
    if temperature == 0:
        token = mx.argmax(logp_BV, axis=-1)
    else:
        cdf = mx.cumsum(mx.exp(logp_BV), axis=-1)
        token = mx.sum(cdf <= uniform_B[:, None] * cdf[:, -1:], axis=-1)
        token = mx.minimum(token, logp_BV.shape[-1] - 1)
    return token, mx.take_along_axis(logp_BV, token[:, None], -1)[:, 0]
