"""Rollouts sampled by workers: `WorkerSampler` for training and evaluation, and the training loop's source over it.

A rollout for step s is sampled with version s - 1 - max_staleness or a later one, so none is ever too old to learn
from: a worker that is behind gets newer weights first. With max_staleness above `sync_every` - 1 the next steps are
requested before the update begins, and sampled while it runs.
"""

import asyncio
import secrets
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYetError
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import count
from statistics import fmean
from typing import Any

from smolsum.config.fields import worker_urls
from smolsum.config.sections import Config, WorkersConfig
from smolsum.policy import distributed
from smolsum.policy.load import Policy
from smolsum.policy.weights import identity, probe_scores, probe_sequences, served_arrays
from smolsum.rollout.pool import Pool, RolloutBatch
from smolsum.rollout.protocol import RolloutAnswer, SampleRequest, SamplingTerms, worker_token
from smolsum.rollout.sampling_count import SamplingCounter, ShowCount
from smolsum.rollout.source import GroupRequest, Source, decode, from_first, group_seeds
from smolsum.rollout.worker_client import ExpectedModel, PoolWorker, WorkerClient, WorkerError, preflight
from smolsum.types import Prompt, Rollout, RolloutGroup, SamplingProgress, unheard
from smolsum.weights.publish import Publisher, WeightsVersion

POLL_S = 0.2
"""between two checks for events while the caller waits"""
PROBED = 2
"""prompts after which a text is scored to prove a sync"""


@dataclass(frozen=True)
class SubmittedGroups:
    """Groups that workers sample: their prompts, the requests for each prompt, and the batch of all requests."""

    prompts: Sequence[Prompt]
    requests: Sequence[Sequence[SampleRequest]]
    batch: RolloutBatch


