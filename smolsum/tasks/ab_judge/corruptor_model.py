"""The corruptor that asks a model behind an OpenAI-compatible endpoint for a worse text, once for each text ever."""

import os
import random
from collections.abc import Mapping, Sequence
from typing import Any

from smolsum.llm.batch import BatchClient
from smolsum.llm.client import BadAnswer, Call
from smolsum.llm.endpoints import CORRUPTOR, find_endpoint
from smolsum.llm.request_policy import RequestPolicy
from smolsum.tasks.ab_judge.corruption import BY_MODEL, MIN_WORDS, WORD, Corruption
from smolsum.tasks.ab_judge.pairs import Corruptor
from smolsum.tasks.data import Example

PROMPT = (
    "Copy the text below, but make it subtly worse: change a word or two, so that something in it is less exact, less "
    "coherent or no longer true, while it still looks like the original at a glance. Keep its length, its language and "
    'everything else. Answer with JSON: {{"text": "the changed text"}}\n\nText:\n{text}'
)
SCHEMA: Mapping[str, Any] = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
REQUESTS = RequestPolicy(bad_answers=3)


def by_model(model: str, texts: Sequence[Example]) -> Corruptor:
    """Ask for every text that is long enough and has no stored answer. A text that the model refuses or leaves
    unchanged makes no pair, and that is stored as the final answer, so that a resumed run has the same pairs; only a
    model that has never returned a usable text is asked again.

    Answers are kept as they arrive. Raises UnreachableError where the endpoint does not answer for a text, and
    UsageError where it refuses the key or does not know the model.
    """
    endpoint = find_endpoint(model, os.environ, CORRUPTOR)
    client = BatchClient(endpoint, REQUESTS, wait_s=0.0, store_refusals=True)
    sources = sorted({text.source for text in texts if len(WORD.findall(text.source)) >= MIN_WORDS})
    calls = [_call(source) for source in sources]
    worse = dict(zip(sources, client.ask(calls), strict=True))

    def corruptor(text: Example, rng: random.Random) -> Corruption | None:
        found = worse.get(text.source)
        return None if found is None else _difference(text.source, str(found))

    return corruptor


def preview(model: str) -> Corruptor:
    """Return a stand-in for `by_model` that asks nothing: each text that is long enough makes a pair with itself, so
    that the prompts are about as many and as long. Raises UsageError for a model without a key or URL."""
    find_endpoint(model, os.environ, CORRUPTOR)

    def corruptor(text: Example, rng: random.Random) -> Corruption | None:
        return Corruption(text.source, BY_MODEL, "", "") if len(WORD.findall(text.source)) >= MIN_WORDS else None

    return corruptor


def _call(source: str) -> Call:
    def read(found: Mapping[str, Any]) -> str:
        text = found.get("text")
        if not isinstance(text, str) or not _is_subtle(source, text):
            raise BadAnswer(f"not a changed copy of the text, but {text!r:.80}")
        return text.strip()

    return Call(PROMPT.format(text=source), SCHEMA, read)


def _is_subtle(source: str, text: str) -> bool:
    """Return whether there is a change, and neither much more nor much less text than before."""
    words, before = text.split(), source.split()
    return words != before and 0.5 <= len(words) / len(before) <= 1.5


def _difference(source: str, worse: str) -> Corruption:
    """Return the corruption whose change is all between the first and the last character that differ."""
    start = _alike(source, worse)
    end = _alike(source[start:][::-1], worse[start:][::-1])
    return Corruption(worse, BY_MODEL, source[start : len(source) - end], worse[start : len(worse) - end])


def _alike(a: str, b: str) -> int:
    """Return how many characters are the same from the beginning on."""
    return next((k for k, (one, other) in enumerate(zip(a, b, strict=False)) if one != other), min(len(a), len(b)))
