"""OpenAI's completions and chat completions from the served policy, whole or streamed.

Log-probs are those of the distribution that is sampled: at the temperature (at 1 when greedy), within `top_p`. They and
the token counts include the end-of-sequence token.
"""

import asyncio
import json
import secrets
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from smolsum.policy.load import Policy
from smolsum.policy.sampling import SampledToken
from smolsum.rollout.protocol import SampleRequest
from smolsum.worker.openai_bodies import BYTES_PER_TOKEN, BadFieldError, BodyReader, Job, UnknownModelError
from smolsum.worker.service import Service

CONTEXT = 4
"""tokens before one that decide how it is written"""
LEAST_LOGPROB = -9999.0
"""as OpenAI's interface has it for a token that is never sampled"""


@dataclass
class Choice:
    """One choice of an answer: its text, its tokens, those of the prompt if they are scored, and why it ended."""

    text: str = ""
    tokens: list[SampledToken] = field(default_factory=list)
    prompt: list[SampledToken] = field(default_factory=list)
    reason: str = "length"


class Chat:
    """Answers OpenAI's requests with rollouts of a service."""

    def __init__(self, service: Service) -> None:
        self.service, self.policy = service, service.engine.policy
        self.since = int(time.time())
        self._bodies = BodyReader(service)

    @property
    def max_bytes(self) -> int:
        """The longest valid body: a text that fits, with each byte written as an escape."""
        return (1 << 16) + 6 * BYTES_PER_TOKEN * self.service.engine.max_model_len

    async def read(self, fields: dict[str, Any], *, chatting: bool) -> Job:
        """Check a body. Raises as `BodyReader.read`."""
        return await self._bodies.read(fields, chatting=chatting)

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
            if job.echo:
                text = self.policy.tokenizer.decode(list(request.prompt_ids)) + text
            body = {"message": {"role": "assistant", "content": text}} if job.chatting else {"text": text}
            context = () if job.echo else request.prompt_ids
            logprobs = self._logprobs(job, choice.prompt + choice.tokens, context)
            choices.append(_choice(n, body, choice.reason, logprobs))
        usage = _usage(job, sum(len(choice.tokens) for choice in every))
        return {**self._head(job, chunk=False), "choices": choices, "usage": usage}

    def models(self) -> dict[str, Any]:
        """Return the list of models, which has one."""
        return {"object": "list", "data": [self._model()]}

    def model(self, name: str) -> dict[str, Any]:
        """Return what there is to know about a model. Raises UnknownModelError for any but the served one."""
        self._bodies.check_model(name)
        return self._model()

    def _model(self) -> dict[str, Any]:
        return {"id": self.service.model, "object": "model", "created": self.since, "owned_by": "smolsum"}

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
            if job.usage:
                yield _event({**head, "choices": [], "usage": _usage(job, sum(map(len, sampled)))})
            yield "data: [DONE]\n\n"
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _choose(self, job: Job, request: SampleRequest, emit: Callable[[Choice], None] | None) -> Choice:
        """Sample one choice, until a stop text if there is any. `emit` gets pieces as they come, and the result is then
        what is left."""
        reader, stopped = _TextReader(self.policy, job.stops), asyncio.Event()
        piece = Choice()

        def take(token: SampledToken) -> None:
            nonlocal piece
            if not reader.stopped:
                piece.tokens.append(token)
                piece.text += reader.add(token.id)
            if reader.stopped:
                stopped.set()
            elif emit is not None and piece.text:
                emit(piece)
                piece = Choice()

        if job.echo and job.logprobs:
            first = SampledToken(request.prompt_ids[0], float("nan"))
            piece.prompt = [first, *await self.service.score_text(request.prompt_ids, job.terms.likeliest)]
        if not job.terms.max_new_tokens:
            return piece
        on_token = take if emit is not None or job.stops else None
        sampling = asyncio.create_task(self.service.sample(request, job.terms, on_token=on_token))
        stopping = asyncio.create_task(stopped.wait())
        try:
            await asyncio.wait({sampling, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if not reader.stopped:
                completion, _ = sampling.result()
                if on_token is None:
                    piece.tokens = completion.tokens
                piece.text += reader.rest(completion.token_ids)
                piece.reason = completion.finish_reason
        finally:
            sampling.cancel()
            stopping.cancel()
            await asyncio.gather(sampling, stopping, return_exceptions=True)
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
        if not job.logprobs:
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
    code = {401: "invalid_api_key"}.get(status)
    if isinstance(error, UnknownModelError):
        code = "model_not_found"
    return {
        "error": {
            "message": f"{message} (hint: {hint})" if hint else message,
            "type": "invalid_request_error" if status < 500 else "server_error",
            "param": error.param if isinstance(error, BadFieldError) else None,
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
