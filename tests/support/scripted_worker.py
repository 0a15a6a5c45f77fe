"""A worker over real HTTP without a model: tokens follow from prompt and seed, so that a wrong pairing shows; it can
misbehave in many ways."""

import asyncio
import json
import socket
import threading
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from smolsum.weights import delta

VOCABULARY, EOS = 50, 0
FACTS = {"architecture": "qwen2", "vocab_size": VOCABULARY, "tokenizer": "abc", "dtype": "float32"}


def completion(prompt_ids: list[int] | tuple[int, ...], seed: int, most: int) -> list[int]:
    """What every such worker samples: a token from the prompt, one from the seed, then EOS."""
    ids = [1 + prompt_ids[0] % (VOCABULARY - 1), 1 + seed % (VOCABULARY - 1)]
    return ([*ids, EOS])[:most]


class ScriptedWorker:
    """Serves on its own port until closed. `fault` says how it misbehaves from now on; `asked` counts requests."""

    def __init__(self, *, port: int = 0, delay_s: float = 0.0) -> None:
        self.fault: str | None = None
        self.delay_s, self.asked, self.sampled = delay_s, 0, 0
        self.version, self.weights, self.arrays = 0, "", dict[str, Any]()
        self.health_changes: dict[str, Any] = {}
        self.hangs = False  # in every request
        self.most: int | None = None  # rollouts, after which it samples no more while that stays so
        self.weights_asked: list[str] = []  # checksums served when rollouts were sampled
        self.bodies: list[tuple[str, int]] = []
        self._socket = socket.create_server(("127.0.0.1", port))
        self.port = self._socket.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        routes = [
            Route("/health", self._health),
            Route("/v1/weights", self._put, methods=["PUT"]),
            Route("/v1/logprobs", self._logprobs, methods=["POST"]),
            Route("/v1/rollouts", self._rollouts, methods=["POST"]),
        ]
        config = uvicorn.Config(
            Starlette(routes=routes), log_level="critical", lifespan="off", timeout_graceful_shutdown=0
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self._socket]}, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop at once; open requests fail."""
        self.begin_to_close()
        self._thread.join()
        self._socket.close()

    def begin_to_close(self) -> None:
        """Stop soon, without waiting for it."""
        self._server.should_exit = self._server.force_exit = True

    def restart(self) -> "ScriptedWorker":
        """A new one at the same port, without weights."""
        self.close()
        return ScriptedWorker(port=self.port, delay_s=self.delay_s)

    async def _health(self, _: Request) -> Response:
        while self.hangs:
            await asyncio.sleep(0.05)
        facts = {"state": "ready", "version": self.version, "weights": self._said, "sampling": {}}
        return JSONResponse(FACTS | facts | {"max_model_len": 1000} | self.health_changes)

    async def _put(self, request: Request) -> Response:
        body = await request.body()
        header = delta.read(body)
        self.bodies.append((header.kind, header.version))
        if header.kind == "patch" and header.base_version != self.version:
            return JSONResponse({"error": "another base", "hint": "send an anchor", "version": self.version}, 409)
        self.arrays = delta.apply(self.arrays, body)
        self.version, self.weights = header.version, header.weights
        return JSONResponse({"version": self.version, "weights": self._said, "seconds": 0.0})

    @property
    def _said(self) -> str:
        """The checksum of its weights, as it says."""
        return "0" * 32 if self.fault == "wrong weights" else self.weights

    async def _logprobs(self, request: Request) -> Response:
        asked = await request.json()
        if asked["weights"] != self.weights:
            return JSONResponse({"error": "another run's", "hint": "push", "version": self.version}, 409)
        value = -9.0 if self.fault == "wrong log-probs" else float(self.arrays["w"][0])
        rows = [[value] * len(s["completion_ids"]) for s in asked["sequences"]]
        return JSONResponse({"version": self.version, "logprobs": rows})

    async def _rollouts(self, request: Request) -> Response:
        asked = await request.json()
        self.asked += len(asked["requests"])
        if (asked["version"], asked["weights"]) != (self.version, self.weights):
            return JSONResponse({"error": "another version", "hint": "push", "version": self.version}, 409)
        if self.fault == "refuses":
            return JSONResponse({"error": "no", "hint": "do not"}, 500)
        return StreamingResponse(self._lines(asked), media_type="application/x-ndjson")

    async def _lines(self, asked: dict[str, Any]) -> AsyncIterator[bytes]:
        requests = asked["requests"]
        for n, each in enumerate(requests):
            await asyncio.sleep(self.delay_s)
            while self.most is not None and self.sampled >= self.most:
                await asyncio.sleep(0.01)
            ids = completion(each["prompt_ids"], each["seed"], asked["max_new_tokens"])
            line: dict[str, Any] = {
                "id": each["id"],
                "token_ids": ids,
                "logprobs": list(np.full(len(ids), -0.5)),
                "finish_reason": "stop" if ids[-1] == EOS else "length",
                "version": self.version,
            }
            wrong: dict[str | None, dict[str, Any]] = {
                "strange id": {"id": [1]},
                "other id": {"id": "another one's"},
                "huge log-probs": {"logprobs": [-(10**400)] * len(ids)},
                "no numbers": {"logprobs": [None] * len(ids)},
                "other length": {"logprobs": [-0.5]},
                "outside": {"token_ids": [VOCABULARY], "logprobs": [-0.5]},
                "no end": {"finish_reason": "length"},
                "other version": {"version": self.version - 1},
            }
            line |= wrong.get(self.fault, {})
            last = n == len(requests) - 1
            match self.fault:
                case "hangs":
                    await asyncio.sleep(3600)
                case "trickles":
                    while True:
                        yield b" "
                        await asyncio.sleep(0.05)
                case "truncates" if last:
                    yield json.dumps(line).encode()[:20]
                    return
                case "fewer" if last:
                    continue
                case "prose":
                    yield b"I am sorry, but as a language model\n"
                    return
                case "deep":
                    yield b"[" * 100_000 + b"\n"
                    return
                case "twice" if last and n:
                    line["id"] = requests[0]["id"]
                case "errors":
                    line = {"id": each["id"], "error": "out of memory"}
            self.sampled += 1
            self.weights_asked.append(self.weights)
            yield json.dumps(line).encode() + b"\n"
        yield json.dumps({"done": len(requests)}).encode() + b"\n"


FAULTS = (
    "refuses", "hangs", "trickles", "truncates", "fewer", "prose", "other id", "twice", "outside", "no numbers",
    "other length", "no end", "other version", "errors", "deep", "strange id", "huge log-probs",
)  # fmt: skip
"""wrong answers to a request for rollouts"""
