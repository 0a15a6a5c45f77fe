"""The workers together: who samples what, what happens to the work of one that dies, and who waits for whom.

All of it happens in one event loop in a thread of its own; the trainer hands in tickets and waits for them.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from smolsum.errors import SmolsumError
from smolsum.rollout.member import Member, Work, share
from smolsum.rollout.protocol import Sampled, Terms, Wanted, WorkerError
from smolsum.weights.publish import Published, Publisher, Version


@dataclass(frozen=True)
class Event:
    """Something that a user should know; `worker` is a member's name."""

    kind: str
    message: str
    hint: str | None
    worker: str | None


class Ticket:
    """Rollouts that were asked for together; `result` has each by its id, with the name of the worker."""

    def __init__(self, ids: Sequence[str]) -> None:
        self.result: Future[dict[str, tuple[Sampled, str]]] = Future()
        self._open = set(ids)
        self._found: dict[str, tuple[Sampled, str]] = {}

    def fill(self, name: str, sampled: Sampled, worker: str) -> None:
        """Take one rollout."""
        self._open.discard(name)
        self._found[name] = (sampled, worker)
        if not self._open and not self.result.done():
            self.result.set_result(self._found)

    def fail(self, error: WorkerError) -> None:
        """Give up on all of it."""
        if not self.result.done():
            self.result.set_exception(error)


class Pool:
    """Workers that sample for one trainer, from `open` to `close`.

    `members` makes them in the pool's event loop. A rollout that failed more than `retries` times fails its ticket.
    """

    def __init__(self, members: Callable[[], list[Member]], publisher: Publisher, *, retries: int) -> None:
        self.publisher, self.members = publisher, list[Member]()
        self.events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self.newest: Published | None = None
        self.failure: BaseException | None = None
        self._make, self._retries = members, retries
        self._waiting: deque[Work] = deque()
        self._begun = False
        self._stranded_since: float | None = None
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="worker pool", daemon=True)

    def open(self) -> None:
        """Start the event loop; members join once something is published."""
        self._thread.start()
        self._ready.wait()

    def close(self) -> None:
        """End all that is under way, and wait for it."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._closing.set)
            self._thread.join()

    def publish(self, version: Version) -> Future[None]:
        """Bring all workers to this version, each as soon as it has nothing under way; versions keep their order."""
        return asyncio.run_coroutine_threadsafe(self._publish(version), self._loop)

    def submit(self, wanted: Sequence[Wanted], terms: Terms, *, least_version: int) -> Ticket:
        """Ask for rollouts, each sampled with `least_version` or a later one; what was asked for first comes first."""
        ticket = Ticket([w.id for w in wanted])
        works = [Work(w, terms, least_version, ticket) for w in wanted]
        self._loop.call_soon_threadsafe(self._enqueue, works)
        return ticket

    def check(self) -> None:
        """Raise what broke the pool itself."""
        if self.failure is not None:
            raise self.failure

    def waited_s(self) -> float:
        """Seconds since the last worker was lost; 0 while there is one."""
        since = self._stranded_since
        return 0.0 if since is None else time.monotonic() - since

    # what follows runs in the event loop, for the members

    async def published(self) -> Published:
        """The newest version; waits for the first."""
        async with self._changed:
            await self._changed.wait_for(lambda: self.newest is not None)
        assert self.newest is not None
        return self.newest

    async def take(self, member: Member) -> list[Work]:
        """Work for a member, once there is some that its version may do; none once there is a newer version."""
        async with self._changed:
            while True:
                assert self.newest is not None
                if member.version != self.newest.number:
                    return []
                fit = [w for w in self._waiting if w.least_version <= self.newest.number and self._falls_to(member, w)]
                if fit:
                    alike = [w for w in fit if w.terms == fit[0].terms]
                    taken = alike[: share(member, self.members, len(alike))]
                    gone = {id(w) for w in taken}
                    self._waiting = deque(w for w in self._waiting if id(w) not in gone)
                    return taken
                await self._changed.wait()

    def _falls_to(self, member: Member, work: Work) -> bool:
        """Whether a member may do a work: one that failed at it leaves it to others, while there are any."""
        failed = work.failed_by
        return member.name not in failed or not any(m.state == "up" and m.name not in failed for m in self.members)

    def done(self, work: Work, sampled: Sampled, member: Member) -> None:
        """A rollout is there."""
        work.ticket.fill(work.wanted.id, sampled, member.name)

    def undone(self, works: Sequence[Work], member: Member, error: SmolsumError) -> None:
        """A member failed at these: they are to be sampled again, before what came later; after too many failures,
        never."""
        again = []
        for work in works:
            work.failed_by.append(member.name)
            if len(work.failed_by) > self._retries:
                work.ticket.fail(
                    WorkerError(
                        f"rollout {work.wanted.id} failed {len(work.failed_by)} times, at last so: {error.message}",
                        hint=error.hint,
                    )
                )
            else:
                again.append(work)
        self._waiting.extendleft(reversed(again))
        self._wake()

    def joined(self, member: Member) -> None:
        """A member is there, or back."""
        assert member.version is not None
        self._begun = True
        self.tell("worker_up", f"{member.url} samples, with version {member.version}", member)
        if self._stranded_since is not None:
            self._stranded_since = None
            self.tell("workers_back", "sampling goes on", member)
        self._wake()

    def lost(self, member: Member, error: SmolsumError) -> None:
        """A member has failed; it tries to come back by itself."""
        if str(member.trouble) != str(error):  # said once
            self.tell("worker_down", error.message, member, error.hint)
        member.state, member.trouble = "down", error
        # one that is tried again is no help yet, but before the first has joined there is nothing to lose
        if self._begun and self._stranded_since is None and not any(m.state == "up" for m in self.members):
            self._stranded_since = time.monotonic()
            self.tell("workers_lost", "no worker is left; the run waits for one to come back", None, error.hint)
        self._wake()

    def tell(self, kind: str, message: str, member: Member | None, hint: str | None = None) -> None:
        """Something for the run's events."""
        self.events.put(Event(kind, message, hint, member.name if member else None))

    def _enqueue(self, works: list[Work]) -> None:
        self._waiting.extend(works)
        self._wake()

    def _wake(self) -> None:
        async def notify() -> None:
            async with self._changed:
                self._changed.notify_all()

        self._spawn(notify())

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _publish(self, version: Version) -> None:
        async with self._publishing:
            published = await asyncio.to_thread(self.publisher.publish, self.newest, version)
            async with self._changed:
                self.newest = published
                self._changed.notify_all()

    def _run(self) -> None:
        asyncio.run(self._main())

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._changed, self._publishing, self._closing = asyncio.Condition(), asyncio.Lock(), asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self.members = self._make()
        runs = [asyncio.create_task(member.run(self)) for member in self.members]
        self._ready.set()
        closing = asyncio.create_task(self._closing.wait())
        # a member's loop ends by no error that it expects
        await asyncio.wait([closing, *runs], return_when=asyncio.FIRST_COMPLETED)
        self.failure = next((run.exception() for run in runs if run.done()), None)
        for task in [*runs, *self._tasks]:
            task.cancel()
        await asyncio.gather(*runs, *self._tasks, return_exceptions=True)
        with contextlib.suppress(Exception):
            await asyncio.gather(*(member.client.close() for member in self.members))
