"""OpenAI's completions and chat completions from the served policy, whole or streamed.

The policy's own distribution is sampled. A request for top_p, penalties, tools or any unknown field is refused, not
ignored.
"""

import asyncio
import json
import reprlib
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from smolsum.errors import UsageError
from smolsum.policy.load import Policy, encode_chat
from smolsum.policy.sampling import Completion
from smolsum.rollout.protocol import NEUTRAL_SAMPLING, SampleRequest, SamplingTerms
from smolsum.worker.body_checks import check_integer, check_temperature, check_tokens
from smolsum.worker.service import Service

NEUTRAL: dict[str, tuple[Any, ...]] = {
    **{name: (*values, None) for name, values in NEUTRAL_SAMPLING.items()},
    "logit_bias": ({}, None), "logprobs": (False, None), "echo": (False, None),
    "best_of": (1, None), "suffix": (None,), "tools": (None, []), "stop": (None, []), "tool_choice": ("none", None),
    "parallel_tool_calls": (True, False, None), "top_logprobs": (0, None), "response_format": ({"type": "text"}, None),
    "store": (False, None), "functions": (None, []), "function_call": ("none", None),
}  # fmt: skip
"""fields that are accepted only with one of these values, which change nothing"""
ACCEPTED = (
    "model", "prompt", "messages", "n", "seed", "temperature", "max_tokens", "max_completion_tokens", "stream",
    "stream_options", "user", "metadata",
)  # fmt: skip
"""the other fields; the last two are the client's notes, which are ignored"""
BYTES_PER_TOKEN = 64
"""more than a token has on average in any text; a longer text cannot fit, and is refused before it is tokenised"""
DEFAULT_TOKENS = 256
MAX_CHOICES = 64


@dataclass(frozen=True)
class Job:
    """One request: its prompt, once for each choice with that choice's seed."""

    chatting: bool
    stream: bool
    usage: bool
    """whether a stream ends with the token counts"""
    terms: SamplingTerms
    requests: tuple[SampleRequest, ...]


