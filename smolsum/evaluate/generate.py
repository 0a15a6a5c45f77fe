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
    """How an evaluation draws its completions: greedy at temperature 0, else with seeds made of `seed`."""

    temperature: float = 0.0
    seed: int = 0

    @property
    def name(self) -> str:
        """`greedy`, or what it takes to draw the same again."""
        return f"temperature {self.temperature:g}, seed {self.seed}" if self.temperature else "greedy"


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
    """Yields the prompts with one completion each, a batch at a time as `in_batches` makes them."""
    for chosen in in_batches(prompts, config):
        seeds = [completion_seed(sampler, prompt) for prompt in chosen]
        completions = generate(
            policy.model,
            [prompt.token_ids for prompt in chosen],
            [[drawn] for drawn in seeds],
            eos_ids=policy.eos_ids,
            temperature=sampler.temperature,
            max_new_tokens=config.sampling.max_new_tokens,
        )
        yield [
            RolloutGroup(
                prompt,
                (
                    Rollout(
                        c.token_ids, c.logprobs, c.finish_reason, version, WORKER, drawn, decode(policy, c.token_ids)
                    ),
                ),
            )
            for prompt, drawn, (c,) in zip(chosen, seeds, completions, strict=True)
        ]


def in_batches(prompts: Sequence[Prompt], config: Config) -> Iterator[Sequence[Prompt]]:
    """Yields `train.eval_batch` prompts at a time; the longest first, so that memory peaks early."""
    order = sorted(prompts, key=lambda prompt: -len(prompt.token_ids))
    for start in range(0, len(order), config.train.eval_batch):
        yield order[start : start + config.train.eval_batch]


def completion_seed(sampler: Sampler, prompt: Prompt) -> int:
    """The seed of a prompt's completion above temperature 0, made of the sampler's and the prompt's id: it does not
    depend on what else is in the batch."""
    return rollout_seed(sampler.seed, "evaluation", prompt.id) if sampler.temperature else 0


def measured(
    groups: Sequence[RolloutGroup], split: str, data: str, measure: Callable[[Prompt, Rollout], dict[str, Any]]
) -> list[dict[str, Any]]:
    """One row for each completion: its id, its split with the fingerprint of the split's `data`, text and metrics."""
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
