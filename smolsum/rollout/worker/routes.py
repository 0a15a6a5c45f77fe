"""The HTTP API of a worker. Bodies are JSON, as in `smolsum/rollout/protocol.py`, unless stated below;
`smolsum/rollout/worker/bodies.py` checks them.

GET  /health               what is served, and the engine's state
GET  /metrics              Prometheus text
POST /v1/rollouts          token ids in; a line of JSON for each rollout as it ends
POST /v1/logprobs          log-probs of given sequences
PUT  /v1/weights           a patch or an anchor (application/octet-stream)
POST /v1/completions, /v1/chat/completions, GET /v1/models, /v1/models/NAME     as OpenAI's clients expect

An error has the form of `ErrorAnswer`, and under /v1/ OpenAI's form on every path but the three of the trainer.
"""

import asyncio
import hmac
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, TypeVar

import httpx
import msgspec
from msgspec import UNSET
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from smolsum.errors import SmolsumError, UsageError
from smolsum.files import to_json
from smolsum.llm.client import is_loopback
from smolsum.rollout.protocol import ErrorAnswer
from smolsum.rollout.worker.bodies import ChatBody, CompletionBody, read_logprobs, read_openai, read_rollouts
from smolsum.rollout.worker.engines.base import EngineError
from smolsum.rollout.worker.openai_api import OpenAIApi, UnknownModelError, error_body
from smolsum.rollout.worker.service import ConflictError, Service, prometheus
from smolsum.weights.delta import CorruptPatchError

MAX_JSON_BYTES = 32 << 20
"""bytes of a body of JSON"""
MAX_INLINE_BYTES = 1 << 16
"""bytes of a body that is parsed in the event loop; longer ones are parsed in a thread, so that others need not wait"""
TRAINERS = ("/v1/rollouts", "/v1/logprobs", "/v1/weights")
"""the paths under /v1/ that are not OpenAI's"""
T = TypeVar("T")


class Json(Response):
    """A struct or a dictionary as JSON."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return to_json(msgspec.to_builtins(content))


class TooLargeError(SmolsumError):
    """A body is longer than any valid one."""


def app(service: Service, openai: OpenAIApi, *, token: str | None) -> ASGIApp:
    """Return the API of a service that has started. With a token, every request needs it as a bearer token."""
    limits = {"vocabulary": service.engine.facts["vocab_size"], "max_model_len": service.engine.max_model_len}

    async def health(_: Request) -> Response:
        return Json(service.health())

    async def metrics(_: Request) -> Response:
        return PlainTextResponse(prometheus(service), media_type="text/plain; version=0.0.4")

    async def rollouts(request: Request) -> Response:
        body = await _parse(request, partial(read_rollouts, **limits), MAX_JSON_BYTES)
        service.require(body)
        lines = (to_json(msgspec.to_builtins(line)) async for line in service.rollouts(body))
        return StreamingResponse(lines, media_type="application/x-ndjson")

    async def logprobs(request: Request) -> Response:
        body = await _parse(request, partial(read_logprobs, **limits), MAX_JSON_BYTES)
        return Json(await _while_connected(request, service.logprobs(body)))

    async def weights(request: Request) -> Response:
        return Json(await service.put(await _body(request, service.max_bytes)))

    async def completions(request: Request, *, kind: type[CompletionBody | ChatBody]) -> Response:
        body = await _parse(request, partial(read_openai, kind=kind), openai.max_bytes)
        service.require()
        job = await openai.read(body)
        if job.body.stream:
            return StreamingResponse(openai.stream(job), media_type="text/event-stream")
        return Json(await _while_connected(request, openai.answer(job)))

    async def models(_: Request) -> Response:
        return Json(openai.models())

    async def model(request: Request) -> Response:
        return Json(openai.model(request.path_params["name"]))

    served = Starlette(
        routes=[
            Route("/health", health),
            Route("/metrics", metrics),
            Route("/v1/rollouts", rollouts, methods=["POST"]),
            Route("/v1/logprobs", logprobs, methods=["POST"]),
            Route("/v1/weights", weights, methods=["PUT"]),
            Route("/v1/completions", partial(completions, kind=CompletionBody), methods=["POST"]),
            Route("/v1/chat/completions", partial(completions, kind=ChatBody), methods=["POST"]),
            Route("/v1/models", models),
            Route("/v1/models/{name:path}", model),
        ],
        exception_handlers=dict.fromkeys((SmolsumError, HTTPException, ClientDisconnect, Exception), _failure),
    )

    async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
        # before the body is read
        refusal = _refusal(scope["path"], dict(scope["headers"]), token) if scope["type"] == "http" else None
        await (refusal or served)(scope, receive, send)

    return guarded


def _refusal(path: str, headers: dict[bytes, bytes], token: str | None) -> Response | None:
    """Return the answer to a request without the token; None if it may go on.

    A worker without a token listens on loopback only. A browser on this machine could still be made to call it by a
    foreign web page, so requests with a foreign Host or Origin header are refused.
    """
    if token is not None:
        if hmac.compare_digest(headers.get(b"authorization", b""), f"Bearer {token}".encode()):
            return None
        hint = "set SMOLSUM_WORKER_TOKEN to the worker's token"
        return _refused(path, 401, SmolsumError("the token is missing or wrong", hint=hint))
    host, origin = headers.get(b"host", b"").decode("latin-1"), headers.get(b"origin")
    try:
        here = is_loopback(f"http://{host}")
    except (httpx.InvalidURL, UnicodeError):
        here = False
    if not here:
        said = f"without a token this worker does not answer to the name {host[:80]!r}"
    elif origin is not None and origin.decode("latin-1").lower() != f"http://{host}".lower():
        said = "without a token this worker does not answer other web pages"
    else:
        return None
    hint = "use 127.0.0.1 or localhost, or give the worker a token (SMOLSUM_WORKER_TOKEN)"
    return _refused(path, 403, SmolsumError(said, hint=hint))


async def _while_connected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Return the work's result. If the client disconnects first, cancel the work and raise ClientDisconnect."""
    working = asyncio.create_task(work)

    async def watch() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass
        working.cancel()

    watching = asyncio.create_task(watch())
    try:
        return await working
    except asyncio.CancelledError:
        if watching.done():
            raise ClientDisconnect from None
        raise
    finally:
        watching.cancel()


