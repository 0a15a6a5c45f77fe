"""Completions of a whole split, one for each prompt, each measured by its task."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from smolsum.config import Config
from smolsum.policy.generate import generate, rollout_seed
from smolsum.policy.load import Policy
from smolsum.rollout.local import WORKER, decode
from smolsum.rollout.records import Prompt, Rollout, RolloutGroup


@dataclass(frozen=True)
class Sampler:
    """How an evaluation draws its completions: greedy at temperature 0, else with seeds made of `seed`, and perhaps
    several for each prompt."""

    temperature: float = 0.0
    seed: int = 0
    samples: int = 1

    @property
    def name(self) -> str:
        """`greedy`, or what it takes to draw the same again."""
        several = f", {self.samples} samples" if self.samples > 1 else ""
        return f"temperature {self.temperature:g}, seed {self.seed}{several}" if self.temperature else "greedy"


GREEDY = Sampler()


def greedy(policy: Policy, prompts: Sequence[Prompt], config: Config, *, version: int) -> list[RolloutGroup]:
    """One greedy completion for each prompt, in their order."""
    groups = {g.prompt.id: g for batch in complete(policy, prompts, config, version=version) for g in batch}
    return [groups[prompt.id] for prompt in prompts]


def complete(
    policy: Policy,
    prompts: Sequence[Prompt],
    config: Config,
    *,
    version: int,
    sampler: Sampler = GREEDY,
) -> Iterator[list[RolloutGroup]]:
    """Yields the prompts with their completions, a batch at a time as `in_batches` makes them."""
    for chosen in in_batches(prompts, config, sampler.samples):
        seeds = [completion_seeds(sampler, prompt) for prompt in chosen]
        completions = generate(
            policy.model,
            [prompt.token_ids for prompt in chosen],
            seeds,
            eos_ids=policy.eos_ids,
            temperature=sampler.temperature,
            max_new_tokens=config.sampling.max_new_tokens,
        )
        yield [
            RolloutGroup(
                prompt,
                tuple(
                    Rollout(
                        c.token_ids, c.logprobs, c.finish_reason, version, WORKER, seed, decode(policy, c.token_ids)
                    )
                    for seed, c in zip(drawn, said, strict=True)
                ),
            )
            for prompt, drawn, said in zip(chosen, seeds, completions, strict=True)
        ]


def in_batches(prompts: Sequence[Prompt], config: Config, samples: int = 1) -> Iterator[Sequence[Prompt]]:
    """Yields prompts of `train.eval_batch` completions at a time; the longest first, so that memory peaks early."""
    order = sorted(prompts, key=lambda prompt: -len(prompt.token_ids))
    size = max(1, config.train.eval_batch // samples)
    for start in range(0, len(order), size):
        yield order[start : start + size]


def completion_seeds(sampler: Sampler, prompt: Prompt) -> list[int]:
    """The seeds of a prompt's completions above temperature 0, made of the sampler's and the prompt's id: they do not
    depend on what else is in the batch, and the first not on how many there are."""
    if not sampler.temperature:
        return [0] * sampler.samples
    more = [rollout_seed(sampler.seed, "evaluation", prompt.id, n) for n in range(1, sampler.samples)]
    return [rollout_seed(sampler.seed, "evaluation", prompt.id), *more]


def measured(
    groups: Sequence[RolloutGroup], split: str, data: str, measure: Callable[[Prompt, Rollout], dict[str, Any]]
) -> list[dict[str, Any]]:
    """One row for each prompt's first completion: its id, its split with the fingerprint of the split's `data`, text
    and metrics."""
    return [
        {
            "id": g.prompt.id,
            "split": split,
            "data": data,
            "text": g.rollouts[0].text,
            **measure(g.prompt, g.rollouts[0]),
        }
        for g in groups
    ]