class Chat:
    """Turns OpenAI's requests into rollouts of a service, with the tokenizer of its policy."""

    def __init__(self, service: Service) -> None:
        self.service, self.policy = service, service.engine.policy
        self.since = int(time.time())
        self._encoding = asyncio.Lock()

    @property
    def max_bytes(self) -> int:
        """The longest valid body: a text that fits, with each byte written as an escape."""
        return (1 << 16) + 6 * BYTES_PER_TOKEN * self.service.engine.max_model_len

    async def read(self, fields: dict[str, Any], *, chatting: bool) -> Job:
        """Check the fields of a body. Raises UsageError for what is not supported."""
        for name, value in fields.items():
            if name not in ACCEPTED and not any(_same(value, neutral) for neutral in NEUTRAL.get(name, ())):
                what = f"{reprlib.repr(name)[1:-1]} = {reprlib.repr(value)}"
                raise UsageError(f"{what} is not supported: the policy is sampled as it is", hint="leave it out")
        fields = {k: v for k, v in fields.items() if v is not None}
        stream, options = fields.get("stream", False), fields.get("stream_options", {})
        if not isinstance(stream, bool) or not isinstance(options, dict):
            raise UsageError("stream is not a boolean, or stream_options not an object", hint="leave them out")
        prompt = await (self._chat(fields.get("messages")) if chatting else self._text(fields.get("prompt")))
        room = self.service.engine.max_model_len - len(prompt)
        if room < 1 or not prompt:
            raise UsageError(f"the prompt has {len(prompt)} tokens", hint=self._fitting())
        limit = "max_completion_tokens" if "max_completion_tokens" in fields else "max_tokens"
        new = check_integer(fields.get(limit, min(room, DEFAULT_TOKENS)), limit, 1, room)
        terms = SamplingTerms(check_temperature(fields.get("temperature", 1.0)), new)
        choices = check_integer(fields.get("n", 1), "n", 1, MAX_CHOICES)
        first = check_integer(fields.get("seed", secrets.randbits(62)), "seed", -(2**63), 2**63 - 1) % 2**62
        each = tuple(SampleRequest(str(n), prompt, first + n) for n in range(choices))
        return Job(chatting, stream, bool(options.get("include_usage")), terms, each)

    async def answer(self, job: Job) -> dict[str, Any]:
        """Return the body of the answer to a request that does not stream."""
        tasks = [asyncio.create_task(self.service.sample(request, job.terms)) for request in job.requests]
        try:
            every = await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
        choices = []
        for n, (sampled, _) in enumerate(every):
            text = self.policy.tokenizer.decode(list(sampled.token_ids), skip_special_tokens=True)
            body = {"message": {"role": "assistant", "content": text}} if job.chatting else {"text": text}
            choices.append(_choice(n, body, sampled.finish_reason))
        return {**self._head(job, chunk=False), "choices": choices, "usage": _usage(job, [s for s, _ in every])}

    def models(self) -> dict[str, Any]:
        """Return the list of models, which has one."""
        model = {"id": self.service.model, "object": "model", "created": self.since, "owned_by": "smolsum"}
        return {"object": "list", "data": [model]}

    async def stream(self, job: Job) -> AsyncIterator[str]:
        """Yield server-sent events: pieces of text as they are sampled."""
        head, events = self._head(job, chunk=True), asyncio.Queue[tuple[int, int | Completion | Exception]]()
        texts = [_Text(self.policy) for _ in job.requests]

        async def sample(n: int, request: SampleRequest) -> None:
            try:
                sampled, _ = await self.service.sample(
                    request, job.terms, on_token=lambda token: events.put_nowait((n, token))
                )
            except Exception as error:
                events.put_nowait((n, error))
            else:
                events.put_nowait((n, sampled))

        tasks = [asyncio.create_task(sample(n, request)) for n, request in enumerate(job.requests)]
        ended: list[Completion] = []
        try:
            for n in range(len(tasks) if job.chatting else 0):
                begin = {"delta": {"role": "assistant", "content": ""}}
                yield _event({**head, "choices": [_choice(n, begin, None)]})
            while len(ended) < len(tasks):
                n, event = await events.get()
                if isinstance(event, Exception):
                    yield _event({"error": str(event), "hint": getattr(event, "hint", None)})
                    return
                if isinstance(event, Completion):
                    ended.append(event)
                    piece, reason = texts[n].rest(event.token_ids), event.finish_reason
                else:
                    piece, reason = texts[n].add(event), None
                if piece or reason:
                    body = {"delta": {"content": piece}} if job.chatting else {"text": piece}
                    yield _event({**head, "choices": [_choice(n, body, reason)]})
            if job.usage:
                yield _event({**head, "choices": [], "usage": _usage(job, ended)})
            yield "data: [DONE]\n\n"
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _head(self, job: Job, *, chunk: bool) -> dict[str, Any]:
        kind = ("chat.completion.chunk" if chunk else "chat.completion") if job.chatting else "text_completion"
        name = f"{'chatcmpl' if job.chatting else 'cmpl'}-{secrets.token_hex(12)}"
        return {"id": name, "object": kind, "created": int(time.time()), "model": self.service.model}

    async def _chat(self, messages: Any) -> tuple[int, ...]:
        fine = isinstance(messages, list) and 0 < len(messages) <= self.service.engine.max_model_len
        for message in messages if fine else ():
            fine = fine and isinstance(message, dict) and isinstance(message.get("content"), str)
            fine = fine and isinstance(message.get("role", "user"), str)
        if not fine:
            raise UsageError("messages is not a list of messages with text", hint="tools and images are not supported")
        turns = [{"role": m.get("role", "user"), "content": m["content"]} for m in messages]
        return await self._encoded(
            [text for turn in turns for text in turn.values()], lambda: encode_chat(self.policy, turns)
        )

    async def _text(self, prompt: Any) -> tuple[int, ...]:
        if isinstance(prompt, list):
            return check_tokens(prompt, "prompt", self.service.engine.facts["vocab_size"])
        if not isinstance(prompt, str):
            raise UsageError("prompt is neither text nor a list of token ids", hint="send one prompt at a time")
        return await self._encoded([prompt], lambda: self.policy.tokenizer.encode(prompt))

    async def _encoded(self, texts: Sequence[str], encode: Callable[[], Iterable[int]]) -> tuple[int, ...]:
        """Return the result of `encode`, run in a thread after the texts are checked."""
        try:
            size = sum(len(text.encode()) for text in texts)
        except UnicodeEncodeError as error:
            raise UsageError("the prompt has half a surrogate pair", hint="send whole characters") from error
        if size > BYTES_PER_TOKEN * self.service.engine.max_model_len:
            raise UsageError(f"the prompt has {size} bytes", hint=self._fitting())
        async with self._encoding:  # tokenizers are not thread-safe
            return tuple(await asyncio.to_thread(encode))

    def _fitting(self) -> str:
        return f"1 to {self.service.engine.max_model_len - 1} tokens fit"


class _Text:
    """Decodes tokens one by one; a character is returned once all its bytes have arrived."""

    def __init__(self, policy: Policy) -> None:
        self._policy, self._ids, self._returned = policy, list[int](), ""

    def add(self, token: int) -> str:
        """Return the text that this token completes, perhaps empty."""
        self._ids.append(token)
        text = self._policy.tokenizer.decode(self._ids, skip_special_tokens=True)
        return "" if text.endswith("\ufffd") else self._new(text)

    def rest(self, token_ids: Sequence[int]) -> str:
        """Return the text of all tokens that has not been returned yet."""
        return self._new(self._policy.tokenizer.decode(list(token_ids), skip_special_tokens=True))

    def _new(self, text: str) -> str:
        piece, self._returned = text[len(self._returned) :], text
        return piece


def _same(value: Any, other: Any) -> bool:
    """Return whether two JSON values are equal; unlike in Python, 0 is not false."""
    return isinstance(value, bool) == isinstance(other, bool) and bool(value == other)


def _usage(job: Job, every: Sequence[Completion]) -> dict[str, int]:
    prompt, completion = len(job.requests[0].prompt_ids), sum(len(sampled.token_ids) for sampled in every)
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def _choice(n: int, body: Mapping[str, Any], reason: str | None) -> dict[str, Any]:
    return {"index": n, **body, "logprobs": None, "finish_reason": reason}


def _event(value: Any) -> str:
    return f"data: {json.dumps(value)}\n\n"
