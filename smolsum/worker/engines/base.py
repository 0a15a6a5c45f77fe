"""The interface of the engines that sample behind a worker."""

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
    """The engine failed; a later call may succeed."""


LONGEST = 4096
"""default limit of prompt and completion tokens: this project's texts are short, and engines reserve memory for it"""


def longest(policy: Policy, wanted: int | None) -> int:
    """The limit of prompt and completion tokens together: `wanted`, else what the model allows, up to LONGEST. Raises
    UsageError if the model allows less than `wanted`."""
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
"""sampling parameters of every engine except the temperature: the full distribution"""


@dataclass(frozen=True)
class ServedWeights:
    """Weights to serve: numpy arrays in the Hugging Face layout, or those of adapters alone."""

    arrays: Mapping[str, Any]
    lora: LoraConfig | None = None


class Engine(Protocol):
    """Samples from one policy. `load` is called only while no sampling or scoring is under way."""

    name: str
    version: str
    """of the engine's software"""
    policy: Policy
    """known once started, as is `facts`; callers use its tokenizer and config only"""
    facts: Mapping[str, Any]
    """`identity` of the policy"""
    most_running: int
    """rollouts that it samples at a time"""
    max_model_len: int
    """tokens of prompt and completion together"""
    restarts: int
    """times that it died and was started again"""
    state: State
    last_error: str | None
    """its last failure"""

    async def start(self) -> ServedWeights:
        """Start it; returns what it serves. Raises SmolsumError with a remedy if it cannot start."""
        ...

    async def stop(self) -> None:
        """Stop it and all its processes; calls under way fail. May be called again."""
        ...

    async def failed(self) -> None:
        """Wait until it cannot be started again, then raise EngineError. Never returns."""
        ...

    async def sample(
        self, request: SampleRequest, terms: SamplingTerms, on_token: Callable[[int], None] | None = None
    ) -> Completion:
        """Sample one rollout; `on_token` gets each token id. Cancelling the call ends it. Raises EngineError."""
        ...

    async def logprobs(
        self, sequences: Sequence[tuple[Sequence[int], Sequence[int]]], temperature: float
    ) -> list[list[float]]:
        """Log-probs of the completion in each pair of prompt and completion token ids. Raises EngineError."""
        ...

    async def load(self, weights: ServedWeights) -> None:
        """Serve these weights; if that fails, keep serving the old ones. Raises UsageError for weights of another
        model, EngineError, and SmolsumError for a full disk."""
        ...
