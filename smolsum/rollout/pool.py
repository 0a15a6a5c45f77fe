"""The pool of workers: which worker samples what, and what happens to the work of one that fails.

The pool runs in an event loop in its own thread; the trainer hands in tickets and waits for them.
"""

import asyncio
import contextlib
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from smolsum.errors import SmolsumError, UsageError
from smolsum.rollout.member import Member
from smolsum.rollout.protocol import (
    FailedRollout,
    OtherVersionError,
    RolloutAnswer,
    SampleRequest,
    SamplingTerms,
    Serving,
    WorkerError,
)
from smolsum.weights.publish import Published, Publisher, Version

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 30.0
"""before a worker that failed is tried again; doubled each time"""
SMOOTHING = 0.5
"""weight of the last request in the measured speed"""


@dataclass(frozen=True)
class WorkerEvent:
    """An event for the user; `worker` is a member's name."""

    kind: str
    message: str
    hint: str | None
    worker: str | None


class Ticket:
    """Rollouts that were requested together; `result` has each by its id, with the name of the worker."""

    def __init__(self, ids: Sequence[str]) -> None:
        self.result: Future[dict[str, tuple[RolloutAnswer, str]]] = Future()
        self._open = set(ids)
        self._found: dict[str, tuple[RolloutAnswer, str]] = {}

    def fill(self, rollout: RolloutAnswer, worker: str) -> None:
        """Take one rollout."""
        self._open.discard(rollout.id)
        self._found[rollout.id] = (rollout, worker)
        if not self._open and not self.result.done():
            self.result.set_result(self._found)

    def fail(self, error: WorkerError) -> None:
        """Give up all of it."""
        if not self.result.done():
            self.result.set_exception(error)


@dataclass
class Work:
    """A rollout that is not sampled yet."""

    request: SampleRequest
    terms: SamplingTerms
    least_version: int
    """the oldest version that it may be sampled with"""
    ticket: Ticket
    failed_by: list[str] = field(default_factory=list)
    """names of the members that failed at it, one for each time"""


