"""What a worker answers to a bad body: every field is checked before anything is done, and the error (status 422)
names what is wrong.

The types are in `smolsum/rollout/protocol.py`; here are all limits that a type does not state. `BodyReader` in
`smolsum/worker/openai_bodies.py` checks the fields that only OpenAI's interface has.
"""

import reprlib
from collections.abc import Sequence
from typing import Any, TypeVar

from msgspec import UNSET

from smolsum.errors import UsageError
from smolsum.rollout.protocol import NEUTRAL_SAMPLING, LogprobsBody, RolloutsBody, parse

MAX_REQUESTS = 4096
"""rollouts, or sequences to score, in one body"""
MIN_TEMPERATURE = 1e-3
"""other than 0; logits divided by less overflow"""
HINT = "docs/workers.md lists the fields"
T = TypeVar("T")


def read(body: bytes, kind: type[T]) -> T:
    """Return the body as an object of this type. Raises UsageError."""
    try:
        return parse(body, kind)
    except ValueError as error:
        raise UsageError(f"invalid body: {error}", hint=HINT) from error


def read_rollouts(body: bytes, *, vocabulary: int, max_model_len: int) -> RolloutsBody:
    """Return the body of POST /v1/rollouts. Raises UsageError with the field that is wrong."""
    parsed = read(body, RolloutsBody)
    for name, neutral in (*NEUTRAL_SAMPLING.items(), ("stop", ([],)), ("logit_bias", ({},))):
        value = getattr(parsed, name)
        if value not in (UNSET, None, *neutral):
            raise UsageError(
                f"{name} = {reprlib.repr(value)} is refused: rollouts are the policy's own", hint="leave it out"
            )
    check_temperature(parsed.temperature)
    new = check_integer(parsed.max_new_tokens, "max_new_tokens", 1, max_model_len)
    _check_count("requests", parsed.requests)
    for place, request in enumerate(parsed.requests):
        where = f"requests[{place}]"
        prompt = check_tokens(request.prompt_ids, f"{where}.prompt_ids", vocabulary, least=1)
        _check_length(where, f"{len(prompt)} prompt tokens plus {new} new tokens", len(prompt) + new, max_model_len)
    if len({request.id for request in parsed.requests}) < len(parsed.requests):
        raise UsageError("two requests have the same id", hint="give each rollout its own id")
    return parsed


def read_logprobs(body: bytes, *, vocabulary: int, max_model_len: int) -> LogprobsBody:
    """Return the body of POST /v1/logprobs. Raises UsageError with the field that is wrong."""
    parsed = read(body, LogprobsBody)
    check_temperature(parsed.temperature)
    _check_count("sequences", parsed.sequences)
    for place, sequence in enumerate(parsed.sequences):
        where = f"sequences[{place}]"
        prompt = check_tokens(sequence.prompt_ids, f"{where}.prompt_ids", vocabulary, least=1)
        completion = check_tokens(sequence.completion_ids, f"{where}.completion_ids", vocabulary, least=1)
        length = len(prompt) + len(completion)
        _check_length(where, f"{length} tokens", length, max_model_len)
    return parsed


def check_tokens(value: Any, where: str, vocabulary: int, *, least: int = 0) -> tuple[int, ...]:
    """Return `value` as token ids. Raises UsageError for ids outside the vocabulary, and for fewer than `least`."""
    if not isinstance(value, list | tuple) or any(type(i) is not int or not 0 <= i < vocabulary for i in value):
        raise UsageError(f"{where} is not a list of token ids below {vocabulary}", hint=HINT)
    if len(value) < least:
        raise UsageError(f"{where} is empty", hint=HINT)
    return tuple(value)


def check_temperature(value: Any) -> float:
    """Return `value` as a sampling temperature. Raises UsageError."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not (value == 0 or MIN_TEMPERATURE <= value <= 100):
        allowed = f"neither 0 nor from {MIN_TEMPERATURE} to 100"
        raise UsageError(f"temperature is {reprlib.repr(value)}, {allowed}", hint=HINT)
    return float(value)


def check_integer(value: Any, name: str, low: int, high: int) -> int:
    """Return `value` as an integer in a range. Raises UsageError."""
    if type(value) is not int or not low <= value <= high:
        raise UsageError(f"{name} is {reprlib.repr(value)}, not an integer from {low} to {high}", hint=HINT)
    return value


def _check_count(name: str, value: Sequence[Any]) -> None:
    if len(value) > MAX_REQUESTS:
        raise UsageError(f"{name} has {len(value)} entries, over {MAX_REQUESTS}", hint="send them in several bodies")


def _check_length(where: str, what: str, length: int, limit: int) -> None:
    if length > limit:
        raise UsageError(
            f"{where}: {what} exceed the worker's limit of {limit}",
            hint="start the worker with a larger --max-model-len",
        )
