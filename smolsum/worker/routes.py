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

import asyncio
import hmac
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, TypeVar
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from smolsum.errors import SmolsumError, UsageError
from smolsum.files import to_json
from smolsum.weights.delta import CorruptPatchError
from smolsum.worker import openai_api, requests
from smolsum.worker.engines.base import EngineError
from smolsum.worker.listen import loopback
from smolsum.worker.service import ConflictError, Service, exposition

MOST_JSON = 32 << 20
"""bytes of a body of JSON"""
SMALL = 1 << 16
"""bytes of a body that is read at once; a longer one beside the event loop, which others need meanwhile"""
T = TypeVar("T")


class Json(Response):
    """JSON, of which every text of Python can be a part."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return to_json(content)


class TooLargeError(SmolsumError):
    """A body is longer than anything that could be meant."""


def app(service: Service, chat: openai_api.Chat, *, token: str | None) -> ASGIApp:
    """The face of a service that has started. With a token, whoever does not bear it is turned away."""

    async def health(_: Request) -> Response:
        return Json(service.health())

    async def metrics(_: Request) -> Response:
        return PlainTextResponse(exposition(service), media_type="text/plain; version=0.0.4")

    async def rollouts(request: Request) -> Response:
        asked = await _read(lambda body: requests.rollouts(body, **_limits(service)), await _body(request, MOST_JSON))
        service.require(asked.serving)
        lines = (to_json(line) async for line in service.rollouts(asked))
        return StreamingResponse(lines, media_type="application/x-ndjson")

    async def logprobs(request: Request) -> Response:
        asked = await _read(lambda body: requests.logprobs(body, **_limits(service)), await _body(request, MOST_JSON))
        return Json(await _while_heard(request, service.logprobs(asked)))

    async def weights(request: Request) -> Response:
        return Json(await service.put(await _body(request, service.most_bytes)))

    async def completions(request: Request) -> Response:
        return await _openai(request, chatting=False)

    async def chat_completions(request: Request) -> Response:
        return await _openai(request, chatting=True)

    async def _openai(request: Request, *, chatting: bool) -> Response:
        asked = await _read(requests.fields, await _body(request, chat.most_bytes))
        service.require()
        job = await chat.read(asked, chatting=chatting)
        if job.stream:
            return StreamingResponse(chat.stream(job), media_type="text/event-stream")
        return Json(await _while_heard(request, chat.answer(job)))

    async def models(_: Request) -> Response:
        return Json(chat.models())

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
            exception_handlers={
                SmolsumError: _failure,
                HTTPException: _failure,
                ClientDisconnect: _gone,
                Exception: _broken,
            },
        ),
        token,
    )


class _Guard:
    """Lets in who bears the token, before anything of the request is read. Where there is none, only this machine can
    come, and a browser on it might do so for a page from elsewhere: neither by a name that leads here nor from another
    page's script."""

    def __init__(self, inner: ASGIApp, token: str | None) -> None:
        self.inner, self.expected = inner, None if token is None else f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = self._refusal(dict(scope["headers"])) if scope["type"] == "http" else None
        await (refusal or self.inner)(scope, receive, send)

    def _refusal(self, headers: dict[bytes, bytes]) -> Response | None:
        if self.expected is not None:
            if hmac.compare_digest(headers.get(b"authorization", b""), self.expected):
                return None
            return _error(401, "the token is missing or wrong", "set SMOLSUM_WORKER_TOKEN to the worker's token")
        host, origin = headers.get(b"host", b"").decode("latin-1"), headers.get(b"origin")
        hint = "ask for it as 127.0.0.1 or localhost, or give the worker a token (SMOLSUM_WORKER_TOKEN)"
        if not _here(host):
            return _error(403, f"without a token this worker does not answer to the name {host[:80]!r}", hint)
        if origin is not None and origin.decode("latin-1").lower() != f"http://{host}".lower():
            return _error(403, "without a token this worker does not answer to web pages from elsewhere", hint)
        return None


def _here(host: str) -> bool:
    """Whether a Host header names this machine as itself alone knows it."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return False
    return loopback(name) or name.endswith(".localhost")


async def _read(read: Callable[[bytes], T], body: bytes) -> T:
    return await asyncio.to_thread(read, body) if len(body) > SMALL else read(body)


async def _while_heard(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The work's result; ClientDisconnect, and the work is cancelled, once nobody is there who would hear of it."""
    working, leaving = asyncio.create_task(work), asyncio.create_task(_departure(request))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        return working.result()
    finally:
        working.cancel()
        leaving.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def _departure(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


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
        return _error(error.status_code, error.detail.lower(), "the paths are listed in smolsum/worker/routes.py")
    assert isinstance(error, SmolsumError)
    version = {"version": error.version} if isinstance(error, ConflictError) else {}
    # what is left is a disk that refuses
    status = next((status for kind, status in STATUS if isinstance(error, kind)), 507)
    return _error(status, error.message, error.hint, **version)


async def _broken(_: Request, error: Exception) -> Response:
    """What should not happen; the server writes the traceback to the log."""
    return _error(500, f"the worker is at fault: {type(error).__name__}", "see the worker's log, and report it")


async def _gone(_: Request, __: Exception) -> Response:
    return _error(400, "the body was cut short", "send it again")


def _error(status: int, message: str, hint: str | None, **more: Any) -> Response:
    return Json({"error": message, "hint": hint, **more}, status)
