"""What a worker does: it samples and scores with the policy version that it serves, and takes newer weights.

No rollout mixes two versions. When weights arrive, running rollouts finish first and waiting ones start after the swap:
they then carry the new version, or, if the trainer asked for the old one, come back as errors.
"""

import asyncio
import secrets
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from math import isfinite
from typing import Any, get_type_hints

from smolsum.config.fields import check_value
from smolsum.config.sections import LoraConfig
from smolsum.errors import SmolsumError, UsageError
from smolsum.policy.sampling import Completion, SampledToken
from smolsum.rollout.protocol import (
    EndOfRollouts,
    ExpectedWeights,
    FailedRollout,
    Health,
    LogprobsAnswer,
    LogprobsBody,
    RolloutAnswer,
    RolloutsBody,
    SampleRequest,
    SamplingTerms,
    WeightsAnswer,
)
from smolsum.rollout.worker.engines.base import NEUTRAL, Engine, EngineError, ServedWeights
from smolsum.weights import delta
from smolsum.weights.delta import Header

ANY = ExpectedWeights()


class ConflictError(SmolsumError):
    """The request is for another version than the one served."""

    def __init__(self, message: str, version: int, *, hint: str) -> None:
        super().__init__(message, hint=hint)
        self.version = version


class Service:
    """One engine, the weights that it serves, and their version. For one event loop."""

    def __init__(self, engine: Engine, *, model: str) -> None:
        self.engine, self.model = engine, model
        self.version, self.checksum = 0, ""
        self.run: str | None = None
        """the run whose weights are served: `metadata["run"]` of the last update"""
        self.instance = secrets.token_hex(8)
        """a random id; the same worker may have several URLs"""
        self.counts = defaultdict[str, float](int)
        """since the start, by name in `METRICS`"""
        self.lock = RWLock(engine.max_running)
        self.max_bytes = 0
        """more than any update of this model's weights needs"""
        self._served = ServedWeights({})
        self._putting = asyncio.Lock()

    async def start(self) -> None:
        """Start the engine. Raises what `Engine.start` raises."""
        self._served = await self.engine.start()
        held = sum(array.nbytes for array in self._served.arrays.values())
        self.max_bytes = held + held // 8 + (16 << 20)
        self.checksum = await asyncio.to_thread(delta.checksum, self._served.arrays)

    def health(self) -> Health:
        """Return the answer to GET /health."""
        engine = self.engine
        return Health(
            state=engine.state,
            engine=engine.name,
            engine_version=engine.version,
            model=self.model,
            **engine.facts,
            instance=self.instance,
            run=self.run,
            version=self.version,
            weights=self.checksum,
            sampling=dict(NEUTRAL),
            max_model_len=engine.max_model_len,
            max_new_tokens=engine.max_model_len - 1,
            queue=self.lock.inside + self.lock.waiting,
            reserved_bytes=engine.reserved_bytes,
            last_error=engine.last_error,
        )

    def require(self, expected: ExpectedWeights = ANY) -> None:
        """Raise EngineError unless the engine is ready, ConflictError unless it serves the expected weights."""
        if self.engine.state != "ready":
            raise EngineError(f"the engine is {self.engine.state}", hint="try again in a minute; see /health")
        if expected.version not in (None, self.version):
            raise ConflictError(
                f"version {expected.version} is wanted, {self.version} is served",
                self.version,
                hint="PUT /v1/weights first",
            )
        if expected.weights not in (None, self.checksum):
            raise ConflictError(
                f"version {self.version} is served, but that of another run ({self.run})",
                self.version,
                hint="give each run its own workers",
            )

    async def rollouts(self, body: RolloutsBody) -> AsyncIterator[RolloutAnswer | FailedRollout | EndOfRollouts]:
        """Yield a line for each rollout as it ends, then their number. Leaving the loop early ends the sampling."""
        tasks = [asyncio.create_task(self._rollout(request, body)) for request in body.requests]
        try:
            for next_one in asyncio.as_completed(tasks):
                yield await next_one
            yield EndOfRollouts(len(tasks))
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _rollout(self, request: SampleRequest, body: RolloutsBody) -> RolloutAnswer | FailedRollout:
        try:
            done, version = await self.sample(request, body.terms, body)
        except Exception as error:  # any error: the other rollouts go on
            self.counts["rollout_errors_total"] += 1
            return FailedRollout(request.id, error.message if isinstance(error, SmolsumError) else repr(error))
        return RolloutAnswer(request.id, done.token_ids, done.logprobs, done.finish_reason, version)

    async def sample(
        self,
        request: SampleRequest,
        terms: SamplingTerms,
        expected: ExpectedWeights = ANY,
        on_token: Callable[[SampledToken], None] | None = None,
    ) -> tuple[Completion, int]:
        """Return one rollout, and the version that all of it is from. Raises as `require`."""
        async with self.lock.shared():
            self.require(expected)
            version = self.version
            completion = await self.engine.sample(request, terms, on_token)
        _check_finite([completion.logprobs])
        self.counts["rollouts_total"] += 1
        self.counts["tokens_total"] += len(completion.token_ids)
        return completion, version

    async def score_text(self, ids: Sequence[int], wanted: int) -> list[SampledToken]:
        """Return the tokens of a text after its first one, as `Engine.score_text`. Raises as `require`."""
        async with self.lock.shared():
            self.require()
            scored = await self.engine.score_text(ids, wanted)
        _check_finite([[token.logprob for token in scored]])
        return scored

    async def logprobs(self, body: LogprobsBody) -> LogprobsAnswer:
        """Return the log-probs of the sequences, and the version that they are from; temperature 0 scores as 1."""
        async with self.lock.shared():
            self.require(body)
            sequences = [(sequence.prompt_ids, sequence.completion_ids) for sequence in body.sequences]
            rows = await self.engine.logprobs(sequences, body.temperature or 1.0)
            _check_finite(rows)
            return LogprobsAnswer(self.version, tuple(map(tuple, rows)))

    async def put(self, body: bytes) -> WeightsAnswer:
        """Serve the weights of a patch or an anchor.

        Raises ConflictError, delta.CorruptPatchError, UsageError for another model's weights, EngineError, SmolsumError
        for a full disk; the old weights are served on in each case.
        """
        began = time.perf_counter()
        async with self._putting:  # one at a time, as a patch is decoded against what is served
            self.require()
            header = await asyncio.to_thread(delta.read, body)
            self._check(header)
            weights = await self._decoded(header, body)
            async with self.lock.exclusive():
                await self.engine.load(weights)
                self._served, self.version, self.checksum = weights, header.version, header.weights
                self.run = header.metadata.get("run")
        seconds = time.perf_counter() - began
        self.counts[f'weight_updates_total{{kind="{header.kind}"}}'] += 1
        self.counts["weight_bytes_total"] += len(body)
        self.counts["weight_seconds_total"] += seconds
        return WeightsAnswer(self.version, self.checksum, seconds)

    def _check(self, header: Header) -> None:
        """Raise ConflictError for a patch of another version than the one served, or an older anchor."""
        version, hint = header.version, "send a full anchor"
        if not isinstance(header.metadata.get("run"), str | None):
            raise UsageError("metadata['run'] is not text", hint="send the name of the run, or none")
        if header.kind == "anchor":
            if version < self.version and header.metadata.get("run") == self.run:
                raise ConflictError(
                    f"the anchor is of version {version}, {self.version} is served",
                    self.version,
                    hint="send the newest; an anchor of another run has another metadata['run']",
                )
            if header.nbytes > self.max_bytes:
                raise UsageError("the anchor is larger than this model", hint="serve the model that is trained")
        elif header.base_version != self.version:
            raise ConflictError(
                f"the patch changes version {header.base_version}, {self.version} is served", self.version, hint=hint
            )
        elif version <= self.version:
            raise ConflictError(f"the patch leads back to version {version}", self.version, hint=hint)

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
    """Return the adapters whose weights an anchor has: `metadata["lora"]` has rank, scale, layers and keys."""
    sent = metadata.get("lora")
    if sent is None:
        return None
    kinds = get_type_hints(LoraConfig, include_extras=True)
    try:
        given = {key: check_value(key, kinds[key], sent[key], "lora") for key in ("rank", "scale", "layers", "keys")}
    except (KeyError, TypeError, UsageError) as error:
        raise UsageError(f"the anchor does not describe its adapters: {error}", hint="send metadata['lora']") from error
    if any(given["rank"] not in array.shape for array in arrays.values()):
        raise UsageError(f"the anchor's adapters are not of rank {given['rank']}", hint="send metadata['lora']")
    return LoraConfig(**given)


