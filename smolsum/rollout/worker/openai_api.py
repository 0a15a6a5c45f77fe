"""OpenAI's completions and chat completions from the served policy, whole or streamed.

Log-probs are those of the distribution that is sampled: at the temperature (at 1 when greedy), within `top_p`. They and
the token counts include the end-of-sequence token.
"""

import asyncio
import json
import reprlib
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from smolsum.errors import UsageError
from smolsum.policy.load import Policy, encode_chat
from smolsum.policy.sampling import SampledToken
from smolsum.rollout.protocol import SampleRequest, SamplingTerms
from smolsum.rollout.worker.bodies import (
    MAX_CHOICES,
    BadBodyError,
    ChatBody,
    ChatMessage,
    CompletionBody,
    check_temperature,
    check_tokens,
)
from smolsum.rollout.worker.service import Service

BYTES_PER_TOKEN = 64
"""more than a token has on average in any text; a longer text cannot fit, and is refused before it is tokenised"""
DEFAULT_TOKENS = 256
CONTEXT = 4
"""tokens before one that decide how it is written"""
LEAST_LOGPROB = -9999.0
"""as OpenAI's interface has it for a token that is never sampled"""


class UnknownModelError(UsageError):
    """A request names a model that this worker does not serve."""


@dataclass(frozen=True)
class Job:
    """What a body asks for."""

    body: CompletionBody | ChatBody
    prompts: Sequence[tuple[int, ...]]
    requests: Sequence[SampleRequest]
    """the choices: `n` for each prompt, in order, each with its seed"""
    terms: SamplingTerms
    """with 0 new tokens nothing is sampled, and the prompt is returned"""

    @property
    def chatting(self) -> bool:
        """Whether the choices are messages."""
        return isinstance(self.body, ChatBody)

    @property
    def stops(self) -> Sequence[str]:
        """A choice ends before the first of these texts."""
        return [self.body.stop] if isinstance(self.body.stop, str) else self.body.stop


@dataclass
class Choice:
    """One choice of an answer: its text, its tokens, those of the prompt if they are scored, and why it ended."""

    text: str = ""
    tokens: list[SampledToken] = field(default_factory=list)
    prompt: list[SampledToken] = field(default_factory=list)
    reason: str = "length"


