"""vLLM's own HTTP API, as the engine `vllm` uses it, over the Unix socket of a child."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx

from smolsum.errors import UsageError
from smolsum.worker.engine import EngineError, Sampled


class SilentError(EngineError):
    """The server does not answer in time."""


class Api:
    """One server's API, until it is closed. Every method raises UsageError for what the server refuses, EngineError
    where it fails, is gone, or does not answer in time."""

    def __init__(self, socket: Path) -> None:
        # rollouts have no limit of time: who watches the server ends one that hangs, and with it its connections
        transport = httpx.AsyncHTTPTransport(uds=str(socket), limits=httpx.Limits(max_connections=None))
        self._client = httpx.AsyncClient(base_url="http://vllm", transport=transport, timeout=None)

    async def close(self) -> None:
        """Break off what is under way."""
        await self._client.aclose()

    async def rpc(self, method: str, *arguments: Any, timeout: float) -> Any:
        """What a method of the worker extension returns; `timeout` in seconds."""
        answer = await self.post("/collective_rpc", {"method": method, "args": list(arguments)}, timeout)
        return answer["results"][0] if answer else None

    async def complete(self, body: Mapping[str, Any], on_token: Callable[[int], None] | None) -> Sampled:
        """The rollout of a body of /v1/completions; `on_token` hears of each token."""
        if on_token is not None:
            return await self._stream({**body, "stream": True}, on_token)
        (choice,) = (await self.post("/v1/completions", body))["choices"]
        return _sampled(choice["token_ids"], choice["logprobs"]["token_logprobs"], choice["finish_reason"])

    async def post(self, path: str, body: Any, timeout: float | None = None) -> Any:
        """The JSON of an answer, None where it has none."""
        try:
            answer = await self._client.post(path, json=body, timeout=timeout)
        except (httpx.HTTPError, RuntimeError) as error:  # RuntimeError: the client was closed for a new server
            raise _lost(error) from error
        if answer.status_code == 400:
            raise UsageError(f"vLLM refuses: {_message(answer.content)}", hint="ask for something else")
        if not answer.is_success:
            raise EngineError(f"vLLM failed: {_message(answer.content)}", hint="see the worker's log")
        with suppress(ValueError):
            return answer.json()
        return None

    async def _stream(self, body: dict[str, Any], on_token: Callable[[int], None]) -> Sampled:
        tokens: list[int] = []
        logprobs: list[float] = []
        reason = "length"
        try:
            async with self._client.stream("POST", "/v1/completions", json=body) as answer:
                if not answer.is_success:
                    raise EngineError(f"vLLM failed: {_message(await answer.aread())}", hint="ask again later")
                async for line in answer.aiter_lines():
                    if not line.startswith("data: {"):
                        continue
                    for choice in json.loads(line[6:]).get("choices", []):
                        for token in choice.get("token_ids") or []:
                            tokens.append(token)
                            on_token(token)
                        logprobs += (choice.get("logprobs") or {}).get("token_logprobs", [])
                        reason = choice["finish_reason"] or reason
        except (httpx.HTTPError, RuntimeError) as error:
            raise _lost(error) from error
        return _sampled(tokens, logprobs, reason)


def _lost(error: Exception) -> EngineError:
    if isinstance(error, httpx.TimeoutException):
        return SilentError("vLLM does not answer", hint="ask again later")
    return EngineError(f"vLLM went away: {error or type(error).__name__}", hint="ask again later")


def _sampled(tokens: list[int], logprobs: list[float], reason: str) -> Sampled:
    if len(tokens) != len(logprobs) or reason not in ("stop", "length"):
        raise EngineError(f"vLLM returned a rollout that ended by {reason!r}", hint="ask again")
    return Sampled(tuple(tokens), tuple(logprobs), "stop" if reason == "stop" else "length")


def _message(content: bytes) -> str:
    try:
        told = json.loads(content)
        return str((told.get("error") or {}).get("message") or told)
    except (ValueError, AttributeError):
        return content[:300].decode(errors="replace")
