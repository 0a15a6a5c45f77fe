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
from smolsum.policy.streams import streams

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
    share = -(-len(drafts) // len(streams()))
    batches = [
        _Batch(model, stream, prompts, drafts[start : start + share], temperature, max_new_tokens)
        for stream, start in zip(streams(), range(0, len(drafts), share), strict=False)
    ]
    for t in range(max_new_tokens):
        running = [batch for batch in batches if batch.alive]
        if not running:
            break
        sampled = [batch.sample(t) for batch in running]
        mx.eval(sampled)  # one token of every rollout; the host must see it to know who has finished
        for batch, (token, logp) in zip(running, sampled, strict=True):
            batch.accept(token, logp, eos_ids)
            if batch.alive and t + 1 < max_new_tokens:
                batch.advance()
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


class _Batch:
    """The rollouts that one stream decodes together: their merged caches and the logits of the next token."""

    def __init__(
        self,
        model: nn.Module,
        stream: mx.Stream,
        prompts: Sequence[Sequence[int]],
        drafts: list[_Draft],
        temperature: float,
        tokens: int,
    ) -> None:
        self.model, self.stream, self.alive, self.temperature = model, stream, drafts, temperature
        self.uniforms = {id(d): np.random.default_rng(d.seed).random(tokens, dtype=np.float32) for d in drafts}
        with mx.stream(stream):
            filled = {p: _prefill(model, prompts[p]) for p in dict.fromkeys(d.prompt for d in drafts)}
            self.cache = [
                type(row[0]).merge(list(row)) for row in zip(*(filled[d.prompt][0] for d in drafts), strict=True)
            ]
            self.logits = mx.concatenate([filled[d.prompt][1] for d in drafts])

    def sample(self, t: int) -> tuple[mx.array, mx.array]:
        """Token t of every rollout in the batch, and its log-prob: lazy (B,) arrays."""
        with mx.stream(self.stream):
            self.token, logp = _sample(
                self.logits, self.temperature, mx.array(np.array([self.uniforms[id(d)][t] for d in self.alive]))
            )
        return self.token, logp

    def accept(self, token: mx.array, logp: mx.array, eos_ids: frozenset[int]) -> None:
        """Write the sampled tokens down; now and then the finished rollouts leave the batch."""
        for draft, i, lp in zip(self.alive, token.tolist(), logp.tolist(), strict=True):
            if not draft.stopped:
                draft.ids.append(i)
                draft.logprobs.append(lp)
                draft.stopped = i in eos_ids
        keep = [row for row, draft in enumerate(self.alive) if not draft.stopped]
        if not keep:
            self.alive = []
        elif len(keep) <= COMPACT * len(self.alive):
            with mx.stream(self.stream):
                rows = mx.array(keep)
                for layer in self.cache:
                    layer.filter(rows)
                self.token = self.token[rows]
            self.alive = [self.alive[row] for row in keep]

    def advance(self) -> None:
        """Put the sampled tokens through the model."""
        with mx.stream(self.stream):
            self.logits = self.model(self.token[:, None], cache=self.cache)[:, -1]


def _prefill(model: nn.Module, prompt: Sequence[int]) -> tuple[list[Any], mx.array]:
    """The caches after one prompt, and the logits (1, V) that follow it."""
    cache = make_prompt_cache(model)
    logits = model(mx.array(prompt)[None], cache=cache)[:, -1]
    mx.eval(logits, [layer.state for layer in cache])  # one prompt's activations at a time
    return cache, logits


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
