"""The bodies of OpenAI's interface: what a request asks for, and the error for what is not supported.

A field that would change what is sampled, and that is not offered, is refused and not ignored.
"""

import asyncio
import reprlib
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from smolsum.errors import UsageError
from smolsum.policy.load import encode_chat
from smolsum.rollout.protocol import NEUTRAL_SAMPLING, SampleRequest, SamplingTerms
from smolsum.worker.body_checks import check_integer, check_temperature, check_tokens
from smolsum.worker.service import Service

NEUTRAL: dict[str, tuple[Any, ...]] = {
    **{name: (*values, None) for name, values in NEUTRAL_SAMPLING.items() if name != "top_p"},
    "logit_bias": ({}, None), "best_of": (1, None), "suffix": (None,), "tools": (None, []), "store": (False, None),
    "tool_choice": ("none", None), "parallel_tool_calls": (True, False, None), "functions": (None, []),
    "function_call": ("none", None), "response_format": ({"type": "text"}, None), "modalities": (["text"], None),
}  # fmt: skip
"""fields that are accepted only with one of these values, which change nothing"""
SHARED = (
    "model", "n", "seed", "temperature", "top_p", "stop", "max_tokens", "stream", "stream_options", "logprobs",
)  # fmt: skip
NOTES = ("user", "metadata", "safety_identifier", "prompt_cache_key", "service_tier")
"""the client's notes, which are ignored"""
BYTES_PER_TOKEN = 64
"""more than a token has on average in any text; a longer text cannot fit, and is refused before it is tokenised"""
DEFAULT_TOKENS = 256
MAX_CHOICES = 256
"""of all prompts of a body together"""
MAX_STOPS, MAX_STOP_LENGTH = 64, 1000
MAX_LIKELIEST = 20


class BadFieldError(UsageError):
    """A body with a field that is wrong or not supported."""

    def __init__(self, message: str, *, hint: str | None = None, param: str) -> None:
        super().__init__(message, hint=hint)
        self.param = param


class UnknownModelError(UsageError):
    """A body names a model that this worker does not serve."""


@dataclass(frozen=True)
class Job:
    """One request for completions."""

    chatting: bool
    stream: bool
    usage: bool
    """whether a stream ends with the token counts"""
    terms: SamplingTerms
    """with 0 new tokens nothing is sampled, and the prompt is returned"""
    prompts: tuple[tuple[int, ...], ...]
    requests: tuple[SampleRequest, ...]
    """the choices: `choices` for each prompt, in order, each with its seed"""
    stops: tuple[str, ...]
    logprobs: bool
    echo: bool
    """whether a choice begins with its prompt"""