class OpenAIApi:
    """Answers OpenAI's requests with rollouts of a service."""

    def __init__(self, service: Service) -> None:
        self.service, self.policy = service, service.engine.policy
        self.since = int(time.time())
        self._encoding = asyncio.Lock()

    @property
    def max_bytes(self) -> int:
        """The longest valid body: a text that fits, with each byte written as an escape."""
        return (1 << 16) + 6 * BYTES_PER_TOKEN * self.service.engine.max_model_len

    async def read(self, body: CompletionBody | ChatBody) -> Job:
        """Check a body, and encode its prompts. Raises BadBodyError, UnknownModelError."""
        self.model(self.service.model if body.model is None else body.model)
        check_temperature(body.temperature)
        likeliest = body.likeliest or 0
        given: Sequence[Any] = [body.messages] if isinstance(body, ChatBody) else body.prompts
        if body.n * len(given) > MAX_CHOICES:
            said = f"n is {body.n} for {len(given)} prompts: over {MAX_CHOICES} choices in a body"
            raise BadBodyError(said, hint="send fewer at a time", param="n" if body.n > 1 else "prompt")
        if body.stream and body.echo:
            raise BadBodyError("echo is not supported in a stream", hint="stream: false", param="echo")
        if isinstance(body, ChatBody):
            where, prompts = "messages", [await self._chat(body.messages)]
        else:
            where, prompts = "prompt", [await self._prompt(prompt) for prompt in given]
        room = self.service.engine.max_model_len - max(map(len, prompts))
        if room < 1 or not all(prompts):
            size = max(map(len, prompts)) if room < 1 else 0
            raise BadBodyError(f"the prompt has {size} tokens", hint=self._fitting(), param=where)
        limit = "max_tokens" if getattr(body, "max_completion_tokens", None) is None else "max_completion_tokens"
        new, least = getattr(body, limit), 0 if body.echo else 1
        if new is None:
            new = min(room, DEFAULT_TOKENS)
        if not least <= new <= room:
            raise BadBodyError(f"{limit} is {new}, not from {least} to {room}", param=limit)
        # below 2^62, so that the seeds of the further choices stay below the limit of 2^63
        seed = secrets.randbits(62) if body.seed is None else body.seed % 2**62
        every = [(prompt, seed + n) for prompt in prompts for n in range(body.n)]
        requests = [SampleRequest(str(place), *each) for place, each in enumerate(every)]
        return Job(body, prompts, requests, SamplingTerms(body.temperature, new, body.top_p, likeliest))

    async def _chat(self, messages: Sequence[ChatMessage]) -> tuple[int, ...]:
        turns, most = [message.turn for message in messages], self.service.engine.max_model_len
        if len(turns) > most:
            raise BadBodyError(f"{len(turns)} messages, over {most}", hint="send fewer", param="messages")
        texts = [text for turn in turns for text in turn.values()]
        return await self._encoded(texts, lambda: encode_chat(self.policy, turns), "messages")

    async def _prompt(self, prompt: str | tuple[int, ...]) -> tuple[int, ...]:
        if not isinstance(prompt, str):
            check_tokens(prompt, "prompt", self.service.engine.facts["vocab_size"])
            return prompt
        return await self._encoded([prompt], lambda: self.policy.tokenizer.encode(prompt), "prompt")

    async def _encoded(self, texts: Sequence[str], encode: Callable[[], Iterable[int]], where: str) -> tuple[int, ...]:
        """Return the result of `encode`, run in a thread after the texts are checked."""
        try:
            size = sum(len(text.encode()) for text in texts)
        except UnicodeEncodeError as error:
            said = "the prompt has half a surrogate pair"
            raise BadBodyError(said, hint="send whole characters", param=where) from error
        if size > BYTES_PER_TOKEN * self.service.engine.max_model_len:
            raise BadBodyError(f"the prompt has {size} bytes", hint=self._fitting(), param=where)
        async with self._encoding:  # tokenizers are not thread-safe
            return tuple(await asyncio.to_thread(encode))

    def _fitting(self) -> str:
        return f"1 to {self.service.engine.max_model_len - 1} tokens fit"

    async def answer(self, job: Job) -> dict[str, Any]:
        """Return the body of the answer to a request that does not stream."""
        tasks = [asyncio.create_task(self._choose(job, request, None)) for request in job.requests]
        try:
            every = await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
        choices = []
        for n, (request, choice) in enumerate(zip(job.requests, every, strict=True)):
            text = choice.text
            if job.body.echo:
                text = self.policy.tokenizer.decode(list(request.prompt_ids)) + text
            body = {"message": {"role": "assistant", "content": text}} if job.chatting else {"text": text}
            context = () if job.body.echo else request.prompt_ids
            logprobs = self._logprobs(job, choice.prompt + choice.tokens, context)
            choices.append(_choice(n, body, choice.reason, logprobs))
        usage = _usage(job, sum(len(choice.tokens) for choice in every))
        return {**self._head(job, chunk=False), "choices": choices, "usage": usage}

    def models(self) -> dict[str, Any]:
        """Return the list of models, which has one."""
        return {"object": "list", "data": [self.model(self.service.model)]}

    def model(self, name: str) -> dict[str, Any]:
        """Return what there is to know about a model. Raises UnknownModelError for any but the served one."""
        if name != self.service.model:
            hint = f"use {self.service.model!r}, which GET /v1/models lists"
            raise UnknownModelError(f"this worker has no model {reprlib.repr(name)}", hint=hint)
        return {"id": name, "object": "model", "created": self.since, "owned_by": "smolsum"}

    async def stream(self, job: Job) -> AsyncIterator[str]:
        """Yield server-sent events: pieces of text as they are sampled."""
        head, events = self._head(job, chunk=True), asyncio.Queue[tuple[int, Choice, bool] | Exception]()

        async def choose(n: int, request: SampleRequest) -> None:
            try:
                last = await self._choose(job, request, lambda piece: events.put_nowait((n, piece, False)))
            except Exception as error:  # any error: the status is sent, so only an event can say it
                events.put_nowait(error)
            else:
                events.put_nowait((n, last, True))

        tasks = [asyncio.create_task(choose(n, request)) for n, request in enumerate(job.requests)]
        ended, sampled = 0, [list[SampledToken]() for _ in tasks]
        try:
            for n in range(len(tasks) if job.chatting else 0):
                begin = {"delta": {"role": "assistant", "content": ""}}
                yield _event({**head, "choices": [_choice(n, begin, None)]})
            while ended < len(tasks):
                event = await events.get()
                if isinstance(event, Exception):
                    yield _event(error_body(500, event))
                    return
                n, piece, last = event
                ended += last
                context = (*job.requests[n].prompt_ids, *(token.id for token in sampled[n]))
                logprobs = self._logprobs(job, piece.tokens, context, offset=len(sampled[n]))
                sampled[n] += piece.tokens
                body = {"delta": {"content": piece.text}} if job.chatting else {"text": piece.text}
                yield _event({**head, "choices": [_choice(n, body, piece.reason if last else None, logprobs)]})
            if job.body.stream_options.include_usage:
                yield _event({**head, "choices": [], "usage": _usage(job, sum(map(len, sampled)))})
            yield "data: [DONE]\n\n"
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _choose(self, job: Job, request: SampleRequest, emit: Callable[[Choice], None] | None) -> Choice:
        """Sample one choice, until a stop text if there is any. `emit` gets pieces as they come, and the result is then
        what is left."""
        reader, piece = _TextReader(self.policy, job.stops), Choice()

        def take(token: SampledToken) -> None:
            nonlocal piece
            if not reader.stopped:
                piece.tokens.append(token)
                piece.text += reader.add(token.id)
            if reader.stopped:
                sampling.cancel()
            elif emit is not None and piece.text:
                emit(piece)
                piece = Choice()

        if job.body.echo and job.body.likeliest is not None:
            # nothing comes before the first token, so it has no log-prob
            first = SampledToken(request.prompt_ids[0], float("nan"))
            piece.prompt = [first, *await self.service.score_text(request.prompt_ids, job.terms.likeliest)]
        if not job.terms.max_new_tokens:
            return piece
        on_token = take if emit is not None or job.stops else None
        sampling = asyncio.create_task(self.service.sample(request, job.terms, on_token=on_token))
        try:
            completion, _ = await sampling
        except asyncio.CancelledError:
            if not reader.stopped:
                raise
        else:
            if not reader.stopped:
                if on_token is None:
                    piece.tokens = completion.tokens
                piece.text += reader.rest(completion.token_ids)
                piece.reason = completion.finish_reason
        if reader.stopped:
            piece.reason = "stop"
        return piece

    def _head(self, job: Job, *, chunk: bool) -> dict[str, Any]:
        kind = ("chat.completion.chunk" if chunk else "chat.completion") if job.chatting else "text_completion"
        name = f"{'chatcmpl' if job.chatting else 'cmpl'}-{secrets.token_hex(12)}"
        return {"id": name, "object": kind, "created": int(time.time()), "model": self.service.model}

    def _logprobs(
        self, job: Job, tokens: Sequence[SampledToken], context: Sequence[int], offset: int = 0
    ) -> dict[str, Any] | None:
        """Return the log-probs of tokens that follow `context`, in the form of the interface; None if they are not
        wanted. `offset` is the number of tokens of this choice before them."""
        if job.body.likeliest is None:
            return None
        ids = [*context[-CONTEXT:], *(token.id for token in tokens)]
        start = len(ids) - len(tokens)
        texts, likeliest = [], []
        for place, token in enumerate(tokens, start=start):
            before = ids[max(0, place - CONTEXT) : place]
            texts.append(self._written(before, token.id))
            likeliest.append([(self._written(before, i), max(value, LEAST_LOGPROB)) for i, value in token.likeliest])
        if job.chatting:
            rows = [
                _entry(text, token.logprob) | {"top_logprobs": [_entry(*one) for one in best]}
                for text, token, best in zip(texts, tokens, likeliest, strict=True)
            ]
            return {"content": rows, "refusal": None}
        begin = len(self.policy.tokenizer.decode(list(context[len(context) - offset :]))) if offset else 0
        offsets = [begin]
        for text in texts:
            offsets.append(offsets[-1] + len(text))
        # the first token of a text has no log-prob
        return {
            "tokens": texts,
            "token_logprobs": [None if token.logprob != token.logprob else token.logprob for token in tokens],
            "top_logprobs": [
                dict(reversed(best)) if best and token.logprob == token.logprob else None
                for best, token in zip(likeliest, tokens, strict=True)
            ]
            if job.terms.likeliest
            else None,
            "text_offset": offsets[:-1],
        }

    def _written(self, before: Sequence[int], token: int) -> str:
        """Return what a token adds to the text of those before it."""
        decode = self.policy.tokenizer.decode
        shorter, longer = decode(list(before)), decode([*before, token])
        return str(longer[len(shorter) :]) if longer.startswith(shorter) else str(decode([token]))


