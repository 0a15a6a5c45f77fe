"""What a worker is asked, read from JSON and checked before anything is done."""

from __future__ import annotations

import json
import reprlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from smolsum.errors import UsageError
from smolsum.worker.engines.base import Request

MOST_REQUESTS = 4096
"""rollouts, or sequences to score, in one body"""
COLDEST = 1e-3
"""the lowest temperature beside 0: logits over less than that are no numbers any more"""
HINT = "README.md, `The worker's HTTP face`, shows the fields"


@dataclass(frozen=True)
class Serving:
    """What the sender takes the worker to serve; None: whatever it is. Versions are numbers that every run has, the
    checksum of the weights tells one run's from another's."""

    version: int | None = None
    weights: str | None = None


@dataclass(frozen=True)
class RolloutsAsked:
    """The body of POST /v1/rollouts."""

    serving: Serving
    requests: tuple[Request, ...]


@dataclass(frozen=True)
class LogprobsAsked:
    """The body of POST /v1/logprobs."""

    serving: Serving
    sequences: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]
    temperature: float


def fields(body: bytes) -> dict[str, Any]:
    """The JSON object in a body. Raises UsageError."""
    try:
        value = json.loads(body, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"the body is not JSON: {error}", hint=HINT) from error
    if not isinstance(value, dict):
        raise UsageError("the body is no JSON object", hint=HINT)
    return value


def rollouts(body: bytes, *, vocabulary: int, max_model_len: int) -> RolloutsAsked:
    """The rollouts that are asked for. Raises UsageError with the field that is wrong."""
    asked = fields(body)
    serving, heat, most = _serving(asked), temperature(asked), whole(asked, "max_new_tokens", 1, max_model_len)
    requests = []
    for place, each in enumerate(_list(asked, "requests")):
        where = f"requests[{place}]"
        if not isinstance(each, dict) or not isinstance(each.get("id"), str):
            raise UsageError(f"{where} has no id", hint=HINT)
        prompt = tokens(each.get("prompt_ids"), f"{where}.prompt_ids", vocabulary, least=1)
        if len(prompt) + most > max_model_len:
            raise UsageError(
                f"{where}: {len(prompt)} tokens and {most} new ones are more than the worker's {max_model_len}",
                hint="start the worker with a larger --max-model-len",
            )
        seed = whole(each, "seed", 0, 2**63 - 1)
        requests.append(Request(each["id"], prompt, seed, heat, most))
    if len({request.id for request in requests}) < len(requests):
        raise UsageError("two requests have the same id", hint="give each rollout an id of its own")
    return RolloutsAsked(serving, tuple(requests))


def logprobs(body: bytes, *, vocabulary: int, max_model_len: int) -> LogprobsAsked:
    """The sequences that are to be scored. Raises UsageError with the field that is wrong."""
    asked = fields(body)
    sequences = []
    for place, each in enumerate(_list(asked, "sequences")):
        where = f"sequences[{place}]"
        if not isinstance(each, dict):
            raise UsageError(f"{where} is no object", hint=HINT)
        prompt = tokens(each.get("prompt_ids"), f"{where}.prompt_ids", vocabulary, least=1)
        completion = tokens(each.get("completion_ids"), f"{where}.completion_ids", vocabulary, least=1)
        if len(prompt) + len(completion) > max_model_len:
            raise UsageError(
                f"{where} has more than the worker's {max_model_len} tokens",
                hint="start the worker with a larger --max-model-len",
            )
        sequences.append((prompt, completion))
    return LogprobsAsked(_serving(asked), tuple(sequences), temperature(asked, default=1.0) or 1.0)


def tokens(value: Any, where: str, vocabulary: int, *, least: int = 0) -> tuple[int, ...]:
    """Token ids of the vocabulary. Raises UsageError."""
    if not isinstance(value, list) or any(type(i) is not int or not 0 <= i < vocabulary for i in value):
        raise UsageError(f"{where} is no list of token ids below {vocabulary}", hint=HINT)
    if len(value) < least:
        raise UsageError(f"{where} is empty", hint=HINT)
    return tuple(value)


def temperature(asked: dict[str, Any], *, default: float | None = None) -> float:
    """That of the sampling. Raises UsageError."""
    value = asked.get("temperature", default)
    fine = isinstance(value, int | float) and not isinstance(value, bool) and (value == 0 or COLDEST <= value <= 100)
    if not fine:
        raise UsageError(f"temperature is {reprlib.repr(value)}, neither 0 nor from {COLDEST} to 100", hint=HINT)
    return float(value)  # type: ignore[arg-type]


def whole(asked: dict[str, Any], name: str, low: int, high: int, *, default: int | None = None) -> int:
    """A whole number in a range. Raises UsageError."""
    value = asked.get(name, default)
    if type(value) is not int or not low <= value <= high:
        raise UsageError(f"{name} is {reprlib.repr(value)}, not a whole number from {low} to {high}", hint=HINT)
    return value


def _serving(asked: dict[str, Any]) -> Serving:
    version, weights = asked.get("version"), asked.get("weights")
    if version is not None and type(version) is not int:
        raise UsageError(f"version is {reprlib.repr(version)}, neither a number nor null", hint=HINT)
    if weights is not None and not isinstance(weights, str):
        raise UsageError("weights is neither a checksum nor null", hint=HINT)
    return Serving(version, weights)


def _list(asked: dict[str, Any], name: str) -> Sequence[Any]:
    value = asked.get(name)
    if not isinstance(value, list) or not value:
        raise UsageError(f"{name} is no list with something in it", hint=HINT)
    if len(value) > MOST_REQUESTS:
        raise UsageError(f"{name} has {len(value)} entries, over {MOST_REQUESTS}", hint="send them in several bodies")
    return value


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is none of its numbers")
