"""A worker as the trainer calls it, over HTTP. `smolsum serve-worker` is the other end.

Everything that comes back is checked before it is believed: a rollout that was not asked for, ids outside the
vocabulary, log-probs that are no numbers, an early end. What fails raises WorkerError, and the caller decides.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import httpx

from smolsum.errors import UnreachableError

CONNECT_S, HEALTH_S = 10.0, 15.0
HEALTH: dict[str, type | tuple[type, ...]] = {
    "state": str, "architecture": str, "vocab_size": int, "tokenizer": str, "dtype": str, "version": int,
    "weights": str, "sampling": dict, "max_model_len": (int, type(None)), "instance": str,
}  # fmt: skip
"""types of what a worker says of itself"""
LEAST_LOGPROB = -1e6
SERVE = "start it: smolsum serve-worker --model MODEL"


class WorkerError(UnreachableError):
    """A worker did not do what it was asked. Another, or the same one later, may."""


class OtherVersionError(WorkerError):
    """The worker serves another policy version than the one that was meant."""


@dataclass(frozen=True)
class Wanted:
    """One rollout that is asked for; `id` is unique among all that are under way."""

    id: str
    prompt_ids: tuple[int, ...]
    seed: int


@dataclass(frozen=True)
class Terms:
    """What all rollouts of one request have in common, and what a completion must look like."""

    temperature: float
    max_new_tokens: int
    vocab_size: int
    eos_ids: frozenset[int]


@dataclass(frozen=True)
class Serving:
    """What a worker is taken to serve: versions are numbers that every run has, the checksum of the weights tells one
    run's from another's. A worker that serves something else refuses."""

    version: int
    weights: str

    @property
    def fields(self) -> dict[str, Any]:
        """As a body has them."""
        return {"version": self.version, "weights": self.weights}


@dataclass(frozen=True)
class Sampled:
    """One rollout as the worker reported it; fields as in `smolsum.types.Rollout`."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: Literal["stop", "length"]
    version: int


