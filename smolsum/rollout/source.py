"""Where a step's rollouts come from: what the loop knows of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from smolsum.rollout.records import Prompt, RolloutGroup


@dataclass(frozen=True)
class Asked:
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

    def ahead(self, asked: Asked) -> None:
        """This will be sampled next."""
        ...

    def sample(self, asked: Asked) -> list[RolloutGroup]:
        """The groups, in the order of the prompts."""
        ...

    def metrics(self) -> dict[str, float]:
        """How the last step's sampling went."""
        ...

    def close(self) -> None:
        """Let go of what was taken."""
        ...
