"""The nouns that travel between sampling, rewards and the update."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from smolsum.errors import UsageError


@dataclass(frozen=True)
class Prompt:
    """One question to the policy, tokenised once and never again."""

    id: str
    messages: tuple[dict[str, str], ...]
    token_ids: tuple[int, ...]
    references: tuple[str, ...]
    metadata: Mapping[str, Any]
    request: str = ""
    """what the last turn says after the source, such as the length that is wanted"""

    @property
    def source(self) -> str:
        """The text that the policy works on: the last turn, without the instruction before it and the request after."""
        return self.messages[-1]["content"].removesuffix(self.request)


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


@dataclass(frozen=True)
class SamplingProgress:
    """How far a batch of completions is that are sampled together."""

    total: int
    """completions of the batch"""
    ended: int
    """those of them that are whole"""
    tokens: int
    """sampled so far, of all"""
    share: float
    """of the batch's work that is done, in [0, 1], counted in tokens: those of the prompts, and all that the
    completions may still have"""
    read: int = 0
    """tokens of prompts that are read, before any completion has a token"""


def unheard(progress: SamplingProgress) -> None:
    """Take a report of progress and do nothing with it."""


Seen = Literal["source", "completion", "reference"]
SEEN = ", ".join(get_args(Seen))

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

    def __post_init__(self) -> None:
        """Raise UsageError for values that no judge can be asked with."""
        given: dict[str, Any] = vars(self)
        steps, place = given["steps"], f"criterion {given['name']!r:.80}"
        if not isinstance(given["name"], str) or not given["name"].isidentifier():
            raise UsageError(f"{place} has no usable name: letters, digits and '_'", hint='Criterion("kindness", …)')
        if isinstance(steps, str) or not (steps and all(isinstance(one, str) and one.strip() for one in steps)):
            raise UsageError(
                f"{place}: its steps are not sentences, but {steps!r:.80}",
                hint='Criterion(NAME, ("Read the Actual Output.", "Rate …"))',
            )
        if isinstance(given["sees"], str) or not given["sees"] or not set(given["sees"]) <= set(get_args(Seen)):
            raise UsageError(
                f"{place}: a judge cannot see {given['sees']!r:.80}", hint=f'sees=("source", "completion"), of {SEEN}'
            )
        number = isinstance(given["threshold"], int | float) and not isinstance(given["threshold"], bool)
        if not number or not 0 <= given["threshold"] <= 1:
            raise UsageError(
                f"{place}: the threshold {given['threshold']!r:.80} is not from 0 to 1", hint="threshold=0.5"
            )