class _TextReader:
    """Decodes tokens one by one, up to a stop text. A character is returned once all its bytes have arrived, and what
    may be the start of a stop text once the text after it shows that it is not."""

    def __init__(self, policy: Policy, stops: Sequence[str]) -> None:
        self._policy, self._stops = policy, stops
        self._ids, self._returned = list[int](), ""
        self.stopped = False

    def add(self, token: int) -> str:
        """Return the text that this token completes, perhaps empty."""
        self._ids.append(token)
        text = self._decode(self._ids)
        return "" if text.endswith("\ufffd") else self._new(text, held=self._held(text))

    def rest(self, token_ids: Sequence[int]) -> str:
        """Return the text of all tokens that has not been returned yet."""
        return self._new(self._decode(token_ids), held=0)

    def _decode(self, ids: Sequence[int]) -> str:
        return str(self._policy.tokenizer.decode(list(ids), skip_special_tokens=True))

    def _new(self, text: str, *, held: int) -> str:
        found = [place for stop in self._stops if (place := text.find(stop)) >= 0]
        if found:
            self.stopped, text = True, text[: min(found)]
        elif held:
            text = text[:-held]
        piece = text[len(self._returned) :]
        self._returned += piece
        return piece

    def _held(self, text: str) -> int:
        """Return the length of the longest end of the text that begins a stop text."""
        sizes = (n for stop in self._stops for n in range(1, len(stop)) if text.endswith(stop[:n]))
        return max(sizes, default=0)


