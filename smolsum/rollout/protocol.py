"""The HTTP protocol between a trainer and its workers: the JSON bodies of both ends, and the trainer's client.

The worker's end is `smolsum/worker/routes.py`. The client checks every answer before it returns it: a rollout that was
not requested, token ids outside the vocabulary, log-probs that are not numbers, and a stream that ends early all raise
WorkerError, and the caller decides what to do.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Annotated, Any, Literal, NoReturn, TypeVar

import httpx
import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from smolsum.errors import UnreachableError, UsageError

CONNECT_S, HEALTH_S = 10.0, 15.0
"""timeouts for a connection and for an answer that needs no computation"""
Logprob = Annotated[float, Meta(ge=-1e6, le=1e-4)]
NEUTRAL_SAMPLING: Mapping[str, tuple[float, ...]] = {
    "top_p": (1.0,),
    "top_k": (0, -1),
    "min_p": (0.0,),
    "repetition_penalty": (1.0,),
    "presence_penalty": (0.0,),
    "frequency_penalty": (0.0,),
}
"""sampling parameters, with the values that leave the distribution unchanged; the first is what a worker uses"""
T = TypeVar("T")


class ExpectedWeights(Struct, frozen=True):
    """The weights that the sender expects a worker to serve; the worker refuses if it serves others. None matches any.

    Every run counts its versions from 0, so only the checksum distinguishes the weights of two runs.
    """

    version: int | None = None
    weights: str | None = None


class SampleRequest(Struct, frozen=True):
    """One rollout to sample; `id` is unique among all open requests."""

    id: str
    prompt_ids: tuple[int, ...]
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1)]


class SamplingTerms(Struct, frozen=True):
    """What all rollouts of one body have in common; temperature 0 is greedy."""

    temperature: float
    max_new_tokens: int


class RolloutsBody(ExpectedWeights, frozen=True, kw_only=True):
    """Body of POST /v1/rollouts."""

    temperature: float
    max_new_tokens: int
    requests: Annotated[tuple[SampleRequest, ...], Meta(min_length=1)]

    @property
    def terms(self) -> SamplingTerms:
        """The terms of all its requests."""
        return SamplingTerms(self.temperature, self.max_new_tokens)


class RolloutAnswer(Struct, frozen=True):
    """One line of the answer to POST /v1/rollouts; other fields as in `smolsum.types.Rollout`."""

    id: str
    """of the request"""
    token_ids: Annotated[tuple[int, ...], Meta(min_length=1)]
    logprobs: tuple[Logprob, ...]
    finish_reason: Literal["stop", "length"]
    version: int


class FailedRollout(Struct, frozen=True):
    """The line for a rollout that could not be sampled."""

    id: str
    error: str


class EndOfRollouts(Struct, frozen=True):
    """The last line: the number of lines before it."""

    done: int


class ScoredSequence(Struct, frozen=True):
    """A prompt, and the completion whose tokens are to be scored."""

    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]


class LogprobsBody(ExpectedWeights, frozen=True, kw_only=True):
    """Body of POST /v1/logprobs."""

    sequences: Annotated[tuple[ScoredSequence, ...], Meta(min_length=1)]
    temperature: float = 1.0


class LogprobsAnswer(Struct, frozen=True):
    """Natural log-probs of the completions' tokens, float32, and the version that they are from."""

    version: int
    logprobs: tuple[tuple[Logprob, ...], ...]


class WeightsAnswer(Struct, frozen=True):
    """Answer to PUT /v1/weights: what the worker serves now, and the seconds that the swap took."""

    version: int
    weights: str
    seconds: float = 0.0


class Health(Struct, frozen=True, kw_only=True):
    """Answer to GET /health: what the worker serves, and how it is."""

    state: str
    """of the engine; only in state "ready" can it sample"""
    engine: str = ""
    engine_version: str = ""
    model: str = ""
    """as given to `serve-worker`"""
    architecture: str
    vocab_size: int
    tokenizer: str
    """digest of the vocabulary and the chat template"""
    dtype: str
    instance: str = ""
    """a random id; the same worker may have several URLs"""
    run: str | None = None
    """the run whose weights it serves"""
    version: int
    weights: str
    """checksum of the served weights"""
    sampling: dict[str, Any] = {}
    """sampling parameters except the temperature"""
    max_model_len: int | None = None
    """tokens of prompt and completion together"""
    max_new_tokens: int = 0
    queue: int = 0
    """rollouts being sampled or waiting"""
    last_error: str | None = None


