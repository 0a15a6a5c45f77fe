"""The HTTP protocol between a trainer and its workers: the JSON bodies that both ends share.

The worker's end is `smolsum/rollout/worker/routes.py`, the trainer's `smolsum/rollout/worker_client.py`.
"""

import json
import os
from collections.abc import Mapping
from typing import Annotated, Any, Literal, NoReturn, TypeVar

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from smolsum.errors import UsageError

Logprob = Annotated[float, Meta(ge=-1e6, le=1e-4)]
NEUTRAL_SAMPLING: Mapping[str, tuple[float, ...]] = {
    "top_p": (1.0,),
    "top_k": (0, -1),
    "min_p": (0.0,),
    "repetition_penalty": (1.0,),
    "presence_penalty": (0.0,),
    "frequency_penalty": (0.0,),
}
"""sampling parameters, with the values that leave the distribution unchanged; the first is what a worker uses"""
MAX_REQUESTS = 4096
"""rollouts, or sequences to score, in one body"""
Tokens = Annotated[tuple[int, ...], Meta(min_length=1)]
T = TypeVar("T")


class ExpectedWeights(Struct, frozen=True):
    """The weights that the sender expects a worker to serve; the worker refuses if it serves others. None matches any.

    Every run counts its versions from 0, so only the checksum distinguishes the weights of two runs.
    """

    version: int | None = None
    weights: str | None = None


class SampleRequest(Struct, frozen=True):
    """One rollout to sample; `id` is unique among all open requests."""

    id: str
    prompt_ids: Tokens
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1)]


class SamplingTerms(Struct, frozen=True):
    """What all rollouts of one body have in common; temperature 0 is greedy."""

    temperature: float
    max_new_tokens: int
    top_p: float = 1.0
    """share of the probability that is sampled, from the likeliest tokens; rollouts for training have 1"""
    likeliest: int = 0
    """number of likeliest tokens to return in the place of each"""


class RolloutsBody(ExpectedWeights, frozen=True, kw_only=True):
    """Body of POST /v1/rollouts."""

    temperature: float
    max_new_tokens: Annotated[int, Meta(ge=1)]
    requests: Annotated[tuple[SampleRequest, ...], Meta(min_length=1, max_length=MAX_REQUESTS)]
    # what would make rollouts differ from the policy's distribution: refused unless neutral
    top_p: Any = UNSET
    top_k: Any = UNSET
    min_p: Any = UNSET
    repetition_penalty: Any = UNSET
    presence_penalty: Any = UNSET
    frequency_penalty: Any = UNSET
    stop: Any = UNSET
    logit_bias: Any = UNSET

    @property
    def terms(self) -> SamplingTerms:
        """The terms of all its requests."""
        return SamplingTerms(self.temperature, self.max_new_tokens)


class RolloutAnswer(Struct, frozen=True):
    """One line of the answer to POST /v1/rollouts; other fields as in `smolsum.types.Rollout`."""

    id: str
    """of the request"""
    token_ids: Tokens
    logprobs: tuple[Logprob, ...]
    finish_reason: Literal["stop", "length"]
    version: int


class FailedRollout(Struct, frozen=True):
    """The line for a rollout that could not be sampled."""

    id: str
    error: str


class EndOfRollouts(Struct, frozen=True):
    """The last line: the number of lines before it."""

    done: int


class ScoredSequence(Struct, frozen=True):
    """A prompt, and the completion whose tokens are to be scored."""

    prompt_ids: Tokens
    completion_ids: Tokens


class LogprobsBody(ExpectedWeights, frozen=True, kw_only=True):
    """Body of POST /v1/logprobs."""

    sequences: Annotated[tuple[ScoredSequence, ...], Meta(min_length=1, max_length=MAX_REQUESTS)]
    temperature: float = 1.0


class LogprobsAnswer(Struct, frozen=True):
    """Natural log-probs of the completions' tokens, float32, and the version that they are from."""

    version: int
    logprobs: tuple[tuple[Logprob, ...], ...]


class WeightsAnswer(Struct, frozen=True):
    """Answer to PUT /v1/weights: what the worker serves now, and the seconds that the swap took."""

    version: int
    weights: str
    seconds: float = 0.0


class Health(Struct, frozen=True, kw_only=True):
    """Answer to GET /health: what the worker serves, and how it is."""

    state: str
    """of the engine; only in state "ready" can it sample"""
    engine: str = ""
    engine_version: str = ""
    model: str = ""
    """as given to `serve-worker`"""
    architecture: str
    vocab_size: int
    tokenizer: str
    """digest of the vocabulary and the chat template"""
    dtype: str
    instance: str = ""
    """a random id; the same worker may have several URLs"""
    run: str | None = None
    """the run whose weights it serves"""
    version: int
    weights: str
    """checksum of the served weights"""
    sampling: dict[str, Any] = {}
    """sampling parameters except the temperature"""
    max_model_len: int | None = None
    """tokens of prompt and completion together"""
    max_new_tokens: int = 0
    queue: int = 0
    """rollouts being sampled or waiting"""
    reserved_bytes: int | None = None
    """the most that its engine takes of the memory of a Mac's GPU; None elsewhere"""
    last_error: str | None = None


class ErrorAnswer(Struct, frozen=True):
    """Body of every answer that is an error; a 409 also has the version that the worker serves."""

    error: str
    hint: str | None = None
    version: int | UnsetType = UNSET


def parse(text: str | bytes, kind: type[T]) -> T:
    """Return the JSON in `text` as an object of this type. Raises ValueError with the reason."""
    # parsed by Python, as msgspec's own parser takes half a surrogate pair for the end of the text
    try:
        value = json.loads(text, parse_constant=_reject)
    except RecursionError as error:
        raise ValueError("not JSON: nested too deeply") from error
    except ValueError as error:
        raise ValueError(f"not JSON: {error}") from error
    return convert(value, kind)


def convert(value: Any, kind: type[T]) -> T:
    """Return parsed JSON as an object of this type. Raises ValueError with the reason."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from error
    except UnicodeEncodeError as error:
        raise ValueError("half a surrogate pair in a field that is not text") from error


def _reject(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def check_token(token: str | None) -> None:
    """Raise UsageError for a worker's token that a header cannot carry."""
    if token is not None and not (token.isascii() and token.isprintable() and token.strip() == token and token):
        raise UsageError(
            "SMOLSUM_WORKER_TOKEN is empty or has white space or unprintable characters", hint="openssl rand -hex 16"
        )


def worker_token() -> str | None:
    """Return SMOLSUM_WORKER_TOKEN, the workers' secret. Raises UsageError for one that a header cannot carry."""
    token = os.environ.get("SMOLSUM_WORKER_TOKEN") or None
    check_token(token)
    return token
