"""Batched sampling from the policy in this process.

Each prompt is prefilled once; its caches are copied to its rollouts, and the rollouts of all prompts are decoded
together. Every rollout draws from a random stream of its own seed, so that it does not depend on what else is in the
batch and can be replayed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import mlx.nn as nn

from smolsum.policy.batch import Batch, Draft


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
    drafts = [
        Draft(tuple(prompt), seed, temperature, max_new_tokens)
        for prompt, row in zip(prompts, seeds, strict=True)
        for seed in row
    ]
    batch = Batch(model, eos_ids)
    batch.add(drafts)
    while batch.rows:
        batch.step()
    done = iter(completion(draft) for draft in drafts)
    return [[next(done) for _ in row] for row in seeds]


def completion(draft: Draft) -> Completion:
    """What became of a draft that has ended."""
    return Completion(tuple(draft.ids), tuple(draft.logprobs), "stop" if draft.stopped else "length")
