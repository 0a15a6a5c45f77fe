"""The checks of request bodies: every field is checked before anything is done, and the error names what is wrong.

The types are in `smolsum/rollout/protocol.py`; here are the limits that depend on the model served.
"""

import reprlib
from collections.abc import Sequence
from typing import Any, TypeVar

from smolsum.errors import UsageError
from smolsum.rollout.protocol import LogprobsBody, RolloutsBody, parse

MOST_REQUESTS = 4096
"""rollouts, or sequences to score, in one body"""
COLDEST = 1e-3
"""the lowest temperature other than 0; logits divided by less overflow"""
HINT = "docs/workers.md lists the fields"
T = TypeVar("T")


def read(body: bytes, kind: type[T]) -> T:
    """The body as an object of this type. Raises UsageError."""
    try:
        return parse(body, kind)
    except ValueError as error:
        raise UsageError(f"invalid body: {error}", hint=HINT) from error


def rollouts(body: bytes, *, vocabulary: int, max_model_len: int) -> RolloutsBody:
    """Body of POST /v1/rollouts. Raises UsageError with the field that is wrong."""
    parsed = read(body, RolloutsBody)
    temperature(parsed.temperature)
    most = whole(parsed.max_new_tokens, "max_new_tokens", 1, max_model_len)
    _limit_count("requests", parsed.requests)
    for place, request in enumerate(parsed.requests):
        where = f"requests[{place}]"
        prompt = tokens(request.prompt_ids, f"{where}.prompt_ids", vocabulary, least=1)
        _limit_length(where, f"{len(prompt)} prompt tokens plus {most} new tokens", len(prompt) + most, max_model_len)
    if len({request.id for request in parsed.requests}) < len(parsed.requests):
        raise UsageError("two requests have the same id", hint="give each rollout its own id")
    return parsed


def logprobs(body: bytes, *, vocabulary: int, max_model_len: int) -> LogprobsBody:
    """Body of POST /v1/logprobs. Raises UsageError with the field that is wrong."""
    parsed = read(body, LogprobsBody)
    temperature(parsed.temperature)
    _limit_count("sequences", parsed.sequences)
    for place, sequence in enumerate(parsed.sequences):
        where = f"sequences[{place}]"
        prompt = tokens(sequence.prompt_ids, f"{where}.prompt_ids", vocabulary, least=1)
        completion = tokens(sequence.completion_ids, f"{where}.completion_ids", vocabulary, least=1)
        length = len(prompt) + len(completion)
        _limit_length(where, f"{length} tokens", length, max_model_len)
    return parsed


def tokens(value: Any, where: str, vocabulary: int, *, least: int = 0) -> tuple[int, ...]:
    """`value` as token ids of the vocabulary. Raises UsageError."""
    if not isinstance(value, list | tuple) or any(type(i) is not int or not 0 <= i < vocabulary for i in value):
        raise UsageError(f"{where} is not a list of token ids below {vocabulary}", hint=HINT)
    if len(value) < least:
        raise UsageError(f"{where} is empty", hint=HINT)
    return tuple(value)


def temperature(value: Any) -> float:
    """`value` as a sampling temperature. Raises UsageError."""
    fine = isinstance(value, int | float) and not isinstance(value, bool) and (value == 0 or COLDEST <= value <= 100)
    if not fine:
        raise UsageError(f"temperature is {reprlib.repr(value)}, neither 0 nor from {COLDEST} to 100", hint=HINT)
    return float(value)


def whole(value: Any, name: str, low: int, high: int) -> int:
    """`value` as an integer in a range. Raises UsageError."""
    if type(value) is not int or not low <= value <= high:
        raise UsageError(f"{name} is {reprlib.repr(value)}, not an integer from {low} to {high}", hint=HINT)
    return value


def _limit_count(name: str, value: Sequence[Any]) -> None:
    if len(value) > MOST_REQUESTS:
        raise UsageError(f"{name} has {len(value)} entries, over {MOST_REQUESTS}", hint="send them in several bodies")


def _limit_length(where: str, what: str, length: int, most: int) -> None:
    if length > most:
        raise UsageError(
            f"{where}: {what} exceed the worker's limit of {most}",
            hint="start the worker with a larger --max-model-len",
        )
