"""The interface of the engines that sample behind a worker."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from smolsum.config.sections import LoraConfig
from smolsum.errors import SmolsumError, UsageError
from smolsum.policy.load import Policy
from smolsum.policy.sampling import Completion, SampledToken
from smolsum.rollout.protocol import NEUTRAL_SAMPLING, SampleRequest, SamplingTerms

State = Literal["starting", "ready", "restarting", "failed", "stopping"]


DEFAULT_MAX_MODEL_LEN = 4096
"""prompt and completion tokens: this project's texts are short, and engines reserve memory for them"""
NEUTRAL = {name: values[0] for name, values in NEUTRAL_SAMPLING.items()}
"""sampling parameters of every engine except the temperature: the full distribution"""


class EngineError(SmolsumError):
    """The engine failed; a later call may succeed."""


def length_limit(policy: Policy, wanted: int | None) -> int:
    """Return the limit of prompt and completion tokens together: `wanted`, else what the model allows, up to
    DEFAULT_MAX_MODEL_LEN. Raises UsageError if the model allows less than `wanted`."""
    text = policy.config.get("text_config", policy.config)
    allowed = int(text.get("max_position_embeddings") or DEFAULT_MAX_MODEL_LEN)
    if wanted is not None and wanted > allowed:
        raise UsageError(f"the model takes {allowed} tokens, not {wanted}", hint=f"--max-model-len {allowed}")
    return wanted or min(allowed, DEFAULT_MAX_MODEL_LEN)


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
    """known once started, as are `facts` and `max_model_len`; callers use its tokenizer and config only"""
    facts: Mapping[str, Any]
    """`identity` of the policy"""
    max_running: int
    """rollouts that it samples at a time"""
    max_model_len: int
    """tokens of prompt and completion together"""
    restarts: int = 0
    """times that it died and was started again"""
    state: State = "starting"
    last_error: str | None = None
    """its last failure"""

    @property
    def reserved_bytes(self) -> int | None:
        """The most of this machine's GPU memory that it takes; None where the system says what is still free."""

    async def start(self) -> ServedWeights:
        """Start it; returns what it serves. Raises SmolsumError with a hint if it cannot start."""

    async def stop(self) -> None:
        """Stop it and all its processes; calls under way fail. May be called again."""

    async def failed(self) -> None:
        """Wait until it cannot be started again, then raise EngineError. Never returns."""

    async def sample(
        self, request: SampleRequest, terms: SamplingTerms, on_token: Callable[[SampledToken], None] | None = None
    ) -> Completion:
        """Sample one rollout; `on_token` gets each token. Cancelling the call ends it. Raises EngineError."""

    async def logprobs(
        self, sequences: Sequence[tuple[Sequence[int], Sequence[int]]], temperature: float
    ) -> list[list[float]]:
        """Return the log-probs of the completion in each pair of prompt and completion ids. Raises EngineError."""

    async def score_text(self, ids: Sequence[int], wanted: int) -> list[SampledToken]:
        """Return the tokens of a text after its first one, with log-probs at temperature 1 and the `wanted` likeliest
        tokens in the place of each. Raises EngineError."""

    async def load(self, weights: ServedWeights) -> None:
        """Serve these weights; if that fails, keep serving the old ones. Raises UsageError for weights of another
        model, EngineError, and SmolsumError for a full disk."""