class BodyReader:
    """Checks bodies and encodes their prompts, with the tokenizer of a service's policy."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self._encoding = asyncio.Lock()

    async def read(self, fields: dict[str, Any], *, chatting: bool) -> Job:
        """Check the fields of a body. Raises BadFieldError for what is wrong or not supported, UnknownModelError."""
        own = ("messages", "max_completion_tokens", "top_logprobs") if chatting else ("prompt", "echo")
        for name, value in fields.items():
            if name not in (*SHARED, *NOTES, *own) and not any(_same(value, one) for one in NEUTRAL.get(name, ())):
                shown = reprlib.repr(name)[1:-1]
                what = f"{shown} = {reprlib.repr(value)} is not supported"
                raise BadFieldError(what, hint="leave it out; docs/workers.md lists the fields", param=shown)
        fields = {k: v for k, v in fields.items() if v is not None}
        self.check_model(fields.get("model", self.service.model))
        stream, echo = _flag(fields, "stream"), _flag(fields, "echo")
        options = fields.get("stream_options", {})
        if not isinstance(options, dict):
            raise BadFieldError("stream_options is not an object", hint="leave it out", param="stream_options")
        if stream and echo:
            raise BadFieldError("echo is not supported in a stream", hint="stream: false", param="echo")
        prompts = [await self._chat(fields.get("messages"))] if chatting else await self._prompts(fields.get("prompt"))
        where = "messages" if chatting else "prompt"
        room = self.service.engine.max_model_len - max(map(len, prompts))
        if room < 1 or not all(prompts):
            size = max(map(len, prompts)) if room < 1 else 0
            raise BadFieldError(f"the prompt has {size} tokens", hint=self._fitting(), param=where)
        limit = "max_completion_tokens" if "max_completion_tokens" in fields else "max_tokens"
        wanted, likeliest = _wanted_logprobs(fields, chatting=chatting)
        with _about(limit):
            new = check_integer(fields.get(limit, min(room, DEFAULT_TOKENS)), limit, 0 if echo else 1, room)
        with _about("temperature"):
            temperature = check_temperature(fields.get("temperature", 1.0))
        terms = SamplingTerms(temperature, new, _top_p(fields.get("top_p", 1.0)), likeliest)
        with _about("n"):
            choices = check_integer(fields.get("n", 1), "n", 1, MAX_CHOICES // len(prompts))
        with _about("seed"):
            first = check_integer(fields.get("seed", secrets.randbits(62)), "seed", -(2**63), 2**63 - 1) % 2**62
        every = [(prompt, first + n) for prompt in prompts for n in range(choices)]
        requests = tuple(SampleRequest(str(place), *each) for place, each in enumerate(every))
        usage = bool(options.get("include_usage"))
        stops = _stops(fields.get("stop", []))
        return Job(chatting, stream, usage, terms, tuple(prompts), requests, stops, wanted, echo)

    def check_model(self, name: Any) -> None:
        """Raise UnknownModelError for any name but that of the served model."""
        if name != self.service.model:
            shown = reprlib.repr(name)
            raise UnknownModelError(
                f"this worker has no model {shown}", hint=f"use {self.service.model!r}, which GET /v1/models lists"
            )

    async def _chat(self, messages: Any) -> tuple[int, ...]:
        fine = isinstance(messages, list) and 0 < len(messages) <= self.service.engine.max_model_len
        turns = [_turn(message) for message in messages] if fine else []
        if not fine or None in turns:
            raise BadFieldError(
                "messages is not a list of messages with text",
                hint="tools, images and sound are not supported",
                param="messages",
            )
        policy, known = self.service.engine.policy, [turn for turn in turns if turn is not None]
        return await self._encoded(
            [text for turn in known for text in turn.values()], lambda: encode_chat(policy, known), "messages"
        )

    async def _prompts(self, prompt: Any) -> list[tuple[int, ...]]:
        """Return the prompts of a body: one text, one list of token ids, or a list of either."""
        several = isinstance(prompt, list) and prompt and not isinstance(prompt[0], int)
        every = prompt if several else [prompt]
        if len(every) > MAX_CHOICES:
            raise BadFieldError(
                f"{len(every)} prompts, over {MAX_CHOICES}", hint="send fewer at a time", param="prompt"
            )
        return [await self._prompt(one) for one in every]

    async def _prompt(self, prompt: Any) -> tuple[int, ...]:
        if isinstance(prompt, list):
            with _about("prompt"):
                return check_tokens(prompt, "prompt", self.service.engine.facts["vocab_size"])
        if not isinstance(prompt, str):
            raise BadFieldError(
                "prompt is neither text, nor token ids, nor a list of either", hint="send text", param="prompt"
            )
        tokenizer = self.service.engine.policy.tokenizer
        return await self._encoded([prompt], lambda: tokenizer.encode(prompt), "prompt")

    async def _encoded(self, texts: Sequence[str], encode: Callable[[], Iterable[int]], where: str) -> tuple[int, ...]:
        """Return the result of `encode`, run in a thread after the texts are checked."""
        try:
            size = sum(len(text.encode()) for text in texts)
        except UnicodeEncodeError as error:
            raise BadFieldError(
                "the prompt has half a surrogate pair", hint="send whole characters", param=where
            ) from error
        if size > BYTES_PER_TOKEN * self.service.engine.max_model_len:
            raise BadFieldError(f"the prompt has {size} bytes", hint=self._fitting(), param=where)
        async with self._encoding:  # tokenizers are not thread-safe
            return tuple(await asyncio.to_thread(encode))

    def _fitting(self) -> str:
        return f"1 to {self.service.engine.max_model_len - 1} tokens fit"


def _turn(message: Any) -> dict[str, str] | None:
    """Return a message as templates take it; its content is a string, or text parts, which are joined. None for
    anything else."""
    role = message.get("role", "user") if isinstance(message, dict) else None
    if not isinstance(role, str):
        return None
    content = message.get("content")
    parts = content if isinstance(content, list) else [{"type": "text", "text": content}]
    texts = [part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None for part in parts]
    if not texts or not all(isinstance(text, str) for text in texts):
        return None
    # templates know the older of the two names
    return {"role": "system" if role == "developer" else role, "content": "".join(map(str, texts))}


def _wanted_logprobs(fields: dict[str, Any], *, chatting: bool) -> tuple[bool, int]:
    """Return whether log-probs are wanted, and how many likeliest tokens: a flag and `top_logprobs` in a chat, one
    number elsewhere."""
    if not chatting:
        with _about("logprobs"):
            given = fields.get("logprobs", False)
            return given is not False, check_integer(given, "logprobs", 0, MAX_LIKELIEST) if given is not False else 0
    wanted = _flag(fields, "logprobs")
    with _about("top_logprobs"):
        likeliest = check_integer(fields.get("top_logprobs", 0), "top_logprobs", 0, MAX_LIKELIEST)
    if likeliest and not wanted:
        raise BadFieldError("top_logprobs needs logprobs", hint="logprobs: true", param="top_logprobs")
    return wanted, likeliest


def _flag(fields: dict[str, Any], name: str) -> bool:
    value = fields.get(name, False)
    if not isinstance(value, bool):
        raise BadFieldError(f"{name} is {reprlib.repr(value)}, not a boolean", hint="leave it out", param=name)
    return value


def _top_p(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1:
        raise BadFieldError(f"top_p is {reprlib.repr(value)}, not over 0 and at most 1", hint="top_p: 1", param="top_p")
    return float(value)


def _stops(value: Any) -> tuple[str, ...]:
    stops = [value] if isinstance(value, str) else value
    fine = isinstance(stops, list) and len(stops) <= MAX_STOPS
    if not fine or not all(isinstance(one, str) and 0 < len(one) <= MAX_STOP_LENGTH for one in stops):
        raise BadFieldError(
            f"stop is neither a text nor a list of up to {MAX_STOPS} texts of 1 to {MAX_STOP_LENGTH} characters",
            hint="leave it out",
            param="stop",
        )
    return tuple(stops)


@contextmanager
def _about(param: str) -> Iterator[None]:
    """Turn a UsageError of the block into one that names the field."""
    try:
        yield
    except UsageError as error:
        raise BadFieldError(error.message, hint=error.hint, param=param) from error


def _same(value: Any, other: Any) -> bool:
    """Return whether two JSON values are equal; unlike in Python, 0 is not false."""
    return isinstance(value, bool) == isinstance(other, bool) and bool(value == other)