def error_body(status: int, error: Exception) -> dict[str, Any]:
    """Return the body of an error answer with this status, as OpenAI's clients read it; the hint is part of the
    message."""
    message, hint = getattr(error, "message", str(error)), getattr(error, "hint", None)
    code = "model_not_found" if isinstance(error, UnknownModelError) else {401: "invalid_api_key"}.get(status)
    return {
        "error": {
            "message": f"{message} (hint: {hint})" if hint else message,
            "type": "invalid_request_error" if status < 500 else "server_error",
            "param": error.param if isinstance(error, BadBodyError) else None,
            "code": code,
        }
    }


def _usage(job: Job, completion: int) -> dict[str, int]:
    prompt = sum(map(len, job.prompts))
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def _choice(n: int, body: Mapping[str, Any], reason: str | None, logprobs: Any = None) -> dict[str, Any]:
    return {"index": n, **body, "logprobs": logprobs, "finish_reason": reason}


def _entry(text: str, logprob: float) -> dict[str, Any]:
    """Return a token of a chat's log-probs; half a character has no bytes that are known."""
    whole = "\ufffd" not in text
    return {"token": text, "logprob": max(logprob, LEAST_LOGPROB), "bytes": list(text.encode()) if whole else None}


def _event(value: Any) -> str:
    return f"data: {json.dumps(value)}\n\n"
