"""The corruptor that asks a model behind an OpenAI-compatible endpoint for a worse text, once for each text ever."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from smolsum import console
from smolsum.asking.attempts import Asked, Budget, Outcome, ask_all
from smolsum.asking.cache import Answers, cache_file, content_key
from smolsum.asking.endpoint import (
    BadAnswer,
    ChatClient,
    Declined,
    Endpoint,
    NoAnswer,
    find_endpoint,
    parse_object,
    unknown_model,
)
from smolsum.data import Example
from smolsum.errors import SmolsumError, UnreachableError
from smolsum.tasks.ab_judge.corruption import BY_MODEL, MIN_WORDS, WORD, Corruption
from smolsum.tasks.ab_judge.pairs import Corruptor

PROMPT = (
    "Copy the text below, but make it subtly worse: change a word or two, so that something in it is less exact, less "
    "coherent or no longer true, while it still looks like the original at a glance. Keep its length, its language and "
    'everything else. Answer with JSON: {{"text": "the changed text"}}\n\nText:\n{text}'
)
SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {"text": {"type": "string"}},
    "required": ["text"],
}
BUDGET, CONCURRENCY = Budget(), 8
AGAIN = "run this again: only what is missing is asked"


@dataclass(frozen=True)
class Worse:
    """A corrupted text and what it cost."""

    text: str
    input_tokens: int
    output_tokens: int


def by_model(model: str, texts: Sequence[Example]) -> Corruptor:
    """Asks for every text that is long enough and not known yet; a text that the model would not change makes no pair.

    UnreachableError where the endpoint does not answer, UsageError where it refuses the key or does not know the model.
    """
    endpoint = find_endpoint(model, os.environ, role="corruptor", option="--set task.corruptor=NAME:")
    answers = Answers(cache_file("corrupted", model), AGAIN)
    long_enough = {text.source for text in texts if len(WORD.findall(text.source)) >= MIN_WORDS}
    todo = sorted(source for source in long_enough if _key(model, source) not in answers)
    if todo:
        console.narrate(f"asking {model} to corrupt {len(todo)} texts")
        with answers:
            last = asyncio.run(_ask(todo, endpoint, answers))
        if last is not None and not any(_key(model, source) in answers for source in long_enough):
            raise UnreachableError(f"the corruptor {model} changed no text, the last time with {last}", hint=AGAIN)

    def corruptor(text: Example, rng: random.Random) -> Corruption | None:
        worse = answers.get(_key(model, text.source))
        return None if worse is None else _difference(text.source, str(worse))

    return corruptor


def _key(model: str, source: str) -> str:
    return content_key(model, PROMPT, source)


async def _ask(todo: Sequence[str], endpoint: Endpoint, answers: Answers) -> NoAnswer | Declined | None:
    """Ask, and keep what comes; returns the last failure."""
    failures = list[NoAnswer | Declined]()

    def record(source: str, outcome: Outcome[Worse]) -> None:
        if outcome.found is not None:
            answers.add(_key(endpoint.model, source), outcome.found.text)
        elif outcome.failure is not None:
            failures.append(outcome.failure)

    async with ChatClient(endpoint, connections=CONCURRENCY) as client:

        async def worse(source: str) -> Worse:
            answer = await client.ask(PROMPT.format(text=source), SCHEMA)
            text = parse_object(answer.text).get("text")
            if not isinstance(text, str) or not _is_subtle(source, text):
                error = BadAnswer(f"not the text with a change: {answer.text[:80]!r}")
                error.answer = answer
                raise error
            return Worse(text.strip(), answer.input_tokens, answer.output_tokens)

        listed = await client.models()
        who = Asked("corruptor", endpoint.model, "changed text", AGAIN)
        try:
            await ask_all(todo, worse, who, budget=BUDGET, concurrency=CONCURRENCY, record=record)
        except SmolsumError as error:
            raise unknown_model(endpoint, listed, error) from error
    return failures[-1] if failures else None


def _is_subtle(source: str, text: str) -> bool:
    """Whether there is a change, and neither much more nor much less text than before."""
    words, before = text.split(), source.split()
    return words != before and 0.5 <= len(words) / len(before) <= 1.5


def _difference(source: str, worse: str) -> Corruption:
    """With all between the first and the last character that differ as what was changed."""
    start = _alike(source, worse)
    end = _alike(source[start:][::-1], worse[start:][::-1])
    return Corruption(worse, BY_MODEL, source[start : len(source) - end], worse[start : len(worse) - end])


def _alike(a: str, b: str) -> int:
    """How many characters are the same from the beginning on."""
    return next((k for k, (one, other) in enumerate(zip(a, b, strict=False)) if one != other), min(len(a), len(b)))
