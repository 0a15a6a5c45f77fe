"""Rollouts sampled by workers: weights out, groups in, and how old they may be.

A rollout for step s is sampled with version s - 1 - max_staleness or a later one, so none is ever too old to learn
from: a worker that is not there yet is brought there first. With max_staleness above `sync_every` - 1 the next steps
are asked for before the update begins, and sampled while it runs.

Workers that serve one policy: they are compared with it, brought to its weights and proven to hold them, and sample.

Training (`remote.py`) and evaluation (`smolsum/evaluate/sampling.py`) both work through it.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYetError
from contextlib import suppress
from dataclasses import asdict
from statistics import fmean
from typing import Any

import httpx

from smolsum.config.sections import Config, WorkersConfig
from smolsum.errors import UsageError
from smolsum.policy.load import Policy
from smolsum.policy.sampling import rollout_seed
from smolsum.policy.weights import identity, scores, sequences, served_arrays
from smolsum.rollout.member import Expected, Member, check
from smolsum.rollout.pool import Pool, Ticket
from smolsum.rollout.protocol import Sampled, Terms, Wanted, WorkerClient, WorkerError
from smolsum.rollout.sampler import SampleRequest, decode, from_first
from smolsum.types import Prompt, Rollout, RolloutGroup
from smolsum.weights.publish import Publisher, Version

LOOK_S = 0.2
"""between two looks at events while somebody waits"""
PROBED = 2
"""prompts after which a text is scored to prove a sync"""


class WorkerSampler:
    """The workers of `settings.urls`, from here to `close`.

    `tell` hears of events, their kind, message, hint and worker; `stopping` says whether the user wants to leave, for
    when nothing goes on. The token that workers want is in SMOLSUM_WORKER_TOKEN.
    """

    def __init__(
        self,
        policy: Policy,
        prompts: Sequence[Prompt],
        settings: WorkersConfig,
        *,
        max_new_tokens: int,
        tell: Callable[..., None],
        stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        """`prompts` are those that will be sampled. Raises what `preflight` raises."""
        self.policy, self.settings = policy, settings
        self._tell, self._stopping = tell, stopping
        token = worker_token()
        self._probe = sequences(
            policy,
            [p.token_ids for p in prompts[:PROBED]],
            [p.references[0] if p.references else "" for p in prompts[:PROBED]],
        )
        expected = Expected(identity(policy), max(len(p.token_ids) for p in prompts) + max_new_tokens)
        urls = worker_urls(settings.urls)
        asyncio.run(preflight(urls, token, expected, settings.timeout_s))
        metadata: dict[str, Any] = {"run": secrets.token_hex(8)}
        if policy.lora:
            metadata["lora"] = asdict(policy.lora)
        self._terms = {
            "max_new_tokens": max_new_tokens,
            "vocab_size": expected.facts["vocab_size"],
            "eos_ids": policy.eos_ids,
        }

        def members() -> list[Member]:
            clients = {url: WorkerClient(url, token, timeout_s=settings.timeout_s) for url in urls}
            return [Member(url, client, expected) for url, client in clients.items()]

        publisher = Publisher(anchor_every=settings.anchor_every, metadata=metadata)
        self.pool = Pool(members, publisher, retries=settings.retries)
        self.pool.open()
        self.version: int | None = None
        """the newest that was published"""
        self._publishing: Future[None] | None = None
        self._bytes_told = 0

    def publish(self, version: int) -> None:
        """Send the policy's weights, as they are now, to all workers; they travel beside whatever is done next.

        The first time, wait until every worker is proven to serve them; raises what keeps one from it.
        """
        first = self.version is None
        if self._publishing is not None:
            self._publishing.result()
        weights = Version(version, served_arrays(self.policy), self._probe, scores(self.policy, self._probe))
        self.version, self._publishing = version, self.pool.publish(weights)
        while first and not all(member.state == "up" for member in self.pool.members):
            self.look()
            for trouble in (m.trouble for m in self.pool.members if m.trouble is not None):
                raise trouble
            time.sleep(LOOK_S / 10)

    def submit(self, wanted: Sequence[Wanted], temperature: float, *, least_version: int) -> Ticket:
        """Ask for completions, each sampled with `least_version` or a later one."""
        return self.pool.submit(wanted, Terms(temperature=temperature, **self._terms), least_version=least_version)

    def collect(self, ticket: Ticket) -> dict[str, tuple[Sampled, str]]:
        """What a ticket asked for, by id, with the name of the worker.

        Without any worker, wait `wait_s` for one to come back; then WorkerError.
        """
        while True:
            self.look()
            waited = self.pool.waited_s()
            if waited > self.settings.wait_s or (waited and self._stopping()):
                last = next((m.trouble for m in self.pool.members if m.trouble is not None), None)
                reason, hint = (f"; one of them: {last}", last.hint) if last else ("", None)
                raise WorkerError(f"no worker came back in {waited:.0f} s{reason}", hint=hint)
            with suppress(NotYetError):
                return ticket.result.result(timeout=LOOK_S)

    def rollout(self, found: tuple[Sampled, str], seed: int) -> Rollout:
        """What a worker sampled, with its text."""
        sampled, worker = found
        text = decode(self.policy, sampled.token_ids)
        return Rollout(sampled.token_ids, sampled.logprobs, sampled.finish_reason, sampled.version, worker, seed, text)

    def metrics(self) -> dict[str, float]:
        """Of each worker its speed, lag in versions, open rollouts and bytes pushed so far; what the syncs since the
        last call cost."""
        told: dict[str, float] = {}
        for member in self.pool.members:
            prefix = f"workers/{member.name}"
            told[f"{prefix}/tok_s"], told[f"{prefix}/queue"] = member.tok_s, float(member.under_way)
            told[f"{prefix}/bytes_synced"] = float(member.bytes_synced)
            told[f"{prefix}/up"] = float(member.state == "up")
            if member.version is not None and self.version is not None:
                told[f"{prefix}/lag"] = float(max(0, self.version - member.version))
        pushed = sum(member.bytes_synced for member in self.pool.members)
        told["perf/weight_sync_bytes"], self._bytes_told = float(pushed - self._bytes_told), pushed
        told["perf/weight_sync_s"] = max(member.sync_s for member in self.pool.members)
        if (newest := self.pool.newest) is not None:
            told["perf/weight_encode_s"], told["update/patch_density"] = newest.seconds, newest.density
        return told

    def look(self) -> None:
        """Pass on what happened; raise what broke."""
        while not self.pool.events.empty():
            event = self.pool.events.get()
            self._tell(event.kind, event.message, hint=event.hint, worker=event.worker)
        self.pool.check()
        if self._publishing is not None and self._publishing.done():
            self._publishing.result()

    def close(self) -> None:
        """Let go of the workers."""
        self.pool.close()


def worker_urls(text: str) -> list[str]:
    """The URLs of `workers.urls`. Raises UsageError for what is no URL, or one twice."""
    urls = [url.strip().rstrip("/") for url in text.split(",") if url.strip()]
    for url in urls:
        if not _is_worker(url):
            raise UsageError(f"worker {url!r} is no URL", hint="--worker http://HOST:PORT, as serve-worker prints it")
    if len(set(urls)) < len(urls):
        raise UsageError(f"a worker is named twice: {text}", hint="name each once")
    return urls


def worker_token() -> str | None:
    """SMOLSUM_WORKER_TOKEN, the secret that workers want. Raises UsageError for one that no header can carry."""
    token = os.environ.get("SMOLSUM_WORKER_TOKEN") or None
    if token is not None and not (token.isascii() and token.isprintable() and token.strip() == token):
        raise UsageError("SMOLSUM_WORKER_TOKEN holds white space or other signs", hint="openssl rand -hex 16")
    return token


def _is_worker(url: str) -> bool:
    """Whether this is scheme, host and perhaps port, and nothing else."""
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL:
        return False
    plain = not parsed.userinfo and parsed.raw_path == b"/" and not parsed.fragment and " " not in url
    return parsed.scheme in ("http", "https") and bool(parsed.host) and plain


async def preflight(urls: Sequence[str], token: str | None, expected: Expected, timeout_s: float) -> None:
    """Every worker answers and has the trainer's model, before anything is begun. Raises WorkerError, UsageError."""

    async def one(url: str) -> str:
        client = WorkerClient(url, token, timeout_s=min(timeout_s, 30.0))
        try:
            health: Mapping[str, Any] = await client.health()
            check(url, health, expected)
            return str(health.get("instance", url))
        finally:
            await client.close()

    found = dict[str, str]()
    for url, instance in zip(urls, await asyncio.gather(*(one(url) for url in urls)), strict=True):
        if (other := found.setdefault(instance, url)) != url:
            raise UsageError(f"{other} and {url} are one and the same worker", hint="name it once")