class WorkerClient:
    """One worker. For one event loop.

    `timeout_s` is the longest silence: to a question, or between two rollouts of a stream.
    """

    def __init__(self, url: str, token: str | None, *, timeout_s: float) -> None:
        self.url, self._timeout_s = url.rstrip("/"), timeout_s
        self._http = httpx.AsyncClient(
            base_url=self.url,
            headers={"authorization": f"Bearer {token}"} if token else {},
            timeout=httpx.Timeout(timeout_s, connect=CONNECT_S),
            trust_env=False,  # a worker is a neighbour; a proxy that knows it not would be in the way
        )

    async def close(self) -> None:
        """Let go of the connections."""
        await self._http.aclose()

    async def health(self) -> dict[str, Any]:
        """What GET /health tells; a worker that has nothing else to do but hang is not waited for as long."""
        told = await self._json("GET", "/health", timeout_s=min(HEALTH_S, self._timeout_s))
        for name, kind in HEALTH.items():
            if name in told and not isinstance(told[name], kind):
                raise self._garbage(f"its {name} is {str(told[name])[:60]}")
        return told

    async def put_weights(self, body: bytes) -> tuple[int, str]:
        """Push a patch or an anchor; the version that is served then, and the checksum of its weights."""
        told = await self._json("PUT", "/v1/weights", content=body)
        if type(told.get("version")) is not int or not isinstance(told.get("weights"), str):
            raise self._garbage(f"its answer to new weights is {str(told)[:80]}")
        return told["version"], told["weights"]

    async def logprobs(
        self,
        sequences: Sequence[tuple[Sequence[int], Sequence[int]]],
        serving: Serving,
        temperature: float = 1.0,
    ) -> list[list[float]]:
        """Log-probs, at a temperature, of the second of each pair of token ids after the first."""
        rows = [{"prompt_ids": list(p), "completion_ids": list(c)} for p, c in sequences]
        body = {**serving.fields, "sequences": rows, "temperature": temperature}
        told = await self._json("POST", "/v1/logprobs", json=body)
        found = told.get("logprobs")
        if not isinstance(found, list) or len(found) != len(rows):
            raise self._garbage(f"it was asked for log-probs of {len(rows)} sequences and sent {str(found)[:80]}")
        for row, (_, completion) in zip(found, sequences, strict=True):
            if not _numbers(row, len(completion)):
                raise self._garbage(f"{str(row)[:80]} are not log-probs of {len(completion)} tokens")
        return found

    async def rollouts(
        self, wanted: Sequence[Wanted], terms: Terms, serving: Serving
    ) -> AsyncIterator[tuple[str, Sampled | str]]:
        """Each rollout, by its id, as it ends: what was sampled, or the worker's reason for not doing so.

        The stream ends once each id has come exactly once. Raises WorkerError for anything else.
        """
        body = {
            **serving.fields,
            "temperature": terms.temperature,
            "max_new_tokens": terms.max_new_tokens,
            "requests": [{"id": w.id, "prompt_ids": list(w.prompt_ids), "seed": w.seed} for w in wanted],
        }
        open_ids = {w.id for w in wanted}
        try:
            # the deadline moves with each rollout, not with each byte
            async with (
                asyncio.timeout(self._timeout_s) as deadline,
                self._http.stream("POST", "/v1/rollouts", json=body) as response,
            ):
                if response.status_code != 200:
                    raise self._refusal(response.status_code, await response.aread())
                async for line in response.aiter_lines():
                    told = self._object(line)
                    if "done" in told:
                        break
                    name = told.get("id")
                    if not isinstance(name, str) or name not in open_ids:
                        raise self._garbage(f"it sent a rollout {str(name)[:40]!r} that it was not asked for")
                    open_ids.discard(name)
                    deadline.reschedule(asyncio.get_running_loop().time() + self._timeout_s)
                    yield name, str(told["error"]) if "error" in told else self._sampled(told, terms, serving)
        except TimeoutError as error:
            raise self._silent() from error
        except httpx.HTTPError as error:
            raise self._broken(error) from error
        if open_ids:
            raise self._garbage(f"{len(open_ids)} of {len(wanted)} rollouts are missing from its answer")

    def _sampled(self, told: Mapping[str, Any], terms: Terms, serving: Serving) -> Sampled:
        ids, logprobs, reason = (told.get(key) for key in ("token_ids", "logprobs", "finish_reason"))
        if not isinstance(ids, list) or not 0 < len(ids) <= terms.max_new_tokens:
            raise self._garbage(f"a rollout has token ids {str(ids)[:80]}")
        if any(type(i) is not int or not 0 <= i < terms.vocab_size for i in ids):
            raise self._garbage(f"a rollout has token ids outside the vocabulary of {terms.vocab_size}")
        if not isinstance(logprobs, list) or not _numbers(logprobs, len(ids)):
            raise self._garbage(f"the log-probs of {len(ids)} tokens are {str(logprobs)[:80]}")
        if reason not in ("stop", "length") or (reason == "stop") != (ids[-1] in terms.eos_ids):
            raise self._garbage(f"a rollout that ends with token {ids[-1]} has finish_reason {reason!r}")
        if reason == "length" and len(ids) != terms.max_new_tokens:
            raise self._garbage(f"a rollout was cut after {len(ids)} of {terms.max_new_tokens} tokens")
        if told.get("version") != serving.version:
            raise OtherVersionError(
                f"{self.url} sampled with version {told.get('version')}, not {serving.version}",
                hint="it is given the weights again; see that no other run uses it",
            )
        return Sampled(tuple(ids), tuple(map(float, logprobs)), reason, serving.version)

    async def _json(self, method: str, path: str, *, timeout_s: float = 0.0, **more: Any) -> dict[str, Any]:
        patience = timeout_s or self._timeout_s
        try:
            async with asyncio.timeout(patience):
                response = await self._http.request(method, path, **more)
        except TimeoutError as error:
            raise self._silent(patience) from error
        except httpx.HTTPError as error:
            raise self._broken(error) from error
        if response.status_code != 200:
            raise self._refusal(response.status_code, response.content)
        return self._object(response.text)

    def _object(self, text: str) -> dict[str, Any]:
        try:
            value = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise self._garbage(f"{text[:60]!r} is not JSON") from error
        if not isinstance(value, dict):
            raise self._garbage(f"{text[:60]!r} is no JSON object")
        return value

    def _refusal(self, status: int, content: bytes) -> WorkerError:
        """The error for an answer that is not 200, in the worker's own words where it has some."""
        try:
            told = json.loads(content)
            words, hint = str(told["error"]), told.get("hint")
        except (ValueError, KeyError, TypeError, RecursionError):
            words, hint = content[:80].decode(errors="replace") or "no reason given", None
        kind = OtherVersionError if status == 409 else WorkerError
        return kind(f"{self.url} refused ({status}): {words}", hint=hint or "see its log")

    def _garbage(self, what: str) -> WorkerError:
        return WorkerError(
            f"{self.url} does not answer as a worker should: {what}",
            hint="run the same version of smolsum on both machines, and see that the URL is the worker's",
        )

    def _silent(self, patience: float = 0.0) -> WorkerError:
        return WorkerError(
            f"{self.url} has said nothing for {patience or self._timeout_s:g} s",
            hint="see its log, or allow more: --set workers.timeout_s=SECONDS",
        )

    def _broken(self, error: httpx.HTTPError) -> WorkerError:
        if isinstance(error, httpx.TimeoutException):
            return self._silent()
        reason = str(error) or type(error).__name__
        if isinstance(error, httpx.ConnectError):
            return WorkerError(f"cannot reach {self.url}: {reason}", hint=SERVE)
        return WorkerError(f"{self.url} broke off: {reason}", hint="see its log")


def _numbers(value: Any, count: int) -> bool:
    """Whether this is a list of so many finite log-probs."""
    return (
        isinstance(value, list)
        and len(value) == count
        and all(type(x) in (int, float) and LEAST_LOGPROB <= x <= 1e-4 for x in value)
    )
