"""The HTTP face of a worker.

Every body is JSON unless said otherwise below; every error is {"error", "hint"}.

    GET  /health               what is served, and how it goes
    GET  /metrics              Prometheus text
    POST /v1/rollouts          token ids in; a line of JSON for each rollout as it ends
    POST /v1/logprobs          log-probs of given sequences
    PUT  /v1/weights           a patch or an anchor (application/octet-stream)
    POST /v1/completions, /v1/chat/completions, GET /v1/models     as OpenAI's clients expect
"""

from __future__ import annotations

import hmac
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from smolsum.disk import to_json
from smolsum.errors import SmolsumError, UsageError
from smolsum.weights.delta import CorruptPatchError
from smolsum.worker import openai, requests
from smolsum.worker.engine import EngineError
from smolsum.worker.service import ConflictError, Service
from smolsum.worker.tally import exposition

MOST_JSON = 32 << 20
"""bytes of a body of JSON"""
Handler = Callable[[Request], Awaitable[Response]]


class TooLargeError(SmolsumError):
    """A body is longer than anything that could be meant."""


def app(service: Service, chat: openai.Chat, *, token: str | None) -> ASGIApp:
    """The face of a service that has started. With a token, whoever does not bear it is turned away."""

    async def health(_: Request) -> Response:
        return JSONResponse(service.health())

    async def metrics(_: Request) -> Response:
        return PlainTextResponse(exposition(service), media_type="text/plain; version=0.0.4")

    async def rollouts(request: Request) -> Response:
        asked = requests.rollouts(await _body(request, MOST_JSON), **_limits(service))
        service.require(asked.serving)
        lines = (to_json(line) async for line in service.rollouts(asked))
        return StreamingResponse(lines, media_type="application/x-ndjson")

    async def logprobs(request: Request) -> Response:
        asked = requests.logprobs(await _body(request, MOST_JSON), **_limits(service))
        return JSONResponse(await service.logprobs(asked))

    async def weights(request: Request) -> Response:
        return JSONResponse(await service.put(await _body(request, service.most_bytes)))

    async def completions(request: Request) -> Response:
        return await _openai(requests.fields(await _body(request, MOST_JSON)), chatting=False)

    async def chat_completions(request: Request) -> Response:
        return await _openai(requests.fields(await _body(request, MOST_JSON)), chatting=True)

    async def _openai(asked: dict[str, Any], *, chatting: bool) -> Response:
        service.require()
        job = chat.read(asked, chatting=chatting)
        if job.stream:
            return StreamingResponse(chat.stream(job), media_type="text/event-stream")
        return JSONResponse(await chat.answer(job))

    async def models(_: Request) -> Response:
        return JSONResponse({"object": "list", "data": [{"id": service.model, "object": "model"}]})

    return _Guard(
        Starlette(
            routes=[
                Route("/health", health),
                Route("/metrics", metrics),
                Route("/v1/rollouts", rollouts, methods=["POST"]),
                Route("/v1/logprobs", logprobs, methods=["POST"]),
                Route("/v1/weights", weights, methods=["PUT"]),
                Route("/v1/completions", completions, methods=["POST"]),
                Route("/v1/chat/completions", chat_completions, methods=["POST"]),
                Route("/v1/models", models),
            ],
            exception_handlers={SmolsumError: _failure, HTTPException: _failure, ClientDisconnect: _gone},
        ),
        token,
    )


class _Guard:
    """Lets in who bears the token, before anything of the request is read."""

    def __init__(self, inner: ASGIApp, token: str | None) -> None:
        self.inner, self.expected = inner, None if token is None else f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and self.expected is not None:
            borne = dict(scope["headers"]).get(b"authorization", b"")
            if not hmac.compare_digest(borne, self.expected):
                refusal = _error(401, "the token is missing or wrong", "set SMOLSUM_WORKER_TOKEN to the worker's token")
                await refusal(scope, receive, send)
                return
        await self.inner(scope, receive, send)


def _limits(service: Service) -> dict[str, int]:
    return {"vocabulary": service.engine.facts["vocab_size"], "max_model_len": service.engine.max_model_len}


async def _body(request: Request, most: int) -> bytes:
    """The whole body; TooLargeError as soon as it is seen to be too long, or announced as such."""
    announced = request.headers.get("content-length", "0")
    size = int(announced) if announced.isdigit() else 0
    parts: list[bytes] = []
    if size <= most:
        size = 0
        async for part in _parts(request):
            size += len(part)
            if size > most:
                break
            parts.append(part)
    if size > most:
        raise TooLargeError(f"the body has over {most} bytes", hint="send less at a time")
    return b"".join(parts)


async def _parts(request: Request) -> AsyncIterator[bytes]:
    async for part in request.stream():
        yield part


STATUS: tuple[tuple[type[SmolsumError], int], ...] = (
    (ConflictError, 409),
    (TooLargeError, 413),
    (CorruptPatchError, 422),
    (UsageError, 422),
    (EngineError, 503),
)


async def _failure(_: Request, error: Exception) -> Response:
    if isinstance(error, HTTPException):
        return _error(error.status_code, error.detail.lower(), "the paths are listed in smolsum/worker/app.py")
    assert isinstance(error, SmolsumError)
    version = {"version": error.version} if isinstance(error, ConflictError) else {}
    # what is left is a disk that refuses
    status = next((status for kind, status in STATUS if isinstance(error, kind)), 507)
    return _error(status, error.message, error.hint, **version)


async def _gone(_: Request, __: Exception) -> Response:
    return _error(400, "the body was cut short", "send it again")


def _error(status: int, message: str, hint: str | None, **more: Any) -> Response:
    return JSONResponse({"error": message, "hint": hint, **more}, status)
