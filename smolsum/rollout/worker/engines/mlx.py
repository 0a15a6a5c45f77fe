"""The engine `mlx`: smolsum's own sampler, in a thread of the worker's process.

Only that thread uses MLX: it loads the policy, decodes the rollouts of all requests as one batch, which new ones join
between two tokens, and replaces the weights.
"""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
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
from smolsum.rollout.worker.engines.base import Engine, EngineError, ServedWeights, length_limit

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

    def __init__(
        self, model: str, *, dtype: Dtype | None, quantize: int, max_model_len: int | None, chat_template: str = ""
    ) -> None:
        self.version, self._wanted_len = version("mlx"), max_model_len
        self._fresh = partial(load_policy, model, dtype=dtype, quantize=quantize, chat_template=chat_template)
        self._batch: DecodeBatch | NativeBatch | None = None
        self._jobs: list[_Job] = []
        self._thread = ThreadPoolExecutor(1, "mlx engine")

    async def start(self) -> ServedWeights:
        weights = await self._call(self._load_policy)
        self.state = "ready"
        return weights

    async def stop(self) -> None:
        if self.state != "stopping":
            self.state = "stopping"
            self._thread.submit(self._give_up, _stopping())
        await asyncio.to_thread(self._thread.shutdown)

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
        self._require()
        self._thread.submit(self._join, job)
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

        def run() -> T:
            self._require()  # it may have waited for a while
            return function()

        self._require()
        return await asyncio.get_running_loop().run_in_executor(self._thread, run)

    def _require(self) -> None:
        if self.state == "stopping":
            raise _stopping()

    # everything below runs in the engine's thread

    def _join(self, job: _Job) -> None:
        self._jobs.append(job)
        if len(self._jobs) == 1:
            self._thread.submit(self._step)

    def _step(self) -> None:
        """Sample one token for each job; what was called meanwhile comes before the next. An error fails all jobs."""
        batch, jobs = self._batch, self._jobs
        if not jobs:  # given up
            return
        assert batch is not None, "the engine has not started"
        try:
            if batch.can_join():
                running = {id(sequence) for sequence in batch.rows}
                joining = [job.sequence for job in jobs if id(job.sequence) not in running and not job.sequence.ended]
                if joining:
                    batch.add(joining)
            if batch.rows:
                batch.step()
        except Exception as error:  # any error: later requests are served
            batch.clear()
            self.last_error = f"{type(error).__name__}: {error}"
            self._give_up(EngineError(f"sampling failed: {self.last_error}", hint="see the worker's log"))
            return
        for job in jobs:
            if job.sequence.ended and job.done.set_running_or_notify_cancel():
                job.done.set_result(job.sequence.completion)
        self._jobs = [job for job in jobs if not job.sequence.ended]
        if self._jobs:
            self._thread.submit(self._step)

    def _give_up(self, error: EngineError) -> None:
        for job in self._jobs:
            if job.done.set_running_or_notify_cancel():
                job.done.set_exception(error)
        self._jobs = []


def _call_in(loop: asyncio.AbstractEventLoop, on_token: Callable[[SampledToken], None], token: SampledToken) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(on_token, token)


def _stopping() -> EngineError:
    return EngineError("the worker is being stopped", hint="use another worker")
