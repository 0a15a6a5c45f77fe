"""What reader, grader and judge of a group are asked, and how their answers are read."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from smolsum.asking.endpoint import BadAnswer
from smolsum.asking.panel import Call

READ = """Answer a question from the text below and from nothing else: neither from what you know nor by guessing.

<text>
{text}
</text>

Question: {question}

Reply with JSON: {{"answer": "one short sentence"}}, or {{"answer": null}} if the text does not say it."""

GRADE = """Somebody was asked about a document. Compare the answer with the one that is expected.

<document>
{document}
</document>

Question: {question}
Expected answer: {expected}
Given answer: {given}

The given answer is right if it says what matters in the expected one and nothing that contradicts it; other words and
further details of the document do no harm. Reply with JSON: {{"right": true}} or {{"right": false}}."""

RANK = """Below are a document and {count} summaries of it, of at most {limit} words each.

<document>
{document}
</document>

{summaries}

Compare the summaries with each other. The better one lets somebody who reads nothing else answer more questions about
the document, states nothing that the document does not, and keeps to the limit. Give each a score from 0 to 1, so that
a better one has a higher score, and equal ones the same. Reply with JSON:
{{"scores": [{{"summary": 1, "score": 0.5}}, …]}}, with every number from 1 to {count} once."""


def read_call(text: str, question: str) -> Call:
    """Asks what a text says to a question; the answer is a text, or "" where the text is silent."""
    schema = _object(answer={"type": ["string", "null"]})
    return Call(READ.format(text=text, question=question), schema, _answer)


def grade_call(document: str, question: str, expected: str, given: str) -> Call:
    """Asks whether an answer is right; the answer is a bool."""
    prompt = GRADE.format(document=document, question=question, expected=expected, given=given)
    return Call(prompt, _object(right={"type": "boolean"}), _right)


def rank_call(document: str, summaries: Sequence[str], limit: int) -> Call:
    """Asks for a score of each summary, in [0, 1]; the answer is the list of them in order."""
    count = len(summaries)
    shown = "\n\n".join(f"<summary number={n}>\n{text}\n</summary>" for n, text in enumerate(summaries, start=1))
    each = _object(summary={"type": "integer"}, score={"type": "number"}) | {"additionalProperties": False}
    prompt = RANK.format(count=count, limit=limit, document=document, summaries=shown)
    return Call(prompt, _object(scores={"type": "array", "items": each}), lambda found: _scores(found, count))


def _object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties)}


def _answer(found: Mapping[str, Any]) -> str:
    answer = found.get("answer", 0)
    if answer is None:
        return ""
    if not isinstance(answer, str):
        raise BadAnswer(f"no answer, but {found!r:.80}")
    return answer.strip()


def _right(found: Mapping[str, Any]) -> bool:
    right = found.get("right")
    if not isinstance(right, bool):
        raise BadAnswer(f"neither right nor wrong, but {right!r:.80}")
    return right


def _scores(found: Mapping[str, Any], count: int) -> list[float]:
    rows = found.get("scores")
    scores: dict[int, float] = {}
    for row in rows if isinstance(rows, list) else []:
        number, score = (row.get("summary"), row.get("score")) if isinstance(row, Mapping) else (None, None)
        if type(number) is not int or isinstance(score, bool) or not isinstance(score, int | float):
            raise BadAnswer(f"no score of a summary, but {row!r:.80}")
        if not math.isfinite(score) or not 0 <= score <= 1 or number in scores:
            raise BadAnswer(f"a score outside of 0 to 1, or one twice: {row!r:.80}")
        scores[number] = float(score)
    if sorted(scores) != list(range(1, count + 1)):
        raise BadAnswer(f"scores of {len(scores)} summaries, not of {count}")
    return [scores[n] for n in range(1, count + 1)]
