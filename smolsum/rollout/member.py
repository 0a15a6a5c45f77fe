"""One worker of the pool: it joins, is brought up to date, takes work, fails, and comes back.

Whether a worker serves what the trainer trains: said before anything is trained, with both values and the remedy.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from smolsum.errors import SmolsumError, UsageError
from smolsum.rollout.protocol import OtherVersionError, Serving, Terms, Wanted, WorkerClient, WorkerError
from smolsum.weights.publish import Published

if TYPE_CHECKING:
    from smolsum.rollout.pool import Pool


FACTS = ("architecture", "vocab_size", "tokenizer", "dtype")
NEUTRAL = {
    "top_p": (1,),
    "top_k": (0, -1),
    "min_p": (0,),
    "repetition_penalty": (1,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
}
"""sampling parameters with the values that leave the distribution as it is"""
TOLERANCE = {"float32": 1e-3, "bfloat16": 5e-2, "float16": 1e-2}
"""mean absolute difference of log-probs, in nats, that rounding of the type explains"""


@dataclass(frozen=True)
class Expected:
    """What the trainer has."""

    facts: Mapping[str, Any]
    """as `smolsum.policy.weights.identity` tells"""
    longest: int
    """tokens of the longest prompt and a completion together"""

    @property
    def dtype(self) -> str:
        """Type of the weights."""
        return str(self.facts["dtype"])


def check(url: str, health: Mapping[str, Any], expected: Expected) -> None:
    """UsageError where the worker's /health shows another policy, or sampling that is not neutral."""
    for name in FACTS:
        if health.get(name) != expected.facts[name]:
            remedy = f"--dtype {expected.dtype}" if name == "dtype" else "--model with the model that is trained"
            raise UsageError(
                f"{url} serves another {name}: {health.get(name)} there, {expected.facts[name]} here",
                hint=f"start it with smolsum serve-worker {remedy}, and the same version of smolsum",
            )
    sampling: Mapping[str, Any] = health.get("sampling") or {}
    if cut := {name: value for name, value in sampling.items() if value not in NEUTRAL.get(name, (value,))}:
        raise UsageError(
            f"{url} cuts or bends the distribution that it samples from: {cut} there, nothing here",
            hint="serve the model without a generation_config.json that cuts or penalises",
        )
    if (most := health.get("max_model_len")) is not None and most < expected.longest:
        raise UsageError(
            f"{url} takes {most} tokens of prompt and completion together, and up to {expected.longest} are needed",
            hint=f"smolsum serve-worker --max-model-len {expected.longest}",
        )


def check_probe(url: str, found: Sequence[Sequence[float]], expected: Sequence[Sequence[float]], dtype: str) -> None:
    """WorkerError where the worker's log-probs of fixed sequences are not those of the trainer."""
    pairs = [(a, b) for row, other in zip(found, expected, strict=True) for a, b in zip(row, other, strict=True)]
    off = sum(abs(a - b) for a, b in pairs) / len(pairs)
    if not off <= TOLERANCE[dtype]:
        raise WorkerError(
            f"{url} does not sample from the trainer's weights: its log-probs of fixed sequences are {off:.3g} off in "
            f"the mean, over {TOLERANCE[dtype]:g}; the first is {pairs[0][0]:.4f} there, {pairs[0][1]:.4f} here",
            hint="serve the model that is trained, in the same type, and the same version of smolsum",
        )


State = Literal["joining", "up", "down"]
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 30.0
"""before a worker that failed is tried again; doubled each time"""
SMOOTHING = 0.5
"""weight of the last request in the measured speed"""


@dataclass
class Work:
    """A rollout that nobody has sampled yet."""

    wanted: Wanted
    terms: Terms
    least_version: int
    """that it may be sampled with"""
    ticket: Any
    """the pool's, to which the result belongs"""
    failed_by: list[str] = field(default_factory=list)
    """names of the members that failed at it, one for each time"""


