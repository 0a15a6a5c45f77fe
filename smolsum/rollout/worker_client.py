"""The trainer's client of a worker, a worker of the pool, and the checks that it serves what the trainer trains.

The client checks every answer before it returns it: a rollout that was not requested, token ids outside the vocabulary,
log-probs that are not numbers, and a stream that ends early all raise WorkerError, and the caller decides what to do.
The checks of the model run before anything is trained (`preflight`) and again whenever a worker joins; their errors
name both values and the hint.
"""

import asyncio
import socket
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar
from urllib.parse import urlsplit

import httpx
import msgspec

from smolsum.config.fields import worker_urls
from smolsum.errors import SmolsumError, UnreachableError, UsageError
from smolsum.rollout import protocol
from smolsum.weights.publish import Published, Publisher

CONNECT_S, HEALTH_S = 10.0, 15.0
"""timeouts for a connection and for an answer that needs no computation"""
RESERVED_S = 3.0
"""for the answer of a worker on this machine about its memory"""
COMPARED_FIELDS = ("architecture", "vocab_size", "tokenizer", "dtype")
"""of a worker's /health, which have to be the trainer's"""
TOLERANCE = {"float32": 1e-3, "bfloat16": 5e-2, "float16": 1e-2}
"""mean absolute difference of log-probs, in nats, that rounding of the type explains"""
State = Literal["joining", "up", "down"]
T = TypeVar("T")


class WorkerError(UnreachableError):
    """A worker failed or answered wrongly. Another worker may succeed, or the same one later."""


class OtherVersionError(WorkerError):
    """The worker serves another policy version than the request was for."""


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


