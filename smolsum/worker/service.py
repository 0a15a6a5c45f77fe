"""What a worker has done, as Prometheus reads it.

Who may be at work: many at a time, or one alone.

What a worker does: it samples and scores with the policy version that it serves, and takes newer ones.

Nothing straddles two versions: when weights arrive, rollouts that are being sampled are finished, those that wait go on
after the swap. These then carry the new version, or, where the trainer asked for the old one, come back as errors.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, get_type_hints

from smolsum.config.fields import check_value
from smolsum.config.sections import LoraConfig
from smolsum.errors import SmolsumError, UsageError
from smolsum.weights import delta
from smolsum.weights.delta import Header
from smolsum.worker.engines.base import NEUTRAL, Engine, EngineError, Request, Sampled, ServedWeights
from smolsum.worker.requests import LogprobsAsked, RolloutsAsked, Serving


class RWLock:
    """Lets up to `most` pass together. Who wants to be alone stops the entry, and waits until those inside have left.

    For one event loop.
    """

    def __init__(self, most: int) -> None:
        self.most, self.inside, self.waiting = most, 0, 0
        self._closed = False
        self._changed = asyncio.Condition()

    @asynccontextmanager
    async def passing(self) -> AsyncIterator[None]:
        """Inside with others."""
        self.waiting += 1
        try:
            async with self._changed:
                await self._changed.wait_for(lambda: not self._closed and self.inside < self.most)
                self.inside += 1
        finally:
            self.waiting -= 1
        try:
            yield
        finally:
            self.inside -= 1
            await self._wake()

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """Inside with nobody else."""
        async with self._changed:
            await self._changed.wait_for(lambda: not self._closed)
            self._closed = True
        try:
            async with self._changed:
                await self._changed.wait_for(lambda: self.inside == 0)
            yield
        finally:
            self._closed = False
            await self._wake()

    async def _wake(self) -> None:
        async with self._changed:
            self._changed.notify_all()


ANY = Serving()


class ConflictError(SmolsumError):
    """What was sent is for another version than the one that is served."""

    def __init__(self, message: str, version: int, *, hint: str) -> None:
        super().__init__(message, hint=hint)
        self.version = version


class Service:
    """One engine, the weights that it serves and their version. For one event loop."""

    def __init__(self, engine: Engine, *, model: str) -> None:
        self.engine, self.model = engine, model
        self.version, self.checksum = 0, ""
        self.run: str | None = None
        """whose versions these are: `metadata["run"]` of the last weights"""
        self.instance = secrets.token_hex(8)
        """tells this worker from others, whatever URLs it has"""
        self.tally = WorkerMetrics()
        self.gate = RWLock(engine.most_running)
        self._served = ServedWeights({})
        self.most_bytes = 0
        """the longest body of weights that can be meant for this model"""
        self._putting = asyncio.Lock()

    async def start(self) -> None:
        """Bring the engine up. Raises what it raises."""
        self._served = await self.engine.start()
        held = sum(array.nbytes for array in self._served.arrays.values())
        self.most_bytes = held + held // 8 + (16 << 20)
        self.checksum = await asyncio.to_thread(delta.checksum, self._served.arrays)

    def health(self) -> dict[str, Any]:
        """What GET /health tells."""
        engine = self.engine
        return {
            "state": engine.state,
            "engine": engine.name,
            "engine_version": engine.version,
            "model": self.model,
            **engine.facts,
            "instance": self.instance,
            "run": self.run,
            "version": self.version,
            "weights": self.checksum,
            "sampling": NEUTRAL,
            "max_model_len": engine.max_model_len,
            "max_new_tokens": engine.max_model_len - 1,
            "queue": self.gate.inside + self.gate.waiting,
            "last_error": engine.last_error,
        }

    def require(self, wanted: Serving = ANY) -> None:
        """Raise ConflictError where other weights are wanted than those served, EngineError where none are."""
        if self.engine.state != "ready":
            raise EngineError(f"the engine is {self.engine.state}", hint="try again in a minute; /health tells more")
        if wanted.version not in (None, self.version):
            raise ConflictError(
                f"version {wanted.version} is wanted, {self.version} is served",
                self.version,
                hint="PUT /v1/weights first",
            )
        if wanted.weights not in (None, self.checksum):
            raise ConflictError(
                f"version {self.version} is served, but that of another run ({self.run})",
                self.version,
                hint="give each run workers of its own",
            )

    async def rollouts(self, asked: RolloutsAsked) -> AsyncIterator[dict[str, Any]]:
        """A line for each rollout as it ends, then how many there were. Leaving the loop early ends the sampling."""
        tasks = [asyncio.create_task(self._rollout(request, asked.serving)) for request in asked.requests]
        try:
            for next_one in asyncio.as_completed(tasks):
                yield await next_one
            yield {"done": len(tasks)}
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _rollout(self, request: Request, wanted: Serving) -> dict[str, Any]:
        try:
            sampled, version = await self.sample(request, wanted)
        except Exception as error:  # whatever it was: the other rollouts are none the worse
            self.tally.failed += 1
            return {"id": request.id, "error": error.message if isinstance(error, SmolsumError) else repr(error)}
        return {
            "id": request.id,
            "token_ids": sampled.token_ids,
            "logprobs": sampled.logprobs,
            "finish_reason": sampled.finish_reason,
            "version": version,
        }

    async def sample(
        self, request: Request, wanted: Serving = ANY, on_token: Callable[[int], None] | None = None
    ) -> tuple[Sampled, int]:
        """One rollout, and the version that all of it is from. Raises as `require`."""
        async with self.gate.passing():
            self.require(wanted)
            version = self.version
            sampled = await self.engine.sample(request, on_token)
        _check_finite([sampled.logprobs])
        self.tally.rollouts += 1
        self.tally.tokens += len(sampled.token_ids)
        return sampled, version

    async def logprobs(self, asked: LogprobsAsked) -> dict[str, Any]:
        """Log-probs of the sequences, and the version that they are from."""
        async with self.gate.passing():
            self.require(asked.serving)
            rows = await self.engine.logprobs(asked.sequences, asked.temperature)
            _check_finite(rows)
            return {"version": self.version, "logprobs": rows}

    async def put(self, body: bytes) -> dict[str, Any]:
        """Serve the weights of a patch or an anchor.

        Raises ConflictError, delta.CorruptPatchError, UsageError for another model's weights, EngineError, SmolsumError
        for a full disk; what was served before then still is.
        """
        began = time.perf_counter()
        async with self._putting:
            self.require()
            header = await asyncio.to_thread(delta.read, body)
            self._check(header)
            weights = await self._decoded(header, body)
            async with self.gate.alone():
                await self.engine.load(weights)
                self._served, self.version, self.checksum = weights, header.version, header.weights
                self.run = header.metadata.get("run")
        seconds = time.perf_counter() - began
        self.tally.synced(header.kind, len(body), seconds)
        return {"version": self.version, "weights": self.checksum, "seconds": seconds}

    def _check(self, header: Header) -> None:
        """ConflictError for a patch that is not for what is served, or an older anchor."""
        told, hint = header.version, "send a full anchor"
        if not isinstance(header.metadata.get("run"), str | None):
            raise UsageError("metadata['run'] is no text", hint="send the name of the run, or none")
        if header.kind == "anchor":
            if told < self.version and header.metadata.get("run") == self.run:
                raise ConflictError(
                    f"the anchor is of version {told}, {self.version} is served",
                    self.version,
                    hint="send the newest; another run's anchor says so in metadata['run']",
                )
            if header.nbytes > self.most_bytes:
                raise UsageError("the anchor is larger than this model", hint="serve the model that is trained")
        elif header.base_version != self.version:
            raise ConflictError(
                f"the patch changes version {header.base_version}, {self.version} is served", self.version, hint=hint
            )
        elif told <= self.version:
            raise ConflictError(f"the patch leads back to version {told}", self.version, hint=hint)

    async def _decoded(self, header: Header, body: bytes) -> ServedWeights:
        try:
            arrays = await asyncio.to_thread(delta.apply, self._served.arrays, body)
        except delta.WrongBaseError as error:
            raise ConflictError(
                f"the patch is for other weights than version {self.version} here: {error.message}",
                self.version,
                hint="send a full anchor",
            ) from error
        lora = _lora(header.metadata, arrays) if header.kind == "anchor" else self._served.lora
        return ServedWeights(arrays, lora)


def _check_finite(rows: Sequence[Sequence[float]]) -> None:
    if not all(isfinite(value) for row in rows for value in row):
        raise EngineError("the policy's log-probs are not finite", hint="its weights have diverged: send others")


def _lora(metadata: Mapping[str, Any], arrays: Mapping[str, Any]) -> LoraConfig | None:
    """The adapters whose weights an anchor holds: `metadata["lora"]` has rank, scale, layers and keys."""
    told = metadata.get("lora")
    if told is None:
        return None
    kinds = get_type_hints(LoraConfig, include_extras=True)
    try:
        given = {key: check_value(key, kinds[key], told[key], "lora") for key in ("rank", "scale", "layers", "keys")}
    except (KeyError, TypeError, UsageError) as error:
        raise UsageError(
            f"the anchor does not say what its adapters are: {error}", hint="send metadata['lora']"
        ) from error
    if any(given["rank"] not in array.shape for array in arrays.values()):
        raise UsageError(f"the anchor's adapters are not of rank {given['rank']}", hint="send metadata['lora']")
    return LoraConfig(**given)


@dataclass
class WorkerMetrics:
    """Counts since the start."""

    rollouts: int = 0
    failed: int = 0
    tokens: int = 0
    syncs: Counter[str] = field(default_factory=Counter)
    sync_bytes: int = 0
    sync_seconds: float = 0.0

    def synced(self, kind: str, size: int, seconds: float) -> None:
        """Note that weights were taken: a patch or an anchor of so many bytes, from its arrival to its being served."""
        self.syncs[kind] += 1
        self.sync_bytes += size
        self.sync_seconds += seconds


def exposition(service: Service) -> str:
    """The counts and gauges of a worker in Prometheus' text format, version 0.0.4."""
    tally, engine, gate = service.tally, service.engine, service.gate
    series: list[tuple[str, str, str, list[tuple[str, float]]]] = [
        ("rollouts_total", "counter", "rollouts sampled", [("", tally.rollouts)]),
        ("rollout_errors_total", "counter", "rollouts that came back as errors", [("", tally.failed)]),
        ("tokens_total", "counter", "tokens sampled", [("", tally.tokens)]),
        (
            "weight_updates_total",
            "counter",
            "weights taken",
            [(f'{{kind="{kind}"}}', tally.syncs[kind]) for kind in ("patch", "anchor")],
        ),
        ("weight_bytes_total", "counter", "bytes of weights received", [("", tally.sync_bytes)]),
        ("weight_seconds_total", "counter", "seconds from arrival to being served", [("", tally.sync_seconds)]),
        ("engine_restarts_total", "counter", "times that the engine died and came back", [("", engine.restarts)]),
        ("engine_ready", "gauge", "1 while the engine can sample", [("", int(engine.state == "ready"))]),
        ("policy_version", "gauge", "version that is served", [("", service.version)]),
        ("running", "gauge", "rollouts being sampled", [("", gate.inside)]),
        ("waiting", "gauge", "rollouts that wait", [("", gate.waiting)]),
    ]
    lines = []
    for name, kind, text, values in series:
        lines += [f"# HELP smolsum_worker_{name} {text}", f"# TYPE smolsum_worker_{name} {kind}"]
        lines += [f"smolsum_worker_{name}{labels} {value}" for labels, value in values]
    return "\n".join(lines) + "\n"
