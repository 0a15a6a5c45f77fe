"""The pool of workers: which worker samples what, and what happens to the work of one that fails.

The pool runs in an event loop in its own thread; the trainer hands in batches and waits for them.
"""

import asyncio
import contextlib
import queue
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from smolsum.errors import SmolsumError, UsageError
from smolsum.rollout.protocol import ExpectedWeights, FailedRollout, RolloutAnswer, SampleRequest, SamplingTerms
from smolsum.rollout.worker_client import OtherVersionError, PoolWorker, WorkerError
from smolsum.types import SamplingProgress
from smolsum.weights.publish import Published, Publisher, WeightsVersion

FIRST_PAUSE_S, MAX_PAUSE_S = 0.5, 30.0
"""before a worker that failed is tried again; doubled each time"""
PROBE_S, SILENT_S = 4.0, 8.0
"""between two looks whether a busy worker is still there; without an answer for so long it is silent"""
SMOOTHING = 0.5
"""weight of the last request in the measured speed"""


@dataclass(frozen=True)
class WorkerEvent:
    """An event for the user, with the name of the worker that it is about, if it is about one."""

    kind: str
    message: str
    hint: str | None
    worker: str | None


class RolloutBatch:
    """Rollouts that were requested together; `result` has each by its id, with the name of the worker."""

    def __init__(self, total: int) -> None:
        self.result: Future[dict[str, tuple[RolloutAnswer, str]]] = Future()
        self._found: dict[str, tuple[RolloutAnswer, str]] = {}
        self._total = total

    @property
    def progress(self) -> SamplingProgress:
        """What is there of it."""
        ended = len(self._found)
        # of a copy, as the pool's thread adds rollouts meanwhile
        tokens = sum(len(rollout.token_ids) for rollout, _ in list(self._found.values()))
        return SamplingProgress(self._total, ended, tokens, ended / self._total)

    def fill(self, rollout: RolloutAnswer, worker: str) -> None:
        """Take one rollout."""
        self._found[rollout.id] = (rollout, worker)
        if len(self._found) == self._total and not self.result.done():
            self.result.set_result(self._found)

    def fail(self, error: WorkerError) -> None:
        """Give up all of it."""
        if not self.result.done():
            self.result.set_exception(error)


@dataclass
class PendingRollout:
    """A rollout that is not sampled yet."""

    request: SampleRequest
    terms: SamplingTerms
    least_version: int
    """the oldest version that it may be sampled with"""
    batch: RolloutBatch
    failed_by: list[str] = field(default_factory=list)
    """names of the workers that failed at it, one for each time"""


