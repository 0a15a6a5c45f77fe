"""Simulated workers that answer at the pace of a model: many in this process, each on its own port.

    python simulated_worker.py COUNT TOKENS SECONDS FACTS    prints the URLs as JSON, serves until stdin ends

A rollout of TOKENS tokens takes SECONDS, and all rollouts of a request end together, as in a batch. FACTS is JSON:
`vocab_size`, `eos`, and further fields of /health.
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from collections.abc import AsyncIterator
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from smolsum.weights import delta

SILENT: dict[str, Any] = {"log_level": "critical", "lifespan": "off", "timeout_graceful_shutdown": 0}


def worker(tokens: int, seconds: float, facts: dict[str, Any]) -> Starlette:
    """Return one worker's HTTP app."""
    served: dict[str, Any] = {"version": 0, "weights": ""}

    async def health(_: Request) -> Response:
        return JSONResponse({"state": "ready", "sampling": {}, "max_model_len": 100_000, **facts, **served})

    async def put(request: Request) -> Response:
        header = delta.read(await request.body())
        served.update(version=header.version, weights=header.weights)
        return JSONResponse({**served, "seconds": 0.0})

    async def rollouts(request: Request) -> Response:
        asked = await request.json()
        line = {
            "token_ids": [7] * (tokens - 1) + [facts["eos"]],
            "logprobs": [-1.2345678] * tokens,
            "finish_reason": "stop",
            "version": served["version"],
        }

        async def lines() -> AsyncIterator[str]:
            await asyncio.sleep(seconds)
            for each in asked["requests"]:
                yield json.dumps({"id": each["id"], **line}) + "\n"
            yield json.dumps({"done": len(asked["requests"])}) + "\n"

        return StreamingResponse(lines(), media_type="application/x-ndjson")

    return Starlette(
        routes=[
            Route("/health", health),
            Route("/v1/weights", put, methods=["PUT"]),
            Route("/v1/rollouts", rollouts, methods=["POST"]),
        ]
    )


async def main() -> None:
    """Serve them all until the parent closes stdin."""
    count, tokens, seconds, facts = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), json.loads(sys.argv[4])
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    servers = [uvicorn.Server(uvicorn.Config(worker(tokens, seconds, facts), **SILENT)) for _ in sockets]
    for server in servers:
        server.capture_signals = _none  # type: ignore[method-assign]  # one process, many servers
    tasks = [
        asyncio.create_task(server.serve(sockets=[listener])) for server, listener in zip(servers, sockets, strict=True)
    ]
    print(json.dumps([f"http://127.0.0.1:{listener.getsockname()[1]}" for listener in sockets]), flush=True)
    await asyncio.to_thread(sys.stdin.read)
    for server in servers:
        server.should_exit = server.force_exit = True
    await asyncio.gather(*tasks)


def _none() -> Any:
    from contextlib import nullcontext

    return nullcontext()


if __name__ == "__main__":
    asyncio.run(main())