class RWLock:
    """Lets up to `limit` tasks hold it together, or one alone.

    A task that wants it alone stops further entries and waits until those inside have left. For one event loop.
    """

    def __init__(self, limit: int) -> None:
        self.limit, self.inside, self.waiting = limit, 0, 0
        self._closed = False
        self._changed = asyncio.Event()

    @asynccontextmanager
    async def shared(self) -> AsyncIterator[None]:
        """Inside together with others."""
        self.waiting += 1
        try:
            while self._closed or self.inside >= self.limit:
                await self._changed.wait()
        finally:
            self.waiting -= 1
        self.inside += 1
        try:
            yield
        finally:
            self.inside -= 1
            self._wake()

    @asynccontextmanager
    async def exclusive(self) -> AsyncIterator[None]:
        """Inside alone."""
        while self._closed:
            await self._changed.wait()
        self._closed = True
        try:
            while self.inside:
                await self._changed.wait()
            yield
        finally:
            self._closed = False
            self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


METRICS = {
    "rollouts_total": "rollouts sampled",
    "rollout_errors_total": "rollouts that came back as errors",
    "tokens_total": "tokens sampled",
    "weight_updates_total": "weight updates applied",
    "weight_bytes_total": "bytes of weights received",
    "weight_seconds_total": "seconds from arrival to being served",
    "engine_restarts_total": "times that the engine died and came back",
    "engine_ready": "1 while the engine can sample",
    "policy_version": "version that is served",
    "running": "rollouts being sampled",
    "waiting": "rollouts waiting",
}


def prometheus(service: Service) -> str:
    """Return the counters and gauges of a worker in Prometheus' text format, version 0.0.4."""
    engine, lock = service.engine, service.lock
    now = {"engine_restarts_total": engine.restarts, "engine_ready": int(engine.state == "ready")}
    now |= {"policy_version": service.version, "running": lock.inside, "waiting": lock.waiting}
    values, lines = service.counts | now, []
    for name, text in METRICS.items():
        kind = "counter" if name.endswith("_total") else "gauge"
        lines += [f"# HELP smolsum_worker_{name} {text}", f"# TYPE smolsum_worker_{name} {kind}"]
        labels = [f'{{kind="{kind}"}}' for kind in ("patch", "anchor")] if name == "weight_updates_total" else [""]
        lines += [f"smolsum_worker_{name}{label} {values[name + label]}" for label in labels]
    return "\n".join(lines) + "\n"