class WorkerSampler:
    """The workers of `settings.urls`, brought to the policy's weights and proven to serve them, until `close`.

    `on_event` gets the kind, message, hint and worker of each event; `stopping` says whether the user wants to stop,
    which is checked while no worker is up. The workers' token is in SMOLSUM_WORKER_TOKEN.
    """

    def __init__(
        self,
        policy: Policy,
        prompts: Sequence[Prompt],
        settings: WorkersConfig,
        *,
        max_new_tokens: int,
        on_event: Callable[..., None],
        stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        """`prompts` are all that will be sampled. Raises what `preflight` raises."""
        self.policy, self.settings, self.max_new_tokens = policy, settings, max_new_tokens
        self._on_event, self._stopping = on_event, stopping
        token = worker_token()
        self._probe = probe_sequences(
            policy,
            [p.token_ids for p in prompts[:PROBED]],
            [p.references[0] if p.references else "" for p in prompts[:PROBED]],
        )
        longest = max(len(p.token_ids) for p in prompts) + max_new_tokens
        expected = ExpectedModel(identity(policy), longest, policy.eos_ids)
        urls = worker_urls(settings.urls)
        asyncio.run(preflight(urls, token, expected, settings.timeout_s))
        # the versions of every run count from 0: by this id workers tell them apart
        metadata: dict[str, Any] = {"run": secrets.token_hex(8)}
        if policy.lora:
            metadata["lora"] = asdict(policy.lora)

        def make_workers() -> list[PoolWorker]:
            return [PoolWorker(WorkerClient(url, token, expected, timeout_s=settings.timeout_s)) for url in urls]

        publisher = Publisher(anchor_every=settings.anchor_every, metadata=metadata)
        self.pool = Pool(make_workers, publisher, retries=settings.retries)
        self.pool.open()
        self.version: int | None = None
        """the last published"""
        self._publishing: Future[None] | None = None
        self._bytes_counted, self._numbers = 0, count(1)

    def publish(self, version: int) -> None:
        """Send the policy's present weights to all workers, in the background.

        The first time, wait until every worker is proven to serve them; raises the error of one that does not.
        """
        first = self.version is None
        if self._publishing is not None:
            self._publishing.result()
        scores = probe_scores(self.policy, self._probe)
        weights = WeightsVersion(version, served_arrays(self.policy), self._probe, scores)
        self.version, self._publishing = version, self.pool.publish(weights)
        while first and not all(worker.state == "up" for worker in self.pool.workers):
            self.poll()
            for trouble in (w.trouble for w in self.pool.workers if w.trouble is not None):
                raise trouble
            time.sleep(POLL_S / 10)

    def submit(
        self, prompts: Sequence[Prompt], seeds: Sequence[Sequence[int]], temperature: float, *, least_version: int
    ) -> SubmittedGroups:
        """Request a rollout for each seed of each prompt, sampled with `least_version` or a later one."""
        requests = [
            [SampleRequest(str(next(self._numbers)), prompt.token_ids, seed) for seed in row]
            for prompt, row in zip(prompts, seeds, strict=True)
        ]
        terms = SamplingTerms(temperature, self.max_new_tokens)
        batch = self.pool.submit([each for row in requests for each in row], terms, least_version=least_version)
        return SubmittedGroups(prompts, requests, batch)

    def collect(
        self, submitted: SubmittedGroups, report: Callable[[SamplingProgress], None] = unheard
    ) -> list[RolloutGroup]:
        """Return the groups, in the order of their prompts. `report` is called while the workers sample.

        If no worker is up, waits `wait_s` seconds for one, then raises WorkerError.
        """
        found = None
        while found is None:
            self.poll()
            waited = self.pool.waited_s()
            if waited > self.settings.wait_s or (waited and self._stopping()):
                last = next((w.trouble for w in self.pool.workers if w.trouble is not None), None)
                reason, hint = (f"; the error of one: {last}", last.hint) if last else ("", None)
                raise WorkerError(f"no worker came back in {waited:.0f} s{reason}", hint=hint)
            with suppress(NotYetError):
                found = submitted.batch.result.result(timeout=POLL_S)
            report(submitted.batch.progress)
        return [
            RolloutGroup(prompt, tuple(self._rollout(*found[request.id], request.seed) for request in row))
            for prompt, row in zip(submitted.prompts, submitted.requests, strict=True)
        ]

    def _rollout(self, answer: RolloutAnswer, worker: str, seed: int) -> Rollout:
        text = decode(self.policy, answer.token_ids)
        return Rollout(answer.token_ids, answer.logprobs, answer.finish_reason, answer.version, worker, seed, text)

    def metrics(self) -> dict[str, float]:
        """Return each worker's speed, lag in versions, open rollouts and bytes sent so far; the cost of the syncs since
        the last call."""
        found: dict[str, float] = {}
        for worker in self.pool.workers:
            prefix = f"workers/{worker.name}"
            found[f"{prefix}/tok_s"], found[f"{prefix}/queue"] = worker.tok_s, float(worker.under_way)
            found[f"{prefix}/bytes_synced"] = float(worker.bytes_synced)
            found[f"{prefix}/up"] = float(worker.state == "up")
            if worker.version is not None and self.version is not None:
                found[f"{prefix}/lag"] = float(max(0, self.version - worker.version))
        sent = sum(worker.bytes_synced for worker in self.pool.workers)
        found["perf/weight_sync_bytes"], self._bytes_counted = float(sent - self._bytes_counted), sent
        found["perf/weight_sync_s"] = max(worker.sync_s for worker in self.pool.workers)
        if (newest := self.pool.newest) is not None:
            found["perf/weight_encode_s"], found["update/patch_density"] = newest.seconds, newest.density
        return found

    def poll(self) -> None:
        """Pass on new events; raise the errors of the pool and of publishing."""
        while not self.pool.events.empty():
            event = self.pool.events.get()
            self._on_event(event.kind, event.message, hint=event.hint, worker=event.worker)
        if self.pool.failure is not None:
            raise self.pool.failure
        if self._publishing is not None and self._publishing.done():
            self._publishing.result()

    def close(self) -> None:
        self.pool.close()


class RemoteSource(Source):
    """Samples through workers."""

    def __init__(
        self,
        policy: Policy,
        config: Config,
        prompts: Sequence[Prompt],
        *,
        on_event: Callable[..., None],
        stopping: Callable[[], bool],
        show: ShowCount = lambda count: None,
    ) -> None:
        """`show` gets the count of a request's completions as they come; the rest and what is raised are those of
        WorkerSampler."""
        self.config, self.settings, self._show = config, config.workers, show
        self.depth = self.settings.max_staleness - self.settings.sync_every + 1
        self.sampler = WorkerSampler(
            policy,
            prompts,
            self.settings,
            max_new_tokens=config.sampling.max_new_tokens,
            on_event=on_event,
            stopping=stopping,
        )
        self._ahead: dict[int, SubmittedGroups] = {}
        """by step"""
        self._staleness: list[int] = []

    def publish(self, version: int, *, always: bool = False) -> None:
        """Send the weights to all workers if a sync is due; see `WorkerSampler.publish`."""
        first = self.sampler.version is None
        if version != self.sampler.version and (first or always or version % self.settings.sync_every == 0):
            self.sampler.publish(version)

    def ahead(self, request: GroupRequest) -> None:
        if request.step not in self._ahead:
            self._ahead[request.step] = self._submit(request)

    def sample(self, request: GroupRequest) -> list[RolloutGroup]:
        submitted = self._ahead.pop(request.step, None) if request.first_place == 0 else None

        def collect() -> list[RolloutGroup]:
            count = SamplingCounter(len(request.prompts) * self.config.sampling.rollouts, self._show)
            count.begin()
            groups = self.sampler.collect(submitted or self._submit(request), count.within)
            count.add(groups)
            return groups

        groups = distributed.together(collect)
        if request.first_place == 0:
            self._staleness = []
        self._staleness += [request.step - 1 - r.policy_version for group in groups for r in group.rollouts]
        return from_first(groups, request.prompts)

    def metrics(self) -> dict[str, float]:
        """Return staleness in updates, and `WorkerSampler.metrics`."""
        self.sampler.poll()
        staleness = {"staleness/mean": fmean(self._staleness), "staleness/max": float(max(self._staleness))}
        return staleness | self.sampler.metrics()

    def close(self) -> None:
        self.sampler.close()

    def _submit(self, request: GroupRequest) -> SubmittedGroups:
        seeds = group_seeds(request, self.config.sampling.rollouts, self.config.train.seed)
        oldest = request.step - 1 - self.settings.max_staleness
        return self.sampler.submit(request.prompts, seeds, request.temperature, least_version=oldest)