class Pool:
    """Workers that sample for one trainer, from `open` to `close`.

    `make_workers` is called in the pool's event loop. A rollout that fails more than `retries` times fails its batch.
    """

    def __init__(self, make_workers: Callable[[], list[PoolWorker]], publisher: Publisher, *, retries: int) -> None:
        self.publisher, self.workers = publisher, list[PoolWorker]()
        self.events: queue.SimpleQueue[WorkerEvent] = queue.SimpleQueue()
        self.newest: Published | None = None
        self.failure: BaseException | None = None
        self._make_workers, self._retries = make_workers, retries
        self._waiting: deque[PendingRollout] = deque()
        self._begun = False
        self._stranded_since: float | None = None
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main()), name="worker pool", daemon=True)

    def open(self) -> None:
        """Start the event loop; workers join once something is published."""
        self._thread.start()
        self._ready.wait()

    def close(self) -> None:
        """Cancel all work, and wait for the thread to end."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._closing.set)
            self._thread.join()

    def publish(self, version: WeightsVersion) -> Future[None]:
        """Bring all workers to this version, each as soon as it is idle; versions keep their order."""
        return asyncio.run_coroutine_threadsafe(self._publish(version), self._loop)

    def submit(self, requests: Sequence[SampleRequest], terms: SamplingTerms, *, least_version: int) -> RolloutBatch:
        """Request rollouts, each sampled with `least_version` or a later one; earlier requests come first."""
        batch = RolloutBatch(len(requests))
        added = [PendingRollout(request, terms, least_version, batch) for request in requests]
        self._loop.call_soon_threadsafe(self._enqueue, added)
        return batch

    def waited_s(self) -> float:
        """Return seconds since the last worker was lost; 0 while there is one."""
        since = self._stranded_since
        return 0.0 if since is None else time.monotonic() - since

    # everything below runs in the event loop

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._changed, self._publishing, self._closing = asyncio.Event(), asyncio.Lock(), asyncio.Event()
        self.workers = self._make_workers()
        runs = [asyncio.create_task(self._run(worker)) for worker in self.workers]
        self._ready.set()
        closing = asyncio.create_task(self._closing.wait())
        # a worker's task ends only by an error of the pool itself
        await asyncio.wait([closing, *runs], return_when=asyncio.FIRST_COMPLETED)
        self.failure = next((run.exception() for run in runs if run.done()), None)
        for run in runs:
            run.cancel()
        await asyncio.gather(*runs, return_exceptions=True)
        with contextlib.suppress(Exception):
            await asyncio.gather(*(worker.client.close() for worker in self.workers))

    async def _run(self, worker: PoolWorker) -> None:
        """Keep one worker at work as long as the pool is open; after an error it joins again."""
        while True:
            try:
                await worker.join(self.publisher, await self._published())
                while True:
                    await self._catch_up(worker)
                    if worker.state != "up":
                        self._joined(worker)
                    if taken := await self._take(worker):
                        async with self._watching(worker):
                            await self._sample(worker, taken)
            except Exception as error:  # any error: the worker joins again after a pause
                self._lost(worker, _trouble(worker, error))
                worker.failures += 1
                await asyncio.sleep(min(MAX_PAUSE_S, FIRST_PAUSE_S * 2 ** (worker.failures - 1)))

    async def _catch_up(self, worker: PoolWorker) -> None:
        """Bring a worker to the newest version."""
        newest = await self._published()
        if worker.version == newest.number:
            return
        began = time.monotonic()
        async with self._watching(worker):
            try:
                await worker.push(self.publisher, newest, worker.version)
            except OtherVersionError as error:
                if worker.version is None:
                    raise
                self._emit("worker_resynced", f"{error.message}; it is sent all weights", worker)
                await worker.push(self.publisher, newest, None)
        worker.sync_s = time.monotonic() - began

    @contextlib.asynccontextmanager
    async def _watching(self, worker: PoolWorker) -> AsyncIterator[None]:
        """Look now and then whether a worker still answers while it is busy, long before its request times out. Says
        once that it is silent, and once that it answers again."""
        silent = False

        async def look() -> None:
            nonlocal silent
            while True:
                await asyncio.sleep(PROBE_S)
                try:
                    await worker.client.health(SILENT_S)
                except WorkerError as error:
                    if not silent:
                        self._emit("worker_silent", error.message, worker, error.hint)
                    silent = True
                else:
                    if silent:
                        self._emit("worker_up", f"{worker.url} answers again", worker)
                    silent = False

        looking = asyncio.create_task(look())
        try:
            yield
            if silent:
                self._emit("worker_up", f"{worker.url} answers again", worker)
        finally:
            looking.cancel()

    async def _take(self, worker: PoolWorker) -> list[PendingRollout]:
        """Return rollouts for a worker, as soon as its version has any; none once there is a newer version."""
        while True:
            assert self.newest is not None
            if worker.version != self.newest.number:
                return []
            fit = [p for p in self._waiting if p.least_version <= self.newest.number and self._may(worker, p)]
            if fit:
                alike = [p for p in fit if p.terms == fit[0].terms]
                taken = alike[: share(worker, self.workers, len(alike))]
                gone = {id(p) for p in taken}
                self._waiting = deque(p for p in self._waiting if id(p) not in gone)
                return taken
            await self._changed.wait()

    def _may(self, worker: PoolWorker, pending: PendingRollout) -> bool:
        """Return whether a worker may sample a rollout: one that failed at it leaves it to others that are up."""
        failed = pending.failed_by
        return worker.name not in failed or not any(w.state == "up" and w.name not in failed for w in self.workers)

    async def _sample(self, worker: PoolWorker, taken: list[PendingRollout]) -> None:
        """Have a worker sample; what it leaves undone goes back to the queue."""
        still_open = {pending.request.id: pending for pending in taken}
        worker.under_way, tokens, began = len(taken), 0, time.monotonic()
        failed: WorkerError | None = None
        try:
            stream = worker.client.rollouts(
                [pending.request for pending in taken], taken[0].terms, ExpectedWeights(worker.version, worker.weights)
            )
            async for rollout in stream:
                pending = still_open.pop(rollout.id)
                worker.under_way -= 1
                if isinstance(rollout, FailedRollout):
                    reason = f"{worker.url} could not sample {rollout.id}: {rollout.error}"
                    failed = WorkerError(reason, hint="see its log")
                    self._return([pending], worker, failed)
                    continue
                tokens += len(rollout.token_ids)
                pending.batch.fill(rollout, worker.name)
        except Exception as error:  # any error: other workers sample what is left
            self._return(list(still_open.values()), worker, _trouble(worker, error))
            raise
        finally:
            worker.under_way = 0
        if failed is not None:
            raise failed  # without a pause it would take the same rollouts again and again
        worker.failures = 0
        rate = tokens / max(1e-6, time.monotonic() - began)
        worker.tok_s = rate if not worker.tok_s else SMOOTHING * rate + (1 - SMOOTHING) * worker.tok_s

    def _return(self, failed: Sequence[PendingRollout], worker: PoolWorker, error: SmolsumError) -> None:
        """Queue again what a worker failed at, before later rollouts; after too many failures, fail its batch."""
        again = []
        for pending in failed:
            pending.failed_by.append(worker.name)
            if len(pending.failed_by) > self._retries:
                times = f"rollout {pending.request.id} failed {len(pending.failed_by)} times"
                pending.batch.fail(WorkerError(f"{times}; the last error: {error.message}", hint=error.hint))
            else:
                again.append(pending)
        self._waiting.extendleft(reversed(again))
        self._wake()

    def _joined(self, worker: PoolWorker) -> None:
        """Note that a worker is up, for the first time or again."""
        worker.state, worker.trouble = "up", None
        self._begun = True
        self._emit("worker_up", f"{worker.url} samples, with version {worker.version}", worker)
        if self._stranded_since is not None:
            self._stranded_since = None
            self._emit("workers_back", "sampling continues", worker)
        self._wake()

    def _lost(self, worker: PoolWorker, error: SmolsumError) -> None:
        """Note that a worker has failed."""
        if str(worker.trouble) != str(error):  # each trouble is reported once
            self._emit("worker_down", error.message, worker, error.hint)
        worker.state, worker.trouble = "down", error
        # workers that are joining do not count as up; before the first has joined no worker can be lost
        if self._begun and self._stranded_since is None and not any(w.state == "up" for w in self.workers):
            self._stranded_since = time.monotonic()
            self._emit("workers_lost", "no worker is left; the run waits for one to come back", None, error.hint)
        self._wake()

    def _emit(self, kind: str, message: str, worker: PoolWorker | None, hint: str | None = None) -> None:
        self.events.put(WorkerEvent(kind, message, hint, worker.name if worker else None))

    async def _published(self) -> Published:
        """Return the newest version; waits for the first."""
        while self.newest is None:
            await self._changed.wait()
        return self.newest

    async def _publish(self, version: WeightsVersion) -> None:
        async with self._publishing:
            self.newest = await asyncio.to_thread(self.publisher.publish, self.newest, version)
            self._wake()

    def _enqueue(self, added: list[PendingRollout]) -> None:
        self._waiting.extend(added)
        self._wake()

    def _wake(self) -> None:
        """Have all that wait for a change look again."""
        self._changed.set()
        # a new event: who waits from now on waits for the next change
        self._changed = asyncio.Event()


def share(worker: PoolWorker, workers: Sequence[PoolWorker], waiting: int) -> int:
    """Return how many of the waiting rollouts a worker takes: its part, by speed, of all open ones, so that all workers
    finish together. One that failed last time is tried with a single rollout."""
    if worker.failures:
        return 1
    up = [w for w in workers if w.state == "up"]
    # a worker that has not sampled yet counts as an average one
    known = [w.tok_s for w in up if w.tok_s]
    usual = sum(known) / len(known) if known else 1.0
    speeds = {w.name: w.tok_s or usual for w in up}
    every = waiting + sum(w.under_way for w in up)
    part = round(every * speeds.get(worker.name, usual) / max(1e-9, sum(speeds.values())))
    return max(1, min(waiting, part))


def _trouble(worker: PoolWorker, error: Exception) -> SmolsumError:
    """Return the error to report: an answer that breaks our own code must not end the run."""
    if isinstance(error, WorkerError | UsageError):
        return error
    trouble = WorkerError(
        f"{worker.url} sent an answer that cannot be understood: {type(error).__name__}: {str(error)[:80]}",
        hint="run the same version of smolsum on both machines",
    )
    trouble.__cause__ = error
    return trouble
