"""Where the training loop gets its rollouts: the `Source` protocol, and the source that samples in this process.

With several ranks each samples its share of the prompts and they exchange the results; the source that uses workers
(`workers.py`) lives on the first rank alone.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from smolsum.config.sections import Config, SamplingConfig
from smolsum.policy import ranks
from smolsum.policy.load import Policy
from smolsum.policy.sampling import generate, rollout_seed
from smolsum.types import Prompt, Rollout, RolloutGroup

WORKER = "local"


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
    """Samples for the loop."""

    depth: int
    """how many steps may be requested ahead, to be sampled while the update runs"""

    def publish(self, version: int, *, always: bool = False) -> None:
        """The policy has new weights: version `version`. `always`: they are not one step from the last ones."""
        ...

    def ahead(self, request: GroupRequest) -> None:
        """Announce the request that `sample` will get next."""
        ...

    def sample(self, request: GroupRequest) -> list[RolloutGroup]:
        """The groups, in the order of the prompts."""
        ...

    def metrics(self) -> dict[str, float]:
        """Metrics of the last step's sampling."""
        ...

    def close(self) -> None:
        """Release what the source holds."""
        ...


class LocalSource:
    """Samples with the policy in this process, each rank its share."""

    depth = 0

    def __init__(self, policy: Policy, config: Config) -> None:
        self.policy, self.config = policy, config

    def publish(self, version: int, *, always: bool = False) -> None:
        """Do nothing: it samples with the weights that are trained."""

    def ahead(self, request: GroupRequest) -> None:
        """Do nothing: it samples when it is called."""

    def sample(self, request: GroupRequest) -> list[RolloutGroup]:
        places = [request.first_place + place for place in range(len(request.prompts))]
        groups = sample_groups(
            self.policy, ranks.share(request.prompts), self.config.sampling, temperature=request.temperature,
            seed=self.config.train.seed, step=request.step, places=ranks.share(places),
        )  # fmt: skip
        return exchanged(groups, request.prompts)

    def metrics(self) -> dict[str, float]:
        """No metrics."""
        return {}

    def close(self) -> None:
        """Do nothing."""


class Receiver:
    """The source of every other rank if the first rank uses workers: it receives what they sampled."""

    depth = 0

    def publish(self, version: int, *, always: bool = False) -> None:
        """Do nothing: the first rank publishes."""

    def ahead(self, request: GroupRequest) -> None:
        """Do nothing: the first rank requests."""

    def sample(self, request: GroupRequest) -> list[RolloutGroup]:
        return from_first(None, request.prompts)

    def metrics(self) -> dict[str, float]:
        """No metrics: the first rank writes them."""
        return {}

    def close(self) -> None:
        """Do nothing."""


def sample_groups(
    policy: Policy,
    prompts: Sequence[Prompt],
    config: SamplingConfig,
    *,
    temperature: float = 1.0,
    seed: int = 0,
    step: int = 1,
    places: Sequence[int] | None = None,
) -> list[RolloutGroup]:
    """One group of `config.rollouts` completions for each prompt, in the order of the prompts.

    The seed of a rollout follows from the run's `seed`, the step (from 1), the prompt's place in the step (`places`, 0
    onward by default) and id, and the number of the sample. The policy version is `step - 1`.
    """
    seeds = [
        [rollout_seed(seed, step, place, prompt.id, g) for g in range(config.rollouts)]
        for place, prompt in zip(range(len(prompts)) if places is None else places, prompts, strict=True)
    ]
    sampled = generate(
        policy.model,
        [prompt.token_ids for prompt in prompts],
        seeds,
        eos_ids=policy.eos_ids,
        temperature=temperature,
        max_new_tokens=config.max_new_tokens,
    )
    groups = []
    for prompt, completions, row in zip(prompts, sampled, seeds, strict=True):
        rollouts = [
            Rollout(c.token_ids, c.logprobs, c.finish_reason, step - 1, WORKER, drawn, decode(policy, c.token_ids))
            for c, drawn in zip(completions, row, strict=True)
        ]
        groups.append(RolloutGroup(prompt, tuple(rollouts)))
    return groups


def decode(policy: Policy, token_ids: Sequence[int]) -> str:
    """The completion's text, without special tokens and outer white space."""
    text: str = policy.tokenizer.decode(list(token_ids), skip_special_tokens=True)
    return text.strip()


def exchanged(mine: Sequence[RolloutGroup], prompts: Sequence[Prompt]) -> list[RolloutGroup]:
    """The groups of all prompts, from what each rank sampled of its share (`ranks.share`)."""
    if ranks.alone():
        return list(mine)
    shares = ranks.gathered(_plain(mine))
    n = len(shares)
    return [_group(prompt, shares[place % n][place // n]) for place, prompt in enumerate(prompts)]


def from_first(groups: Sequence[RolloutGroup] | None, prompts: Sequence[Prompt]) -> list[RolloutGroup]:
    """The first rank's groups; the other ranks pass None."""
    if ranks.alone():
        return list(groups or [])
    rows = ranks.gathered(_plain(groups or []))[0]
    return [_group(prompt, row) for prompt, row in zip(prompts, rows, strict=True)]


def _plain(groups: Sequence[RolloutGroup]) -> list[list[dict[str, Any]]]:
    return [[asdict(rollout) for rollout in group.rollouts] for group in groups]


def _group(prompt: Prompt, rows: Sequence[dict[str, Any]]) -> RolloutGroup:
    return RolloutGroup(prompt, tuple(Rollout(**(row | _tuples(row))) for row in rows))


def _tuples(row: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(row[name]) for name in ("token_ids", "logprobs")}
