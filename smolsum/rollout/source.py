"""Where the training loop gets its rollouts: the `Source` protocol, and the source that samples in this process.

With several ranks each samples its share of the prompts and they exchange the results; the source that uses workers
(`remote_source.py`) lives on the first rank alone.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from smolsum.config.sections import Config, SamplingConfig
from smolsum.policy import distributed
from smolsum.policy.load import Policy
from smolsum.policy.sampling import generate, rollout_seed
from smolsum.rollout.sampling_count import SamplingCounter, ShowCount
from smolsum.types import Prompt, Rollout, RolloutGroup, SamplingProgress, unheard

WORKER, REFERENCE = "local", "reference"


@dataclass(frozen=True)
class GroupRequest:
    """The prompts to sample for a step of the run, a group of rollouts each."""

    step: int
    """counted from 1 over all stages; the policy then has version `step - 1`"""
    prompts: Sequence[Prompt]
    first_place: int
    """of the first prompt, among all prompts of the step"""
    temperature: float


class Source(Protocol):
    """Samples for the loop. The defaults suit a source that samples, with the current weights, when it is called."""

    depth: int = 0
    """how many steps may be requested ahead, to be sampled while the update runs"""

    def publish(self, version: int, *, always: bool = False) -> None:
        """Take note that the policy has new weights, which are version `version`. `always`: they are not one step from
        the last ones."""
        return

    def ahead(self, request: GroupRequest) -> None:
        """Take note of the request that `sample` will get next."""
        return

    def sample(self, request: GroupRequest) -> list[RolloutGroup]:
        """Return the groups, in the order of the prompts."""

    def metrics(self) -> dict[str, float]:
        """Return metrics of the last step's sampling."""
        return {}

    def close(self) -> None:
        """Release what the source holds."""
        return


class LocalSource(Source):
    """Samples with the policy in this process, each rank its share."""

    def __init__(self, policy: Policy, config: Config, show: ShowCount = lambda count: None) -> None:
        """`show` gets the count of a request's completions as they are sampled."""
        self.policy, self.config, self._show = policy, config, show

    def sample(self, request: GroupRequest) -> list[RolloutGroup]:
        prompts, limit = distributed.share(request.prompts), self.config.sampling.max_new_tokens
        seeds = distributed.share(group_seeds(request, self.config.sampling.rollouts, self.config.train.seed))
        count = SamplingCounter(sum(map(len, seeds)), self._show)
        count.begin()
        groups = sample_seeded(
            self.policy, prompts, seeds, request.temperature,
            max_new_tokens=limit, version=request.step - 1, report=count.within,
        )  # fmt: skip
        count.add(groups)
        return exchanged(groups, request.prompts)


class ReferenceSource(Source):
    """The references of the data in place of rollouts, one for each prompt: which of several follows from the seed and
    the step. They were not sampled, so they have no log-probs."""

    def __init__(self, policy: Policy, config: Config) -> None:
        self.policy, self.config = policy, config

    def sample(self, request: GroupRequest) -> list[RolloutGroup]:
        seeds = group_seeds(request, 1, self.config.train.seed)
        return [
            RolloutGroup(prompt, (self._rollout(prompt.references[seed % len(prompt.references)], request.step - 1),))
            for prompt, (seed,) in zip(request.prompts, seeds, strict=True)
        ]

    def _rollout(self, text: str, version: int) -> Rollout:
        """Return a text as a completion that ended, or that the token limit cut."""
        ids, limit = self.policy.tokenizer.encode(text, add_special_tokens=False), self.config.sampling.max_new_tokens
        ended = len(ids) < limit
        whole = (*ids, self.policy.end_id) if ended else tuple(ids[:limit])
        return Rollout(whole, (), "stop" if ended else "length", version, REFERENCE, 0, text)


class Receiver(Source):
    """The source of every other rank if the first rank uses workers, which publishes and requests for all: it receives
    what they sampled."""

    def sample(self, request: GroupRequest) -> list[RolloutGroup]:
        distributed.together(lambda: None)
        return from_first(None, request.prompts)


def sample_groups(
    policy: Policy,
    prompts: Sequence[Prompt],
    config: SamplingConfig,
    *,
    temperature: float = 1.0,
    seed: int = 0,
    step: int = 1,
) -> list[RolloutGroup]:
    """Return one group of `config.rollouts` completions for each prompt, in the order of the prompts. Seeds are those
    of `group_seeds`; the policy version is `step - 1`."""
    seeds = group_seeds(GroupRequest(step, prompts, 0, temperature), config.rollouts, seed)
    limit = config.max_new_tokens
    return sample_seeded(policy, prompts, seeds, temperature, max_new_tokens=limit, version=step - 1)


def group_seeds(request: GroupRequest, count: int, seed: int) -> list[list[int]]:
    """Return the seeds of `count` rollouts for each prompt. Each follows from the run's `seed`, the step, the prompt's
    place and id, and the rollout's number."""
    return [
        [rollout_seed(seed, request.step, place, prompt.id, g) for g in range(count)]
        for place, prompt in enumerate(request.prompts, start=request.first_place)
    ]


def sample_seeded(
    policy: Policy,
    prompts: Sequence[Prompt],
    seeds: Sequence[Sequence[int]],
    temperature: float,
    *,
    max_new_tokens: int,
    version: int,
    report: Callable[[SamplingProgress], None] = unheard,
) -> list[RolloutGroup]:
    """Return one group for each prompt, with a completion for each of its seeds; `version` is the policy's. `report` is
    called while they are sampled."""
    sampled = generate(
        policy.model,
        [prompt.token_ids for prompt in prompts],
        seeds,
        eos_ids=policy.eos_ids,
        temperature=temperature,
        max_new_tokens=max_new_tokens,
        report=report,
    )
    groups = []
    for prompt, completions, row in zip(prompts, sampled, seeds, strict=True):
        rollouts = [
            Rollout(c.token_ids, c.logprobs, c.finish_reason, version, WORKER, seed, decode(policy, c.token_ids))
            for c, seed in zip(completions, row, strict=True)
        ]
        groups.append(RolloutGroup(prompt, tuple(rollouts)))
    return groups


def decode(policy: Policy, token_ids: Sequence[int]) -> str:
    """Return the completion's text, without special tokens and outer white space."""
    text: str = policy.tokenizer.decode(list(token_ids), skip_special_tokens=True)
    return text.strip()


def exchanged(mine: Sequence[RolloutGroup], prompts: Sequence[Prompt]) -> list[RolloutGroup]:
    """Return the groups of all prompts, from what each rank sampled of its share (`distributed.share`)."""
    if distributed.alone():
        return list(mine)
    shares = distributed.gathered(_plain(mine))
    n = len(shares)
    return [_group(prompt, shares[place % n][place // n]) for place, prompt in enumerate(prompts)]


def from_first(groups: Sequence[RolloutGroup] | None, prompts: Sequence[Prompt]) -> list[RolloutGroup]:
    """Return the first rank's groups; the other ranks pass None."""
    if distributed.alone():
        return list(groups or [])
    rows = distributed.gathered(_plain(groups or []))[0]
    return [_group(prompt, row) for prompt, row in zip(prompts, rows, strict=True)]


def _plain(groups: Sequence[RolloutGroup]) -> list[Any]:
    return [msgspec.to_builtins(group.rollouts) for group in groups]


def _group(prompt: Prompt, rows: Any) -> RolloutGroup:
    return RolloutGroup(prompt, msgspec.convert(rows, tuple[Rollout, ...]))
