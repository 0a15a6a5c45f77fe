"""One worker of the pool, and the checks that it serves what the trainer trains.

The checks run before anything is trained (`preflight`) and again whenever a worker joins; their errors name both values
and the remedy.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import urlsplit

from smolsum.errors import SmolsumError, UsageError
from smolsum.rollout.protocol import NEUTRAL_SAMPLING, ExpectedWeights, Health, WorkerClient, WorkerError
from smolsum.weights.publish import Published, Publisher

FACTS = ("architecture", "vocab_size", "tokenizer", "dtype")
TOLERANCE = {"float32": 1e-3, "bfloat16": 5e-2, "float16": 1e-2}
"""mean absolute difference of log-probs, in nats, that rounding of the type explains"""
State = Literal["joining", "up", "down"]


@dataclass(frozen=True)
class ExpectedModel:
    """What the trainer has, and workers must serve."""

    facts: Mapping[str, Any]
    """`smolsum.policy.weights.identity` of the policy"""
    longest: int
    """tokens of the longest prompt and a completion together"""
    eos_ids: frozenset[int] = frozenset()

    @property
    def dtype(self) -> str:
        """Type of the weights."""
        return str(self.facts["dtype"])


@dataclass
class PoolWorker:
    """A worker as the pool sees it. Lives in the pool's event loop; other threads only read it."""

    url: str
    client: WorkerClient
    expected: ExpectedModel
    state: State = "joining"
    version: int | None = None
    """that it serves, if known"""
    weights: str = ""
    """checksum of that version"""
    tok_s: float = 0.0
    """recent speed in tokens sampled a second; 0: not known yet"""
    under_way: int = 0
    """rollouts that it is sampling"""
    bytes_synced: int = 0
    sync_s: float = 0.0
    """seconds of the last sync, from its start to the proof"""
    trouble: SmolsumError | None = None
    """its last error, until it is up again"""
    failures: int = field(default=0, repr=False)
    """in a row"""

    @property
    def name(self) -> str:
        """Host and port."""
        return urlsplit(self.url).netloc

    async def join(self, publisher: Publisher, newest: Published) -> None:
        """Check that it is ready and serves the trainer's model; find out which version it has."""
        self.state, self.version = "joining", None
        health = await self.client.health()
        check(self.url, health, self.expected)
        if health.state != "ready":
            raise WorkerError(f"{self.url} is {health.state}", hint=f"wait; its last error: {health.last_error}")
        if publisher.knows(health.version, health.weights):
            self.version = health.version
        if self.version == newest.number:
            await self._prove(newest)

    async def push(self, publisher: Publisher, newest: Published, held: int | None) -> None:
        """Bring it from version `held` (None: unknown) to the newest; checksum and log-probs must prove it."""
        answer = None
        for body in await asyncio.to_thread(publisher.bodies, newest, held):
            answer = await self.client.put_weights(body)
            self.bytes_synced += len(body)
        assert answer is not None
        if (answer.version, answer.weights) != (newest.number, newest.weights):
            raise WorkerError(
                f"{self.url} was sent version {newest.number} ({newest.weights}) and serves version {answer.version} "
                f"({answer.weights})",
                hint="run the same version of smolsum on both machines",
            )
        await self._prove(newest)

    async def _prove(self, newest: Published) -> None:
        """Check that its log-probs of fixed sequences are the trainer's."""
        probe = newest.version
        if probe.sequences:
            found = await self.client.logprobs(probe.sequences, ExpectedWeights(newest.number, newest.weights))
            check_probe(self.url, found, probe.logprobs, self.expected.dtype)
        self.version, self.weights = newest.number, newest.weights


async def preflight(urls: Sequence[str], token: str | None, expected: ExpectedModel, timeout_s: float) -> None:
    """Check that every worker answers, serves the trainer's model and is named once. Raises WorkerError, UsageError."""

    async def instance(url: str) -> str:
        client = WorkerClient(url, token, timeout_s=min(timeout_s, 30.0))
        try:
            health = await client.health()
            check(url, health, expected)
            return health.instance or url
        finally:
            await client.close()

    found = dict[str, str]()
    for url, name in zip(urls, await asyncio.gather(*map(instance, urls)), strict=True):
        if (other := found.setdefault(name, url)) != url:
            raise UsageError(f"{other} and {url} are the same worker", hint="name it once")


def check(url: str, health: Health, expected: ExpectedModel) -> None:
    """Raise UsageError if the worker's /health shows another policy, or sampling that is not neutral."""
    for name in FACTS:
        if getattr(health, name) != expected.facts[name]:
            remedy = f"--dtype {expected.dtype}" if name == "dtype" else "--model with the model that is trained"
            raise UsageError(
                f"{url} serves another {name}: {getattr(health, name)} there, {expected.facts[name]} here",
                hint=f"start it with smolsum serve-worker {remedy}, and the same version of smolsum",
            )
    neutral = NEUTRAL_SAMPLING
    if cut := {name: value for name, value in health.sampling.items() if value not in neutral.get(name, (value,))}:
        raise UsageError(
            f"{url} changes the distribution that it samples from: {cut} there, nothing here",
            hint="serve the model without a generation_config.json that truncates or penalises",
        )
    if (most := health.max_model_len) is not None and most < expected.longest:
        raise UsageError(
            f"{url} takes {most} tokens of prompt and completion together, and up to {expected.longest} are needed",
            hint=f"smolsum serve-worker --max-model-len {expected.longest}",
        )


def check_probe(url: str, found: Sequence[Sequence[float]], expected: Sequence[Sequence[float]], dtype: str) -> None:
    """Raise WorkerError if the worker's log-probs of fixed sequences are not the trainer's."""
    pairs = [(a, b) for row, other in zip(found, expected, strict=True) for a, b in zip(row, other, strict=True)]
    off = sum(abs(a - b) for a, b in pairs) / len(pairs)
    if not off <= TOLERANCE[dtype]:
        raise WorkerError(
            f"{url} does not sample from the trainer's weights: its log-probs of fixed sequences differ by {off:.3g} "
            f"on average, over {TOLERANCE[dtype]:g}; the first is {pairs[0][0]:.4f} there, {pairs[0][1]:.4f} here",
            hint="serve the model that is trained, in the same type, with the same version of smolsum",
        )
