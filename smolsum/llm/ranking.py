"""A model's ranking of several texts: one question compares them, and its answer scores each."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from smolsum.llm.batch import BatchClient
from smolsum.llm.client import BadAnswer, Call


def ranked(
    client: BatchClient, groups: Sequence[Sequence[str]], question: Callable[[int, Sequence[str]], Call]
) -> list[list[float] | None]:
    """Return a score in [0, 1] for each text of each group; None for a group without an answer. Raises what
    `BatchClient.ask` raises.

    `question` makes the question about a group, by its number, from the texts in the order in which they are shown:
    each different text once, in an order drawn from the texts. 0.5 where all texts of a group are the same.
    """
    orders = [_shuffled(group) for group in groups]
    calls = [question(n, order) for n, order in enumerate(orders) if len(order) > 1]
    scores = iter(client.ask(calls))
    found: list[list[float] | None] = []
    for group, order in zip(groups, orders, strict=True):
        given = next(scores) if len(order) > 1 else [0.5]
        by_text = None if given is None else dict(zip(order, given, strict=True))
        found.append(None if by_text is None else [float(by_text[text]) for text in group])
    return found


def ranking_call(prompt: str, noun: str, count: int) -> Call:
    """Ask for `{"scores": [{NOUN: 1, "score": 0.5}, …]}` with each number from 1 to `count` once; the answer is the
    list of scores in order."""
    each = object_schema(**{noun: {"type": "integer"}, "score": {"type": "number"}}) | {"additionalProperties": False}
    schema = object_schema(scores={"type": "array", "items": each})
    return Call(prompt, schema, lambda found: _scores(found, noun, count))


def object_schema(**properties: Any) -> dict[str, Any]:
    """Return the JSON schema of an object with these properties, all required."""
    return {"type": "object", "properties": properties, "required": list(properties)}


def _scores(found: Mapping[str, Any], noun: str, count: int) -> list[float]:
    rows = found.get("scores")
    scores: dict[int, float] = {}
    for row in rows if isinstance(rows, list) else []:
        number, score = (row.get(noun), row.get("score")) if isinstance(row, Mapping) else (None, None)
        if type(number) is not int or isinstance(score, bool) or not isinstance(score, int | float):
            raise BadAnswer(f"no score of a {noun}, but {row!r:.80}")
        if not math.isfinite(score) or not 0 <= score <= 1 or number in scores:
            raise BadAnswer(f"a score outside of 0 to 1, or one twice: {row!r:.80}")
        scores[number] = float(score)
    if sorted(scores) != list(range(1, count + 1)):
        raise BadAnswer(f"scores for {len(scores)} of {count} {noun} numbers")
    return [scores[n] for n in range(1, count + 1)]


def _shuffled(texts: Sequence[str]) -> list[str]:
    """Return each different text once, in an order that depends on the texts alone."""
    distinct = sorted(set(texts))
    order = np.random.default_rng([len(text) for text in distinct]).permutation(len(distinct))
    return [distinct[int(place)] for place in order]