class RemoteSource:
    """Samples through workers; see `smolsum.rollout.sampler.Source`."""

    def __init__(
        self,
        policy: Policy,
        config: Config,
        prompts: Sequence[Prompt],
        *,
        tell: Callable[..., None],
        stopping: Callable[[], bool],
    ) -> None:
        """Arguments and errors as of Fleet."""
        self.config, self.settings = config, config.workers
        self.depth = self.settings.max_staleness - self.settings.sync_every + 1
        self.fleet = WorkerSampler(
            policy,
            prompts,
            self.settings,
            max_new_tokens=config.sampling.max_new_tokens,
            tell=tell,
            stopping=stopping,
        )
        self._tickets: dict[int, Ticket] = {}
        self._staleness: list[int] = []

    def publish(self, version: int, *, always: bool = False) -> None:
        """Send the weights to all workers, where it is due; see `WorkerSampler.publish`."""
        first = self.fleet.version is None
        if version != self.fleet.version and (first or always or version % self.settings.sync_every == 0):
            self.fleet.publish(version)

    def ahead(self, asked: SampleRequest) -> None:
        if asked.step not in self._tickets:
            self._tickets[asked.step] = self._submit(asked)

    def sample(self, asked: SampleRequest) -> list[RolloutGroup]:
        ticket = (self._tickets.pop(asked.step, None) if asked.first_place == 0 else None) or self._submit(asked)
        found = self.fleet.collect(ticket)
        groups = [
            RolloutGroup(
                prompt,
                tuple(
                    self.fleet.rollout(found[_id(asked, p, g)], seed) for g, seed in enumerate(self._seeds(asked, p))
                ),
            )
            for p, prompt in enumerate(asked.prompts)
        ]
        if asked.first_place == 0:
            self._staleness = []
        self._staleness += [asked.step - 1 - r.policy_version for group in groups for r in group.rollouts]
        return from_first(groups, asked.prompts)

    def metrics(self) -> dict[str, float]:
        """Staleness in updates, and what `WorkerSampler.metrics` tells."""
        self.fleet.look()
        staleness = {"staleness/mean": fmean(self._staleness), "staleness/max": float(max(self._staleness))}
        return staleness | self.fleet.metrics()

    def close(self) -> None:
        self.fleet.close()

    def _submit(self, asked: SampleRequest) -> Ticket:
        wanted = [
            Wanted(_id(asked, p, g), prompt.token_ids, seed)
            for p, prompt in enumerate(asked.prompts)
            for g, seed in enumerate(self._seeds(asked, p))
        ]
        oldest = asked.step - 1 - self.settings.max_staleness
        return self.fleet.submit(wanted, asked.temperature, least_version=oldest)

    def _seeds(self, asked: SampleRequest, place: int) -> list[int]:
        spot, name = asked.first_place + place, asked.prompts[place].id
        count = self.config.sampling.rollouts
        return [rollout_seed(self.config.train.seed, asked.step, spot, name, g) for g in range(count)]


def _id(asked: SampleRequest, place: int, sample: int) -> str:
    """A name that no other rollout of the run has."""
    return f"{asked.step}-{asked.first_place + place}-{sample}"
