"""Rollouts sampled by the policy in this process.

Where a step's rollouts come from: what the loop knows of it.

Rollouts between the ranks of one training.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from smolsum.config.sections import Config, SamplingConfig
from smolsum.policy import ranks
from smolsum.policy.load import Policy
from smolsum.policy.sampling import generate, rollout_seed
from smolsum.types import Prompt, Rollout, RolloutGroup


@dataclass(frozen=True)
class SampleRequest:
    """Prompts to sample for a step of the run."""

    step: int
    """counted from 1 over all stages; the policy then has version `step - 1`"""
    prompts: Sequence[Prompt]
    first_place: int
    """of the prompts, among all that the step samples"""
    temperature: float


class Source(Protocol):
    """Samples for the loop. Where other machines do, what is asked for ahead is sampled while the update runs."""

    depth: int
    """steps that may be asked for ahead"""

    def publish(self, version: int, *, always: bool = False) -> None:
        """The policy has new weights: version `version`. `always`: they are no step from the last ones."""
        ...

    def ahead(self, asked: SampleRequest) -> None:
        """This will be sampled next."""
        ...

    def sample(self, asked: SampleRequest) -> list[RolloutGroup]:
        """The groups, in the order of the prompts."""
        ...

    def metrics(self) -> dict[str, float]:
        """How the last step's sampling went."""
        ...

    def close(self) -> None:
        """Let go of what was taken."""
        ...


def exchanged(mine: Sequence[RolloutGroup], prompts: Sequence[Prompt]) -> list[RolloutGroup]:
    """The groups of all prompts, from what each rank sampled of its share (`ranks.share`)."""
    if ranks.alone():
        return list(mine)
    shares = ranks.gathered(_plain(mine))
    n = len(shares)
    return [_group(prompt, shares[place % n][place // n]) for place, prompt in enumerate(prompts)]


def from_first(groups: Sequence[RolloutGroup] | None, prompts: Sequence[Prompt]) -> list[RolloutGroup]:
    """The groups that the first rank has; the others have none."""
    if ranks.alone():
        return list(groups or [])
    rows = ranks.gathered(_plain(groups or []))[0]
    return [_group(prompt, row) for prompt, row in zip(prompts, rows, strict=True)]


class Receiver:
    """The source of a rank whose first rank has workers; see `smolsum.rollout.sampler.Source`."""

    depth = 0

    def publish(self, version: int, *, always: bool = False) -> None:
        """The first rank's work."""

    def ahead(self, asked: SampleRequest) -> None:
        """The first rank's work."""

    def sample(self, asked: SampleRequest) -> list[RolloutGroup]:
        """What the first rank's workers sampled."""
        return from_first(None, asked.prompts)

    def metrics(self) -> dict[str, float]:
        """None: the first rank writes them."""
        return {}

    def close(self) -> None:
        """Nothing was taken."""


def _plain(groups: Sequence[RolloutGroup]) -> list[list[dict[str, Any]]]:
    return [[asdict(rollout) for rollout in group.rollouts] for group in groups]


def _group(prompt: Prompt, rows: Sequence[dict[str, Any]]) -> RolloutGroup:
    return RolloutGroup(prompt, tuple(Rollout(**(row | _tuples(row))) for row in rows))


def _tuples(row: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(row[name]) for name in ("token_ids", "logprobs")}


WORKER = "local"


class LocalSource:
    """Samples with the policy itself, each rank its share; see `smolsum.rollout.sampler.Source`."""

    depth = 0

    def __init__(self, policy: Policy, config: Config) -> None:
        self.policy, self.config = policy, config

    def publish(self, version: int, *, always: bool = False) -> None:
        """Nothing: it samples with the weights that are trained."""

    def ahead(self, asked: SampleRequest) -> None:
        """Nothing: nobody else could sample meanwhile."""

    def sample(self, asked: SampleRequest) -> list[RolloutGroup]:
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