@dataclass
class Member:
    """A worker as the pool knows it. Lives in the pool's event loop; others only read."""

    url: str
    client: WorkerClient
    expected: Expected
    state: State = "joining"
    version: int | None = None
    """that it serves, as far as is known"""
    weights: str = ""
    """checksum of that version"""
    tok_s: float = 0.0
    """tokens sampled a second, lately; 0: not known yet"""
    under_way: int = 0
    """rollouts that it is sampling"""
    bytes_synced: int = 0
    sync_s: float = 0.0
    """seconds of the last push, from its start to the proof"""
    trouble: SmolsumError | None = None
    """what went wrong last, until it is well again"""
    failures: int = field(default=0, repr=False)

    @property
    def name(self) -> str:
        """Host and port."""
        return urlsplit(self.url).netloc

    async def run(self, pool: Pool) -> None:
        """For as long as the pool is open."""
        while True:
            try:
                await self._join(pool)
                while True:
                    await self._catch_up(pool)
                    await self._work(pool)
            except Exception as error:
                pool.lost(self, self._trouble(error))
                self.failures += 1
                await asyncio.sleep(min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** (self.failures - 1)))

    def _trouble(self, error: Exception) -> SmolsumError:
        """What is said of an error: one worker that answers what nobody thought of must not end the run."""
        if isinstance(error, WorkerError | UsageError):
            return error
        trouble = WorkerError(
            f"{self.url} answered what cannot be understood: {type(error).__name__}: {str(error)[:80]}",
            hint="run the same version of smolsum on both machines",
        )
        trouble.__cause__ = error
        return trouble

    async def _join(self, pool: Pool) -> None:
        """See that it is there, ready, and the trainer's own model."""
        self.state, self.version = "joining", None
        health = await self.client.health()
        check(self.url, health, self.expected)
        if health.get("state") != "ready":
            raise WorkerError(
                f"{self.url} is {health.get('state')}", hint=f"wait; its last error: {health.get('last_error')}"
            )
        published = await pool.published()
        if pool.publisher.knows(health.get("version"), health.get("weights")):
            self.version = health["version"]
        if self.version == published.number:
            await self._prove(published)

    async def _catch_up(self, pool: Pool) -> None:
        """Bring it to the newest version, proven by checksum and by log-probs."""
        published = await pool.published()
        if self.version == published.number:
            return
        began = time.monotonic()
        try:
            await self._push(pool, published, self.version)
        except OtherVersionError as error:
            if self.version is None:
                raise
            pool.tell("worker_resynced", f"{error.message}; it is given all weights", self)
            await self._push(pool, published, None)
        self.sync_s = time.monotonic() - began

    async def _push(self, pool: Pool, published: Published, held: int | None) -> None:
        for body in await asyncio.to_thread(pool.publisher.bodies, published, held):
            version, weights = await self.client.put_weights(body)
            self.bytes_synced += len(body)
        if version != published.number or weights != published.weights:
            raise WorkerError(
                f"{self.url} was given version {published.number} ({published.weights}) and serves version {version} "
                f"({weights})",
                hint="run the same version of smolsum on both machines",
            )
        await self._prove(published)

    async def _prove(self, published: Published) -> None:
        """Its log-probs of fixed sequences are the trainer's."""
        known = published.version
        if known.sequences:
            found = await self.client.logprobs(known.sequences, Serving(published.number, published.weights))
            check_probe(self.url, found, known.logprobs, self.expected.dtype)
        self.version, self.weights = published.number, published.weights

    async def _work(self, pool: Pool) -> None:
        """Sample what it is given; what it leaves undone goes back."""
        if self.state != "up":
            self.state, self.trouble = "up", None
            pool.joined(self)
        works = await pool.take(self)
        if not works:
            return  # there are newer weights
        open_works = {work.wanted.id: work for work in works}
        self.under_way, tokens, began = len(works), 0, time.monotonic()
        assert self.version is not None
        failed: WorkerError | None = None
        serving = Serving(self.version, self.weights)
        try:
            stream = self.client.rollouts([work.wanted for work in works], works[0].terms, serving)
            async for name, sampled in stream:
                work = open_works.pop(name)
                self.under_way -= 1
                if isinstance(sampled, str):
                    failed = WorkerError(f"{self.url} could not sample {name}: {sampled}", hint="see its log")
                    pool.undone([work], self, failed)
                    continue
                tokens += len(sampled.token_ids)
                pool.done(work, sampled, self)
        except Exception as error:
            pool.undone(list(open_works.values()), self, self._trouble(error))
            raise
        finally:
            self.under_way = 0
        if failed is not None:
            raise failed  # or it would take the same work again and again
        self.failures = 0
        rate = tokens / max(1e-6, time.monotonic() - began)
        self.tok_s = rate if not self.tok_s else SMOOTHING * rate + (1 - SMOOTHING) * self.tok_s


def share(member: Member, members: Sequence[Member], waiting: int) -> int:
    """How many of the rollouts that wait a worker should take: its part, by speed, of all that are open, so that all
    end together. One that failed last time is tried with a single one."""
    if member.failures:
        return 1
    up = [m for m in members if m.state == "up"]
    known = [m.tok_s for m in up if m.tok_s]
    usual = sum(known) / len(known) if known else 1.0
    speeds = {m.name: m.tok_s or usual for m in up}
    every = waiting + sum(m.under_way for m in up)
    part = round(every * speeds.get(member.name, usual) / max(1e-9, sum(speeds.values())))
    return max(1, min(waiting, part))
