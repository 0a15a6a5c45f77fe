"""The engine `mlx`: smolsum's own sampler, in a thread of the worker's process.

Only that thread uses MLX: it loads the policy, decodes the rollouts of all requests as one batch, which new ones join
between two tokens, and replaces the weights.
"""

import asyncio
import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from typing import TypeVar

import mlx.core as mx

from smolsum.policy.device_memory import metal_working_set
from smolsum.policy.load import Dtype, Policy, load_policy
from smolsum.policy.logprobs import group_logprobs
from smolsum.policy.native_batch import NativeBatch, decode_batch
from smolsum.policy.sampling import ActiveSequence, Completion, DecodeBatch, SampledToken, score_text
from smolsum.policy.weights import identity, served_arrays, set_served, with_adapters
from smolsum.rollout.protocol import SampleRequest, SamplingTerms
from smolsum.worker.engines.base import Engine, EngineError, ServedWeights, length_limit

T = TypeVar("T")


@dataclass(frozen=True)
class _Job:
    """A rollout, and the future of the call that waits for it."""

    sequence: ActiveSequence
    done: Future[Completion]


class MlxEngine(Engine):
    """Samples with MLX, or on a CPU in C."""

    name = "mlx"
    max_running = 64

    def __init__(self, model: str, *, dtype: Dtype | None, quantize: int, max_model_len: int | None) -> None:
        self.version = version("mlx")
        self._model, self._dtype, self._quantize, self._wanted_len = model, dtype, quantize, max_model_len
        self._batch: DecodeBatch | NativeBatch | None = None
        self._inbox: queue.SimpleQueue[_Job | Callable[[bool], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="mlx engine", daemon=True)

    async def start(self) -> ServedWeights:
        self._thread.start()
        weights = await self._call(self._load_policy)
        self.state = "ready"
        return weights

    async def stop(self) -> None:
        if self.state != "stopping" and self._thread.ident is not None:
            self._inbox.put(None)
        self.state = "stopping"
        if self._thread.ident is not None:
            await asyncio.to_thread(self._thread.join)

    @property
    def reserved_bytes(self) -> int | None:
        return None if metal_working_set() is None else int(mx.get_peak_memory())

    async def failed(self) -> None:
        await asyncio.Event().wait()  # never: failures concern single requests

    async def sample(
        self, request: SampleRequest, terms: SamplingTerms, on_token: Callable[[SampledToken], None] | None = None
    ) -> Completion:
        loop = asyncio.get_running_loop()
        notify = (lambda token: _call_in(loop, on_token, token)) if on_token else None
        sequence = ActiveSequence(
            request.prompt_ids, request.seed, terms.temperature, terms.max_new_tokens, notify,
            top_p=terms.top_p, wanted=terms.likeliest,
        )  # fmt: skip
        job = _Job(sequence, Future())
        self._send(job)
        try:
            return await asyncio.wrap_future(job.done)
        except asyncio.CancelledError:
            sequence.abandoned = True
            raise

    async def logprobs(
        self, sequences: Sequence[tuple[Sequence[int], Sequence[int]]], temperature: float
    ) -> list[list[float]]:
        def score(prompt: Sequence[int], ids: Sequence[int]) -> list[float]:
            rows, *_ = group_logprobs(self.policy.model, prompt, [ids], temperature=temperature)
            return list(rows[0].tolist())

        # one by one, so that rollouts go on in between, and a cancelled call skips the rest
        return [await self._call(partial(score, *each)) for each in sequences]

    async def score_text(self, ids: Sequence[int], wanted: int) -> list[SampledToken]:
        return await self._call(lambda: score_text(self.policy.model, ids, wanted))

    async def load(self, weights: ServedWeights) -> None:
        await self._call(lambda: self._set(weights))

    def _load_policy(self) -> ServedWeights:
        self._take(self._fresh())
        self.max_model_len = length_limit(self.policy, self._wanted_len)
        self.facts = identity(self.policy)
        return ServedWeights(served_arrays(self.policy))

    def _fresh(self) -> Policy:
        return load_policy(self._model, dtype=self._dtype, quantize=self._quantize)

    def _take(self, policy: Policy) -> None:
        self.policy, self._batch = policy, decode_batch(policy.model, policy.eos_ids)

    def _set(self, weights: ServedWeights) -> None:
        if weights.lora == self.policy.lora:
            set_served(self.policy, weights.arrays)
            if self._batch is not None:
                self._batch.weights_changed()
            return
        policy = self._fresh()  # adapters are relative to the weights on disk
        if weights.lora is not None:
            policy = with_adapters(policy, weights.lora)
        set_served(policy, weights.arrays)
        self._take(policy)

    async def _call(self, function: Callable[[], T]) -> T:
        """Run a function in the engine's thread, between two tokens."""
        done: Future[T] = Future()

        def run(stopping: bool) -> None:
            if not done.set_running_or_notify_cancel():
                return
            try:
                if stopping:
                    raise _stopping()
                done.set_result(function())
            except BaseException as error:  # the call that waits raises it
                done.set_exception(error)

        self._send(run)
        return await asyncio.wrap_future(done)

    def _send(self, item: _Job | Callable[[bool], None]) -> None:
        if self.state == "stopping":
            raise _stopping()
        self._inbox.put(item)

    def _run(self) -> None:
        """The engine's thread: between two tokens it takes new items; without rollouts it waits for one."""
        jobs: list[_Job] = []
        while True:
            idle = not jobs
            waiting: list[_Job] = []
            while idle or not self._inbox.empty():
                item = self._inbox.get()
                idle = False
                if item is None:
                    for job in jobs + waiting:
                        _finish(job, _stopping())
                    return
                if isinstance(item, _Job):
                    waiting.append(item)
                else:
                    item(self.state == "stopping")
            if jobs or waiting:
                assert self._batch is not None, "the engine has not started"
                jobs = self._advance(self._batch, jobs, waiting)

    def _advance(self, batch: DecodeBatch | NativeBatch, jobs: list[_Job], waiting: list[_Job]) -> list[_Job]:
        """Sample one token for each job; returns those still under way. An error fails all of them."""
        jobs = jobs + waiting
        try:
            if batch.can_join():
                running = {id(sequence) for sequence in batch.rows}
                joining = [job.sequence for job in jobs if id(job.sequence) not in running and not job.sequence.ended]
                if joining:
                    batch.add(joining)
            if batch.rows:
                batch.step()
        except Exception as error:  # any error: the thread serves later requests
            batch.clear()
            self.last_error = f"{type(error).__name__}: {error}"
            for job in jobs:
                _finish(job, EngineError(f"sampling failed: {self.last_error}", hint="see the worker's log"))
            return []
        for job in jobs:
            if job.sequence.ended:
                _finish(job, job.sequence.completion)
        return [job for job in jobs if not job.sequence.ended]


def _finish(job: _Job, result: Completion | EngineError) -> None:
    if not job.done.set_running_or_notify_cancel():
        return
    if isinstance(result, EngineError):
        job.done.set_exception(result)
    else:
        job.done.set_result(result)


def _call_in(loop: asyncio.AbstractEventLoop, on_token: Callable[[SampledToken], None], token: SampledToken) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(on_token, token)


def _stopping() -> EngineError:
    return EngineError("the worker is being stopped", hint="use another worker")
