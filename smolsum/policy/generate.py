"""Batched sampling from the policy in this process.

Each prompt is prefilled once; its caches are copied to its rollouts, and the rollouts of all prompts are decoded
together. Every rollout draws from a random stream of its own seed, so that it does not depend on what else is in the
batch and can be replayed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx_lm.models.cache import make_prompt_cache

from smolsum.policy import kernels

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

    Log-probs are float32 natural logs at the sampling temperature (at 1 when greedy), of the full distribution:
    nothing is truncated or penalised.
    """
    drafts = [_Draft(p, seed) for p, row in enumerate(seeds) for seed in row]
    uniforms = np.stack([np.random.default_rng(d.seed).random(max_new_tokens, dtype=np.float32) for d in drafts])
    cache, logits = _prefill(model, prompts, [d.prompt for d in drafts])
    alive = list(range(len(drafts)))  # the draft of each row in the batch
    for t in range(max_new_tokens):
        token, logp = _sample(logits, temperature, mx.array(uniforms[alive, t]))
        mx.eval(token, logp)  # the host must see every token to know who has finished
        for draft, i, lp in zip((drafts[n] for n in alive), token.tolist(), logp.tolist(), strict=True):
            draft.accept(i, lp, eos_ids)
        rows = [row for row, n in enumerate(alive) if not drafts[n].stopped]
        if not rows or t + 1 == max_new_tokens:
            break
        if len(rows) <= COMPACT * len(alive):
            kept = mx.array(rows)
            for layer in cache:
                layer.filter(kept)
            alive, token = [alive[row] for row in rows], token[kept]
        logits = model(token[:, None], cache=cache)[:, -1]
    done = iter(Completion(tuple(d.ids), tuple(d.logprobs), "stop" if d.stopped else "length") for d in drafts)
    return [[next(done) for _ in row] for row in seeds]


@dataclass
class _Draft:
    """A rollout in the making."""

    prompt: int
    seed: int
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    stopped: bool = False

    def accept(self, token: int, logprob: float, eos_ids: frozenset[int]) -> None:
        """Write a sampled token down, unless an earlier one was EOS."""
        if not self.stopped:
            self.ids.append(token)
            self.logprobs.append(logprob)
            self.stopped = token in eos_ids


def _prefill(
    model: nn.Module, prompts: Sequence[Sequence[int]], prompt_of_row: Sequence[int]
) -> tuple[list[Any], mx.array]:
    """The merged caches of all rows, each its prompt's, and the logits (rows, V) that follow the prompts."""
    filled = {}
    for p in dict.fromkeys(prompt_of_row):
        cache = make_prompt_cache(model)
        logits = model(mx.array(list(prompts[p]))[None], cache=cache)[:, -1]
        mx.eval(logits, [layer.state for layer in cache])  # one prompt's activations at a time
        filled[p] = cache, logits
    layers = zip(*(filled[p][0] for p in prompt_of_row), strict=True)
    merged = [type(layer[0]).merge(list(layer)) for layer in layers]
    return merged, mx.concatenate([filled[p][1] for p in prompt_of_row])


def _sample(logits_BV: mx.array, temperature: float, uniform_B: mx.array) -> tuple[mx.array, mx.array]:
    """Tokens (B,) by inversion of the cumulative distribution, and their log-probs (B,) float32."""
    logits_BV = logits_BV.astype(mx.float32) / (temperature or 1.0)
    logp_BV = logits_BV - kernels.logsumexp(logits_BV)
    if temperature == 0:
        token = mx.argmax(logp_BV, axis=-1)
    else:
        cdf = mx.cumsum(kernels.exp(logp_BV), axis=-1)
        token = mx.sum(cdf <= uniform_B[:, None] * cdf[:, -1:], axis=-1)
        token = mx.minimum(token, logp_BV.shape[-1] - 1)
    return token, mx.take_along_axis(logp_BV, token[:, None], -1)[:, 0]
