"""Rollouts sampled by the policy in this process."""

from __future__ import annotations

from collections.abc import Sequence

from smolsum.config import Config, SamplingConfig
from smolsum.policy import ranks
from smolsum.policy.generate import generate, rollout_seed
from smolsum.policy.load import Policy
from smolsum.rollout.exchange import exchanged
from smolsum.rollout.records import Prompt, Rollout, RolloutGroup
from smolsum.rollout.source import Asked

WORKER = "local"


class LocalSource:
    """Samples with the policy itself, each rank its share; see `smolsum.rollout.source.Source`."""

    depth = 0

    def __init__(self, policy: Policy, config: Config) -> None:
        self.policy, self.config = policy, config

    def publish(self, version: int, *, always: bool = False) -> None:
        """Nothing: it samples with the weights that are trained."""

    def ahead(self, asked: Asked) -> None:
        """Nothing: nobody else could sample meanwhile."""

    def sample(self, asked: Asked) -> list[RolloutGroup]:
        places = ranks.share(range(len(asked.prompts)))
        mine = sample_groups(
            self.policy,
            [asked.prompts[place] for place in places],
            [asked.first_place + place for place in places],
            self.config.sampling,
            temperature=asked.temperature,
            run_seed=self.config.train.seed,
            step=asked.step,
            version=asked.step - 1,
        )
        return exchanged(mine, asked.prompts)

    def metrics(self) -> dict[str, float]:
        """None."""
        return {}

    def close(self) -> None:
        """Nothing was taken."""


def sample_groups(
    policy: Policy,
    prompts: Sequence[Prompt],
    places: Sequence[int],
    config: SamplingConfig,
    *,
    temperature: float,
    run_seed: int,
    step: int,
    version: int,
) -> list[RolloutGroup]:
    """One group of `config.rollouts` completions for each prompt; each rollout's seed is its own (run, step, prompt,
    sample), the prompt by its place in the step, which `places` holds, and its id."""
    seeds = [
        [rollout_seed(run_seed, step, place, prompt.id, g) for g in range(config.rollouts)]
        for place, prompt in zip(places, prompts, strict=True)
    ]
    sampled = generate(
        policy.model,
        [prompt.token_ids for prompt in prompts],
        seeds,
        eos_ids=policy.eos_ids,
        temperature=temperature,
        max_new_tokens=config.max_new_tokens,
    )
    return [
        RolloutGroup(
            prompt,
            tuple(
                Rollout(
                    c.token_ids,
                    c.logprobs,
                    c.finish_reason,
                    version,
                    WORKER,
                    seed,
                    decode(policy, c.token_ids),
                )
                for c, seed in zip(completions, row, strict=True)
            ),
        )
        for prompt, completions, row in zip(prompts, sampled, seeds, strict=True)
    ]


def decode(policy: Policy, token_ids: Sequence[int]) -> str:
    """The completion's text, without special tokens and outer white space."""
    text: str = policy.tokenizer.decode(list(token_ids), skip_special_tokens=True)
    return text.strip()
