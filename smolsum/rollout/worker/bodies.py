"""What a worker takes as a body: all of it is checked before anything is done, and the error (status 422) names what is
wrong.

A type that a record states is checked by it: the trainer's records are in `smolsum/rollout/protocol.py`, those of
OpenAI's interface here. The functions check what depends on the model, or on several fields. A field that would change
what is sampled, and that is not offered, is refused and not ignored.
"""

import re
import reprlib
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from msgspec import UNSET, Meta, Struct

from smolsum.errors import UsageError
from smolsum.rollout.protocol import NEUTRAL_SAMPLING, LogprobsBody, RolloutsBody, convert, parse

MIN_TEMPERATURE = 1e-3
"""other than 0; logits divided by less overflow"""
MAX_CHOICES = 256
"""of all prompts of a body together"""
NEUTRAL: dict[str, tuple[Any, ...]] = {
    **{name: (*values, None) for name, values in NEUTRAL_SAMPLING.items() if name != "top_p"},
    "logit_bias": ({}, None), "best_of": (1, None), "suffix": (None,), "tools": (None, []), "store": (False, None),
    "tool_choice": ("none", None), "parallel_tool_calls": (True, False, None), "functions": (None, []),
    "function_call": ("none", None), "response_format": ({"type": "text"}, None), "modalities": (["text"], None),
}  # fmt: skip
"""fields of OpenAI's interface that are accepted only with one of these values, which change nothing"""
NOTES = ("user", "metadata", "safety_identifier", "prompt_cache_key", "service_tier")
"""the client's notes, which are ignored"""
HINT = "docs/workers.md lists the fields"
Stop = Annotated[str, Meta(min_length=1, max_length=1000)]
Likeliest = Annotated[int, Meta(ge=0, le=20)]
T = TypeVar("T")


class BadBodyError(UsageError):
    """A body that is wrong or asks for what is not supported, perhaps in the field `param`."""

    def __init__(self, message: str, *, hint: str | None = HINT, param: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.param = param


class StreamOptions(Struct, frozen=True):
    """What a stream has besides the choices."""

    include_usage: bool | None = False
    """whether it ends with the token counts"""


class OpenAIBody(Struct, frozen=True, kw_only=True):
    """The fields that completions and chat completions have in common."""

    model: str | None = None
    n: Annotated[int, Meta(ge=1)] = 1
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    temperature: float = 1.0
    top_p: Annotated[float, Meta(gt=0, le=1)] = 1.0
    stop: Stop | Annotated[tuple[Stop, ...], Meta(max_length=64)] = ()
    max_tokens: int | None = None
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()


class CompletionBody(OpenAIBody, frozen=True, kw_only=True):
    """Body of POST /v1/completions."""

    prompt: str | tuple[str | int | tuple[int, ...], ...]
    logprobs: Likeliest | None = None
    echo: bool = False
    """whether a choice begins with its prompt"""

    @property
    def likeliest(self) -> int | None:
        """Likeliest tokens to return in the place of each, next to its log-prob; None if no log-probs are wanted."""
        return self.logprobs

    @property
    def prompts(self) -> Sequence[str | tuple[int, ...]]:
        """The prompts: one text, one list of token ids, or a list of either. Raises BadBodyError for a mixture."""
        ids = tuple(part for part in self.prompt if isinstance(part, int))
        if isinstance(self.prompt, str) or len(ids) == len(self.prompt):
            return [self.prompt if isinstance(self.prompt, str) else ids]
        if ids:
            raise BadBodyError("prompt mixes texts and token ids", hint="send a list of either", param="prompt")
        return [part for part in self.prompt if not isinstance(part, int)]


class TextPart(Struct, frozen=True):
    """A part of a message."""

    type: Literal["text"]
    text: str


class ChatMessage(Struct, frozen=True):
    """A message; its content is a text, or text parts, which are joined."""

    content: str | Annotated[tuple[TextPart, ...], Meta(min_length=1)]
    role: str = "user"

    @property
    def turn(self) -> dict[str, str]:
        """The message as templates take it; they know the older of the system's two names."""
        text = self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)
        return {"role": "system" if self.role == "developer" else self.role, "content": text}