async def _parse(request: Request, read: Callable[[bytes], T], limit: int) -> T:
    """Return what `read` makes of the body. Raises what `_body` and `read` raise."""
    body = await _body(request, limit)
    return await asyncio.to_thread(read, body) if len(body) > MAX_INLINE_BYTES else read(body)


async def _body(request: Request, limit: int) -> bytes:
    """Return the body. Raises TooLargeError as soon as its length, announced or received, exceeds `limit` bytes."""
    announced = request.headers.get("content-length", "0")
    size = int(announced) if announced.isdigit() else 0
    parts: list[bytes] = []
    if size <= limit:
        size = 0
        async for part in request.stream():
            size += len(part)
            if size > limit:
                break
            parts.append(part)
    if size > limit:
        raise TooLargeError(f"the body has over {limit} bytes", hint="send less at a time")
    return b"".join(parts)


STATUS: tuple[tuple[type[SmolsumError], int], ...] = (
    (ConflictError, 409),
    (TooLargeError, 413),
    (CorruptPatchError, 422),
    (UnknownModelError, 404),
    (UsageError, 422),
    (EngineError, 503),
)
"""the status of an error, by the first class that it is of: an UnknownModelError is a UsageError too"""


async def _failure(request: Request, error: Exception) -> Response:
    """Answer for an error; of a bug the server writes the traceback to the log."""
    if isinstance(error, SmolsumError):
        # any other SmolsumError comes from a full or failing disk
        status, shown = next((status for kind, status in STATUS if isinstance(error, kind)), 507), error
    elif isinstance(error, HTTPException):
        status = error.status_code
        shown = SmolsumError(error.detail.lower(), hint="the paths are listed in docs/workers.md")
    elif isinstance(error, ClientDisconnect):
        status, shown = 400, SmolsumError("the body was cut short", hint="send it again")
    else:
        what = f"internal worker error: {type(error).__name__}"
        status, shown = 500, SmolsumError(what, hint="see the worker's log, and report it")
    return _refused(request.url.path, status, shown)


def _refused(path: str, status: int, error: SmolsumError) -> Response:
    if path.startswith("/v1/") and path not in TRAINERS:
        return Json(error_body(status, error), status)
    return Json(ErrorAnswer(error.message, error.hint, getattr(error, "version", UNSET)), status)