class WorkerClient:
    """HTTP client of one worker, for one event loop.

    `timeout_s` is the longest time without an answer, or between two rollouts of a stream.
    """

    def __init__(self, url: str, token: str | None, expected: ExpectedModel, *, timeout_s: float) -> None:
        self.url, self.expected, self._timeout_s = url.rstrip("/"), expected, timeout_s
        self._http = httpx.AsyncClient(
            base_url=self.url,
            headers={"authorization": f"Bearer {token}"} if token else {},
            timeout=httpx.Timeout(timeout_s, connect=CONNECT_S),
            trust_env=False,  # workers are on the local network, where a proxy would only get in the way
        )

    async def close(self) -> None:
        await self._http.aclose()

    async def health(self, within_s: float = HEALTH_S) -> protocol.Health:
        """GET /health, with a shorter timeout."""
        return await self._call("GET", "/health", protocol.Health, timeout_s=min(within_s, self._timeout_s))

    async def put_weights(self, body: bytes) -> protocol.WeightsAnswer:
        """Send a patch or an anchor; returns what the worker serves afterwards."""
        return await self._call("PUT", "/v1/weights", protocol.WeightsAnswer, content=body)

    async def logprobs(
        self, sequences: Sequence[tuple[Sequence[int], Sequence[int]]], expected: protocol.ExpectedWeights
    ) -> list[list[float]]:
        """Return log-probs, at temperature 1, of the completion in each pair of prompt and completion token ids."""
        scored = tuple(protocol.ScoredSequence(tuple(prompt), tuple(completion)) for prompt, completion in sequences)
        body = protocol.LogprobsBody(version=expected.version, weights=expected.weights, sequences=scored)
        answer = await self._call("POST", "/v1/logprobs", protocol.LogprobsAnswer, content=msgspec.json.encode(body))
        if [len(row) for row in answer.logprobs] != [len(completion) for _, completion in sequences]:
            raise self._nonsense("its log-probs do not match the tokens of the sequences")
        return [list(row) for row in answer.logprobs]

    async def rollouts(
        self,
        requests: Sequence[protocol.SampleRequest],
        terms: protocol.SamplingTerms,
        expected: protocol.ExpectedWeights,
    ) -> AsyncIterator[protocol.RolloutAnswer | protocol.FailedRollout]:
        """Yield each rollout as it ends.

        The stream ends once each id has come exactly once. Anything else raises WorkerError.
        """
        body = protocol.RolloutsBody(
            version=expected.version,
            weights=expected.weights,
            temperature=terms.temperature,
            max_new_tokens=terms.max_new_tokens,
            requests=tuple(requests),
        )
        open_ids = {request.id for request in requests}
        async with (
            self._within(self._timeout_s) as deadline,
            self._http.stream("POST", "/v1/rollouts", content=msgspec.json.encode(body)) as response,
        ):
            if response.status_code != 200:
                raise self._refusal(response.status_code, await response.aread())
            async for line in response.aiter_lines():
                fields = self._parse(line, dict[str, Any])
                if "done" in fields:
                    break
                rollout: protocol.RolloutAnswer | protocol.FailedRollout
                if "error" in fields:
                    rollout = self._parse(fields, protocol.FailedRollout)
                else:
                    rollout = self._parse(fields, protocol.RolloutAnswer)
                if rollout.id not in open_ids:
                    raise self._nonsense(f"it sent a rollout {rollout.id[:40]!r} that was not requested")
                if isinstance(rollout, protocol.RolloutAnswer):
                    self._check(rollout, terms, expected)
                open_ids.discard(rollout.id)
                # each rollout extends the deadline; single bytes do not
                deadline.reschedule(asyncio.get_running_loop().time() + self._timeout_s)
                yield rollout
        if open_ids:
            raise self._nonsense(f"{len(open_ids)} of {len(requests)} rollouts are missing from its answer")

    def _check(
        self, rollout: protocol.RolloutAnswer, terms: protocol.SamplingTerms, expected: protocol.ExpectedWeights
    ) -> None:
        ids, most, vocab_size = rollout.token_ids, terms.max_new_tokens, self.expected.facts["vocab_size"]
        if len(ids) > most:
            raise self._nonsense(f"a rollout has {len(ids)} tokens, not at most {most}")
        if min(ids) < 0 or max(ids) >= vocab_size:
            raise self._nonsense(f"a rollout has token ids outside the vocabulary of {vocab_size}")
        if len(rollout.logprobs) != len(ids):
            raise self._nonsense(f"a rollout of {len(ids)} tokens has {len(rollout.logprobs)} log-probs")
        if (rollout.finish_reason == "stop") != (ids[-1] in self.expected.eos_ids):
            raise self._nonsense(
                f"a rollout that ends with token {ids[-1]} has finish_reason {rollout.finish_reason!r}"
            )
        if rollout.finish_reason == "length" and len(ids) != most:
            raise self._nonsense(f"a rollout was cut after {len(ids)} of {most} tokens")
        if rollout.version != expected.version:
            raise OtherVersionError(
                f"{self.url} sampled with version {rollout.version}, not {expected.version}",
                hint="the weights are sent again; make sure that no other run uses this worker",
            )

    async def _call(self, method: str, path: str, kind: type[T], *, timeout_s: float = 0.0, content: bytes = b"") -> T:
        async with self._within(timeout_s or self._timeout_s):
            response = await self._http.request(method, path, content=content)
        if response.status_code != 200:
            raise self._refusal(response.status_code, response.content)
        return self._parse(response.text, kind)

    @asynccontextmanager
    async def _within(self, seconds: float) -> AsyncIterator[asyncio.Timeout]:
        """Raise WorkerError if the block takes longer, or the connection fails."""
        try:
            async with asyncio.timeout(seconds) as deadline:
                yield deadline
        except (TimeoutError, httpx.TimeoutException) as error:
            said = f"{self.url} has not answered for {seconds:g} s"
            hint = "see its log, or allow more: --set workers.timeout_s=SECONDS"
            raise WorkerError(said, hint=hint) from error
        except httpx.ConnectError as error:
            port = httpx.URL(self.url).port or 80
            hint = f"start it: smolsum serve-worker --model MODEL --port {port}"
            raise WorkerError(f"cannot reach {self.url}: {error}", hint=hint) from error
        except httpx.HTTPError as error:
            said = f"the connection to {self.url} broke: {str(error) or type(error).__name__}"
            raise WorkerError(said, hint="see its log") from error

    def _parse(self, given: Any, kind: type[T]) -> T:
        """Return a text, or what was parsed from it, as an object of this type."""
        try:
            return protocol.parse(given, kind) if isinstance(given, str) else protocol.convert(given, kind)
        except ValueError as error:
            raise self._nonsense(f"{str(given)[:60]!r}: {error}") from error

    def _refusal(self, status: int, content: bytes) -> WorkerError:
        """Return the error for an answer that is not 200, in the worker's own words if it gives any."""
        try:
            answer = protocol.parse(content, protocol.ErrorAnswer)
        except ValueError:
            answer = protocol.ErrorAnswer(content[:80].decode(errors="replace") or "no reason given")
        kind = OtherVersionError if status == 409 else WorkerError
        return kind(f"{self.url} refused ({status}): {answer.error}", hint=answer.hint or "see its log")

    def _nonsense(self, what: str) -> WorkerError:
        return WorkerError(
            f"{self.url} does not answer as a worker should: {what}",
            hint="run the same version of smolsum on both machines, and check that the URL is the worker's",
        )