class ChatBody(OpenAIBody, frozen=True, kw_only=True):
    """Body of POST /v1/chat/completions."""

    messages: Annotated[tuple[ChatMessage, ...], Meta(min_length=1)]
    max_completion_tokens: int | None = None
    logprobs: bool = False
    top_logprobs: Likeliest = 0
    echo: ClassVar[bool] = False

    @property
    def likeliest(self) -> int | None:
        """As of `CompletionBody`."""
        if self.top_logprobs and not self.logprobs:
            raise BadBodyError("top_logprobs needs logprobs", hint="logprobs: true", param="top_logprobs")
        return self.top_logprobs if self.logprobs else None


def read_rollouts(body: bytes, *, vocabulary: int, max_model_len: int) -> RolloutsBody:
    """Return the body of POST /v1/rollouts. Raises BadBodyError."""
    parsed = _read(body, RolloutsBody)
    for name, neutral in (*NEUTRAL_SAMPLING.items(), ("stop", ([],)), ("logit_bias", ({},))):
        value = getattr(parsed, name)
        if value not in (UNSET, None, *neutral):
            said = f"{name} = {reprlib.repr(value)} is refused: rollouts are the policy's own"
            raise BadBodyError(said, hint="leave it out")
    check_temperature(parsed.temperature)
    new = parsed.max_new_tokens
    for place, request in enumerate(parsed.requests):
        where, prompt = f"requests[{place}]", request.prompt_ids
        check_tokens(prompt, f"{where}.prompt_ids", vocabulary)
        _check_length(where, f"{len(prompt)} prompt tokens plus {new} new tokens", len(prompt) + new, max_model_len)
    if len({request.id for request in parsed.requests}) < len(parsed.requests):
        raise BadBodyError("two requests have the same id", hint="give each rollout its own id")
    return parsed


def read_logprobs(body: bytes, *, vocabulary: int, max_model_len: int) -> LogprobsBody:
    """Return the body of POST /v1/logprobs. Raises BadBodyError."""
    parsed = _read(body, LogprobsBody)
    check_temperature(parsed.temperature)
    for place, sequence in enumerate(parsed.sequences):
        where, length = f"sequences[{place}]", len(sequence.prompt_ids) + len(sequence.completion_ids)
        check_tokens(sequence.prompt_ids, f"{where}.prompt_ids", vocabulary)
        check_tokens(sequence.completion_ids, f"{where}.completion_ids", vocabulary)
        _check_length(where, f"{length} tokens", length, max_model_len)
    return parsed


def read_openai(body: bytes, kind: type[CompletionBody | ChatBody]) -> CompletionBody | ChatBody:
    """Return the body of a request of OpenAI's clients as a record of this type. Raises BadBodyError."""
    fields, known = _read(body, dict[str, Any]), kind.__struct_fields__
    for name, value in fields.items():
        if name not in (*known, *NOTES) and not any(_same(value, one) for one in NEUTRAL.get(name, ())):
            shown = reprlib.repr(name)[1:-1]
            raise BadBodyError(
                f"{shown} = {reprlib.repr(value)} is not supported", hint=f"leave it out; {HINT}", param=shown
            )
    return _read({name: value for name, value in fields.items() if value is not None and name in known}, kind)


def check_tokens(ids: Sequence[int], where: str, vocabulary: int) -> None:
    """Raise BadBodyError for ids outside the vocabulary."""
    if any(not 0 <= i < vocabulary for i in ids):
        raise BadBodyError(f"{where} is not a list of token ids below {vocabulary}", param=where)


def check_temperature(value: float) -> None:
    """Raise BadBodyError unless this is a sampling temperature."""
    if value != 0 and not MIN_TEMPERATURE <= value <= 100:
        said = f"temperature is {value}, neither 0 nor from {MIN_TEMPERATURE} to 100"
        raise BadBodyError(said, param="temperature")


def _check_length(where: str, what: str, length: int, limit: int) -> None:
    if length > limit:
        said = f"{where}: {what} exceed the worker's limit of {limit}"
        raise BadBodyError(said, hint="start the worker with a larger --max-model-len")


def _read(value: Any, kind: type[T]) -> T:
    """Return JSON, or what was parsed from it, as an object of this type."""
    try:
        return parse(value, kind) if isinstance(value, bytes) else convert(value, kind)
    except ValueError as error:
        place = re.search(r"\$\.(\w+)|field `(\w+)", str(error))
        raise BadBodyError(f"invalid body: {error}", param=place and (place[1] or place[2])) from error


def _same(value: Any, other: Any) -> bool:
    """Return whether two JSON values are equal; unlike in Python, 0 is not false."""
    return isinstance(value, bool) == isinstance(other, bool) and bool(value == other)