class ErrorAnswer(Struct, frozen=True):
    """Body of every answer that is an error; a 409 also has the version that the worker serves."""

    error: str
    hint: str | None = None
    version: int | UnsetType = UNSET


def parse(text: str | bytes, kind: type[T]) -> T:
    """Return the JSON in `text` as an object of this type. Raises ValueError with the reason."""
    # parsed by Python, as msgspec's own parser takes half a surrogate pair for the end of the text
    try:
        value = json.loads(text, parse_constant=_reject)
    except RecursionError as error:
        raise ValueError("not JSON: nested too deeply") from error
    except ValueError as error:
        raise ValueError(f"not JSON: {error}") from error
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from error
    except UnicodeEncodeError as error:
        raise ValueError("half a surrogate pair in a field that is not text") from error


def _reject(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


class WorkerError(UnreachableError):
    """A worker failed or answered wrongly. Another worker may succeed, or the same one later."""


class OtherVersionError(WorkerError):
    """The worker serves another policy version than the request was for."""


def check_token(token: str | None) -> None:
    """Raise UsageError for a worker's token that a header cannot carry."""
    if token is not None and not (token.isascii() and token.isprintable() and token.strip() == token and token):
        raise UsageError(
            "the worker's token is empty or has white space or unprintable characters", hint="openssl rand -hex 16"
        )


class WorkerClient:
    """HTTP client of one worker, for one event loop.

    `timeout_s` is the longest time without an answer, or between two rollouts of a stream.
    """

    def __init__(self, url: str, token: str | None, *, timeout_s: float) -> None:
        self.url, self._timeout_s = url.rstrip("/"), timeout_s
        self._http = httpx.AsyncClient(
            base_url=self.url,
            headers={"authorization": f"Bearer {token}"} if token else {},
            timeout=httpx.Timeout(timeout_s, connect=CONNECT_S),
            trust_env=False,  # workers are on the local network, where a proxy would only get in the way
        )

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def health(self) -> Health:
        """GET /health, with a shorter timeout."""
        return await self._call("GET", "/health", Health, timeout_s=min(HEALTH_S, self._timeout_s))

    async def put_weights(self, body: bytes) -> WeightsAnswer:
        """Send a patch or an anchor; returns what the worker serves afterwards."""
        return await self._call("PUT", "/v1/weights", WeightsAnswer, content=body)

    async def logprobs(
        self, sequences: Sequence[tuple[Sequence[int], Sequence[int]]], expected: ExpectedWeights
    ) -> list[list[float]]:
        """Return log-probs, at temperature 1, of the completion in each pair of prompt and completion token ids."""
        scored = tuple(ScoredSequence(tuple(prompt), tuple(completion)) for prompt, completion in sequences)
        body = LogprobsBody(version=expected.version, weights=expected.weights, sequences=scored)
        answer = await self._call("POST", "/v1/logprobs", LogprobsAnswer, content=msgspec.json.encode(body))
        if [len(row) for row in answer.logprobs] != [len(completion) for _, completion in sequences]:
            raise self._nonsense("its log-probs do not match the tokens of the sequences")
        return [list(row) for row in answer.logprobs]

    async def rollouts(
        self,
        requests: Sequence[SampleRequest],
        terms: SamplingTerms,
        expected: ExpectedWeights,
        *,
        vocab_size: int,
        eos_ids: frozenset[int],
    ) -> AsyncIterator[RolloutAnswer | FailedRollout]:
        """Yield each rollout as it ends.

        The stream ends once each id has come exactly once. Anything else raises WorkerError.
        """
        body = RolloutsBody(
            version=expected.version,
            weights=expected.weights,
            temperature=terms.temperature,
            max_new_tokens=terms.max_new_tokens,
            requests=tuple(requests),
        )
        open_ids = {request.id for request in requests}
        try:
            # each rollout extends the deadline; single bytes do not
            async with (
                asyncio.timeout(self._timeout_s) as deadline,
                self._http.stream("POST", "/v1/rollouts", content=msgspec.json.encode(body)) as response,
            ):
                if response.status_code != 200:
                    raise self._refusal(response.status_code, await response.aread())
                async for line in response.aiter_lines():
                    fields = self._parse(line, dict[str, Any])
                    if "done" in fields:
                        break
                    rollout = self._rollout(fields)
                    if rollout.id not in open_ids:
                        raise self._nonsense(f"it sent a rollout {rollout.id[:40]!r} that was not requested")
                    if isinstance(rollout, RolloutAnswer):
                        self._check(rollout, terms, expected, vocab_size, eos_ids)
                    open_ids.discard(rollout.id)
                    deadline.reschedule(asyncio.get_running_loop().time() + self._timeout_s)
                    yield rollout
        except TimeoutError as error:
            raise self._silent(self._timeout_s) from error
        except httpx.HTTPError as error:
            raise self._broken(error) from error
        if open_ids:
            raise self._nonsense(f"{len(open_ids)} of {len(requests)} rollouts are missing from its answer")

    def _rollout(self, fields: dict[str, Any]) -> RolloutAnswer | FailedRollout:
        kind: type[RolloutAnswer | FailedRollout] = FailedRollout if "error" in fields else RolloutAnswer
        try:
            return msgspec.convert(fields, kind)
        except (msgspec.ValidationError, UnicodeEncodeError) as error:
            raise self._nonsense(f"a rollout: {error}") from error

    def _check(
        self,
        rollout: RolloutAnswer,
        terms: SamplingTerms,
        expected: ExpectedWeights,
        vocab_size: int,
        eos_ids: frozenset[int],
    ) -> None:
        ids, most = rollout.token_ids, terms.max_new_tokens
        if len(ids) > most:
            raise self._nonsense(f"a rollout has {len(ids)} tokens, not at most {most}")
        if min(ids) < 0 or max(ids) >= vocab_size:
            raise self._nonsense(f"a rollout has token ids outside the vocabulary of {vocab_size}")
        if len(rollout.logprobs) != len(ids):
            raise self._nonsense(f"a rollout of {len(ids)} tokens has {len(rollout.logprobs)} log-probs")
        if (rollout.finish_reason == "stop") != (ids[-1] in eos_ids):
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
        limit_s = timeout_s or self._timeout_s
        try:
            async with asyncio.timeout(limit_s):
                response = await self._http.request(method, path, content=content)
        except TimeoutError as error:
            raise self._silent(limit_s) from error
        except httpx.HTTPError as error:
            raise self._broken(error) from error
        if response.status_code != 200:
            raise self._refusal(response.status_code, response.content)
        return self._parse(response.text, kind)

    def _parse(self, text: str, kind: type[T]) -> T:
        try:
            return parse(text, kind)
        except ValueError as error:
            raise self._nonsense(f"{text[:60]!r}: {error}") from error

    def _refusal(self, status: int, content: bytes) -> WorkerError:
        """Return the error for an answer that is not 200, in the worker's own words if it gives any."""
        try:
            answer = parse(content, ErrorAnswer)
        except ValueError:
            answer = ErrorAnswer(content[:80].decode(errors="replace") or "no reason given")
        kind = OtherVersionError if status == 409 else WorkerError
        return kind(f"{self.url} refused ({status}): {answer.error}", hint=answer.hint or "see its log")

    def _nonsense(self, what: str) -> WorkerError:
        return WorkerError(
            f"{self.url} does not answer as a worker should: {what}",
            hint="run the same version of smolsum on both machines, and check that the URL is the worker's",
        )

    def _silent(self, seconds: float) -> WorkerError:
        return WorkerError(
            f"{self.url} has not answered for {seconds:g} s",
            hint="see its log, or allow more: --set workers.timeout_s=SECONDS",
        )

    def _broken(self, error: httpx.HTTPError) -> WorkerError:
        if isinstance(error, httpx.TimeoutException):
            return self._silent(self._timeout_s)
        reason = str(error) or type(error).__name__
        if isinstance(error, httpx.ConnectError):
            return WorkerError(
                f"cannot reach {self.url}: {reason}", hint="start it: smolsum serve-worker --model MODEL"
            )
        return WorkerError(f"the connection to {self.url} broke: {reason}", hint="see its log")
