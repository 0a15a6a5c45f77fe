"""The nouns that travel between sampling, rewards and the update."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class Prompt:
    """One question to the policy, tokenised once and never again."""

    id: str
    messages: tuple[dict[str, str], ...]
    token_ids: tuple[int, ...]
    references: tuple[str, ...]
    metadata: Mapping[str, Any]

    @property
    def source(self) -> str:
        """The text that the policy works on: the last turn, without the instruction before it."""
        return self.messages[-1]["content"]


@dataclass(frozen=True)
class Rollout:
    """One sampled completion.

    `token_ids` ends with EOS if EOS was sampled; `logprobs` are the sampler's, natural logarithms, one for each token.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: Literal["stop", "length"]
    policy_version: int
    worker: str
    seed: int
    text: str

    @property
    def length(self) -> int:
        """Sampled tokens without the EOS."""
        return len(self.token_ids) - (self.finish_reason == "stop")

    @property
    def truncated(self) -> bool:
        """Whether the token limit, not the policy, ended the text."""
        return self.finish_reason == "length"


@dataclass(frozen=True)
class RolloutGroup:
    """One prompt with its G rollouts."""

    prompt: Prompt
    rollouts: tuple[Rollout, ...]


Seen = Literal["source", "completion", "reference"]


DEFAULT_ROUNDS = 5
"""times that a judge scores each example, unless a flag says otherwise"""
COMPOSITE = "composite"
"""the column with the sum of all criteria"""
PASS_RATE, PASSED = "pass_rate", "passed"
"""the columns with the share of rounds in which all criteria reach their thresholds, and whether that is most of
them"""


@dataclass(frozen=True)
class Criterion:
    """One judged metric: its column, the steps that a judge follows, and the texts that it is shown."""

    name: str
    steps: tuple[str, ...]
    """sentences; the texts are called Input (source), Actual Output (completion) and Expected Output (reference)"""
    sees: tuple[Seen, ...] = ("source", "completion")
    threshold: float = 0.5
    """a score in [0, 1] passes from here on"""
