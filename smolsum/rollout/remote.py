"""Rollouts sampled by workers: weights out, groups in, and how old they may be.

A rollout for step s is sampled with version s - 1 - max_staleness or a later one, so none is ever too old to learn
from: a worker that is not there yet is brought there first. With max_staleness above `sync_every` - 1 the next steps
are asked for before the update begins, and sampled while it runs.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYetError
from contextlib import suppress
from dataclasses import asdict
from statistics import fmean
from typing import Any

from smolsum.config import Config
from smolsum.errors import UsageError
from smolsum.policy.generate import rollout_seed
from smolsum.policy.identity import identity
from smolsum.policy.load import Policy
from smolsum.policy.probe import scores, sequences
from smolsum.policy.served import served_arrays
from smolsum.rollout.exchange import from_first
from smolsum.rollout.http import Sampled, Terms, Wanted, WorkerClient, WorkerError
from smolsum.rollout.local import decode
from smolsum.rollout.member import Member
from smolsum.rollout.pool import Pool, Ticket
from smolsum.rollout.preflight import Expected, check
from smolsum.rollout.records import Prompt, Rollout, RolloutGroup
from smolsum.rollout.source import Asked
from smolsum.weights.publish import Publisher, Version

LOOK_S = 0.2
"""between two looks at events while the trainer waits"""
PROBED = 2
"""prompts whose references are scored after each sync"""


class RemoteSource:
    """Samples through a pool of workers; see `smolsum.rollout.source.Source`.

    `tell` hears of events, their kind, message, hint and worker; `stopping` says whether the user wants to leave, for
    when nothing goes on.
    """

    def __init__(
        self,
        policy: Policy,
        config: Config,
        prompts: Sequence[Prompt],
        token: str | None,
        *,
        tell: Callable[..., None],
        stopping: Callable[[], bool],
    ) -> None:
        """Raises what `preflight` raises."""
        self.policy, self.config, self.settings = policy, config, config.workers
        self.depth = self.settings.max_staleness - self.settings.sync_every + 1
        self._tell, self._stopping = tell, stopping
        self._probe = sequences(
            policy, [p.token_ids for p in prompts[:PROBED]], [p.references[0] for p in prompts[:PROBED]]
        )
        expected = Expected(identity(policy), max(len(p.token_ids) for p in prompts) + config.sampling.max_new_tokens)
        urls = worker_urls(self.settings.urls)
        asyncio.run(preflight(urls, token, expected, self.settings.timeout_s))
        metadata: dict[str, Any] = {"run": secrets.token_hex(8)}
        if policy.lora:
            metadata["lora"] = asdict(policy.lora)
        self._terms = {
            "max_new_tokens": config.sampling.max_new_tokens,
            "vocab_size": expected.facts["vocab_size"],
            "eos_ids": policy.eos_ids,
        }

        def members() -> list[Member]:
            clients = {url: WorkerClient(url, token, timeout_s=self.settings.timeout_s) for url in urls}
            return [Member(url, client, expected) for url, client in clients.items()]

        self.pool = Pool(
            members,
            Publisher(anchor_every=self.settings.anchor_every, metadata=metadata),
            retries=self.settings.retries,
        )
        self.pool.open()
        self._version: int | None = None
        self._publishing: Future[None] | None = None
        self._tickets: dict[int, Ticket] = {}
        self._staleness: list[int] = []
        self._bytes_told = 0

    def publish(self, version: int, *, always: bool = False) -> None:
        """Send the weights to all workers, where it is due; they travel beside whatever the trainer does next.

        The first time, wait until every worker is proven to serve them; raises what keeps one from it.
        """
        first = self._version is None
        if version == self._version or not (first or always or version % self.settings.sync_every == 0):
            return
        if self._publishing is not None:
            self._publishing.result()
        weights = Version(version, served_arrays(self.policy), self._probe, scores(self.policy, self._probe))
        self._version, self._publishing = version, self.pool.publish(weights)
        if first:
            while not all(member.state == "up" for member in self.pool.members):
                self._look()
                for trouble in (m.trouble for m in self.pool.members if m.trouble is not None):
                    raise trouble
                time.sleep(LOOK_S / 10)

    def ahead(self, asked: Asked) -> None:
        if asked.step not in self._tickets:
            self._tickets[asked.step] = self._submit(asked)

    def sample(self, asked: Asked) -> list[RolloutGroup]:
        ticket = (self._tickets.pop(asked.step, None) if asked.first_place == 0 else None) or self._submit(asked)
        found = self._awaited(ticket)
        groups = [
            RolloutGroup(
                prompt,
                tuple(self._rollout(*found[_id(asked, p, g)], seed) for g, seed in enumerate(self._seeds(asked, p))),
            )
            for p, prompt in enumerate(asked.prompts)
        ]
        if asked.first_place == 0:
            self._staleness = []
        self._staleness += [asked.step - 1 - r.policy_version for group in groups for r in group.rollouts]
        return from_first(groups, asked.prompts)

    def metrics(self) -> dict[str, float]:
        """Staleness in updates; of each worker its speed, lag in versions, open rollouts and bytes pushed so far; what
        the syncs since the last call cost."""
        told = {"staleness/mean": fmean(self._staleness), "staleness/max": float(max(self._staleness))}
        for member in self.pool.members:
            prefix = f"workers/{member.name}"
            told[f"{prefix}/tok_s"], told[f"{prefix}/queue"] = member.tok_s, float(member.under_way)
            told[f"{prefix}/bytes_synced"] = float(member.bytes_synced)
            told[f"{prefix}/up"] = float(member.state == "up")
            if member.version is not None and self._version is not None:
                told[f"{prefix}/lag"] = float(max(0, self._version - member.version))
        pushed = sum(member.bytes_synced for member in self.pool.members)
        told["perf/weight_sync_bytes"], self._bytes_told = float(pushed - self._bytes_told), pushed
        told["perf/weight_sync_s"] = max(member.sync_s for member in self.pool.members)
        if (newest := self.pool.newest) is not None:
            told["perf/weight_encode_s"], told["update/patch_density"] = newest.seconds, newest.density
        self._look()
        return told

    def close(self) -> None:
        self.pool.close()

    def _submit(self, asked: Asked) -> Ticket:
        wanted = [
            Wanted(_id(asked, p, g), prompt.token_ids, seed)
            for p, prompt in enumerate(asked.prompts)
            for g, seed in enumerate(self._seeds(asked, p))
        ]
        terms = Terms(temperature=asked.temperature, **self._terms)
        return self.pool.submit(wanted, terms, least_version=asked.step - 1 - self.settings.max_staleness)

    def _seeds(self, asked: Asked, place: int) -> list[int]:
        spot, name = asked.first_place + place, asked.prompts[place].id
        count = self.config.sampling.rollouts
        return [rollout_seed(self.config.train.seed, asked.step, spot, name, g) for g in range(count)]

    def _rollout(self, sampled: Sampled, worker: str, seed: int) -> Rollout:
        text = decode(self.policy, sampled.token_ids)
        return Rollout(sampled.token_ids, sampled.logprobs, sampled.finish_reason, sampled.version, worker, seed, text)

    def _awaited(self, ticket: Ticket) -> dict[str, tuple[Sampled, str]]:
        """What a ticket asked for. Without any worker, wait `wait_s` for one to come back; then WorkerError."""
        while True:
            self._look()
            waited = self.pool.waited_s()
            if waited > self.settings.wait_s or (waited and self._stopping()):
                last = next((m.trouble for m in self.pool.members if m.trouble is not None), None)
                reason, hint = (f"; one of them: {last}", last.hint) if last else ("", None)
                raise WorkerError(f"no worker came back in {waited:.0f} s{reason}", hint=hint)
            with suppress(NotYetError):
                return ticket.result.result(timeout=LOOK_S)

    def _look(self) -> None:
        """Pass on what happened; raise what broke."""
        while not self.pool.events.empty():
            event = self.pool.events.get()
            self._tell(event.kind, event.message, hint=event.hint, worker=event.worker)
        self.pool.check()
        if self._publishing is not None and self._publishing.done():
            self._publishing.result()


def worker_urls(text: str) -> list[str]:
    """The URLs of `workers.urls`. Raises UsageError for what is no URL, or one twice."""
    urls = [url.strip().rstrip("/") for url in text.split(",") if url.strip()]
    for url in urls:
        if not url.startswith(("http://", "https://")) or len(url.split("/")) != 3 or " " in url:
            raise UsageError(f"worker {url!r} is no URL", hint="--worker http://HOST:PORT, as serve-worker prints it")
    if len(set(urls)) < len(urls):
        raise UsageError(f"a worker is named twice: {text}", hint="name each once")
    return urls


async def preflight(urls: Sequence[str], token: str | None, expected: Expected, timeout_s: float) -> None:
    """Every worker answers and has the trainer's model, before anything is begun. Raises WorkerError, UsageError."""

    async def one(url: str) -> None:
        client = WorkerClient(url, token, timeout_s=min(timeout_s, 30.0))
        try:
            health: Mapping[str, Any] = await client.health()
            check(url, health, expected)
        finally:
            await client.close()

    await asyncio.gather(*(one(url) for url in urls))


def _id(asked: Asked, place: int, sample: int) -> str:
    """A name that no other rollout of the run has."""
    return f"{asked.step}-{asked.first_place + place}-{sample}"