class Pool:
    """Workers that sample for one trainer, from `open` to `close`.

    `members` makes them in the pool's event loop. A rollout that fails more than `retries` times fails its ticket.
    """

    def __init__(self, members: Callable[[], list[Member]], publisher: Publisher, *, retries: int) -> None:
        self.publisher, self.members = publisher, list[Member]()
        self.events: queue.SimpleQueue[WorkerEvent] = queue.SimpleQueue()
        self.newest: Published | None = None
        self.failure: BaseException | None = None
        self._make, self._retries = members, retries
        self._waiting: deque[Work] = deque()
        self._begun = False
        self._stranded_since: float | None = None
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main()), name="worker pool", daemon=True)

    def open(self) -> None:
        """Start the event loop; members join once something is published."""
        self._thread.start()
        self._ready.wait()

    def close(self) -> None:
        """Cancel all work, and wait for the thread to end."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._closing.set)
            self._thread.join()

    def publish(self, version: Version) -> Future[None]:
        """Bring all workers to this version, each as soon as it is idle; versions keep their order."""
        return asyncio.run_coroutine_threadsafe(self._publish(version), self._loop)

    def submit(self, requests: Sequence[SampleRequest], terms: SamplingTerms, *, least_version: int) -> Ticket:
        """Request rollouts, each sampled with `least_version` or a later one; earlier requests come first."""
        ticket = Ticket([request.id for request in requests])
        works = [Work(request, terms, least_version, ticket) for request in requests]
        self._loop.call_soon_threadsafe(self._enqueue, works)
        return ticket

    def check(self) -> None:
        """Raise the error that broke the pool itself, if any."""
        if self.failure is not None:
            raise self.failure

    def waited_s(self) -> float:
        """Seconds since the last worker was lost; 0 while there is one."""
        since = self._stranded_since
        return 0.0 if since is None else time.monotonic() - since

    # everything below runs in the event loop

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._changed, self._publishing, self._closing = asyncio.Condition(), asyncio.Lock(), asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self.members = self._make()
        runs = [asyncio.create_task(self._run(member)) for member in self.members]
        self._ready.set()
        closing = asyncio.create_task(self._closing.wait())
        # a member's task ends only by an error of the pool itself
        await asyncio.wait([closing, *runs], return_when=asyncio.FIRST_COMPLETED)
        self.failure = next((run.exception() for run in runs if run.done()), None)
        for task in [*runs, *self._tasks]:
            task.cancel()
        await asyncio.gather(*runs, *self._tasks, return_exceptions=True)
        with contextlib.suppress(Exception):
            await asyncio.gather(*(member.client.close() for member in self.members))

    async def _run(self, member: Member) -> None:
        """Keep one member at work as long as the pool is open; after an error it joins again."""
        while True:
            try:
                await member.join(self.publisher, await self._published())
                while True:
                    await self._catch_up(member)
                    if member.state != "up":
                        self._joined(member)
                    if works := await self._take(member):
                        await self._sample(member, works)
            except Exception as error:
                self._lost(member, _trouble(member, error))
                member.failures += 1
                await asyncio.sleep(min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** (member.failures - 1)))

    async def _catch_up(self, member: Member) -> None:
        """Bring a member to the newest version."""
        newest = await self._published()
        if member.version == newest.number:
            return
        began = time.monotonic()
        try:
            await member.push(self.publisher, newest, member.version)
        except OtherVersionError as error:
            if member.version is None:
                raise
            self._emit("worker_resynced", f"{error.message}; it is sent all weights", member)
            await member.push(self.publisher, newest, None)
        member.sync_s = time.monotonic() - began

    async def _take(self, member: Member) -> list[Work]:
        """Work for a member, as soon as there is any for its version; none once there is a newer version."""
        async with self._changed:
            while True:
                assert self.newest is not None
                if member.version != self.newest.number:
                    return []
                fit = [w for w in self._waiting if w.least_version <= self.newest.number and self._may(member, w)]
                if fit:
                    alike = [w for w in fit if w.terms == fit[0].terms]
                    taken = alike[: share(member, self.members, len(alike))]
                    gone = {id(w) for w in taken}
                    self._waiting = deque(w for w in self._waiting if id(w) not in gone)
                    return taken
                await self._changed.wait()

    def _may(self, member: Member, work: Work) -> bool:
        """Whether a member may do a work: one that failed at it leaves it to the others, if any are up."""
        failed = work.failed_by
        return member.name not in failed or not any(m.state == "up" and m.name not in failed for m in self.members)

    async def _sample(self, member: Member, works: list[Work]) -> None:
        """Have a member sample; what it leaves undone goes back to the queue."""
        open_works = {work.request.id: work for work in works}
        member.under_way, tokens, began = len(works), 0, time.monotonic()
        failed: WorkerError | None = None
        try:
            stream = member.client.rollouts(
                [work.request for work in works],
                works[0].terms,
                Serving(member.version, member.weights),
                vocab_size=member.expected.facts["vocab_size"],
                eos_ids=member.expected.eos_ids,
            )
            async for rollout in stream:
                work = open_works.pop(rollout.id)
                member.under_way -= 1
                if isinstance(rollout, FailedRollout):
                    reason = f"{member.url} could not sample {rollout.id}: {rollout.error}"
                    failed = WorkerError(reason, hint="see its log")
                    self._return([work], member, failed)
                    continue
                tokens += len(rollout.token_ids)
                work.ticket.fill(rollout, member.name)
        except Exception as error:
            self._return(list(open_works.values()), member, _trouble(member, error))
            raise
        finally:
            member.under_way = 0
        if failed is not None:
            raise failed  # without a pause it would take the same work again and again
        member.failures = 0
        rate = tokens / max(1e-6, time.monotonic() - began)
        member.tok_s = rate if not member.tok_s else SMOOTHING * rate + (1 - SMOOTHING) * member.tok_s

    def _return(self, works: Sequence[Work], member: Member, error: SmolsumError) -> None:
        """Queue work that a member failed at again, before later work; after too many failures, fail its ticket."""
        again = []
        for work in works:
            work.failed_by.append(member.name)
            if len(work.failed_by) > self._retries:
                times = f"rollout {work.request.id} failed {len(work.failed_by)} times"
                work.ticket.fail(WorkerError(f"{times}; the last error: {error.message}", hint=error.hint))
            else:
                again.append(work)
        self._waiting.extendleft(reversed(again))
        self._wake()

    def _joined(self, member: Member) -> None:
        """Note that a member is up, for the first time or again."""
        member.state, member.trouble = "up", None
        self._begun = True
        self._emit("worker_up", f"{member.url} samples, with version {member.version}", member)
        if self._stranded_since is not None:
            self._stranded_since = None
            self._emit("workers_back", "sampling goes on", member)
        self._wake()

    def _lost(self, member: Member, error: SmolsumError) -> None:
        """Note that a member has failed."""
        if str(member.trouble) != str(error):  # each trouble is reported once
            self._emit("worker_down", error.message, member, error.hint)
        member.state, member.trouble = "down", error
        # members that are joining do not count as up; before the first has joined no worker can be lost
        if self._begun and self._stranded_since is None and not any(m.state == "up" for m in self.members):
            self._stranded_since = time.monotonic()
            self._emit("workers_lost", "no worker is left; the run waits for one to come back", None, error.hint)
        self._wake()

    def _emit(self, kind: str, message: str, member: Member | None, hint: str | None = None) -> None:
        self.events.put(WorkerEvent(kind, message, hint, member.name if member else None))

    async def _published(self) -> Published:
        """The newest version; waits for the first."""
        async with self._changed:
            await self._changed.wait_for(lambda: self.newest is not None)
        assert self.newest is not None
        return self.newest

    async def _publish(self, version: Version) -> None:
        async with self._publishing:
            published = await asyncio.to_thread(self.publisher.publish, self.newest, version)
            async with self._changed:
                self.newest = published
                self._changed.notify_all()

    def _enqueue(self, works: list[Work]) -> None:
        self._waiting.extend(works)
        self._wake()

    def _wake(self) -> None:
        async def notify() -> None:
            async with self._changed:
                self._changed.notify_all()

        task = self._loop.create_task(notify())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def share(member: Member, members: Sequence[Member], waiting: int) -> int:
    """How many of the waiting rollouts a worker takes: its part, by speed, of all open ones, so that all workers finish
    together. One that failed last time is tried with a single rollout."""
    if member.failures:
        return 1
    up = [m for m in members if m.state == "up"]
    known = [m.tok_s for m in up if m.tok_s]
    usual = sum(known) / len(known) if known else 1.0
    speeds = {m.name: m.tok_s or usual for m in up}
    every = waiting + sum(m.under_way for m in up)
    part = round(every * speeds.get(member.name, usual) / max(1e-9, sum(speeds.values())))
    return max(1, min(waiting, part))


def _trouble(member: Member, error: Exception) -> SmolsumError:
    """The error to report: an answer that breaks our own code must not end the run."""
    if isinstance(error, WorkerError | UsageError):
        return error
    trouble = WorkerError(
        f"{member.url} sent an answer that cannot be understood: {type(error).__name__}: {str(error)[:80]}",
        hint="run the same version of smolsum on both machines",
    )
    trouble.__cause__ = error
    return trouble
