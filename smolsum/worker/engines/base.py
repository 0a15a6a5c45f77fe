"""What samples behind a worker: the contract that every engine keeps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from smolsum.config.sections import LoraConfig
from smolsum.errors import SmolsumError, UsageError
from smolsum.policy.load import Policy
from smolsum.policy.sampling import Completion
from smolsum.rollout.protocol import SampleRequest, SamplingTerms

State = Literal["starting", "ready", "restarting", "failed", "stopping"]


class EngineError(SmolsumError):
    """The engine could not do what it was asked; it may be able to later."""


LONGEST = 4096
"""tokens of prompt and completion unless told otherwise: this project's texts are short, and memory is set aside for
what may come"""


def longest(policy: Policy, wanted: int | None) -> int:
    """The tokens of prompt and completion together: `wanted`, or what the model allows up to LONGEST. Raises UsageError
    where the model allows less."""
    text = policy.config.get("text_config", policy.config)
    allowed = int(text.get("max_position_embeddings") or LONGEST)
    if wanted is not None and wanted > allowed:
        raise UsageError(f"the model takes {allowed} tokens, not {wanted}", hint=f"--max-model-len {allowed}")
    return wanted or min(allowed, LONGEST)


NEUTRAL: Mapping[str, float] = {
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
}
"""how an engine samples beside the temperature: from the full distribution"""


@dataclass(frozen=True)
class ServedWeights:
    """Weights as they are served: numpy arrays in the Hugging Face layout, or those of adapters."""

    arrays: Mapping[str, Any]
    lora: LoraConfig | None = None


class Engine(Protocol):
    """Samples from one policy. `load` is called only while nothing is being sampled or scored."""

    name: str
    version: str
    """of the engine's software"""
    policy: Policy
    """of its model only tokenizer and config are looked at from outside; known once started, as `facts`"""
    facts: Mapping[str, Any]
    """`identity` of the policy"""
    most_running: int
    """rollouts that it samples at a time; more would wait inside it"""
    max_model_len: int
    """tokens of prompt and completion together"""
    restarts: int
    """times that it died and came back"""
    state: State
    last_error: str | None
    """the last thing that went wrong inside it"""

    async def start(self) -> ServedWeights:
        """Bring it up; what it serves. Raises SmolsumError with a remedy where it cannot be."""
        ...

    async def stop(self) -> None:
        """Bring it down; nothing of it is left running, and what is under way fails. May be called again."""
        ...

    async def failed(self) -> None:
        """Does not return; raises EngineError once it cannot be brought up again."""
        ...

    async def sample(
        self, request: SampleRequest, terms: SamplingTerms, on_token: Callable[[int], None] | None = None
    ) -> Completion:
        """One rollout; `on_token` hears of each token. Cancelling the call ends the sampling. Raises EngineError."""
        ...

    async def logprobs(
        self, sequences: Sequence[tuple[Sequence[int], Sequence[int]]], temperature: float
    ) -> list[list[float]]:
        """Log-probs of the second of each pair of token ids after the first. Raises EngineError."""
        ...

    async def load(self, weights: ServedWeights) -> None:
        """Serve these from now on, or, where that fails, what was served before. Raises UsageError for weights of
        another model, EngineError, and SmolsumError for a full disk."""
        ...
