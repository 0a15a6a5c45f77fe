"""What changes with the steps of a stage besides weights and optimizer: weights of rewards that adapt, multipliers of
constraints, an order of prompts that looks at rewards.

A part begins each stage anew. Its state is saved with every checkpoint and loaded before the stage continues, so that a
resumed run is the same bit for bit. What a part is made from belongs in the configuration, which the fingerprint of the
stage covers.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from smolsum.types import RolloutGroup


class Sampled(Protocol):
    """What a step sampled and scored: P prompts with G rollouts each."""

    @property
    def groups(self) -> Sequence[RolloutGroup]:
        """The rollouts by prompt."""

    @property
    def scores(self) -> Mapping[str, Sequence[Sequence[float | None]]]:
        """PxG values by signal, None where one is missing."""

    @property
    def totals(self) -> Any:
        """The rewards: float64 (P, G), NaN where a rollout has none."""

    @property
    def untaught(self) -> Any:
        """Whether a group teaches nothing: its rollouts differ neither in reward nor in a constraint. Boolean (P,)."""

    @property
    def measured(self) -> Sequence[Any]:
        """What the stage's constraints bound (`Bounded`)."""


class Stateful:
    """A part of a training that changes with its steps. Subclasses override what they need."""

    name = ""
    """the key of its state in a checkpoint"""

    def weights(self, rewards: Mapping[str, float]) -> Mapping[str, float]:
        """Return the weights of the rewards of the next step to be scored, given those of the schedule or of the part
        before. Called several times for a step, so it changes nothing."""
        return rewards

    def observe(self, sampled: Sampled, weights: Mapping[str, float]) -> Mapping[str, float]:
        """Take in all that a step sampled, scored with these weights, and return metrics of the step. Called once for a
        step, after its update. With `train.refill_rounds` groups of prompts to come are among them."""
        return {}

    def state(self) -> Any:
        """Return what `load` needs, as values in JSON; None where there is nothing to keep."""
        return None

    def load(self, state: Any) -> None:
        """Continue from a checkpoint with this state."""
