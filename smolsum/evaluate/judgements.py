"""Judgements on disk: one JSON line for each (example, round, metric), failures too, and a cache by content beside.

judgements.jsonl   in the folder of an evaluation; only ever appended to, and the last line for a question counts
cache              one file a judge below $XDG_CACHE_HOME/smolsum/judge: the same texts are never paid for twice
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Self

from smolsum.errors import SmolsumError
from smolsum.files import Lines, read_jsonl, to_json
from smolsum.llm.cache import AnswerCache, content_key
from smolsum.types import Seen

JUDGEMENTS = "judgements.jsonl"


@dataclass(frozen=True)
class JudgeQuestion:
    """What is asked once: a metric of an example in one round. `key` is a fingerprint of judge, prompt, texts and
    round."""

    id: str
    round: int
    metric: str
    key: str
    texts: Mapping[Seen, str]


@dataclass(frozen=True)
class Verdict:
    """The judge's score in [0, 1] with its reason, and the tokens that it counted."""

    score: float
    reason: str
    input_tokens: int = 0
    output_tokens: int = 0


@dataclass(frozen=True)
class Judgement:
    """The outcome of a question: a score in [0, 1] with the judge's reason, or None with the error."""

    id: str
    round: int
    metric: str
    judge: str
    key: str
    score: float | None
    reason: str = ""
    error: str = ""
    attempts: int = 0
    """requests, of which all tokens count; 0 for a score from the cache"""
    seconds: float = 0.0
    """of all attempts with the waits between them"""
    input_tokens: int = 0
    output_tokens: int = 0
    endpoint: str = ""
    """where it was asked, without credentials"""


def question_key(judge: str, prompt: str, texts: Mapping[Seen, str], number: int) -> str:
    """XXH3-128 hex; `prompt` is the fingerprint of the criterion's prompt, `texts` what it shows."""
    return content_key(judge, prompt, sorted(texts.items()), number)


@dataclass
class Spent:
    """Calls and tokens, failed ones included."""

    calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0


class Ledger:
    """The judgements of one evaluation by one judge: what is known of them, and where new ones are written."""

    def __init__(self, folder: Path, judge: str, remedy: str, *, fresh: bool = False) -> None:
        """Reads what is known of a judge, by its `Bench.judge`; `fresh` takes nothing that other evaluations paid for.
        SmolsumError for a file that is damaged."""
        self._judge, self._stack = judge, ExitStack()
        self.spent, self.known = Spent(), dict[str, Judgement]()
        """all that its lines have cost; the last judgement of each question, by its key and example"""
        for judgement in _read(folder / JUDGEMENTS):
            if judgement.judge == judge and not (fresh and judgement.score is not None and not judgement.attempts):
                self._note(judgement)
        own = {j.key: j for j in self.known.values() if j.score is not None} if fresh else None
        self._cached = AnswerCache("judge", judge, remedy, read=_cached_score, row=lambda key, j: asdict(j), known=own)
        self._path, self._remedy = folder / JUDGEMENTS, remedy

    def __enter__(self) -> Self:
        self._lines = self._stack.enter_context(Lines(self._path, self._remedy))
        self._stack.enter_context(self._cached)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def find(self, question: JudgeQuestion) -> Judgement | None:
        """The score of a question that was asked before: here, or with the same content elsewhere. A failure is no
        score."""
        found = self.known.get(question.key + question.id)
        if found and found.score is not None:
            return found
        return self._cached.get(question.key)

    def failed(self, question: JudgeQuestion) -> bool:
        """Whether the question has failed before, asked of a judge that did score others."""
        found = self.known.get(question.key + question.id)
        return found is not None and found.score is None and any(j.score is not None for j in self.known.values())

    def take_from_cache(self, questions: Sequence[JudgeQuestion]) -> int:
        """Write down the scores that were paid for elsewhere; returns how many of them there were."""
        taken = [(q, c) for q in questions if (c := self.find(q)) and c is not self.known.get(q.key + q.id)]
        for question, cached in taken:
            self._write(replace(cached, id=question.id, attempts=0, seconds=0.0, input_tokens=0, output_tokens=0))
        return len(taken)

    def record(self, judgement: Judgement) -> None:
        """Write an outcome; a score can be found from now on."""
        self._write(judgement)
        if judgement.score is not None and judgement.attempts:
            self._cached.add(judgement.key, judgement)

    def _write(self, judgement: Judgement) -> None:
        self._lines.append(to_json(asdict(judgement)))
        self._note(judgement)

    def _note(self, judgement: Judgement) -> None:
        self.known[judgement.key + judgement.id] = judgement
        self.spent.calls += judgement.attempts
        self.spent.input_tokens += judgement.input_tokens
        self.spent.output_tokens += judgement.output_tokens


def _read(path: Path) -> list[Judgement]:
    """The judgements of an evaluation. SmolsumError, with the line, for one that is damaged."""
    found = []
    for number, row in enumerate(read_jsonl(path), start=1):
        judgement = _judgement(row)
        if judgement is None:
            raise SmolsumError(
                f"{path}:{number} is no judgement, so the file is damaged",
                hint="remove that line; its question is asked again",
            )
        found.append(judgement)
    return found


def _cached_score(row: Mapping[str, Any]) -> Judgement:
    """A line of the cache. ValueError for one that is no score."""
    judgement = _judgement(row)
    if judgement is None or judgement.score is None:
        raise ValueError("not a score")
    return judgement


def _judgement(row: Mapping[str, Any]) -> Judgement | None:
    """A line as a judgement; None where it is none."""
    kinds: dict[str, Any] = {"str": str, "int": int, "float": int | float, "float | None": int | float | None}
    known = {field.name: row[field.name] for field in fields(Judgement) if field.name in row}
    right = all(isinstance(known.get(f.name, f.default), kinds[str(f.type)]) for f in fields(Judgement))
    score = known.get("score")
    return Judgement(**known) if right and "score" in known and (score is None or 0 <= score <= 1) else None


def texts_of(source: str, completion: str, references: Sequence[str], sees: Sequence[Seen]) -> dict[Seen, str]:
    """The texts that a criterion is shown; several references stand below each other."""
    every: dict[Seen, Any] = {"source": source, "completion": completion, "reference": "\n\n".join(references)}
    return {seen: every[seen] for seen in sees}