@dataclass
class PoolWorker:
    """A worker as the pool sees it. Lives in the pool's event loop; other threads only read it."""

    client: WorkerClient
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
    def url(self) -> str:
        """As the user gave it."""
        return self.client.url

    @property
    def name(self) -> str:
        """Host and port."""
        return urlsplit(self.url).netloc

    async def join(self, publisher: Publisher, newest: Published) -> None:
        """Check that it is ready and serves the trainer's model; find out which version it has."""
        self.state, self.version = "joining", None
        health = await self.client.health()
        check(self.url, health, self.client.expected)
        if health.state != "ready":
            raise WorkerError(f"{self.url} is {health.state}", hint=f"wait; its last error: {health.last_error}")
        # a version that was not published here, such as another run's, counts as unknown, and an anchor replaces it
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
            found = await self.client.logprobs(probe.sequences, protocol.ExpectedWeights(newest.number, newest.weights))
            check_probe(self.url, found, probe.logprobs, self.client.expected.dtype)
        self.version, self.weights = newest.number, newest.weights


async def preflight(urls: Sequence[str], token: str | None, expected: ExpectedModel, timeout_s: float) -> None:
    """Check that every worker answers, serves the trainer's model and is named once. Raises WorkerError, UsageError."""

    async def instance(url: str) -> str:
        client = WorkerClient(url, token, expected, timeout_s=min(timeout_s, 30.0))
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


def check(url: str, health: protocol.Health, expected: ExpectedModel) -> None:
    """Raise UsageError if the worker's /health shows another policy, or sampling that is not neutral."""
    for name in COMPARED_FIELDS:
        if getattr(health, name) != expected.facts[name]:
            hint = {
                "dtype": f"--dtype {expected.dtype}",
                "tokenizer": "--model and, where model.chat_template is set, --chat-template as the trainer's",
            }.get(name, "--model with the model that is trained")
            raise UsageError(
                f"{url} serves another {name}: {getattr(health, name)} there, {expected.facts[name]} here",
                hint=f"start it with smolsum serve-worker {hint}, and the same version of smolsum",
            )
    neutral = protocol.NEUTRAL_SAMPLING
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


def reserved_here(urls: str) -> float:
    """Return the bytes that those of these workers (`workers.urls`) take that run on this machine.

    A Mac does not say how much memory is still free: a trainer next to a worker would plan with what that holds. A
    worker that does not answer counts as 0: the trainer says so when it connects to it. Raises UsageError for a token
    that a header cannot carry.
    """
    return float(sum(_reserved(url) for url in worker_urls(urls) if _is_here(url)))


def _reserved(url: str) -> int:
    token = protocol.worker_token()
    headers = {"authorization": f"Bearer {token}"} if token else {}
    try:
        answer = httpx.get(f"{url}/health", headers=headers, timeout=RESERVED_S, trust_env=False)
        return protocol.parse(answer.content, protocol.Health).reserved_bytes or 0
    except (httpx.HTTPError, httpx.InvalidURL, UnicodeError, ValueError):
        return 0


def _is_here(url: str) -> bool:
    """Return whether the host of a URL is this machine: the system then sends to it from the same address."""
    try:
        parts = urlsplit(url)
        found: Sequence[tuple[int, int, int, str, tuple[str, int]]] = socket.getaddrinfo(
            parts.hostname, parts.port or 80, type=socket.SOCK_DGRAM
        )  # type: ignore[assignment]
        family, kind, _, _, address = found[0]
        with socket.socket(family, kind) as one:
            one.connect(address)  # sends nothing
            return str(one.getsockname()[0]) == address[0]
    except (OSError, ValueError):
        return False
